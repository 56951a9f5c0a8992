//! Recent durations of inferences, per combination of shapes. The scheduler uses the durations as a hint to select
//! the cheaper thread; every such decision can be undone.

use qaic_sync::atomic::{AtomicU64, Ordering};

/// Recent durations of inferences in nanoseconds, for each combination of shapes. Shapes that never ran have the
/// largest duration.
#[derive(Debug)]
pub(crate) struct Durations(Box<[AtomicU64]>);

impl Durations {
    /// Creates the durations of `variants` combinations that never ran.
    pub(crate) fn new(variants: usize) -> Self {
        Self((0..variants.max(1)).map(|_| AtomicU64::new(u64::MAX)).collect())
    }

    /// Returns the recent duration of an inference with these shapes.
    pub(crate) fn of(&self, variant: usize) -> u64 {
        // Relaxed: an estimate, which publishes no data.
        self.0.get(variant).map_or(u64::MAX, |typical| typical.load(Ordering::Relaxed))
    }

    /// Returns true if no inference with these shapes was timed.
    pub(crate) fn is_unknown(&self, variant: usize) -> bool {
        self.of(variant) == u64::MAX
    }

    /// Records an inference that had to release its caller's thread.
    pub(crate) fn note_called_away(&self, variant: usize) {
        if let Some(typical) = self.0.get(variant) {
            typical.store(u64::MAX - 1, Ordering::Relaxed);
        }
    }

    /// Records the duration of an inference. The stored value grows slowly, because an inference may be slow only
    /// because its thread had no CPU.
    pub(crate) fn note(&self, variant: usize, took_ns: u64) {
        let Some(typical) = self.0.get(variant) else { return };
        let known = typical.load(Ordering::Relaxed);
        typical.store(took_ns.min(u64::MAX - 1).min(known.saturating_mul(2).max(1)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_one_variant_say_nothing_of_another() {
        let durations = Durations::new(2);
        durations.note(0, 500);
        assert_eq!((durations.of(0), durations.is_unknown(1), durations.of(7)), (500, true, u64::MAX));
    }

    #[test]
    fn durations_grow_slowly_and_fall_at_once() {
        let durations = Durations::new(0);
        for (took, known) in [(100, 100), (10_000, 200), (10_000, 400), (50, 50), (0, 0), (9, 1)] {
            durations.note(0, took);
            assert_eq!(durations.of(0), known);
        }
    }

    /// Regardless of earlier durations, the next inference goes to a worker, and a short one there counts
    /// immediately.
    #[test]
    fn duration_of_one_that_was_called_away_is_long_until_another_is_short() {
        let durations = Durations::new(1);
        durations.note(0, 100);
        durations.note_called_away(0);
        assert_eq!((durations.of(0), durations.is_unknown(0)), (u64::MAX - 1, false));
        durations.note(0, 200);
        assert_eq!(durations.of(0), 200);
    }

    #[test]
    fn duration_of_any_length_is_known() {
        let durations = Durations::new(1);
        assert!(durations.is_unknown(0));
        durations.note(0, u64::MAX);
        assert!(!durations.is_unknown(0));
    }
}
