//! Control of a `noop` device: faults, a barrier that holds executions, and the loss of the device.
//!
//! Tests use the control to cause rare events of a card, and to wait without guessed delays until a call is inside
//! the device. Without a fault plan, an inference costs the increment of one private counter and two loads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qaic_emu::fault::{Action, FaultPlan, Target, Trigger};
use qaic_sync::{OwnerCount, OwnerCounts};

use crate::device::{Canceller, DeviceId, DeviceStatus};
use crate::error::{DeviceError, EngineError, ErrorDetail, RuntimeError};
use crate::process::{ForkGuard, WaitScope};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// Wakeup interval of a wait that has no time limit.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Names of the calls that a `noop` device counts, in the order of a program's life.
pub const CALLS: [&str; 4] = ["load", "activate", "exec", "execute"];

/// Index of a call in [`CALLS`].
const fn place(call: Trigger) -> usize {
    match call {
        Trigger::Load => 0,
        Trigger::Activate => 1,
        Trigger::Exec => 2,
        _ => 3,
    }
}

/// Controls one device.
#[derive(Debug)]
pub struct Control {
    device: DeviceId,
    fork_guard: ForkGuard,
    calls: [AtomicU64; CALLS.len()],
    // Executions without faults or barriers, which execs count, and their number before the last plan.
    unarmed: Arc<OwnerCounts>,
    unarmed_before: AtomicU64,
    // Number of losses of the device. A program works while this number has the same value as at its load.
    losses: AtomicU32,
    // True if executions must read the state.
    armed: AtomicBool,
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ControlState {
    plan: FaultPlan,
    held: bool,
    away: bool,
    inside: u32,
}

/// Ends the executions of one exec.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) control: Arc<Control>,
    // Both change only under the lock of the control's state.
    inside: AtomicBool,
    asked: AtomicBool,
}

impl Stop {
    pub(super) fn new(control: &Arc<Control>) -> Self {
        let control = Arc::clone(control);
        Self { control, inside: AtomicBool::new(false), asked: AtomicBool::new(false) }
    }
}

impl Canceller for Stop {
    fn cancel(&self) {
        // No execution is inside the device in a forked process.
        let Ok(_state) = self.control.state() else { return };
        if self.inside.load(Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
            self.control.changed.notify_all();
        }
    }
}

/// Delay of a call inside the device.
#[derive(Clone, Copy, Debug)]
enum Delay {
    Until(Instant),
    Forever,
}

impl Delay {
    fn of(fault: Option<Action>) -> Self {
        match fault {
            // The clock cannot represent the end, so the execution is endless.
            Some(Action::Slow(time)) => Instant::now().checked_add(time).map_or(Self::Forever, Self::Until),
            Some(Action::Stuck) => Self::Forever,
            _ => Self::Until(Instant::now()),
        }
    }
}

/// Parses a fault plan of `noop` devices.
pub(in crate::device) fn parse_plan(text: &str) -> Result<FaultPlan, RuntimeError> {
    FaultPlan::parse(text, Target::Noop).map_err(|error| RuntimeError::argument(error.to_string()))
}

impl Control {
    pub(super) fn new(device: DeviceId, plan: FaultPlan) -> Self {
        let armed = plan.mentions(Trigger::Execute);
        Self {
            device,
            fork_guard: ForkGuard::new(),
            calls: Default::default(),
            unarmed: Arc::default(),
            unarmed_before: AtomicU64::new(0),
            losses: AtomicU32::new(0),
            armed: AtomicBool::new(armed),
            state: Mutex::new(ControlState { plan, ..ControlState::default() }),
            changed: Condvar::default(),
        }
    }

    /// Replaces the fault plan with `text`, in the language of [`qaic_emu::fault`], and resets the counts of calls.
    pub fn plan(&self, text: &str) -> Result<(), RuntimeError> {
        let plan = parse_plan(text)?;
        let mut state = self.state()?;
        state.plan = plan;
        for calls in &self.calls {
            calls.store(0, Ordering::Relaxed);
        }
        self.unarmed_before.store(self.unarmed.total(), Ordering::Relaxed);
        self.arm(&state);
        Ok(())
    }

    /// Number of calls since the last plan, in the order of [`CALLS`].
    pub fn calls(&self) -> [u64; CALLS.len()] {
        let mut calls = [0, 1, 2, 3].map(|index: usize| self.calls[index].load(Ordering::Relaxed));
        let unarmed_before = self.unarmed_before.load(Ordering::Relaxed);
        calls[place(Trigger::Execute)] += self.unarmed.total().saturating_sub(unarmed_before);
        calls
    }

    /// Closes the barrier, so that executions that begin from now on wait in it.
    pub fn hold(&self) -> Result<(), RuntimeError> {
        let mut state = self.state()?;
        state.held = true;
        self.arm(&state);
        Ok(())
    }

    /// Opens the barrier.
    pub fn release(&self) -> Result<(), RuntimeError> {
        let mut state = self.state()?;
        state.held = false;
        self.arm(&state);
        self.changed.notify_all();
        Ok(())
    }

    /// Number of executions inside the device: held, slow or stuck ones. Other executions take no time.
    pub fn executing(&self) -> Result<u32, RuntimeError> {
        Ok(self.state()?.inside)
    }

    /// Waits until at least `count` executions are inside the device, and returns true if they are.
    ///
    /// Blocking: until then, or until `scope` ends the wait. Returns false at the deadline of `scope`.
    pub fn wait_executing(&self, count: u32, scope: &mut WaitScope<'_>) -> Result<bool, RuntimeError> {
        loop {
            let mut state = self.state()?;
            if state.inside < count {
                state = self.changed.wait_at_most(state, scope.sleep_limit());
            }
            if state.inside >= count {
                return Ok(true);
            }
            drop(state);
            match scope.poll("executions") {
                Err(qaic_sched::Error::Timeout { .. }) => return Ok(false),
                polled => polled?,
            }
        }
    }

    /// Loses the device. Executions inside end, all loaded programs are lost, and nothing can be loaded before
    /// [`Control::recover`].
    pub fn lose(&self) -> Result<(), RuntimeError> {
        let mut state = self.state()?;
        state.away = true;
        self.reset(&state);
        Ok(())
    }

    /// Restores the device. Programs that were loaded before the loss stay lost.
    pub fn recover(&self) -> Result<(), RuntimeError> {
        self.state()?.away = false;
        Ok(())
    }

    pub(super) fn status(&self) -> DeviceStatus {
        // A forked process cannot read this state; its own device is new and ready.
        match self.state() {
            Ok(state) if state.away => DeviceStatus::Error { reason: AWAY.to_owned() },
            _ => DeviceStatus::Ready,
        }
    }

    /// Begins a load of `bytes` bytes; the result belongs to the program. If `cancelled` becomes true, call
    /// [`Control::wake`] to end this call.
    pub(super) fn load(&self, bytes: u64, cancelled: impl Fn() -> bool) -> Result<u32, RuntimeError> {
        let nth = self.count(Trigger::Load);
        let state = self.state()?;
        if state.away {
            return Err(self.lost(AWAY));
        }
        let losses = self.losses.load(Ordering::Relaxed);
        match state.plan.action(Trigger::Load, nth) {
            Some(Action::NoMemory) => Err(DeviceError::OutOfMemory { bytes, what: "the program" }.into()),
            Some(Action::Lost) => Err(self.reset(&state)),
            fault => {
                let duration = Delay::of(fault);
                self.delay_call(state, duration, |_| false, losses, cancelled).map(|_| losses)
            }
        }
    }

    /// Begins an activation of a program that needs `cores` of `total` cores.
    pub(super) fn activate(
        &self,
        losses: u32,
        cores: u32,
        total: u32,
        bytes: u64,
    ) -> Result<(), RuntimeError> {
        match self.fault(Trigger::Activate, losses)? {
            Some(Action::NoCores) => {
                Err(DeviceError::Busy { id: self.device.0, needed: cores, free: 0, total }.into())
            }
            Some(Action::NoMemory) => Err(DeviceError::OutOfMemory { bytes, what: "the activation" }.into()),
            _ => Ok(()),
        }
    }

    /// Begins the creation of an exec.
    pub(super) fn exec(&self, losses: u32, bytes: u64) -> Result<(), RuntimeError> {
        match self.fault(Trigger::Exec, losses)? {
            Some(Action::NoMemory) => Err(DeviceError::OutOfMemory { bytes, what: "DMA buffers" }.into()),
            _ => Ok(()),
        }
    }

    /// Fails if a program that was loaded after `losses` losses no longer exists.
    #[inline]
    pub(super) fn check_loaded(&self, losses: u32) -> Result<(), RuntimeError> {
        // Acquire: with the store in `reset`, a caller that knows of the loss from another source also
        // observes it here.
        if self.losses.load(Ordering::Acquire) == losses { Ok(()) } else { Err(self.lost(RESET)) }
    }

    /// Returns true if a fault may affect an execution.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Creates a counter for the executions of one exec.
    pub(super) fn unarmed_count(&self) -> OwnerCount {
        OwnerCount::of(&self.unarmed)
    }

    /// Lets an execution pass, immediately if no fault or barrier applies. Executions that pass immediately are
    /// counted in `unarmed`.
    #[inline]
    pub(super) fn execute(
        &self,
        losses: u32,
        stop: &Stop,
        unarmed: &mut OwnerCount,
    ) -> Result<(), RuntimeError> {
        // Relaxed: an execution may race with a barrier that closes now, and the state itself is read under its lock.
        // A plan that identifies executions by number arms the device.
        if self.armed.load(Ordering::Relaxed) {
            return self.execute_armed(losses, stop);
        }
        unarmed.add_one();
        self.check_loaded(losses)
    }

    #[cold]
    fn execute_armed(&self, losses: u32, stop: &Stop) -> Result<(), RuntimeError> {
        let nth = self.count(Trigger::Execute);
        self.check_loaded(losses)?;
        let mut state = self.state()?;
        let fault = state.plan.action(Trigger::Execute, nth);
        match fault {
            Some(Action::FailInference) => {
                return Err(self.failure(nth));
            }
            Some(Action::Lost) => return Err(self.reset(&state)),
            None if !state.held => return Ok(()),
            _ => {}
        }
        stop.asked.store(false, Ordering::Relaxed);
        stop.inside.store(true, Ordering::Relaxed);
        state.inside += 1;
        self.changed.notify_all();
        let asked = || stop.asked.load(Ordering::Relaxed);
        let outcome = self.delay_call(state, Delay::of(fault), |state| state.held, losses, asked);
        let (mut state, result) = match outcome {
            Ok(state) => (state, Ok(())),
            Err(error) => (self.state.lock(), Err(error)),
        };
        state.inside -= 1;
        stop.inside.store(false, Ordering::Relaxed);
        self.changed.notify_all();
        result
    }

    /// Delays a call by `delay`, and then while `held` returns true. A loss of the device or `cancelled` ends both.
    fn delay_call<'a>(
        &'a self,
        mut state: MutexGuard<'a, ControlState>,
        delay: Delay,
        held: impl Fn(&ControlState) -> bool,
        losses: u32,
        cancelled: impl Fn() -> bool,
    ) -> Result<MutexGuard<'a, ControlState>, RuntimeError> {
        loop {
            self.check_loaded(losses)?;
            if cancelled() {
                return Err(ErrorDetail::Interrupted.into());
            }
            let left = match delay {
                Delay::Until(end) => end.saturating_duration_since(Instant::now()),
                Delay::Forever => LOOK_AGAIN,
            };
            if left.is_zero() && !held(&state) {
                return Ok(state);
            }
            let limit = if left.is_zero() { LOOK_AGAIN } else { left.min(LOOK_AGAIN) };
            state = self.changed.wait_at_most(state, limit);
        }
    }

    /// Wakes the calls inside, so that they check for changes outside of the state.
    pub(super) fn wake(&self) {
        if let Ok(_state) = self.state() {
            self.changed.notify_all();
        }
    }

    fn fault(&self, call: Trigger, losses: u32) -> Result<Option<Action>, RuntimeError> {
        let nth = self.count(call);
        let state = self.state()?;
        self.check_loaded(losses)?;
        match state.plan.action(call, nth) {
            Some(Action::Lost) => Err(self.reset(&state)),
            fault => Ok(fault),
        }
    }

    fn count(&self, call: Trigger) -> u64 {
        self.calls[place(call)].fetch_add(1, Ordering::Relaxed) + 1
    }

    fn state(&self) -> Result<MutexGuard<'_, ControlState>, RuntimeError> {
        self.fork_guard.check()?;
        Ok(self.state.lock())
    }

    fn arm(&self, state: &ControlState) {
        self.armed.store(state.held || state.plan.mentions(Trigger::Execute), Ordering::Relaxed);
    }

    /// Marks all loaded programs as lost.
    fn reset(&self, _: &ControlState) -> RuntimeError {
        self.losses.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
        self.lost(RESET)
    }

    fn failure(&self, nth: u64) -> RuntimeError {
        EngineError::Inference {
            status: "NOOP_FAULT",
            message: format!("the fault plan of device {} requests it for execution {nth}", self.device.0),
        }
        .into()
    }

    fn lost(&self, reason: &str) -> RuntimeError {
        DeviceError::Lost { id: self.device.0, reason: reason.to_owned() }.into()
    }
}

const RESET: &str = "it was reset after the program was loaded; load the program again";
const AWAY: &str = "it does not respond";
