//! Objects that are expensive to create and exist once while they are in use.

use std::sync::{Arc, Weak};

use crate::sync::Mutex;

/// Objects in use, by the memory address of their source. An object keeps its source alive, so no other source can
/// have this address meanwhile. An unused object is created again on demand.
#[derive(Debug)]
pub(super) struct Shared<K, T> {
    slots: Mutex<Vec<Slot<K, T>>>,
}

#[derive(Debug)]
struct Slot<K, T> {
    key: K,
    // Locked during the creation, so that no other thread creates the object a second time.
    thing: Arc<Mutex<Weak<T>>>,
}

impl<K, T> Default for Shared<K, T> {
    fn default() -> Self {
        Self { slots: Mutex::new(Vec::new()) }
    }
}

impl<K: PartialEq, T> Shared<K, T> {
    /// Returns the object of a key.
    ///
    /// Blocking: as long as creating the object takes, if it does not exist. Users of other objects do not wait.
    pub(super) fn get<E>(&self, key: K, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let slot = {
            let mut slots = self.slots.lock();
            // A thread that creates an object holds its slot too.
            slots.retain(|slot| Arc::strong_count(&slot.thing) > 1 || slot.thing.lock().strong_count() > 0);
            if let Some(slot) = slots.iter().find(|slot| slot.key == key) {
                Arc::clone(&slot.thing)
            } else {
                let thing = Arc::new(Mutex::new(Weak::new()));
                slots.push(Slot { key, thing: Arc::clone(&thing) });
                thing
            }
        };
        let mut known = slot.lock();
        if let Some(thing) = known.upgrade() {
            return Ok(thing);
        }
        let thing = Arc::new(make()?);
        *known = Arc::downgrade(&thing);
        Ok(thing)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn shared_value_in_use_is_made_once() {
        let shared = Shared::<u32, u32>::default();
        let made = AtomicU32::new(0);
        let get = |key| shared.get(key, || Ok::<_, ()>(made.fetch_add(1, Ordering::Relaxed))).unwrap();
        let (first, second, other) = (get(1), get(1), get(2));
        assert_eq!((*first, *second, *other), (0, 0, 1));
        drop(first);
        assert_eq!(*get(1), 0);
        drop(second);
        assert_eq!(*get(1), 2);
        assert_eq!(*other, 1);
        drop(other);
        assert_eq!(*get(3), 3);
        assert_eq!(shared.slots.lock().len(), 1);
    }

    #[test]
    fn shared_value_after_a_failure_is_made_again() {
        let shared = Shared::<u32, u32>::default();
        assert_eq!(shared.get(1, || Err("no")), Err("no"));
        assert_eq!(shared.get(1, || Ok::<_, ()>(7)), Ok(Arc::new(7)));
    }

    #[test]
    fn shared_value_among_threads_is_made_by_one() {
        const THREADS: usize = 4;
        let shared = Shared::<u32, u32>::default();
        let (made, begin, end) = (AtomicU32::new(0), Barrier::new(THREADS), Barrier::new(THREADS));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    begin.wait();
                    let thing = shared.get(1, || Ok::<_, ()>(made.fetch_add(1, Ordering::Relaxed))).unwrap();
                    // All threads keep their object until each has one.
                    end.wait();
                    assert_eq!(*thing, 0);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
