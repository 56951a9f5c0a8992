//! An inference that a caller has started and will ask about later.
//!
//! A [`PendingInference`] owns copies of its inputs and the memory of its outputs, so nothing of the caller's has to stay as
//! it was. Whichever thread ends the inference gives the exec object back at once; a result that was not fetched yet keeps
//! none from working.

use std::fmt;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Instant;

use qaic_mem::{ForeignMemory, Storage};
use qaic_sync::{Event, EventCount};

use super::{Completion, CompletionQueue, HandleId, Help, InferenceSet};
use crate::binding::{Bindings, InputBinding};
use crate::error::{ErrorDetail, RuntimeError};
use crate::process::cancellation::CANCEL_PERIOD;
use crate::process::{Deadline, ForkGuard};
use crate::request::{ExecObj, INFERENCE};
use crate::sync::{Mutex, MutexGuard};

/// The memory of an input, and the bytes of it that were given; `None` where the device uses the value it keeps.
pub type PendingInput = Option<(Storage, usize)>;

/// The memory of an output; `None` where it is not wanted.
pub type PendingOutput = Option<Storage>;

/// One inference, from its preparation to the fetching of its result.
pub struct PendingInference {
    state: Mutex<State>,
    ended: EventCount,
    report: OnceLock<(Arc<CompletionQueue>, u64)>,
    deadline: Option<Deadline>,
    fork_guard: ForkGuard,
}

struct State {
    // Until the inference has ended: a kept result keeps no cores.
    set: Option<Arc<InferenceSet>>,
    handle: Option<HandleId>,
    variant: usize,
    inputs: Vec<PendingInput>,
    outputs: Vec<PendingOutput>,
    outcome: Option<Result<(), RuntimeError>>,
    // Threads that speak to its exec object. Until they have done, it carries no other: what they ask would meet another
    // inference.
    pins: u32,
    parting: Option<(Arc<InferenceSet>, HandleId)>,
    // Threads that are taking it back. An end that comes meanwhile is not reported at once.
    revokers: u32,
    is_unreported: bool,
    // The thread that is starting it. An end on that thread, in the call, is not reported.
    starter: Option<ThreadId>,
    has_ended_in_start: bool,
}

impl PendingInference {
    /// An inference that is not started. Inputs come with the number of bytes that were given.
    pub fn new(
        set: &Arc<InferenceSet>,
        variant: usize,
        inputs: Vec<PendingInput>,
        outputs: Vec<PendingOutput>,
        deadline: Option<Deadline>,
    ) -> Arc<Self> {
        let set = Some(Arc::clone(set));
        Arc::new(Self {
            state: Mutex::new(State {
                set,
                handle: None,
                variant,
                inputs,
                outputs,
                outcome: None,
                pins: 0,
                parting: None,
                revokers: 0,
                is_unreported: false,
                starter: None,
                has_ended_in_start: false,
            }),
            ended: EventCount::new(),
            report: OnceLock::new(),
            deadline,
            fork_guard: ForkGuard::new(),
        })
    }

    /// Fails in a forked child, where locks may be held by threads that do not exist.
    pub fn check_process(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()
    }

    // Locked for a few assignments only; `start` and `cancel` call what never blocks.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Reports the end to `queue`, by `token`. Once.
    pub fn report_to(self: &Arc<Self>, queue: &Arc<CompletionQueue>, token: u64) {
        if self.report.set((Arc::clone(queue), token)).is_ok() {
            queue.expect(token, self);
        }
    }

    /// When it has to have ended.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// The set, until the inference has ended.
    pub fn set(&self) -> Option<Arc<InferenceSet>> {
        self.state().set.clone()
    }

    /// Starts the inference, unless no exec object of its `set` is free: then false. One that has ended already (it was
    /// cancelled, or its time was up) is not started. `report` is where its end is then reported, by this token, unless it
    /// ends on this thread before this returns. Never blocks.
    pub fn try_start(
        self: &Arc<Self>,
        set: &InferenceSet,
        report: Option<(&Arc<CompletionQueue>, u64)>,
    ) -> Result<bool, RuntimeError> {
        self.check_process()?;
        match set.try_acquire() {
            Some(handle) => self.start_on(set, handle, report).map(|()| true),
            None => Ok(false),
        }
    }

    /// [`PendingInference::try_start`] that waits for a free exec object.
    ///
    /// Blocking: until there is one, until the inference's deadline, or until `interrupted`, which is asked about every
    /// 50 ms.
    pub fn start(
        self: &Arc<Self>,
        set: &InferenceSet,
        report: Option<(&Arc<CompletionQueue>, u64)>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        self.check_process()?;
        let acquired = set.acquire(self.deadline.map(Deadline::at), interrupted);
        let handle = acquired.map_err(|error| Deadline::restate(self.deadline, error))?;
        self.start_on(set, handle, report)
    }

    /// Starts the inference on a handle that was acquired; where it has ended, the handle goes back.
    fn start_on(
        self: &Arc<Self>,
        set: &InferenceSet,
        handle: HandleId,
        report: Option<(&Arc<CompletionQueue>, u64)>,
    ) -> Result<(), RuntimeError> {
        if let Some((queue, token)) = report {
            let _ = self.report.set((Arc::clone(queue), token));
        }
        {
            let mut state = self.state();
            if state.outcome.is_some() || state.handle.is_some() {
                return set.put_completed(handle);
            }
            state.handle = Some(handle);
            if let Err(error) =
                set.exec_obj(handle).and_then(|exec| exec.bind(|bindings| state.bind(bindings)))
            {
                state.handle = None;
                set.put_completed(handle)?;
                return Err(error);
            }
            state.starter = Some(thread::current().id());
        }
        // A thread that waits for a future does not run its inference meanwhile. Not under the lock: a short inference ends
        // before this returns.
        let is_eager = self.report.get().is_some();
        let submitted = set.submit_with(handle, Arc::clone(self) as Arc<dyn Completion>, is_eager);
        let mut state = self.state();
        state.starter = None;
        if let Err(error) = submitted {
            state.handle = None;
            let unbound = set.exec_obj(handle).and_then(|exec| exec.bind(|bindings| state.unbind(bindings)));
            // It keeps its place where it cannot be unbound.
            let _ = unbound.and_then(|()| set.put_completed(handle));
            return Err(error);
        }
        drop(state);
        if let Some((queue, token)) = report {
            // An inference that has ended is not expected.
            queue.expect(token, self);
        }
        Ok(())
    }

    /// Takes the inference back if no thread has begun it; false when it is too late, or was done before. Its end is not
    /// reported: the caller knows it.
    pub fn revoke(&self) -> bool {
        {
            let mut state = self.state();
            if state.outcome.is_some() {
                return false;
            }
            if state.handle.is_none() {
                state.settle(Err(ErrorDetail::Cancelled.into()));
                drop(state);
                self.ended.notify_all();
                self.forget();
                return true;
            }
            state.revokers += 1;
        }
        // Where it succeeds, the exec object reports its end before it returns.
        let is_mine = self.with_exec_obj(ExecObj::revoke).unwrap_or(false);
        let mut state = self.state();
        state.revokers -= 1;
        if is_mine {
            state.is_unreported = false;
        }
        // It ended by itself in between and was not reported for our sake.
        let has_to_report = state.revokers == 0 && mem::take(&mut state.is_unreported);
        drop(state);
        if has_to_report {
            self.report_end();
        }
        is_mine
    }

    /// Asks the inference to end, wherever it is. Never blocks.
    pub fn cancel(&self) {
        if !self.revoke() {
            self.with_exec_obj(ExecObj::cancel);
        }
    }

    /// Ends it where its time is up; true as long as it has to be checked again.
    pub(super) fn check(&self, now: Instant) -> bool {
        let late = self.deadline.filter(|deadline| now >= deadline.at());
        let (ends_now, goes_on) = {
            let mut state = self.state();
            let ends_now = late.filter(|_| state.outcome.is_none());
            if let Some(deadline) = ends_now {
                state.settle(Err(deadline.error(INFERENCE)));
            }
            // An inference that was asked to end is asked again until it has.
            (ends_now.is_some(), state.set.is_some())
        };
        if ends_now {
            self.report_end();
        }
        self.with_exec_obj(|exec| {
            if late.is_some() {
                exec.cancel();
            }
        });
        goes_on
    }

    /// Speaks to the exec object that carries the inference; `None` before it was started and after its end. Not under
    /// the lock: an inference that has not begun reports its end at once.
    fn with_exec_obj<T>(&self, speak: impl FnOnce(&ExecObj) -> T) -> Option<T> {
        let exec = {
            let mut state = self.state();
            let exec = state.set.as_ref()?.exec_obj(state.handle?).ok().cloned()?;
            state.pins += 1;
            exec
        };
        let answer = speak(&exec);
        drop(exec);
        let parting = {
            let mut state = self.state();
            state.pins -= 1;
            if state.pins == 0 { state.parting.take() } else { None }
        };
        if let Some((set, handle)) = parting {
            put_back(&set, handle);
        }
        Some(answer)
    }

    /// Waits for the end and returns how it came.
    ///
    /// Blocking: until the inference has ended; at its deadline it is cancelled. `interrupted` is asked about every
    /// 50 ms; then the inference goes on.
    pub fn wait(&self, mut interrupted: impl FnMut() -> bool) -> Result<(), RuntimeError> {
        self.check_process()?;
        let ended = || self.state().outcome.clone().map(Ok);
        let Some(set) = self.set() else {
            return self.state().outcome.clone().unwrap_or(Ok(()));
        };
        let until = self.deadline.map(Deadline::at);
        let help = self.state().handle.map_or(Help::Nothing, Help::With);
        let waited = set.wait_for(&self.ended, INFERENCE, help, until, &mut interrupted, ended);
        match (waited, self.deadline) {
            (Ok(outcome), _) => outcome,
            (Err(error), Some(deadline)) if matches!(error.detail(), ErrorDetail::Timeout { .. }) => {
                // As after `run`, the device has let go of it when the error is raised.
                let ended = || self.set().is_none().then_some(());
                while !self.revoke() && self.ended.wait(CANCEL_PERIOD, ended).is_none() {
                    self.cancel();
                    if interrupted() {
                        return Err(ErrorDetail::Interrupted.into());
                    }
                }
                Err(deadline.error(INFERENCE))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Whether it ended on the thread that started it, in that call. Its end is not reported then.
    pub fn has_ended_in_start(&self) -> bool {
        self.state().has_ended_in_start
    }

    /// How it ended, if that is known. Where its time was up, the device may still have it.
    pub fn outcome(&self) -> Option<Result<(), RuntimeError>> {
        self.state().outcome.clone()
    }

    /// Whether it has ended, well or not.
    pub fn has_ended(&self) -> bool {
        // To ask the exec object has a thread wait for a device that works by itself.
        let is_known = self.state().outcome.is_some();
        if !is_known {
            self.with_exec_obj(ExecObj::is_in_flight);
        }
        is_known || self.state().outcome.is_some()
    }

    /// Whether the device has it.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        match (&state.set, state.handle, &state.outcome) {
            (Some(set), Some(handle), None) => set.exec_obj(handle).is_ok_and(|exec| exec.is_running()),
            _ => false,
        }
    }

    /// The memory of the outputs of an inference that ended well. Once.
    pub fn take_outputs(&self) -> Vec<PendingOutput> {
        mem::take(&mut self.state().outputs)
    }

    /// It needs no more checks.
    fn forget(&self) {
        if let Some((queue, token)) = self.report.get() {
            queue.forget(*token);
        }
    }

    /// Reports the end to the threads that wait and to the queue.
    fn report_end(&self) {
        self.ended.notify_all();
        if let Some((queue, token)) = self.report.get() {
            queue.add(*token);
        }
    }
}

impl Completion for PendingInference {
    fn completed(&self, handle: HandleId) {
        let mut state = self.state();
        let Some(set) = state.set.take() else { return };
        state.handle = None;
        let was_known = state.outcome.is_some();
        let is_silent = was_known || state.revokers > 0;
        state.is_unreported = !was_known && state.revokers > 0;
        let is_in_start = !is_silent && state.starter == Some(thread::current().id());
        state.has_ended_in_start = is_in_start;
        let outcome = set.outcome(handle);
        if let Ok(exec) = set.exec_obj(handle) {
            // It has just ended, so it can be bound.
            let _ = exec.bind(|bindings| state.unbind(bindings));
        }
        state.settle(outcome);
        if state.pins > 0 {
            state.parting = Some((set, handle));
            drop(state);
        } else {
            drop(state);
            put_back(&set, handle);
            // A thread that hears of the end may want to find the cores free.
            drop(set);
        }
        if is_silent || is_in_start {
            self.ended.notify_all();
            self.forget();
        } else {
            self.report_end();
        }
    }
}

/// Gives back the exec object of an inference that has ended.
fn put_back(set: &InferenceSet, handle: HandleId) {
    if let Ok(exec) = set.exec_obj(handle) {
        // It has just ended, so it can be bound.
        let _ = exec.bind(Bindings::clear);
    }
    // It was acquired for this inference, so it can be put back.
    let _ = set.put_completed(handle);
}

impl State {
    /// Notes how it ended, unless that is known; an inference that is not on the device lets go of its program.
    fn settle(&mut self, outcome: Result<(), RuntimeError>) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
        }
        if self.handle.is_none() {
            self.set = None;
            self.inputs.clear();
        }
    }

    /// Gives the exec object the memory of inputs and outputs.
    fn bind(&mut self, bindings: &mut Bindings) {
        let inputs = self.inputs.iter_mut().map(|input| {
            let (storage, bytes) = input.take()?;
            let mut memory = ForeignMemory::from(storage);
            memory.truncate(bytes);
            Some(memory)
        });
        let outputs = self.outputs.iter_mut().map(|output| output.take().map(Into::into));
        bindings.assign(self.variant, inputs, outputs);
    }

    /// Takes it back.
    fn unbind(&mut self, bindings: &mut Bindings) {
        for (binding, input) in bindings.inputs.iter_mut().zip(&mut self.inputs) {
            if let InputBinding::Memory(memory) = mem::take(binding) {
                let bytes = memory.as_slice().len();
                *input = memory.into_storage().map(|storage| (storage, bytes));
            }
        }
        for (index, output) in self.outputs.iter_mut().enumerate() {
            *output = bindings.take_storage(index);
        }
    }
}

impl fmt::Debug for PendingInference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PendingInference")
            .field("fork_guard", &self.fork_guard)
            .finish_non_exhaustive()
    }
}
