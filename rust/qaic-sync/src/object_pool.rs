//! Objects that any number of threads reuse.

use crate::slot::Slot;

/// Keeps unused objects, each in its own slot that one atomic exchange empties or fills. No thread waits for another,
/// and a thread that finds no object creates one.
///
/// ```
/// let pool = qaic_sync::ObjectPool::new(1);
/// pool.give_back(Box::new(7));
/// assert_eq!((pool.take(), pool.take()), (Some(Box::new(7)), None));
/// ```
pub struct ObjectPool<T> {
    unused: Box<[Slot<T>]>,
}

impl<T> ObjectPool<T> {
    /// Creates an empty pool for at most `capacity` objects.
    pub fn new(capacity: usize) -> Self {
        Self { unused: (0..capacity).map(|_| Slot::empty()).collect() }
    }

    /// Takes an unused object, if there is one that no other thread is taking or returning.
    pub fn take(&self) -> Option<Box<T>> {
        self.unused.iter().find_map(|slot| slot.exchange_shared(None))
    }

    /// Returns an object to the pool, or drops one if the pool is full.
    pub fn give_back(&self, object: Box<T>) {
        let mut left = Some(object);
        for slot in &self.unused {
            // The previous object of the slot goes to the next slot.
            left = slot.exchange_shared(left);
            if left.is_none() {
                return;
            }
        }
    }
}

crate::debug_fields!(ObjectPool<T>, |pool| capacity: pool.unused.len());

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn pool_given_more_than_its_capacity_drops_the_rest() {
        let pool = ObjectPool::new(2);
        assert_eq!(pool.take(), None);
        let objects: Vec<_> = (0..4).map(Arc::new).collect();
        for object in &objects {
            pool.give_back(Box::new(Arc::clone(object)));
        }
        assert_eq!(objects.iter().map(Arc::strong_count).sum::<usize>(), 4 + 2);
        let taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 2);
        drop(taken);
        pool.give_back(Box::new(Arc::clone(&objects[0])));
        drop(pool);
        assert!(objects.iter().all(|object| Arc::strong_count(object) == 1));
    }

    #[test]
    fn pool_used_by_one_thread_gives_the_same_object_again() {
        let pool = ObjectPool::new(3);
        pool.give_back(Box::new(1));
        let first = pool.take().unwrap();
        let address: *const i32 = &raw const *first;
        pool.give_back(first);
        assert!(std::ptr::eq(&raw const *pool.take().unwrap(), address));
    }

    #[test]
    fn pool_shared_by_threads_gives_no_object_to_two() {
        let pool = ObjectPool::new(3);
        (0..3_u32).for_each(|_| pool.give_back(Box::new(0)));
        let rounds = if cfg!(miri) { 20 } else { 5_000 };
        let made: u32 = thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u32)
                .map(|mark| {
                    let pool = &pool;
                    scope.spawn(move || {
                        let mut made = 0;
                        for _ in 0..rounds {
                            let mut object = pool.take().unwrap_or_else(|| {
                                made += 1;
                                Box::new(0)
                            });
                            *object = mark;
                            thread::yield_now();
                            assert_eq!(*object, mark);
                            pool.give_back(object);
                        }
                        made
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(made <= 4 * rounds);
        assert!((1..=3).contains(&std::iter::from_fn(|| pool.take()).count()));
    }
}
