//! Exec objects: each carries one inference at a time through an activated program.

use std::sync::Arc;

use qaic_sched::{CANCEL_PERIOD, Generation, Phase, PriorPhase, Reason, RequestLists, Submitted, Task};
use qaic_sync::Event;

use super::{Body, INFERENCE, Request};
use crate::binding::{Bindings, IoCrcs};
use crate::error::{ErrorDetail, RuntimeError, StateError};
use crate::inference_set::Completion;
use crate::process::{CancellationCheck, Deadline, Detached, ForkGuard, WaitScope};
use crate::program::{Activated, Program};
use crate::sync::AtomicU32;

/// Carries one inference at a time of an activated program.
///
/// The caller binds the exec object to memory, then runs the inference on the calling thread, or submits it and
/// waits. Any thread may use an exec object. While its inference is in flight, an exec object permits only waiting
/// and cancelling.
#[derive(Debug)]
pub struct ExecObj {
    /// The program.
    pub program: Arc<Program>,
    activated: Arc<Activated>,
    pub(crate) request: Arc<Request>,
    /// Number that the user assigned to the exec object; 0 by default.
    pub id: AtomicU32,
    fork_guard: ForkGuard,
}

impl ExecObj {
    /// Creates an exec object of `program`. With `auto_activate`, the program is loaded and activated first if
    /// necessary, and deactivated with its last exec object.
    ///
    /// Blocking: as [`Program::load`] if the program is not loaded.
    pub fn new(program: &Arc<Program>, auto_activate: bool) -> Result<Arc<Self>, RuntimeError> {
        let activated = program.enter(auto_activate)?;
        let made = Body::new(program, &activated).and_then(|body| {
            let (scheduler, queue) = activated.scheduler();
            let request = scheduler.take_request(queue)?;
            request.attach(body);
            Ok(request)
        });
        match made {
            Ok(request) => Ok(Arc::new(Self {
                program: Arc::clone(program),
                request,
                activated,
                id: AtomicU32::new(0),
                fork_guard: ForkGuard::new(),
            })),
            Err(error) => {
                activated.leave();
                Err(error)
            }
        }
    }

    /// Adds the exec object to an inference set; must be called before its first inference.
    pub(crate) fn join(&self, lists: &Arc<RequestLists>, number: u32) {
        self.request.join(lists, number);
    }

    /// Returns true if the object's inference is queued or running. On an asynchronous device, an inference ends soon
    /// after this call, even if no thread waits for it.
    pub(crate) fn is_in_flight(&self) -> bool {
        match self.request.state.phase() {
            Phase::OnDevice => {
                self.activated.scheduler().0.watch_device();
                true
            }
            Phase::Queued | Phase::Running => true,
            _ => false,
        }
    }

    /// Returns true if a device is executing the object's inference.
    pub(crate) fn is_running(&self) -> bool {
        self.is_in_flight() && matches!(self.request.state.phase(), Phase::Running | Phase::OnDevice)
    }

    /// Withdraws the inference if no thread has started it; the inference then ends with [`ErrorDetail::Cancelled`].
    /// Never blocks.
    #[cfg(test)]
    pub(crate) fn revoke(&self) -> bool {
        self.request.state.under_way().is_some_and(|generation| self.request.revoke(generation))
    }

    /// Reads or changes the bindings of the next inference. Fails while an inference is in flight.
    ///
    /// Never blocks. Memory that is bound without an owner has to stay valid until other memory is bound in its
    /// place.
    pub fn bind<T>(&self, change: impl FnOnce(&mut Bindings) -> T) -> Result<T, RuntimeError> {
        self.fork_guard.check()?;
        Ok(self.request.edit(|body| change(&mut body.bindings))?)
    }

    /// Starts the bound inference and returns at once. An inference that is known to be short has already ended by
    /// then. Inferences of one activation that retain state run in the order in which they were enqueued.
    pub(crate) fn enqueue(&self, detached: Detached) -> Result<(), RuntimeError> {
        self.submit(None, None, detached)
    }

    /// Starts the bound inference. With an `id`, the inference set's list of completed inferences returns it under
    /// that id. `completion` is called when the inference has ended.
    pub(crate) fn submit(
        &self,
        id: Option<u64>,
        completion: Option<Arc<dyn Completion>>,
        _: Detached,
    ) -> Result<(), RuntimeError> {
        let (task, begun) = self.begin(id, completion)?;
        self.submit_begun(task, begun, None)
    }

    /// Submits an inference that the calling thread has begun, and that has to end by `deadline`. If this call fails,
    /// no inference has begun.
    pub(crate) fn submit_begun(
        &self,
        task: Box<Task<Body>>,
        begun: Submitted,
        deadline: Option<Deadline>,
    ) -> Result<(), RuntimeError> {
        let (scheduler, _) = self.activated.scheduler();
        scheduler.submit(&self.request, task, begun.generation, deadline).inspect_err(|_| {
            // Checked first: after a withdrawal, the request may carry another thread's inference.
            if self.request.state.is_outstanding() {
                self.request.unlist();
            }
            self.request.withdraw(begun.prior_phase);
        })?;
        Ok(())
    }

    /// Begins an inference and prepares it; the calling thread owns the inference. If this call fails, no inference
    /// has begun.
    pub(crate) fn begin(
        &self,
        id: Option<u64>,
        completion: Option<Arc<dyn Completion>>,
    ) -> Result<(Box<Task<Body>>, Submitted), RuntimeError> {
        self.fork_guard.check()?;
        let arrival = self.activated.arrival();
        let request = &*self.request;
        let begun = request.state.begin(id.is_some()).map_err(|_| StateError::InFlight)?;
        let mut withdrawn =
            Withdrawn { request, prior_phase: begun.prior_phase, task: None, is_begun: false };
        let task = withdrawn.task.insert(request.take_task()?);
        task.prepare(&self.program, arrival, completion)?;
        if let Some(id) = id {
            request.list(id);
        }
        withdrawn.is_begun = true;
        let task = withdrawn.task.take().ok_or_else(|| RuntimeError::internal("no task"))?;
        Ok((task, begun))
    }

    /// Runs the bound inference, on the calling thread if no other thread would be faster. If `scope` ends the wait,
    /// the inference is cancelled, and the call returns when it has ended. At the deadline, the inference is
    /// cancelled on any thread.
    ///
    /// Blocking: until the device has executed the inference, and the inferences before it if the program retains
    /// state.
    pub fn run(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        let (scheduler, _) = self.activated.scheduler();
        let (task, begun) = self.begin(None, None)?;
        let task = if scheduler.may_run_here(&task) {
            let deadline = scope.deadline;
            let mut given_up = None;
            let mut check = || {
                given_up = given_up.take().or_else(|| scope.poll(INFERENCE).err());
                given_up.is_some()
            };
            match scheduler.run_here(&self.request, task, deadline, &mut check) {
                Ok(()) => return self.ran(deadline, given_up.map(RuntimeError::from)),
                Err(task) => task,
            }
        } else {
            task
        };
        scheduler
            .submit(&self.request, task, begun.generation, scope.deadline)
            .inspect_err(|_| self.request.withdraw(begun.prior_phase))?;
        let awaited = self.wait(scope);
        if self.request.state.is_in_flight() {
            self.end();
        }
        if self.activated.is_ordered() && matches!(&awaited, Err(error) if error.is_timeout()) {
            let outcome = self.request.outcome();
            if outcome.is_ok() {
                return self.collected(outcome);
            }
        }
        awaited
    }

    /// Returns the outcome of an inference that ran on the calling thread. An outcome after the deadline becomes a
    /// timeout, unless the inference has changed the program's state: callers repeat an inference after a timeout.
    fn ran(&self, deadline: Option<Deadline>, given_up: Option<RuntimeError>) -> Result<(), RuntimeError> {
        let outcome = self.request.outcome();
        let is_ended = matches!(
            outcome.as_ref().err().map(RuntimeError::detail),
            Some(ErrorDetail::Cancelled | ErrorDetail::Timeout { .. })
        );
        if is_ended && let Some(error) = given_up {
            return Err(error);
        }
        if (is_ended || outcome.is_ok() && !self.activated.is_ordered())
            && let Some(passed) = deadline.filter(|deadline| deadline.remaining().is_zero())
        {
            return Err(passed.error(INFERENCE).into());
        }
        self.collected(outcome)
    }

    /// Waits for the inference in flight and returns its outcome. Without one, returns the outcome of the last
    /// inference, or `Ok` if there was none. An inference that exceeds the program's time limit ends with
    /// [`ErrorDetail::Timeout`].
    ///
    /// Blocking: until the inference ends, or until `scope` ends the wait. In the latter case the inference
    /// continues, and the caller can wait for it again.
    pub fn wait(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let state = &self.request.state;
        loop {
            let Some(generation) = state.under_way() else { return self.collected(self.request.outcome()) };
            let mut given_up = None;
            let mut check = || {
                given_up = given_up.take().or_else(|| scope.poll(INFERENCE).err());
                given_up.is_some()
            };
            let has_helped = self.help(&mut check);
            if let Some(error) = given_up {
                return Err(error.into());
            }
            if !has_helped {
                let ended = || (state.under_way() != Some(generation)).then_some(());
                if state.wait(scope.sleep_limit(), ended).is_none() {
                    scope.poll(INFERENCE)?;
                }
            }
        }
    }

    /// Makes progress for a caller that waits for the inference in flight: runs the inference, or waits for the
    /// device that executes it. Returns false if there was nothing to do, or if `check` ended the wait.
    pub(crate) fn help(&self, check: CancellationCheck<'_>) -> bool {
        let (scheduler, _) = self.activated.scheduler();
        let state = &self.request.state;
        let generation = state.generation();
        match state.phase() {
            Phase::Queued => scheduler.run_queued(&self.request, generation, check),
            Phase::OnDevice => scheduler.finish(&self.request, generation, Some(check)),
            _ => false,
        }
    }

    /// Cancels the inference in flight, which then ends with [`ErrorDetail::Cancelled`] unless it is already ending.
    /// An inference that has not started, or that only the device works on, ends at once. Never blocks.
    pub(crate) fn cancel(&self) {
        if let Some(generation) = self.request.state.under_way() {
            self.cancel_inference(generation);
        }
    }

    /// Cancels one inference as [`Self::cancel`] does, but no later inference of the object.
    pub(crate) fn cancel_inference(&self, generation: Generation) {
        let request = &self.request;
        if !request.revoke(generation) {
            request.ask_to_end(generation, Reason::Cancelled);
            self.activated.scheduler().0.finish(request, generation, None);
        }
    }

    /// Outcome of the last inference.
    pub fn outcome(&self) -> Result<(), RuntimeError> {
        self.collected(self.request.outcome())
    }

    /// CRCs of the last inference of a program that checks its buffers; `None` for other programs, and while an
    /// inference is in flight.
    pub fn io_crcs(&self) -> Option<IoCrcs> {
        self.program.io_options.io_crc?;
        if self.is_in_flight() {
            return None;
        }
        self.request.edit(|body| body.io_crcs()).ok()?
    }

    /// Checks the CRCs of the outputs at the first query after a successful inference.
    fn collected(&self, outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        if self.program.io_options.io_crc.is_none() || outcome.is_err() {
            return outcome;
        }
        // Another thread binds the next inference and has collected this one.
        self.request.edit(Body::check_outputs).unwrap_or(outcome)
    }

    /// Cancels the inference in flight and waits until it has ended.
    pub(crate) fn end(&self) {
        let state = &self.request.state;
        while state.is_in_flight() {
            self.cancel();
            let ended = || (!state.is_in_flight()).then_some(());
            let _ = state.wait(CANCEL_PERIOD, ended);
        }
    }
}

impl Drop for ExecObj {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            self.end();
            drop(self.request.detach());
            self.activated.scheduler().0.give_back_request(&self.request);
        }
        self.activated.leave();
    }
}

/// Withdraws an inference that has begun but was not prepared, also after a panic.
struct Withdrawn<'a> {
    request: &'a Request,
    prior_phase: PriorPhase,
    task: Option<Box<Task<Body>>>,
    is_begun: bool,
}

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        if !self.is_begun {
            if let Some(task) = self.task.take() {
                self.request.put_task(task);
            }
            self.request.withdraw(self.prior_phase);
        }
    }
}
