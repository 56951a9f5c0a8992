//! How many inferences of a program ended well.
//!
//! Each exec object counts its own: the thread that owns an inference is the only one to write, so an inference costs no
//! exchange, and exec objects of one program do not pass a cache line among processors.

use std::fmt;
use std::sync::Arc;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The counts of the exec objects of a program, and of those that are gone.
#[derive(Default)]
pub(crate) struct CompletedCounts(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    gone: u64,
    live: Vec<Arc<AtomicU64>>,
}

impl CompletedCounts {
    /// Inferences so far. One that is just ending may be missing.
    pub(crate) fn total(&self) -> u64 {
        let counts = self.0.lock();
        counts.live.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() + counts.gone
    }
}

impl fmt::Debug for CompletedCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("CompletedCounts").field(&self.total()).finish()
    }
}

/// The count of one exec object.
#[derive(Debug)]
pub(crate) struct CompletedCount {
    own: Arc<AtomicU64>,
    counts: Arc<CompletedCounts>,
}

impl CompletedCount {
    pub(crate) fn of(counts: &Arc<CompletedCounts>) -> Self {
        let own = Arc::default();
        counts.0.lock().live.push(Arc::clone(&own));
        Self { own, counts: Arc::clone(counts) }
    }

    /// Counts one inference.
    pub(crate) fn add_one(&mut self) {
        // Relaxed, and no exchange: there is one writer at a time, which came after the last.
        self.own.store(self.own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Drop for CompletedCount {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        counts.live.retain(|count| !Arc::ptr_eq(count, &self.own));
        counts.gone += self.own.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_keeps_what_exec_objects_counted_that_are_gone() {
        let counts = Arc::new(CompletedCounts::default());
        let (mut first, mut second) = (CompletedCount::of(&counts), CompletedCount::of(&counts));
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
