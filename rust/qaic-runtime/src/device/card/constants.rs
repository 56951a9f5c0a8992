//! Constants of a program in a card's memory: loaded once per image and card.

use std::sync::Arc;

use qaic_qpc::{ConstantsDesc, DESCRIPTOR_BYTES, names};

use super::connection::Connection;
use super::session::CardSession;
use crate::error::{CardError, RuntimeError};
use crate::image::Image;
use crate::process::CancellationToken;

/// Loaded constants; unloaded with the last program that uses them.
#[derive(Debug)]
pub(super) struct Constants {
    pub(super) id: u32,
    session: Arc<CardSession>,
    generation: u64,
    // Keeps the address, by which other programs find these constants.
    _image: Arc<Image>,
}

impl Constants {
    /// Returns the constants of an image on a card, and loads them if needed; `None` for a program without constants.
    ///
    /// Blocking: copies the constants to the card. Other users of the same constants wait for the copy.
    pub(super) fn of(
        card: &Connection,
        session: &Arc<CardSession>,
        generation: u64,
        image: &Arc<Image>,
        token: &CancellationToken,
    ) -> Result<Option<Arc<Self>>, RuntimeError> {
        let parts = Parts::of(image)?;
        if parts.desc.static_constants_size == 0 && parts.desc.dynamic_constants_size == 0 {
            return Ok(None);
        }
        parts.check()?;
        let slot = card.constants(image);
        let mut loaded = slot.lock();
        let usable = |constants: &Arc<Self>| {
            constants.generation == generation && Arc::ptr_eq(&constants.session, session)
        };
        if let Some(constants) = loaded.upgrade().filter(usable) {
            return Ok(Some(constants));
        }
        let constants = Arc::new(Self::load(session, generation, image, &parts, token)?);
        *loaded = Arc::downgrade(&constants);
        Ok(Some(constants))
    }

    fn load(
        session: &Arc<CardSession>,
        generation: u64,
        image: &Arc<Image>,
        parts: &Parts<'_>,
        token: &CancellationToken,
    ) -> Result<Self, RuntimeError> {
        let id = session.load_constants(parts.descriptor, token)?;
        let payload = [(0, parts.fixed), (parts.desc.static_constants_size, parts.dynamic)];
        for (offset, data) in payload {
            if data.is_empty() {
                continue;
            }
            match session.load_constants_payload(id, offset, data, token) {
                Ok(()) => {}
                // The firmware has freed the constants.
                Err(error) if error.firmware_status().is_some() => return Err(error),
                Err(error) => {
                    if session.state.check(generation).is_ok() {
                        let _ = session.unload_constants(id);
                    }
                    return Err(error);
                }
            }
        }
        Ok(Self { id, session: Arc::clone(session), generation, _image: Arc::clone(image) })
    }
}

impl Drop for Constants {
    fn drop(&mut self) {
        if self.session.fork_guard.is_current() && self.session.state.check(self.generation).is_ok() {
            self.session.log_failure("constants were not unloaded", self.session.unload_constants(self.id));
        }
    }
}

/// Contents of `constants.bin` and its descriptor, which match.
struct Parts<'a> {
    desc: ConstantsDesc,
    descriptor: &'a [u8],
    fixed: &'a [u8],
    dynamic: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(image: &'a Image) -> Result<Self, RuntimeError> {
        let descriptor = image.segment(names::CONSTANTS_DESC).unwrap_or_default();
        let desc = ConstantsDesc::decode(descriptor)?;
        let whole = usize::try_from(DESCRIPTOR_BYTES).unwrap_or(usize::MAX).min(descriptor.len());
        let ranges = image.container.constants();
        let part = |range: Option<std::ops::Range<usize>>| {
            range.and_then(|range| image.bytes().get(range)).unwrap_or_default()
        };
        let fixed = part(ranges.as_ref().map(|ranges| ranges.static_part.clone()));
        let dynamic = part(ranges.map(|ranges| ranges.dynamic_part));
        Ok(Self { desc, descriptor: &descriptor[..whole], fixed, dynamic })
    }

    /// Checks that the loaded constants fit into the descriptor's sizes.
    fn check(&self) -> Result<(), RuntimeError> {
        for (what, bytes, room) in [
            ("static", self.fixed.len(), self.desc.static_constants_size),
            ("dynamic", self.dynamic.len(), self.desc.dynamic_constants_size),
        ] {
            if bytes as u64 > room {
                return Err(CardError::Transfers {
                    what: format!(
                        "it has {bytes} bytes of {what} constants, but the descriptor reserves {room}"
                    ),
                }
                .into());
            }
        }
        Ok(())
    }
}
