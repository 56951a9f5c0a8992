//! Many inferences on the same inputs, as fast as the set allows.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{HandleId, InferenceSet, Lease};
use crate::binding::Bindings;
use crate::error::{ErrorDetail, RuntimeError};
use crate::process::{Detached, WaitScope};

/// Results of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct BenchmarkOutcome {
    /// Inferences that ended.
    pub completed: u64,
    /// Time from the first submission to the last completion.
    pub elapsed: Duration,
}

/// Counts that can be read while a benchmark runs.
#[derive(Debug)]
pub struct BenchmarkProgress {
    completed: Box<[AtomicU64]>,
}

impl BenchmarkProgress {
    /// Creates counts of zero for every activation of `set`.
    pub fn new(set: &InferenceSet) -> Self {
        Self { completed: set.programs.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Number of ended inferences per activation.
    pub fn completed(&self) -> impl Iterator<Item = u64> + '_ {
        self.completed.iter().map(|count| count.load(Ordering::Relaxed))
    }

    fn clear(&self) {
        for count in &self.completed {
            count.store(0, Ordering::Relaxed);
        }
    }

    fn add(&self, activation: u32) {
        if let Some(count) = self.completed.get(activation as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl InferenceSet {
    /// Keeps all free exec objects busy until `count` inferences have begun or `limit` has passed. The limit
    /// does not apply to the first inference. `bind` binds each exec object before its first inference. `ended` is called on the calling
    /// thread for every ended inference, and returns true to continue. `progress` counts from zero.
    ///
    /// Blocking: until all started inferences have ended. If `scope` ends the wait, or `ended` stops the benchmark,
    /// the inferences in flight are cancelled.
    pub fn benchmark(
        &self,
        count: Option<u64>,
        limit: Option<Duration>,
        progress: &BenchmarkProgress,
        mut bind: impl FnMut(HandleId, &mut Bindings),
        mut ended: impl FnMut(HandleId) -> bool,
        scope: &mut WaitScope<'_>,
    ) -> Result<BenchmarkOutcome, RuntimeError> {
        progress.clear();
        let mut free = vec![self.lease(scope)?];
        free.extend(std::iter::from_fn(|| self.try_lease()));
        for lease in &free {
            lease.bind(|bindings| bind(lease.handle, bindings))?;
        }
        let started = Instant::now();
        // The clock cannot represent the limit, so the run is unlimited.
        let deadline = limit.and_then(|limit| started.checked_add(limit));
        let mut begun = 0_u64;
        let mut completed = 0_u64;
        let mut flying: VecDeque<Lease<'_>> = VecDeque::with_capacity(free.len());
        let mut outcome = Ok(());
        loop {
            // If no wait is long, no wait checks the scope.
            if outcome.is_ok() {
                outcome = scope.poll("a benchmark").map_err(RuntimeError::from);
            }
            let may_begin = |begun| {
                count.is_none_or(|count| begun < count)
                    && (begun == 0 || deadline.is_none_or(|deadline| Instant::now() < deadline))
            };
            while outcome.is_ok() && !free.is_empty() && may_begin(begun) {
                if let Some(lease) = free.pop() {
                    // The scope belongs to a thread without the interpreter lock.
                    outcome = lease.enqueue(Detached::assume());
                    begun += 1;
                    flying.push_back(lease);
                }
            }
            let Some(oldest) = flying.pop_front() else { break };
            let result = if outcome.is_ok() { oldest.wait(scope) } else { Ok(()) };
            match result {
                Ok(()) if outcome.is_ok() => {
                    completed += 1;
                    progress.add(self.activation_of(oldest.handle));
                    if !ended(oldest.handle) {
                        outcome = Err(ErrorDetail::Interrupted.into());
                    }
                }
                Ok(()) => {}
                // The first error is the reason; the other inferences are cancelled.
                Err(error) => outcome = Err(error),
            }
            if outcome.is_err() {
                oldest.end();
                for lease in &flying {
                    lease.cancel();
                }
            }
            free.push(oldest);
        }
        outcome?;
        Ok(BenchmarkOutcome { completed, elapsed: started.elapsed() })
    }
}
