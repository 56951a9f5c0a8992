//! Which handles carry the inferences of an id.
//!
//! Callers choose ids freely and may use one for several inferences at a time; the oldest is found first. Room for every
//! handle is made at the start, so that nothing is allocated later.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// Handles by id, in order of submission.
#[derive(Debug)]
pub(super) struct Ids {
    first: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    // By handle: the next one with the same id.
    next: Box<[u32]>,
}

impl Ids {
    pub(super) fn new(handles: usize) -> Self {
        Self {
            // Twice the room, because removals leave marks that an insertion must be able to clear in place.
            first: HashMap::with_capacity_and_hasher(2 * handles, BuildHasherDefault::default()),
            next: vec![NONE; handles].into(),
        }
    }

    /// The oldest handle of `id`.
    pub(super) fn first(&self, id: u64) -> Option<u32> {
        self.first.get(&id).copied()
    }

    /// Adds a handle that is not in the table.
    pub(super) fn insert(&mut self, id: u64, handle: u32) {
        self.set_next(handle, NONE);
        let mut last = *self.first.entry(id).or_insert(handle);
        while last != handle {
            match self.next_of(last) {
                NONE => self.set_next(last, handle),
                next => last = next,
            }
            if self.next_of(last) == handle {
                return;
            }
        }
    }

    /// Removes a handle; a no-op when it is not there.
    pub(super) fn remove(&mut self, id: u64, handle: u32) {
        let Some(&first) = self.first.get(&id) else { return };
        let after = self.next_of(handle);
        if first == handle {
            if after == NONE {
                self.first.remove(&id);
            } else {
                self.first.insert(id, after);
            }
            return;
        }
        let mut before = first;
        while before != NONE {
            let next = self.next_of(before);
            if next == handle {
                return self.set_next(before, after);
            }
            before = next;
        }
    }

    fn next_of(&self, handle: u32) -> u32 {
        self.next.get(handle as usize).copied().unwrap_or(NONE)
    }

    fn set_next(&mut self, handle: u32, next: u32) {
        if let Some(slot) = self.next.get_mut(handle as usize) {
            *slot = next;
        }
    }
}

/// Spreads ids, which are usually small and consecutive, over the table. Whoever chooses bad ones slows himself only.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The golden ratio: neighbours end far apart, and the high bits, which the table uses, depend on all others.
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_list(steps in prop::collection::vec((0_u32..8, 0_u64..3), 0..200)) {
            let mut ids = Ids::new(8);
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (handle, id) in steps {
                if let Some(position) = model.iter().position(|entry| entry.1 == handle) {
                    let (id, _) = model.remove(position);
                    ids.remove(id, handle);
                } else {
                    model.push((id, handle));
                    ids.insert(id, handle);
                }
                for id in 0..3 {
                    let oldest = model.iter().find(|entry| entry.0 == id).map(|entry| entry.1);
                    prop_assert_eq!(ids.first(id), oldest);
                }
            }
        }
    }

    #[test]
    fn never_allocates_after_the_start() {
        let mut ids = Ids::new(16);
        let room = ids.first.capacity();
        for id in 0..100_000_u64 {
            ids.insert(id, u32::try_from(id % 16).unwrap());
            if id >= 15 {
                ids.remove(id - 15, u32::try_from((id - 15) % 16).unwrap());
            }
        }
        assert_eq!(ids.first.capacity(), room);
    }
}
