//! Counts of what many owners do, each of which counts its own.
//!
//! There is one thread at a time that writes an owner's count, so to count costs no exchange, and owners do not pass a cache
//! line among processors.

use std::fmt;
use std::sync::Arc;

use crate::atomic::{AtomicU64, Mutex, Ordering};

/// The counts of all owners, and of those that are gone.
///
/// ```
/// use std::sync::Arc;
/// use qaic_sync::{OwnerCount, OwnerCounts};
///
/// let counts = Arc::<OwnerCounts>::default();
/// let mut owner = OwnerCount::of(&counts);
/// owner.add_one();
/// drop(owner);
/// assert_eq!(counts.total(), 1);
/// ```
#[derive(Default)]
pub struct OwnerCounts(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    gone: u64,
    live: Vec<Arc<AtomicU64>>,
}

impl OwnerCounts {
    /// Returns the current total. An increment that an owner is making may be missing.
    pub fn total(&self) -> u64 {
        let counts = self.0.lock();
        counts.live.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() + counts.gone
    }
}

impl fmt::Debug for OwnerCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("OwnerCounts").field(&self.total()).finish()
    }
}

/// The count of one owner.
#[derive(Debug)]
pub struct OwnerCount {
    own: Arc<AtomicU64>,
    counts: Arc<OwnerCounts>,
}

impl OwnerCount {
    /// A new owner's, among those of others.
    pub fn of(counts: &Arc<OwnerCounts>) -> Self {
        let own = Arc::default();
        counts.0.lock().live.push(Arc::clone(&own));
        Self { own, counts: Arc::clone(counts) }
    }

    /// Counts one more.
    pub fn add_one(&mut self) {
        // Relaxed, and no exchange: there is one writer at a time, which came after the last.
        self.own.store(self.own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Drop for OwnerCount {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        counts.live.retain(|count| !Arc::ptr_eq(count, &self.own));
        counts.gone += self.own.load(Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn total_keeps_what_owners_counted_that_are_gone() {
        let counts = Arc::new(OwnerCounts::default());
        let (mut first, mut second) = (OwnerCount::of(&counts), OwnerCount::of(&counts));
        first.add_one();
        second.add_one();
        second.add_one();
        assert_eq!(counts.total(), 3);
        drop(first);
        assert_eq!((counts.total(), counts.0.lock().live.len()), (3, 1));
        second.add_one();
        assert_eq!(counts.total(), 4);
    }
}
