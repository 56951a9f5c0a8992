//! An inference that a caller starts and collects later.
//!
//! A [`PendingInference`] owns copies of its inputs and the memory of its outputs, so the caller can change or free
//! its own arrays. The thread that ends the inference returns the exec object to the set at once. A result that was
//! not fetched yet therefore occupies no exec object.

use std::mem;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use qaic_mem::{ForeignMemory, Storage};
use qaic_sched::{CANCEL_PERIOD, CHECK_PERIOD};
use qaic_sync::{Event, ExclusiveCell};

use super::pending_state::{Expired, PendingState, RequestKey, Settled, TakeBack};
use super::{Completion, CompletionQueue, HandleId, Help, InferenceSet};
use crate::binding::{Bindings, InputBinding};
use crate::error::{ErrorDetail, RuntimeError};
use crate::process::{Deadline, Detached, ForkGuard, WaitScope};
use crate::request::{ExecObj, INFERENCE};

/// Memory of an input, and the number of given bytes; `None` if the device uses its retained value.
pub(crate) type PendingInput = Option<(Storage, usize)>;

/// Memory of an output; `None` if the caller does not request the output.
pub(crate) type PendingOutput = Option<Storage>;

/// One inference, from its preparation to the collection of its result.
///
/// The state word determines which thread owns the inference's parts: the thread that starts it,
/// the thread that ends it, or, after the end, the thread that fetches the result. No step takes a lock, unless a
/// thread sleeps.
pub struct PendingInference {
    state: PendingState,
    parts: ExclusiveCell<Parts>,
    // The parts keep the set until the inference has ended; a result that is kept longer holds no cores.
    set: Weak<InferenceSet>,
    // Reason of the failure; written before the state word reports the failure.
    failure: OnceLock<RuntimeError>,
    report: OnceLock<(Arc<CompletionQueue>, u64)>,
    deadline: Option<Deadline>,
    fork_guard: ForkGuard,
    this: Weak<Self>,
}

/// Parts that one thread at a time works on.
struct Parts {
    set: Option<Arc<InferenceSet>>,
    variant: usize,
    inputs: Vec<PendingInput>,
    outputs: Vec<PendingOutput>,
}

impl PendingInference {
    /// Creates an inference that is not started. Each input includes the number of given bytes.
    pub(crate) fn new(
        set: &Arc<InferenceSet>,
        variant: usize,
        inputs: Vec<PendingInput>,
        outputs: Vec<PendingOutput>,
        deadline: Option<Deadline>,
    ) -> Arc<Self> {
        let parts = Parts { set: Some(Arc::clone(set)), variant, inputs, outputs };
        Arc::new_cyclic(|this| Self {
            state: PendingState::prepared(),
            parts: ExclusiveCell::new(parts),
            set: Arc::downgrade(set),
            failure: OnceLock::new(),
            report: OnceLock::new(),
            deadline,
            fork_guard: ForkGuard::new(),
            this: Weak::clone(this),
        })
    }

    /// Fails in a forked child, because its threads cannot end the inference.
    pub fn check_process(&self) -> Result<(), RuntimeError> {
        Ok(self.fork_guard.check()?)
    }

    /// Makes the inference report its end to `queue` with `token`. May be called once.
    pub fn report_to(&self, queue: &Arc<CompletionQueue>, token: u64) {
        if self.report.set((Arc::clone(queue), token)).is_ok() {
            self.be_awaited(queue, PendingState::count);
        }
    }

    /// Makes `queue` count the inference and monitor its deadline, if `mark` marks the inference as counted.
    fn be_awaited(&self, queue: &CompletionQueue, mark: impl FnOnce(&PendingState) -> bool) {
        // Counted first: the thread that ends the inference finds the mark and decrements the count.
        queue.count();
        if !mark(&self.state) {
            return queue.count_off();
        }
        if let Some(deadline) = self.deadline {
            queue.watch(deadline.at, &self.this);
        }
        if self.state.is_asked_to_end() {
            queue.watch(Instant::now() + CHECK_PERIOD, &self.this);
        }
    }

    /// The inference set, until the inference has ended.
    pub fn set(&self) -> Option<Arc<InferenceSet>> {
        if self.state.has_ended() { None } else { self.set.upgrade() }
    }

    /// Starts the inference and returns true; returns false if no exec object of `set` is free. An inference that was
    /// cancelled or timed out before the call is not started. Its end is reported to `report` under the given token,
    /// unless the inference ends before this function returns. Never blocks.
    pub fn try_start(
        self: &Arc<Self>,
        set: &InferenceSet,
        report: Option<(&Arc<CompletionQueue>, u64)>,
        _: Detached,
    ) -> Result<bool, RuntimeError> {
        self.check_process()?;
        match set.try_acquire() {
            Some(handle) => self.start_on(set, handle, report).map(|()| true),
            None => Ok(false),
        }
    }

    /// Starts the inference as [`PendingInference::try_start`] does, but waits for a free exec object.
    ///
    /// Blocking: until an exec object is free, until the inference's deadline, or until `scope` ends the wait.
    pub fn start(
        self: &Arc<Self>,
        set: &InferenceSet,
        report: Option<(&Arc<CompletionQueue>, u64)>,
        scope: &mut WaitScope<'_>,
    ) -> Result<(), RuntimeError> {
        self.check_process()?;
        let handle = set.acquire(&mut scope.narrowed(self.deadline))?;
        self.start_on(set, handle, report)
    }

    /// Starts the inference on an acquired handle. If the inference has ended already, the handle returns to the set.
    fn start_on(
        self: &Arc<Self>,
        set: &InferenceSet,
        handle: HandleId,
        report: Option<(&Arc<CompletionQueue>, u64)>,
    ) -> Result<(), RuntimeError> {
        let exec = set.exec_obj(handle)?;
        let report = report.filter(|&(queue, token)| self.report.set((Arc::clone(queue), token)).is_ok());
        if !self.state.hold() {
            return set.put_completed(handle);
        }
        let bound = self.parts.try_with(|parts| exec.bind(|bindings| parts.bind(bindings)));
        let completion = Arc::clone(self) as Arc<dyn Completion>;
        let begun = bound.unwrap_or(Ok(())).and_then(|()| exec.begin(None, Some(completion)));
        let (body, begun) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.withdraw(exec, &error);
                set.put_completed(handle)?;
                return Err(error);
            }
        };
        let key = RequestKey { number: handle.0, generation: begun.generation };
        let submitted = if self.state.publish(key).is_ok() {
            exec.submit_begun(body, begun, self.deadline)
        } else {
            exec.request.complete(body, Err(ErrorDetail::Cancelled.into()));
            Ok(())
        };
        if let Err(error) = &submitted {
            // No exec object has the inference, and it cannot start again.
            self.parts.try_with(|parts| parts.leave(handle));
            self.end(Err(error.clone()));
        }
        match report.filter(|_| !self.state.has_ended()) {
            Some((queue, _)) => self.be_awaited(queue, |state| state.leave_start(true)),
            None => drop(self.state.leave_start(false)),
        }
        submitted
    }

    /// Allows another start of an inference that could not begin, unless it has to end.
    fn withdraw(&self, exec: &ExecObj, error: &RuntimeError) {
        let _ = self.parts.try_with(|parts| exec.bind(|bindings| parts.unbind(bindings)));
        if self.state.release().is_err() {
            self.parts.try_with(Parts::clear);
            self.end(Err(error.clone()));
            self.state.leave_start(false);
        }
    }

    /// Withdraws the inference if no thread has begun it. Returns false if a thread has begun it, or if it was
    /// withdrawn before. A withdrawn inference reports no end, because the caller knows it.
    pub fn revoke(&self) -> bool {
        match self.state.take_back() {
            TakeBack::Held => {
                self.parts.try_with(Parts::clear);
                self.end(Ok(()));
                true
            }
            TakeBack::Started(key) => self
                .with_exec_obj(key, |exec| {
                    exec.request.state.claim(key.generation) && {
                        let is_mine = self.state.set_taken_back();
                        exec.request.fail(ErrorDetail::Cancelled.into());
                        is_mine
                    }
                })
                .unwrap_or(false),
            TakeBack::TooLate => false,
        }
    }

    /// Cancels the inference in any state. Never blocks.
    pub fn cancel(&self) {
        if self.revoke() {
            return;
        }
        self.ask_to_end();
        // A device may ignore the request.
        if self.state.is_asked_to_end()
            && let Some((queue, _)) = self.report.get()
        {
            queue.watch(Instant::now() + CHECK_PERIOD, &self.this);
        }
    }

    fn ask_to_end(&self) {
        if let Some(key) = self.state.ask_to_end() {
            self.with_exec_obj(key, |exec| exec.cancel_inference(key.generation));
        }
    }

    /// Ends the inference if its deadline has passed, and repeats an earlier cancellation. Returns the time of the
    /// next check.
    pub(super) fn check(&self, now: Instant) -> Option<Instant> {
        let is_late = self.deadline.is_some_and(|deadline| now >= deadline.at);
        if is_late {
            match self.state.expire() {
                Expired::Held => {
                    self.parts.try_with(Parts::clear);
                    let end = self.state.end(true);
                    self.report_end(end.is_counted);
                }
                Expired::Settled => self.report_end(false),
                Expired::Known => {}
            }
        }
        if is_late || self.state.is_asked_to_end() {
            self.ask_to_end();
            (!self.has_left()).then(|| now + CHECK_PERIOD)
        } else {
            self.deadline.map(|deadline| deadline.at).filter(|_| !self.has_left())
        }
    }

    /// Returns true if the inference has ended and the device has released it.
    pub(super) fn has_left(&self) -> bool {
        self.state.has_ended()
    }

    /// Calls `ask` with the exec object of the request that carries the inference; `None` if the set no longer
    /// exists. `ask` must check the generation, because the object may already carry another inference.
    fn with_exec_obj<T>(&self, key: RequestKey, ask: impl FnOnce(&ExecObj) -> T) -> Option<T> {
        let set = self.set.upgrade()?;
        set.exec_obj(HandleId(key.number)).ok().map(|exec| ask(exec))
    }

    /// Waits for the end and returns the outcome.
    ///
    /// Blocking: until the inference has ended; the deadline cancels the inference. If `scope` ends the wait, the
    /// inference continues.
    pub fn wait(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        self.check_process()?;
        let ended = || self.outcome().map(Ok);
        let Some(set) = self.set() else {
            return self.wait_for_word(scope);
        };
        let help = self.state.request_key().map_or(Help::Nothing, |key| Help::With(HandleId(key.number)));
        let mut narrowed = scope.narrowed(self.deadline);
        let waited = set.wait_for(&self.state, INFERENCE, help, &mut narrowed, ended);
        let error = match waited {
            Ok(outcome) => return outcome,
            Err(error) => error,
        };
        if error.is_timeout() && self.deadline.is_some_and(|deadline| deadline.remaining().is_zero()) {
            // As after `run`, the device no longer uses the exec object when the error is raised.
            let left = || self.has_left().then_some(());
            while !self.revoke() && self.state.wait(CANCEL_PERIOD, left).is_none() {
                self.cancel();
                scope.poll(INFERENCE)?;
            }
        }
        Err(error)
    }

    /// Waits for the state word only. The thread that ends the inference may own the last reference to its set, and
    /// then destroys the set first.
    fn wait_for_word(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        loop {
            if let Some(outcome) = self.state.wait(scope.sleep_limit(), || self.outcome()) {
                return outcome;
            }
            scope.poll(INFERENCE)?;
        }
    }

    /// Returns true if the inference ended before the call that started it returned. Such an end is not
    /// reported.
    pub fn has_ended_in_start(&self) -> bool {
        self.state.has_ended_in_start()
    }

    /// Outcome of the inference, if it is known. The device may still execute an inference that timed out.
    pub fn outcome(&self) -> Option<Result<(), RuntimeError>> {
        Some(match self.state.settled()? {
            Settled::Succeeded => Ok(()),
            Settled::TakenBack => Err(ErrorDetail::Cancelled.into()),
            Settled::Late => self.deadline.map_or(Ok(()), |deadline| Err(deadline.error(INFERENCE).into())),
            Settled::Failed => self.failure.get().cloned().map_or(Ok(()), Err),
        })
    }

    /// Returns true if the inference has ended, with or without an error.
    pub fn has_ended(&self) -> bool {
        // A call of the exec object would make a thread wait for an asynchronous device.
        if self.state.settled().is_none()
            && let Some(key) = self.state.request_key()
        {
            self.with_exec_obj(key, ExecObj::is_in_flight);
        }
        self.state.settled().is_some()
    }

    /// Returns true if the device is executing the inference.
    pub fn is_running(&self) -> bool {
        self.state.settled().is_none()
            && self
                .state
                .request_key()
                .and_then(|key| self.with_exec_obj(key, ExecObj::is_running))
                .unwrap_or(false)
    }

    /// Returns the memory of the outputs of an inference that succeeded. Only the first call returns the memory.
    pub fn take_outputs(&self) -> Vec<PendingOutput> {
        self.parts.try_with(|parts| mem::take(&mut parts.outputs)).unwrap_or_default()
    }

    /// Ends the inference, on the thread that owns its parts. The inference holds no device resources afterwards.
    fn end(&self, outcome: Result<(), RuntimeError>) {
        let has_failed = outcome.is_err();
        if let Err(error) = outcome {
            let _ = self.failure.set(error);
        }
        let end = self.state.end(has_failed);
        if end.needs_report {
            self.report_end(end.is_counted);
        } else if end.is_counted
            && let Some((queue, _)) = self.report.get()
        {
            queue.count_off();
        }
    }

    /// Reports the end to the queue, which removes the inference from its count if it was counted.
    fn report_end(&self, is_counted: bool) {
        if let Some((queue, token)) = self.report.get() {
            queue.add(*token, is_counted);
        }
    }
}

impl Completion for PendingInference {
    fn completed(&self, handle: HandleId) {
        let outcome = self.parts.try_with(|parts| {
            let outcome = parts.set.as_ref().map_or(Ok(()), |set| set.exec_obj(handle)?.outcome());
            // This also releases the set: a thread may expect free cores after the end is published.
            parts.leave(handle);
            outcome
        });
        self.end(outcome.unwrap_or(Ok(())));
    }
}

impl Drop for PendingInference {
    fn drop(&mut self) {
        // An inference that never started is no longer awaited.
        if self.fork_guard.is_current()
            && self.state.is_counted()
            && let Some((queue, _)) = self.report.get()
        {
            queue.count_off();
        }
    }
}

impl Parts {
    /// Takes the outputs from the exec object of an ended inference, and returns the exec object to the set.
    fn leave(&mut self, handle: HandleId) {
        if let Some(set) = &self.set {
            if let Ok(exec) = set.exec_obj(handle) {
                // The inference has just ended, so the exec object can be bound.
                let outputs = &mut self.outputs;
                let _ = exec.bind(|bindings| {
                    take_outputs(outputs, bindings);
                    bindings.clear();
                });
            }
            // The handle was acquired for this inference, so it can be put back.
            let _ = set.put_completed(handle);
        }
        self.clear();
    }

    /// Releases the inputs and the program.
    fn clear(&mut self) {
        self.inputs.clear();
        self.set = None;
    }

    /// Lends the memory of inputs and outputs to the exec object.
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

    /// Takes the memory of inputs and outputs back from the exec object.
    fn unbind(&mut self, bindings: &mut Bindings) {
        for (binding, input) in bindings.inputs.iter_mut().zip(&mut self.inputs) {
            if let InputBinding::Memory(memory) = mem::take(binding) {
                let bytes = memory.as_slice().len();
                *input = memory.into_storage().map(|storage| (storage, bytes));
            }
        }
        take_outputs(&mut self.outputs, bindings);
    }
}

/// Takes the memory of the outputs back from an exec object.
fn take_outputs(outputs: &mut [PendingOutput], bindings: &mut Bindings) {
    for (index, output) in outputs.iter_mut().enumerate() {
        *output = bindings.take_storage(index);
    }
}

qaic_sync::debug_fields!(PendingInference, |inference| state: inference.state);
