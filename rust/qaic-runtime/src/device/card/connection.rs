//! A card of this process: its file, which is opened when first needed, and the data that all its programs share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use qaic_kmd::protocol::{COMMAND_PROTOCOL_MAJOR, CardStatus, METADATA_VERSION};
use qaic_kmd::{DriverInterface, Errno, Kmd, MemoryErrors, NodeInfo, Telemetry};

use super::constants::Constants;
use super::device_state::DeviceState;
use super::errno::{self, Opening, uninterrupted};
use super::event_pump::EventPump;
use super::facts::{CardFacts, FirmwareFacts};
use super::session::CardSession;
use crate::error::{CardError, DeviceError, ErrorDetail, RuntimeError};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::sync::Mutex;

type Slot = Arc<Mutex<Weak<Constants>>>;

/// A card.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u32,
    pub(super) fork_guard: ForkGuard,
    kmd: Arc<dyn Kmd>,
    // Node as it was discovered.
    listed: NodeInfo,
    pub(super) state: Arc<DeviceState>,
    open: Mutex<OpenedNode>,
    event_pump: OnceLock<Arc<EventPump>>,
    // Loaded constants by the address of their image, which the slot keeps alive.
    constants: Mutex<HashMap<usize, Slot>>,
}

#[derive(Debug)]
struct OpenedNode {
    node: NodeInfo,
    session: Option<Arc<CardSession>>,
}

impl Connection {
    pub(super) fn new(kmd: Arc<dyn Kmd>, node: NodeInfo) -> Arc<Self> {
        Arc::new(Self {
            id: node.qid,
            fork_guard: ForkGuard::new(),
            kmd,
            state: Arc::new(DeviceState::new(node.qid)),
            listed: node.clone(),
            open: Mutex::new(OpenedNode { node, session: None }),
            event_pump: OnceLock::new(),
            constants: Mutex::default(),
        })
    }

    /// Last known node of the card.
    pub(super) fn node(&self) -> NodeInfo {
        self.open.lock().node.clone()
    }

    /// Processes all pending events of the card.
    pub(super) fn drain_events(&self) {
        if let Some(event_pump) = self.event_pump.get() {
            event_pump.drain();
        }
    }

    /// Starts the thread that processes the card's events.
    pub(super) fn start_event_pump(&self) {
        if let Some(event_pump) = self.event_pump.get() {
            event_pump.start();
        }
    }

    /// Opens the card if needed and queries its status; a reply means "Ready". A file that a reset has invalidated is
    /// replaced once.
    ///
    /// Blocking: at most a minute, while the firmware answers.
    pub(super) fn ready(&self) -> Result<(Arc<CardSession>, CardStatus, u64), RuntimeError> {
        self.fork_guard.check()?;
        self.drain_events();
        let mut may_reopen = true;
        loop {
            let (session, is_new) = self.session()?;
            match session.status() {
                Ok((status, features)) => {
                    self.state.mark_ready();
                    return Ok((session, status, features.map_or(0, |features| features.status_flags)));
                }
                Err(error) => match error.into_detail() {
                    ErrorDetail::Device(DeviceError::Lost { .. }) if may_reopen && !is_new => {
                        may_reopen = false;
                        self.state.request_reopen();
                    }
                    ErrorDetail::Device(DeviceError::Lost { reason, .. }) => {
                        return Err(self.unavailable(reason));
                    }
                    other => return Err(other.into()),
                },
            }
        }
    }

    /// Returns the session as [`Self::ready`] does, but refuses incompatible firmware versions.
    pub(super) fn compatible_session(&self) -> Result<(Arc<CardSession>, CardStatus), RuntimeError> {
        let (session, status, _) = self.ready()?;
        let other = |what, (major, minor): (u16, u16), expected| {
            Err(RuntimeError::from(CardError::FirmwareVersion {
                id: self.id,
                what,
                found: format!("{major}.{minor}"),
                expected,
            }))
        };
        if status.metadata_version() != METADATA_VERSION {
            return other("metadata", status.metadata_version(), "1.0");
        }
        if status.nnc_major != COMMAND_PROTOCOL_MAJOR {
            return other("command protocol", status.command_protocol(), "17");
        }
        Ok((session, status))
    }

    /// Returns the open file, and whether this call opened it.
    fn session(&self) -> Result<(Arc<CardSession>, bool), RuntimeError> {
        let mut open = self.open.lock();
        if let Some(session) = &open.session {
            if !self.state.needs_reopen() {
                return Ok((Arc::clone(session), false));
            }
            // Programs that still use the session keep it open.
            open.session = None;
            self.find_node(&mut open)?;
        } else if open.node.path.is_none() {
            self.find_node(&mut open)?;
        }
        let Some(path) = open.node.path.clone() else {
            let reason = self.kmd.explain(&open.node, Errno::NOENT);
            let general = "it has no device node; its firmware may still be booting";
            return Err(self.unavailable(reason.unwrap_or_else(|| general.to_owned())));
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Created before the file is opened, so that no event is missed.
        let create = || {
            let (events, clock) = (self.kmd.events(), self.kmd.clock());
            Arc::new(EventPump::new(events, clock, &self.state, name.clone()))
        };
        self.event_pump.get_or_init(create).rename(&name);
        let file = uninterrupted(|| self.kmd.open(&open.node))
            .map_err(|errno| self.not_opened(&open.node, &path, errno))?;
        match uninterrupted(|| file.driver_interface()) {
            Ok(DriverInterface::Mainline) => {}
            Ok(DriverInterface::Other { version: (major, minor) }) => {
                return Err(self.unavailable(format!(
                    "the driver `qaic` behind {} has interface {major}.{minor} instead of the unnumbered interface of the \
                     mainline kernel; the vendor's kit had interface 1.0 before Linux 6.4",
                    path.display()
                )));
            }
            Ok(DriverInterface::OtherDriver(name)) => return Err(self.of_other_driver(&path, &name)),
            Err(errno) => return Err(self.not_opened(&open.node, &path, errno)),
        }
        let session = Arc::new(CardSession::new(self.id, &self.state, self.kmd.clock(), file));
        self.state.mark_opened();
        open.session = Some(Arc::clone(&session));
        Ok((session, true))
    }

    /// Finds the card's node, whose name changes when the card returns.
    fn find_node(&self, open: &mut OpenedNode) -> Result<(), RuntimeError> {
        let nodes = self.kmd.enumerate().map_err(|errno| errno::failed(self.id, "enumerate", errno, 0))?;
        let is_it = |node: &&NodeInfo| node.qid == self.id && node.address == open.node.address;
        if let Some(node) = nodes.iter().find(is_it) {
            open.node = node.clone();
        }
        Ok(())
    }

    /// Resets the card for all its users. Events and errors of calls report when the reset has happened.
    pub(super) fn reset(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        self.kmd.reset(&self.node()).map_err(|errno| errno::not_reset(self.id, errno))
    }

    fn not_opened(&self, node: &NodeInfo, path: &Path, errno: Errno) -> RuntimeError {
        let reason = |general: String| self.kmd.explain(node, errno).unwrap_or(general);
        match Opening::of(errno) {
            Opening::NoPermission => CardError::Permission {
                id: self.id,
                path: path.to_owned(),
                fix: reason(
                    "device nodes of cards belong to a group, usually render or qaic: find its name with `stat`, \
                     then run `sudo usermod -aG GROUP USER` and log in again"
                        .to_owned(),
                ),
            }.into(),
            Opening::NoNode => self.unavailable(reason(format!("{} does not exist", path.display()))),
            Opening::Offline => self.unavailable(reason(format!(
                "{} is offline: the card is booting or in reset",
                path.display()
            ))),
            Opening::OtherDriver => {
                self.unavailable(reason(format!("{} is not a node of the driver `qaic`", path.display())))
            }
            Opening::Other => match self.kmd.explain(node, errno) {
                Some(reason) => self.unavailable(reason),
                None => errno::failed(self.id, "open", errno, 0),
            },
        }
    }

    fn of_other_driver(&self, path: &Path, name: &str) -> RuntimeError {
        self.unavailable(format!("{} belongs to the driver `{name}`; `qaic` is expected", path.display()))
    }

    fn unavailable(&self, reason: String) -> RuntimeError {
        DeviceError::Unavailable { id: self.id, reason }.into()
    }

    /// Returns the facts that the card reports. Accepts all firmware versions, because tools show cards that programs
    /// cannot use.
    pub(super) fn facts(&self) -> CardFacts {
        if let Err(forked) = self.fork_guard.check() {
            // The other facts are behind locks that a thread of the parent may hold.
            return CardFacts {
                node: self.listed.clone(),
                telemetry: Telemetry::default(),
                memory_errors: MemoryErrors::default(),
                firmware: Err(forked.into()),
            };
        }
        let firmware = self.ready().map(|(session, status, features)| {
            let mut status = status;
            // These are newer than the resources in the status, which are the fallback.
            if let Ok(resources) = session.resources() {
                status.resources = resources;
            }
            if let Ok(performance) = session.performance() {
                status.performance = performance;
            }
            FirmwareFacts { status, features }
        });
        let node = self.node();
        let (telemetry, memory_errors) = (self.kmd.telemetry(&node), self.kmd.memory_errors(&node));
        CardFacts { node, telemetry, memory_errors, firmware }
    }

    /// Returns the slot through which programs share the constants of an image.
    pub(super) fn constants(&self, image: &Arc<Image>) -> Slot {
        let mut constants = self.constants.lock();
        // Removes constants that no program uses.
        constants.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        Arc::clone(constants.entry(Arc::as_ptr(image).addr()).or_default())
    }
}
