//! Counts the operations of threads on locks and atomics, for the test that limits their number per inference.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{self as std_atomic, Ordering};

thread_local! {
    static LOCKS: Cell<u64> = const { Cell::new(0) };
    static UPDATES: Cell<u64> = const { Cell::new(0) };
    static LOADS: Cell<u64> = const { Cell::new(0) };
}

/// Number of operations of the calling thread since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Acquired locks.
    pub locks: u64,
    /// Atomic read-modify-writes, failed exchanges included.
    pub updates: u64,
    /// Atomic loads.
    pub loads: u64,
}

impl Operations {
    /// Returns the counts of the calling thread.
    pub(crate) fn here() -> Self {
        Self { locks: LOCKS.get(), updates: UPDATES.get(), loads: LOADS.get() }
    }

    /// Returns the counts of the calling thread during `work`.
    pub fn during(work: impl FnOnce()) -> Self {
        let before = Self::here();
        work();
        let after = Self::here();
        Self {
            locks: after.locks - before.locks,
            updates: after.updates - before.updates,
            loads: after.loads - before.loads,
        }
    }
}

pub(crate) fn lock() {
    LOCKS.set(LOCKS.get() + 1);
}

pub(crate) fn update() {
    UPDATES.set(UPDATES.get() + 1);
}

fn read() {
    LOADS.set(LOADS.get() + 1);
}

/// An atomic of the standard library whose read-modify-writes and loads are counted.
macro_rules! counted {
    ($name:ident, $value:ty, { $($method:ident),* }) => {
        #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`], counted.")]
        #[derive(Default)]
        pub struct $name(std_atomic::$name);

        #[allow(missing_docs)] // names and meanings as in the standard library
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(std_atomic::$name::new(value))
            }

            pub fn load(&self, ordering: Ordering) -> $value {
                read();
                self.0.load(ordering)
            }

            pub fn store(&self, value: $value, ordering: Ordering) {
                self.0.store(value, ordering);
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            pub fn compare_exchange(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                update();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub fn compare_exchange_weak(
                &self, current: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                update();
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            pub fn fetch_update(
                &self, set: Ordering, fetch: Ordering, mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(set, fetch, |value| change(value).inspect(|_| update()))
            }

            $(pub fn $method(&self, value: $value, ordering: Ordering) -> $value {
                update();
                self.0.$method(value, ordering)
            })*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

counted!(AtomicBool, bool, { swap, fetch_and, fetch_or });
counted!(AtomicU32, u32, { swap, fetch_add, fetch_sub, fetch_max, fetch_min, fetch_and, fetch_or });
counted!(AtomicU64, u64, { swap, fetch_add, fetch_sub, fetch_max, fetch_min, fetch_and, fetch_or });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Mutex;

    #[test]
    fn operations_of_this_thread_are_counted_each_once() {
        let (number, value) = (AtomicU32::new(0), Mutex::new(0));
        let before = Operations::here();
        let during = Operations::during(|| {
            number.fetch_add(1, Ordering::Relaxed);
            let _ = number.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            number.store(number.load(Ordering::Relaxed), Ordering::Relaxed);
            *value.lock() += 1;
            *value.lock() += 1;
        });
        assert_eq!(during, Operations { locks: 2, updates: 2, loads: 1 });
        let after = Operations::here();
        assert_eq!((after.locks - before.locks, after.updates - before.updates), (2, 2));
        assert_eq!(after.loads - before.loads, 1);
        // Earlier operations do not count.
        assert_eq!(Operations::during(|| {}), Operations::default());
        assert_ne!(Operations::here(), Operations::default());
    }

    #[test]
    fn operations_of_other_threads_are_not_counted() {
        let number = AtomicU64::new(0);
        let during = Operations::during(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| number.fetch_add(1, Ordering::Relaxed));
            });
        });
        assert_eq!((during.updates, number.into_inner()), (0, 1));
    }
}
