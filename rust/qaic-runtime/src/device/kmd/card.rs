//! One card of this process: its file, opened when it is first needed, and what all its programs share.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use qaic_kmd::kmd::{Kmd, MemoryErrors, NodeInfo, Telemetry};
use qaic_kmd::nnc::CardStatus;
use qaic_kmd::{Errno, calls, nnc};

use super::constants::Constants;
use super::facts::{CardFacts, FirmwareFacts};
use super::health::Health;
use super::line::Line;
use super::monitor::Monitor;
use super::status::{self, Opening, uninterrupted};
use crate::error::RuntimeError;
use crate::fork::Origin;
use crate::image::Image;
use crate::sync::Mutex;

/// Name of the driver; nodes of others share the class (device-kmd §1.1).
const DRIVER: &[u8] = b"qaic";

type Slot = Arc<Mutex<Weak<Constants>>>;

/// A card.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) id: u32,
    pub(super) origin: Origin,
    kmd: Arc<dyn Kmd>,
    // As it was listed.
    listed: NodeInfo,
    pub(super) health: Arc<Health>,
    state: Mutex<State>,
    monitor: OnceLock<Arc<Monitor>>,
    // Constants that are loaded, by the address of their image, which they keep alive.
    constants: Mutex<HashMap<usize, Slot>>,
}

#[derive(Debug)]
struct State {
    node: NodeInfo,
    line: Option<Arc<Line>>,
}

impl Card {
    pub(super) fn new(kmd: Arc<dyn Kmd>, node: NodeInfo) -> Arc<Self> {
        Arc::new(Self {
            id: node.qid,
            origin: Origin::here(),
            kmd,
            health: Arc::new(Health::new(node.qid)),
            listed: node.clone(),
            state: Mutex::new(State { node, line: None }),
            monitor: OnceLock::new(),
            constants: Mutex::default(),
        })
    }

    /// The node as it was last seen.
    pub(super) fn node(&self) -> NodeInfo {
        self.state.lock().node.clone()
    }

    /// Whether it runs programs compiled for a host.
    pub(super) fn runs_host_programs(&self) -> bool {
        self.kmd.runs_host_programs()
    }

    /// Takes note of everything that has happened to it. Blocking: 50 ms at most, and hardly ever.
    pub(super) fn settle(&self) {
        if let Some(monitor) = self.monitor.get() {
            monitor.settle();
        }
    }

    /// Listens to its events on a thread, from now on.
    pub(super) fn watch(&self) {
        if let Some(monitor) = self.monitor.get() {
            monitor.start();
        }
    }

    /// Opens the card where that is needed and asks for its status, which is what "Ready" means (device-kmd §1.7). A file
    /// that a reset has left dead is replaced once.
    ///
    /// Blocking: as long as the firmware takes, a minute at most.
    pub(super) fn ready(&self) -> Result<(Arc<Line>, CardStatus, u64), RuntimeError> {
        self.origin.check()?;
        self.settle();
        let mut may_reopen = true;
        loop {
            let (line, is_new) = self.line()?;
            match line.status() {
                Ok((status, features)) => {
                    self.health.answered();
                    return Ok((line, status, features.map_or(0, |features| features.flags)));
                }
                Err(RuntimeError::DeviceLost { .. }) if may_reopen && !is_new => {
                    may_reopen = false;
                    self.health.ask_for_reopening();
                }
                Err(RuntimeError::DeviceLost { reason, .. }) => return Err(self.unavailable(reason)),
                Err(error) => return Err(error),
            }
        }
    }

    /// [`Self::ready`] for programs: also refuses firmware of other versions.
    pub(super) fn admit(&self) -> Result<(Arc<Line>, CardStatus), RuntimeError> {
        let (line, status, _) = self.ready()?;
        let other = |what, (major, minor): (u16, u16), expected| {
            Err(RuntimeError::FirmwareVersion {
                id: self.id,
                what,
                found: format!("{major}.{minor}"),
                expected,
            })
        };
        if status.metadata_version != nnc::METADATA_VERSION {
            return other("metadata", status.metadata_version, "1.0");
        }
        if status.command_protocol.0 != nnc::COMMAND_PROTOCOL_MAJOR {
            return other("command protocol", status.command_protocol, "17");
        }
        Ok((line, status))
    }

    /// The open file, and whether it was opened just now.
    fn line(&self) -> Result<(Arc<Line>, bool), RuntimeError> {
        let mut state = self.state.lock();
        if let Some(line) = &state.line {
            if !self.health.needs_reopening() {
                return Ok((Arc::clone(line), false));
            }
            // Programs that still use it keep it open.
            state.line = None;
            self.find_node(&mut state)?;
        } else if state.node.path.is_none() {
            self.find_node(&mut state)?;
        }
        let Some(path) = state.node.path.clone() else {
            let reason = self.kmd.explain(&state.node, Errno::NOENT);
            let general = "it has no node; its firmware may still be booting";
            return Err(self.unavailable(reason.unwrap_or_else(|| general.to_owned())));
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Before the file, so that nothing is missed of what happens to it.
        self.monitor.get_or_init(|| Monitor::new(&*self.kmd, &self.health, name.clone())).renamed(&name);
        let file = uninterrupted(|| self.kmd.open(&state.node))
            .map_err(|errno| self.not_opened(&state.node, &path, errno))?;
        match uninterrupted(|| calls::driver_name(&*file)) {
            Ok(name) if name == DRIVER => {}
            Ok(name) => return Err(self.of_other_driver(&path, &String::from_utf8_lossy(&name))),
            Err(errno) => return Err(self.not_opened(&state.node, &path, errno)),
        }
        let line = Arc::new(Line::new(self.id, &self.health, self.kmd.clock(), file));
        self.health.opened();
        state.line = Some(Arc::clone(&line));
        Ok((line, true))
    }

    /// Nodes get other names when they come back.
    fn find_node(&self, state: &mut State) -> Result<(), RuntimeError> {
        let nodes = self.kmd.enumerate().map_err(|errno| status::failed(self.id, "enumerate", errno, 0))?;
        let is_it = |node: &&NodeInfo| node.qid == self.id && node.address == state.node.address;
        if let Some(node) = nodes.iter().find(is_it) {
            state.node = node.clone();
        }
        Ok(())
    }

    /// Resets it, with everything that is on it; events and errors of calls tell when that has come.
    pub(super) fn reset(&self) -> Result<(), RuntimeError> {
        self.origin.check()?;
        self.kmd.reset(&self.node()).map_err(|errno| status::not_reset(self.id, errno))
    }

    fn not_opened(&self, node: &NodeInfo, path: &Path, errno: Errno) -> RuntimeError {
        let reason = |general: String| self.kmd.explain(node, errno).unwrap_or(general);
        match Opening::of(errno) {
            Opening::NoPermission => RuntimeError::DevicePermission {
                id: self.id,
                path: path.to_owned(),
                fix: reason(
                    "nodes of cards belong to a group, most often render or qaic; `stat` on the node names it, and \
                     `sudo usermod -aG GROUP USER` followed by a new login joins it"
                        .to_owned(),
                ),
            },
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
                None => status::failed(self.id, "open", errno, 0),
            },
        }
    }

    fn of_other_driver(&self, path: &Path, name: &str) -> RuntimeError {
        self.unavailable(format!("{} is of the driver `{name}`, and `qaic` is needed", path.display()))
    }

    fn unavailable(&self, reason: String) -> RuntimeError {
        RuntimeError::DeviceUnavailable { id: self.id, reason }
    }

    /// What it says of itself. Not refused for its versions: tools show cards that programs cannot use.
    pub(super) fn facts(&self) -> CardFacts {
        if let Err(forked) = self.origin.check() {
            // Whatever else is known of it is behind locks that somebody may have held who does not exist here.
            return CardFacts {
                node: self.listed.clone(),
                telemetry: Telemetry::default(),
                memory_errors: MemoryErrors::default(),
                firmware: Err(forked),
            };
        }
        let firmware = self.ready().map(|(line, status, features)| {
            let mut status = status;
            // Fresher than those of the status; which serve where these fail.
            if let Ok(resources) = line.resources() {
                status.resources = resources;
            }
            if let Ok(performance) = line.performance() {
                status.performance = performance;
            }
            FirmwareFacts { status, features }
        });
        let node = self.node();
        let (telemetry, memory_errors) = (self.kmd.telemetry(&node), self.kmd.memory_errors(&node));
        CardFacts { node, telemetry, memory_errors, firmware }
    }

    /// The place where the constants of an image are shared.
    pub(super) fn constants(&self, image: &Arc<Image>) -> Slot {
        let mut constants = self.constants.lock();
        // What nobody has any more need not be remembered.
        constants.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        Arc::clone(constants.entry(Arc::as_ptr(image).addr()).or_default())
    }
}
