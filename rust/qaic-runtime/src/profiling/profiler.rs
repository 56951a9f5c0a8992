//! Collects samples of some programs, from a start to a stop, as often as one likes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::book::Choice;
use super::hub::Hub;
use super::recorder::{Collected, DeviceStats, Limits, Recorder};
use crate::error::RuntimeError;
use crate::process::ForkGuard;
use crate::process::cancellation::check_period;
use crate::request::until;
use crate::sync::Mutex;

/// Takes samples of programs. It does not keep them: one that is gone gives no more samples, and those taken stay.
#[derive(Debug)]
pub struct Profiler {
    recorder: Arc<Recorder>,
    state: Mutex<State>,
    fork_guard: ForkGuard,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    // The place of a program is its number.
    programs: Vec<Weak<Hub>>,
}

impl Profiler {
    /// Of no program yet.
    pub fn new(choice: Choice, limits: Limits, device: DeviceStats) -> Arc<Self> {
        let recorder = Recorder::new(choice, limits, device);
        Arc::new(Self { recorder, state: Mutex::default(), fork_guard: ForkGuard::new() })
    }

    /// Adds a program, from now on where it runs, and returns its number. One that is there keeps its number.
    pub fn add(&self, hub: &Arc<Hub>) -> Result<u32, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let known = |program: &Weak<Hub>| std::ptr::eq(program.as_ptr(), Arc::as_ptr(hub));
        if let Some(number) = state.programs.iter().position(known) {
            return Ok(u32::try_from(number).unwrap_or(u32::MAX));
        }
        let number = u32::try_from(state.programs.len()).unwrap_or(u32::MAX);
        state.programs.push(Arc::downgrade(hub));
        if state.is_running {
            hub.subscribe(&self.recorder, number);
        }
        Ok(number)
    }

    /// Takes no more samples of a program; says whether it was there. Those taken stay.
    pub fn remove(&self, hub: &Arc<Hub>) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let known = |program: &Weak<Hub>| std::ptr::eq(program.as_ptr(), Arc::as_ptr(hub));
        let Some(number) = state.programs.iter().position(known) else { return Ok(false) };
        // The numbers of the others stay.
        state.programs[number] = Weak::new();
        if state.is_running {
            hub.unsubscribe(&self.recorder);
        }
        Ok(true)
    }

    /// Begins; what was not fetched is forgotten. False when it runs already.
    pub fn start(&self) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        if state.is_running {
            return Ok(false);
        }
        state.is_running = true;
        self.recorder.clear();
        for (number, hub) in (0..).zip(&state.programs) {
            if let Some(hub) = hub.upgrade() {
                hub.subscribe(&self.recorder, number);
            }
        }
        Ok(true)
    }

    /// Ends; inferences under way are not recorded. False when it does not run.
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
        for hub in state.programs.iter().filter_map(Weak::upgrade) {
            hub.unsubscribe(&self.recorder);
        }
        true
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.fork_guard.is_current() && self.state.lock().is_running
    }

    /// Samples since the last call.
    pub fn drain(&self) -> Result<Collected, RuntimeError> {
        self.fork_guard.check()?;
        Ok(self.recorder.drain())
    }

    /// Whether every activation has given the number of samples that was asked for.
    ///
    /// Blocking: until it has, until it is stopped, until `deadline`, or until `interrupted`, which is asked about every
    /// 50 ms.
    pub fn wait(
        &self,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<bool, RuntimeError> {
        self.fork_guard.check()?;
        loop {
            if self.recorder.is_complete() {
                return Ok(true);
            }
            let left = until(deadline);
            if left == Duration::ZERO || !self.is_running() {
                return Ok(false);
            }
            if self.recorder.wait(left.min(check_period(None))) {
                return Ok(true);
            }
            if interrupted() {
                return Err(RuntimeError::Interrupted);
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
