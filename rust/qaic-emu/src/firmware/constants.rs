//! Constants on a card: announced with their sizes, then loaded in parts.

use std::sync::{Arc, Mutex, PoisonError};

use qaic_kmd::protocol::NncStatus;

/// Maximum number of unloaded bytes between parts, in addition to the number of loaded bytes. A card has the
/// announced memory, but the emulator must allocate it on the host.
const MAX_GAP_BYTES: u64 = 16 << 20;

/// Parts of constants, or the complete constants.
#[derive(Debug)]
pub(super) struct Constants {
    static_bytes: u64,
    dynamic_bytes: u64,
    parts: Mutex<ConstantsState>,
}

#[derive(Debug)]
enum ConstantsState {
    Loaded(Vec<(u64, Arc<[u8]>)>),
    Whole(Arc<[u8]>),
}

impl Constants {
    pub(super) fn new(static_bytes: u64, dynamic_bytes: u64) -> Self {
        Self { static_bytes, dynamic_bytes, parts: Mutex::new(ConstantsState::Loaded(Vec::new())) }
    }

    /// Adds a part, which must be within the static or the dynamic constants, and must not overlap another part.
    pub(super) fn load(&self, offset: u64, data: &Arc<[u8]>) -> Result<(), NncStatus> {
        let end = offset.checked_add(data.len() as u64).ok_or(NncStatus::PARAMETER)?;
        let limit = if offset < self.static_bytes {
            self.static_bytes
        } else {
            self.static_bytes.saturating_add(self.dynamic_bytes)
        };
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // Constants cannot change once an activation uses them.
        let ConstantsState::Loaded(loaded) = &mut *parts else { return Err(NncStatus::PARAMETER) };
        let is_free = |(begin, part): &(u64, Arc<[u8]>)| *begin >= end || begin + part.len() as u64 <= offset;
        if data.is_empty() || end > limit || !loaded.iter().all(is_free) {
            return Err(NncStatus::PARAMETER);
        }
        loaded.push((offset, Arc::clone(data)));
        Ok(())
    }

    /// Returns the complete constants up to the last loaded byte, or an NNC status if they are incomplete.
    pub(super) fn whole(&self) -> Result<Arc<[u8]>, NncStatus> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = match &mut *parts {
            ConstantsState::Whole(whole) => return Ok(Arc::clone(whole)),
            ConstantsState::Loaded(loaded) => {
                let is_in =
                    |static_part| loaded.iter().any(|part| (part.0 < self.static_bytes) == static_part);
                if self.static_bytes > 0 && !is_in(true) {
                    return Err(NncStatus::NOT_INITIALIZED);
                }
                if self.dynamic_bytes > 0 && !is_in(false) {
                    return Err(NncStatus::DYNAMIC_CONSTANTS);
                }
                assemble(loaded)?
            }
        };
        *parts = ConstantsState::Whole(Arc::clone(&whole));
        Ok(whole)
    }
}

fn assemble(parts: &mut Vec<(u64, Arc<[u8]>)>) -> Result<Arc<[u8]>, NncStatus> {
    parts.sort_by_key(|part| part.0);
    // The usual case, without a copy.
    if let [(0, whole)] = &parts[..] {
        return Ok(Arc::clone(whole));
    }
    let loaded: u64 = parts.iter().map(|(_, part)| part.len() as u64).sum();
    let end = parts.last().map_or(0, |(begin, part)| begin + part.len() as u64);
    if end - loaded > loaded.saturating_add(MAX_GAP_BYTES) {
        return Err(NncStatus::MEMORY_EXHAUSTED);
    }
    let mut bytes = Vec::new();
    let size = usize::try_from(end).map_err(|_| NncStatus::MEMORY_EXHAUSTED)?;
    bytes.try_reserve_exact(size).map_err(|_| NncStatus::MEMORY_EXHAUSTED)?;
    for (begin, part) in parts.drain(..) {
        bytes.resize(usize::try_from(begin).map_err(|_| NncStatus::MEMORY_EXHAUSTED)?, 0);
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(bytes: &[u8]) -> Arc<[u8]> {
        bytes.into()
    }

    #[test]
    fn part_outside_the_descriptor_is_refused() {
        let constants = Constants::new(4, 3);
        assert_eq!(constants.load(2, &part(&[1, 2, 3])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.load(4, &part(&[1, 2, 3, 4])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.load(7, &part(&[1])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.load(0, &part(&[])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.load(u64::MAX, &part(&[1])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.whole(), Err(NncStatus::NOT_INITIALIZED));
        assert_eq!(constants.load(0, &part(&[1, 2])), Ok(()));
        assert_eq!(constants.load(1, &part(&[1])), Err(NncStatus::PARAMETER));
        assert_eq!(constants.whole(), Err(NncStatus::DYNAMIC_CONSTANTS));
        assert_eq!(constants.load(4, &part(&[3, 4, 5])), Ok(()));
        assert_eq!(constants.whole(), Ok(part(&[1, 2, 0, 0, 3, 4, 5])));
        assert_eq!(constants.load(2, &part(&[1])), Err(NncStatus::PARAMETER));
    }

    #[test]
    fn constants_of_one_part_are_not_copied() {
        let constants = Constants::new(4, 0);
        let data = part(&[1, 2, 3, 4]);
        assert_eq!(constants.load(0, &data), Ok(()));
        assert!(Arc::ptr_eq(&constants.whole().unwrap(), &data));
    }

    #[test]
    fn announcement_of_any_size_takes_no_memory() {
        let constants = Constants::new(1 << 50, 8);
        assert_eq!(constants.load(0, &part(&[1])), Ok(()));
        assert_eq!(constants.load(1 << 50, &part(&[2])), Ok(()));
        assert_eq!(constants.whole(), Err(NncStatus::MEMORY_EXHAUSTED));
    }

    proptest! {
        /// Parts in any order are assembled at their offsets, with zeros between them.
        #[test]
        fn constants_of_several_parts_are_assembled(
            pieces in prop::collection::vec((0..9_usize, prop::collection::vec(any::<u8>(), 1..20)), 1..8),
            order in any::<prop::sample::Index>(),
        ) {
            let mut expected = Vec::new();
            let mut parts = Vec::new();
            for (gap, bytes) in &pieces {
                expected.resize(expected.len() + gap, 0);
                parts.push((expected.len() as u64, part(bytes)));
                expected.extend_from_slice(bytes);
            }
            let begin = order.index(parts.len());
            parts.rotate_left(begin);
            let constants = Constants::new(expected.len() as u64, 0);
            for (offset, bytes) in &parts {
                prop_assert_eq!(constants.load(*offset, bytes), Ok(()));
            }
            prop_assert_eq!(&*constants.whole().unwrap(), &expected[..]);
        }
    }
}
