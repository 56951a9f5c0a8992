//! A value that one thread at a time uses.

use crate::slot::Slot;

/// Holds a value that any thread may use while no other does. A thread that finds the value in use is refused and
/// does not wait. Users of the value must therefore take turns by other means, or report that the value is in use.
///
/// ```
/// let cell = qaic_sync::ExclusiveCell::new(1);
/// let nested = cell.try_with(|value| (*value, cell.try_with(|value| *value)));
/// assert_eq!(nested, Some((1, None)));
/// ```
pub struct ExclusiveCell<T> {
    // Empty while a thread has the value.
    value: Slot<T>,
}

impl<T> ExclusiveCell<T> {
    /// Creates a cell whose value is unused.
    pub fn new(value: T) -> Self {
        Self { value: Slot::new(Box::new(value)) }
    }

    /// Calls `work` with the value; returns `None` if a thread uses the value. Never blocks. After a panic in `work`,
    /// the value keeps its last state.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut taken = Taken { cell: self, value: self.value.exchange_shared(None) };
        taken.value.as_mut().map(|value| work(value))
    }
}

/// A value that returns to its cell on drop.
struct Taken<'a, T> {
    cell: &'a ExclusiveCell<T>,
    value: Option<Box<T>>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            // The place is empty: this thread had the only value.
            drop(self.cell.value.exchange_shared(Some(value)));
        }
    }
}

crate::debug_fields!(ExclusiveCell<T>);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn cell_in_use_refuses_a_second_use() {
        let cell = ExclusiveCell::new(1);
        let nested = cell.try_with(|value| {
            *value += 1;
            cell.try_with(|value| *value += 10)
        });
        assert_eq!(nested, Some(None));
        assert_eq!(cell.try_with(|value| *value), Some(2));
    }

    #[test]
    fn cell_after_a_panic_has_the_value_as_it_was_left() {
        let cell = ExclusiveCell::new(vec![1]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cell.try_with(|value| {
                value.push(2);
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(cell.try_with(|value| value.clone()), Some(vec![1, 2]));
    }

    #[test]
    fn cell_shared_by_threads_is_used_by_one_at_a_time() {
        let (cell, uses) = (ExclusiveCell::new(0), AtomicU32::new(0));
        let (count, start) = (4, Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..count {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..if cfg!(miri) { 20 } else { 2_000 } {
                        let outcome = cell.try_with(|value: &mut u32| {
                            let before = *value;
                            thread::yield_now();
                            *value = before + 1;
                        });
                        if outcome.is_some() {
                            uses.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(cell.try_with(|value| *value), Some(uses.into_inner()));
    }
}
