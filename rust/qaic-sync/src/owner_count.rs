//! Counters with many owners, each of which has its own count.
//!
//! Only one thread at a time writes an owner's count. Counting therefore needs no exchange, and owners do not share a
//! cache line.

use std::sync::Arc;

use crate::atomic::{AtomicU64, Mutex, Ordering};

/// The counts of all owners, including dropped ones.
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
    /// Returns the current total. A concurrent increment may be missing.
    pub fn total(&self) -> u64 {
        let counts = self.0.lock();
        counts.live.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() + counts.gone
    }
}

crate::debug_fields!(OwnerCounts, |counts| total: counts.total());

/// The count of one owner.
#[derive(Debug)]
pub struct OwnerCount {
    own: Arc<AtomicU64>,
    counts: Arc<OwnerCounts>,
}

impl OwnerCount {
    /// Creates the count of a new owner.
    pub fn of(counts: &Arc<OwnerCounts>) -> Self {
        let own = Arc::default();
        counts.0.lock().live.push(Arc::clone(&own));
        Self { own, counts: Arc::clone(counts) }
    }

    /// Increments the count.
    pub fn add_one(&mut self) {
        // Relaxed, without an exchange: there is only one writer at a time, and writers are ordered.
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
