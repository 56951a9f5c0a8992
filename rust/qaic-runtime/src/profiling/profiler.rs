//! Collection of samples of several programs between a start and a stop, any number of times.

use std::sync::{Arc, Weak};

use super::quota::SamplingRule;
use super::recorder::{Collected, DeviceStats, Limits, Recorder};
use super::registry::SubscriptionRegistry;
use crate::error::RuntimeError;
use crate::process::{ForkGuard, WaitScope};
use crate::sync::Mutex;

/// Samples programs. The profiler holds weak references to programs; samples of a program outlive it.
#[derive(Debug)]
pub struct Profiler {
    recorder: Arc<Recorder>,
    state: Mutex<ProfilerState>,
    fork_guard: ForkGuard,
}

#[derive(Debug, Default)]
struct ProfilerState {
    is_running: bool,
    // The index of a program is its number.
    programs: Vec<Weak<SubscriptionRegistry>>,
}

impl Profiler {
    /// Creates a profiler without programs.
    pub fn new(rule: SamplingRule, limits: Limits, device: DeviceStats) -> Arc<Self> {
        let recorder = Recorder::new(rule, limits, device);
        Arc::new(Self { recorder, state: Mutex::default(), fork_guard: ForkGuard::new() })
    }

    /// Adds a program and returns its number; a known program keeps its number. A running profiler samples the
    /// program from now on.
    pub fn add(&self, registry: &Arc<SubscriptionRegistry>) -> Result<u32, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let known =
            |program: &Weak<SubscriptionRegistry>| std::ptr::eq(program.as_ptr(), Arc::as_ptr(registry));
        if let Some(number) = state.programs.iter().position(known) {
            return Ok(u32::try_from(number).unwrap_or(u32::MAX));
        }
        let number = u32::try_from(state.programs.len()).unwrap_or(u32::MAX);
        state.programs.push(Arc::downgrade(registry));
        if state.is_running {
            registry.subscribe(&self.recorder, number);
        }
        Ok(number)
    }

    /// Stops sampling a program and keeps its samples. Returns false for an unknown program.
    pub(crate) fn remove(&self, registry: &Arc<SubscriptionRegistry>) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let known =
            |program: &Weak<SubscriptionRegistry>| std::ptr::eq(program.as_ptr(), Arc::as_ptr(registry));
        let Some(number) = state.programs.iter().position(known) else { return Ok(false) };
        // The numbers of the other programs stay the same.
        state.programs[number] = Weak::new();
        if state.is_running {
            registry.unsubscribe(&self.recorder);
        }
        Ok(true)
    }

    /// Starts the profiler, and discards samples that were not fetched. Returns false if the profiler runs.
    pub fn start(&self) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        if state.is_running {
            return Ok(false);
        }
        state.is_running = true;
        self.recorder.clear();
        for (number, registry) in (0..).zip(&state.programs) {
            if let Some(registry) = registry.upgrade() {
                registry.subscribe(&self.recorder, number);
            }
        }
        Ok(true)
    }

    /// Stops the profiler; inferences in flight are not recorded. Returns false if the profiler does not run.
    pub fn stop(&self) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        Ok(self.halt())
    }

    fn halt(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_running {
            return false;
        }
        state.is_running = false;
        for registry in state.programs.iter().filter_map(Weak::upgrade) {
            registry.unsubscribe(&self.recorder);
        }
        true
    }

    /// Returns true if the profiler runs.
    pub(crate) fn is_running(&self) -> bool {
        self.fork_guard.is_current() && self.state.lock().is_running
    }

    /// Returns the samples since the last call.
    pub fn drain(&self) -> Result<Collected, RuntimeError> {
        self.fork_guard.check()?;
        Ok(self.recorder.drain())
    }

    /// Waits until every activation has as many samples as the rule requires; returns true if they have.
    ///
    /// Blocking: until then, until [`Self::stop`], or until `scope` ends the wait. Returns false at the deadline of
    /// `scope`.
    pub fn wait(&self, scope: &mut WaitScope<'_>) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        loop {
            if self.recorder.is_complete() {
                return Ok(true);
            }
            if !self.is_running() {
                return Ok(false);
            }
            if self.recorder.wait(scope.sleep_limit()) {
                return Ok(true);
            }
            match scope.poll("samples") {
                Err(qaic_sched::Error::Timeout { .. }) => return Ok(false),
                polled => polled?,
            }
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            self.halt();
        }
    }
}
