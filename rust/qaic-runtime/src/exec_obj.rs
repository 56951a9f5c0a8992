//! Exec objects: each carries one inference at a time through an activated program.
//!
//! An [`ExecObj`] is wired to memory, then run on the calling thread or enqueued and waited for. It may be used from any
//! thread; while its inference is under way it can be waited for and cancelled, and nothing else.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::carrier::Look;
use crate::error::RuntimeError;
use crate::inference::{Core, Inference, Landed, name_of};
use crate::interrupts::{CANCEL_PERIOD, look_period};
use crate::io_crc::IoCrcs;
use crate::program::{Activated, Program};
use crate::progress::{Observer, Phase, Progress, Reason, Ticket};
use crate::sync::{AtomicU32, Ordering};
use crate::wiring::{InputWire, Wiring};

/// What is waited for, in errors.
const WHAT: &str = "an inference";

/// Carries one inference of an activated program.
#[derive(Debug)]
pub struct ExecObj {
    program: Arc<Program>,
    activated: Arc<Activated>,
    inference: Arc<Inference>,
    progress: Arc<Progress>,
    id: AtomicU32,
}

impl ExecObj {
    /// An exec object of `program`. With `auto_activate` the program is loaded and activated first where necessary, and
    /// deactivated with its last exec object.
    ///
    /// Blocking: as [`Program::load`] when it is not loaded.
    pub fn new(program: &Arc<Program>, auto_activate: bool) -> Result<Arc<Self>, RuntimeError> {
        let activated = program.enter(auto_activate)?;
        match Inference::new(program, &activated) {
            Ok(inference) => Ok(Arc::new(Self {
                program: Arc::clone(program),
                progress: Arc::clone(inference.progress()),
                inference: Arc::new(inference),
                activated,
                id: AtomicU32::new(0),
            })),
            Err(error) => {
                activated.leave();
                Err(error)
            }
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// A number the user gave it; 0 at first.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Gives it a number.
    pub fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
    }

    /// Whether its inference is queued or running.
    pub fn is_in_flight(&self) -> bool {
        self.progress.is_in_flight()
    }

    /// Whether the device has its inference.
    pub fn is_running(&self) -> bool {
        matches!(self.progress.phase(), Phase::Running | Phase::OnDevice)
    }

    /// Takes its inference back if no thread has begun it; it then has ended with [`RuntimeError::Cancelled`]. Never
    /// blocks.
    pub fn revoke(&self) -> bool {
        self.progress.under_way().is_some_and(|which| self.take_back(which))
    }

    fn take_back(&self, which: Ticket) -> bool {
        let is_mine = self.progress.claim(which);
        if is_mine {
            let observer = self.inference.observer();
            self.progress.conclude(Err(RuntimeError::Cancelled), observer);
        }
        is_mine
    }

    /// Reads or changes what the next inference reads and writes. Fails while one is under way.
    ///
    /// Never blocks. Whoever wires memory without an owner keeps it valid until it is wired elsewhere.
    pub fn wire<T>(&self, change: impl FnOnce(&mut Wiring) -> T) -> Result<T, RuntimeError> {
        self.progress.origin().check()?;
        if self.is_in_flight() {
            return Err(RuntimeError::InFlight);
        }
        // Held by a thread that has just begun to run it.
        let mut core = self.inference.core().try_lock().ok_or(RuntimeError::InFlight)?;
        Ok(change(&mut core.wiring))
    }

    /// Starts the wired inference and returns at once. Inferences of one activation that retain state run in the order
    /// in which they were enqueued. One that is known to be short is left to whoever waits for it, and to a worker that
    /// looks within a millisecond.
    pub fn enqueue(&self) -> Result<(), RuntimeError> {
        self.start(false)
    }

    pub(crate) fn start(&self, eager: bool) -> Result<(), RuntimeError> {
        self.start_as(eager, false)
    }

    /// [`Self::start`] by the observer.
    pub(crate) fn start_observed(&self, eager: bool) -> Result<(), RuntimeError> {
        self.start_as(eager, true)
    }

    fn start_as(&self, eager: bool, is_observed: bool) -> Result<(), RuntimeError> {
        self.progress.origin().check()?;
        let arrival = self.activated.arrival();
        self.check_wiring()?;
        self.sum_inputs()?;
        let which = self.progress.begin_queued()?;
        self.progress.arrived(arrival);
        self.progress.observed(is_observed);
        let (executor, lane) = self.activated.executor();
        executor.submit(lane, &self.inference, which, eager).inspect_err(|_| self.progress.abandon(which))
    }

    /// Runs the wired inference: on the calling thread where that is as good as anywhere else. Interrupted, it is
    /// cancelled, and the call returns when it has ended.
    ///
    /// Blocking: as long as the device takes, and inferences before it where state is retained; `interrupted` is asked
    /// about every 50 ms. During an inference that is known to be short only a device that waits for it asks, as often as
    /// it wakes.
    pub fn run(&self, interrupted: impl FnMut() -> bool) -> Result<(), RuntimeError> {
        self.run_until(None, interrupted)
    }

    /// [`Self::run`], ended with [`RuntimeError::Timeout`] at `deadline`.
    pub fn run_until(
        &self,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        let (executor, _) = self.activated.executor();
        if executor.callers_may_run() && !self.activated.is_serial() {
            self.progress.origin().check()?;
            let arrival = self.activated.arrival();
            self.sum_inputs()?;
            self.progress.begin_running()?;
            self.progress.arrived(arrival);
            let began = deadline.map(|_| Instant::now());
            let mut given_up = None;
            // Not where nothing was waited for yet: to ask Python costs more than a short inference.
            let mut has_waited = false;
            let mut look = || {
                if given_up.is_none() && mem::replace(&mut has_waited, true) {
                    given_up = gives_up(WHAT, deadline, began, &mut interrupted);
                }
                given_up.is_some()
            };
            let outcome = executor.run_here(|| self.inference.run(true, Some(&mut look)));
            let outcome = self.progress.explained(outcome);
            let is_cancelled = matches!(outcome, Err(RuntimeError::Cancelled));
            self.progress.finish(outcome.clone());
            return match given_up {
                Some(error) if is_cancelled => Err(error),
                _ => self.collected(outcome),
            };
        }
        self.start(false)?;
        let awaited = self.wait(deadline, interrupted);
        if self.is_in_flight() {
            self.end();
        }
        awaited
    }

    /// Waits for the inference under way and returns how it ended; without one, how the last ended, and `Ok` when there
    /// never was one. An inference that takes longer than the program's time limit is ended with
    /// [`RuntimeError::Timeout`].
    ///
    /// Blocking: until it ends, `deadline`, or `interrupted`, which is asked about every 50 ms. In the last two cases
    /// the inference goes on and can be waited for again.
    pub fn wait(
        &self,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        self.progress.origin().check()?;
        // Only a deadline asks what time it is.
        let began = deadline.map(|_| Instant::now());
        let (executor, _) = self.activated.executor();
        loop {
            if let Some(outcome) = self.progress.ended() {
                return self.collected(outcome);
            }
            let mut given_up = None;
            let mut has_waited = false;
            let mut look = || {
                // As in `run_until`.
                if !mem::replace(&mut has_waited, true) {
                    return false;
                }
                self.progress.enforce_limit();
                given_up = given_up.take().or_else(|| gives_up(WHAT, deadline, began, &mut interrupted));
                given_up.is_some()
            };
            let has_helped = match self.progress.phase() {
                Phase::Queued => executor.help(&mut look),
                Phase::OnDevice if executor.callers_may_help() => self.land(&mut look),
                _ => false,
            };
            if let Some(error) = given_up {
                return Err(error);
            }
            if has_helped {
                continue;
            }
            let limit = until(deadline).min(look_period(self.progress.limit()));
            if let Some(outcome) = self.progress.waiters().wait(limit, || self.progress.ended()) {
                return self.collected(outcome);
            }
            self.enforce_limit();
            if let Some(error) = gives_up(WHAT, deadline, began, &mut interrupted) {
                return Err(error);
            }
        }
    }

    /// Waits for the inference on the device, on the calling thread; false when it is not there, and when `look` said to
    /// wait no longer.
    fn land(&self, look: Look<'_>) -> bool {
        if !self.progress.take_from_device(None) {
            return false;
        }
        let (executor, _) = self.activated.executor();
        match Inference::land(Arc::clone(&self.inference), Some(look)) {
            Landed::Ended(took) => {
                executor.landed(took);
                true
            }
            Landed::LeftToDevice => {
                executor.left_to_device(&self.inference);
                false
            }
        }
    }

    /// Asks the inference under way to end; it then ends with [`RuntimeError::Cancelled`], unless it was just ending. One
    /// that no thread works on, because it has not begun or because the device has it, ends at once. Never blocks.
    pub fn cancel(&self) {
        if let Some(which) = self.progress.under_way()
            && !self.take_back(which)
        {
            self.progress.ask_to_end(which, Reason::Cancelled);
            self.end_on_device(which);
        }
    }

    /// Ends an inference that was asked to end, if no thread works on it.
    fn end_on_device(&self, which: Ticket) {
        if self.progress.take_from_device(Some(which)) {
            let (executor, _) = self.activated.executor();
            if let Landed::Ended(took) = Inference::land(Arc::clone(&self.inference), None) {
                executor.landed(took);
            }
        }
    }

    /// Ends an inference that has run for longer than its program allows. For those who wait in other ways than by
    /// [`Self::wait`].
    pub fn enforce_limit(&self) {
        if self.progress.enforce_limit()
            && let Some(which) = self.progress.under_way()
            && self.progress.is_asked_to_end()
        {
            self.end_on_device(which);
        }
    }

    /// How the last inference ended.
    pub fn outcome(&self) -> Result<(), RuntimeError> {
        self.collected(self.progress.outcome())
    }

    /// The CRCs of the last inference of a program that has its buffers checked; `None` for other programs, and while an
    /// inference is under way.
    pub fn io_crcs(&self) -> Option<IoCrcs> {
        if !self.inference.is_checked() || self.is_in_flight() {
            return None;
        }
        let core = self.inference.core().try_lock()?;
        core.check.as_ref().map(|check| check.taken().clone())
    }

    /// Sums the inputs of the inference that is about to be submitted.
    fn sum_inputs(&self) -> Result<(), RuntimeError> {
        if !self.inference.is_checked() {
            return Ok(());
        }
        if self.is_in_flight() {
            return Err(RuntimeError::InFlight);
        }
        let mut core = self.inference.core().try_lock().ok_or(RuntimeError::InFlight)?;
        let Core { wiring, check, .. } = &mut *core;
        if let Some(check) = check {
            check.take_inputs(wiring);
        }
        Ok(())
    }

    /// Compares the outputs of an inference that ended well, the first time it is asked about.
    fn collected(&self, outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        if !self.inference.is_checked() || outcome.is_err() || self.is_in_flight() {
            return outcome;
        }
        // Somebody else is just wiring the next one, and has collected this one.
        let Some(mut core) = self.inference.core().try_lock() else { return outcome };
        let Core { wiring, check, .. } = &mut *core;
        let Some(check) = check else { return outcome };
        let network = self.program.image().network();
        check.check_outputs(wiring, |index| name_of(&network.outputs, index))
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>, number: u32) {
        self.inference.observe(observer, number);
    }

    /// Says at once what could only fail later: an input without memory or state.
    fn check_wiring(&self) -> Result<(), RuntimeError> {
        let inputs = self.program.variants();
        let Some(transfers) = inputs.first() else { return Ok(()) };
        self.wire(|wiring| {
            let unfed =
                wiring.inputs.iter().zip(transfers.inputs()).enumerate().find(|(index, (wire, transfer))| {
                    !matches!(wire, InputWire::Memory { .. } | InputWire::DmaBuf { .. })
                        && transfer.place().is_some()
                        && !transfer.is_partial()
                        && !self.activated.retains_input(*index)
                });
            match unfed {
                Some((_, (_, transfer))) => {
                    Err(RuntimeError::StateRequired { binding: transfer.name().to_owned() })
                }
                None => Ok(()),
            }
        })?
    }

    /// Cancels the inference under way and waits until it has ended.
    pub(crate) fn end(&self) {
        while self.is_in_flight() {
            self.cancel();
            let _ = self.progress.waiters().wait(CANCEL_PERIOD, || self.progress.ended());
        }
    }
}

impl Drop for ExecObj {
    fn drop(&mut self) {
        if self.progress.origin().is_here() {
            self.end();
        }
        self.activated.leave();
    }
}

/// Why a wait ends without what it was for.
pub(crate) fn gives_up(
    what: &'static str,
    deadline: Option<Instant>,
    began: Option<Instant>,
    interrupted: Look<'_>,
) -> Option<RuntimeError> {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        let waited = began.map(|began| began.elapsed()).unwrap_or_default();
        return Some(RuntimeError::Timeout {
            what,
            timeout_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        });
    }
    interrupted().then_some(RuntimeError::Interrupted)
}

/// Time left until a deadline.
pub(crate) fn until(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::path::Path;

    use super::*;
    use crate::context::Context;
    use crate::device::{DeviceId, Placement, RegistryOptions};
    use crate::image::Image;
    use crate::program::ProgramOptions;
    use crate::wiring::Window;

    #[test]
    fn an_end_that_nobody_asked_of_this_inference_does_not_reach_it() {
        let options = RegistryOptions {
            kind: Some("noop".to_owned()),
            engine_candidates: vec!["stray-cancel".into()],
            ..RegistryOptions::default()
        };
        let context = Context::new(&options).unwrap();
        let gate = context.noop_control(DeviceId(0)).unwrap();
        let file = "../../tests/data/qpc/s01_simple_f32_file.qpc";
        let image = Image::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), true).unwrap();
        let place = Placement::one(DeviceId(0));
        let program = Program::new(&context, &image, &place, &ProgramOptions::default()).unwrap();
        let exec = ExecObj::new(&program, true).unwrap();
        let input = crate::buffer::Storage::new(768).unwrap();
        let memory = input.memory();
        exec.wire(|wiring| {
            wiring.inputs[0] = InputWire::Memory { memory: memory.as_const(), owner: None };
            let (origin, extent, strides) = (vec![0, 0], vec![1, 1], vec![4, 4]);
            let window = Window { binding: 1, origin, extent, item_bytes: 4, memory, strides, owner: None };
            wiring.windows.push(window);
        })
        .unwrap();
        gate.hold().unwrap();
        exec.enqueue().unwrap();
        assert!(gate.wait_executing(1, Duration::from_mins(1), || false).unwrap());
        exec.progress.cancel_on_device();
        gate.release().unwrap();
        exec.wait(None, || false).unwrap();
        assert_eq!(exec.wire(|wiring| wiring.windows.len()).unwrap(), 0);
    }
}
