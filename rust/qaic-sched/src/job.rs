//! Interfaces between the scheduler and the code that executes inferences.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::on_device::Permit;
use crate::{Error, Request, clock};

/// Callback of waiting code, called a few times a second and at every wakeup. Returning true ends the wait.
pub type CancellationCheck<'a> = &'a mut dyn FnMut() -> bool;

/// Ratio of timed inferences: one in this many inferences of a request is timed.
const TIMED_EVERY: u32 = 16;

/// Properties of a device that decide which thread runs an inference.
pub trait Executor: Debug + Send + Sync {
    /// Returns true if an execution occupies a CPU of the host from start to end.
    fn executes_on_host(&self) -> bool;

    /// Returns true if an execution ends within microseconds for all inputs. Such an execution runs on the thread
    /// that submits it.
    fn is_bounded(&self) -> bool {
        false
    }

    /// Returns true if the device is asynchronous, which means that it works through its submissions without a host
    /// thread. The scheduler then submits several inferences before it waits for the oldest.
    fn queues_on_device(&self) -> bool {
        false
    }
}

/// Ends an execution from any thread.
pub trait Canceller: Debug + Send + Sync {
    /// Asks the running execution to end soon. A submitted execution that no thread waits for counts as running, and
    /// ends when a thread waits for it.
    ///
    /// If no execution is running, this call has no effect, not even on later executions. A caller that must be sure
    /// repeats the call until the execution has ended. Never blocks.
    fn cancel(&self);
}

/// The work of a request's inferences, one at a time. One thread at a time owns the job.
pub trait Job: Debug + Send + Sized + 'static {
    /// Failure of an inference.
    type Error: Clone + Debug + From<Error> + Send;

    /// Called when an inference has ended.
    type Completion: Send;

    /// Returns the canceller of the current inference.
    fn canceller(&self) -> Arc<dyn Canceller>;

    /// Index of the combination of shapes of the next inference.
    fn variant(&self) -> usize;

    /// Records that the inference begins immediately, on the thread of its caller.
    fn begin_at_once(&mut self);

    /// Returns true if a completion must be called when the inference has ended.
    fn has_completion(&self) -> bool;

    /// Takes the completion of the inference that has ended.
    fn take_completion(&mut self) -> Option<Self::Completion>;

    /// Calls a completion. `number` is the number of the request in its set.
    fn completed(completion: Self::Completion, number: u32);

    /// Returns true if an inference failed because it was cancelled or timed out.
    fn is_interrupted(error: &Self::Error) -> bool;

    /// Runs the whole inference on the calling thread, unless it was asked to end. If `check` returns true, the
    /// inference is cancelled.
    fn run(
        &mut self,
        request: &Request<Self>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), Self::Error>;

    /// Submits the inference to an asynchronous device.
    fn submit(&mut self, request: &Request<Self>) -> Result<(), Self::Error>;

    /// Waits for the device. If `check` returns true, the wait ends and the device keeps the inference.
    fn finish(
        &mut self,
        request: &Request<Self>,
        check: Option<CancellationCheck<'_>>,
    ) -> Finished<Self::Error>;
}

/// Result of a wait for the device.
///
/// ```
/// use qaic_sched::{Error, Finished};
///
/// assert_ne!(Finished::Ended(Err(Error::Interrupted)), Finished::LeftToDevice);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished<E> {
    /// The inference has ended.
    Ended(Result<(), E>),
    /// The wait ended early, and the device still has the inference.
    LeftToDevice,
}

/// A job, and the scheduler's data about its current inference. The thread that works on the inference owns the task.
///
/// ```
/// # mod counted {
/// #     #![allow(dead_code)]
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/counted.rs"));
/// # }
/// # use counted::{Counted, Device};
/// let device = std::sync::Arc::new(Device::default());
/// let request = qaic_sched::Scheduler::new(device.options()).take_request(0).unwrap();
/// request.attach(Counted::new(&device));
/// let task = request.take_task().unwrap();
/// assert_eq!(task.variant, 0);
/// assert!(request.take_task().is_err(), "one thread has it");
/// request.put_task(task);
/// ```
#[derive(Debug)]
pub struct Task<J> {
    job: J,
    // Held while the inference is on a device, or about to be.
    permit: Option<Permit>,
    /// Time that threads spent on the inference, if it was timed.
    pub(crate) spent_ns: Option<u64>,
    begun: u32,
}

impl<J: Job> Task<J> {
    pub(crate) fn new(job: J) -> Self {
        Self { job, permit: None, spent_ns: None, begun: 0 }
    }

    /// Enables timing for the inference that just began, or only for one of several if the duration is known.
    pub(crate) fn time_if(&mut self, is_unknown: bool) {
        self.begun = self.begun.wrapping_add(1);
        self.spent_ns = (is_unknown || self.begun.is_multiple_of(TIMED_EVERY)).then_some(0);
    }

    /// Stores the inference's place on a device until the inference ends.
    pub(crate) fn permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Releases everything that belongs to one inference.
    pub(crate) fn end(&mut self) -> Option<J::Completion> {
        self.permit = None;
        self.job.take_completion()
    }

    pub(crate) fn run(
        &mut self,
        request: &Request<J>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), J::Error> {
        // Another thread may have started the inference before it was interrupted.
        self.spent_ns = self.spent_ns.map(|_| 0);
        self.timed(|job| job.run(request, check))
    }

    pub(crate) fn submit(&mut self, request: &Request<J>) -> Result<(), J::Error> {
        self.timed(|job| job.submit(request))
    }

    pub(crate) fn finish(
        &mut self,
        request: &Request<J>,
        check: Option<CancellationCheck<'_>>,
    ) -> Finished<J::Error> {
        self.timed(|job| job.finish(request, check))
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut J) -> T) -> T {
        let began_ns = self.spent_ns.map(|_| clock::now_ns());
        let result = work(&mut self.job);
        if let Some((spent_ns, began_ns)) = self.spent_ns.as_mut().zip(began_ns) {
            *spent_ns += clock::now_ns().saturating_sub(began_ns);
        }
        result
    }
}

impl<J> Deref for Task<J> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.job
    }
}

impl<J> DerefMut for Task<J> {
    fn deref_mut(&mut self) -> &mut J {
        &mut self.job
    }
}
