//! The seam to what executes inferences.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::on_device::Permit;
use crate::{Error, Request, clock};

/// Asked by work that waits, a few times a second, and whenever it wakes: true ends the wait.
pub type CancellationCheck<'a> = &'a mut dyn FnMut() -> bool;

/// One in this many inferences of a request is timed.
const TIMED_EVERY: u32 = 16;

/// Properties of a device that decide which thread runs an inference.
pub trait Executor: Debug + Send + Sync {
    /// Returns whether an execution occupies a CPU of the host from its begin to its end.
    fn executes_on_host(&self) -> bool;

    /// Returns whether an execution ends within microseconds for all inputs. Then it runs on the thread that
    /// submits it.
    fn is_bounded(&self) -> bool {
        false
    }

    /// Returns whether the device works through its submissions by itself: several inferences are then
    /// submitted before the oldest is waited for.
    fn queues_on_device(&self) -> bool {
        false
    }
}

/// Ends an execution from any thread.
pub trait Canceller: Debug + Send + Sync {
    /// Asks the running execution to end soon; one that was submitted and is not waited for yet counts as running, and
    /// ends when it is. Without one, nothing happens: an execution that begins later is not affected, so a canceller that
    /// must be sure asks again until the execution has ended. Never blocks.
    fn cancel(&self);
}

/// The work of a request's inferences, one after the other. One thread at a time has it.
pub trait Job: Debug + Send + Sized + 'static {
    /// Failure of an inference.
    type Error: Clone + Debug + From<Error> + Send;

    /// Called when an inference has ended.
    type Completion: Send;

    /// Ends the inference under way.
    fn canceller(&self) -> Arc<dyn Canceller>;

    /// Number of the combination of shapes that the next inference has.
    fn variant(&self) -> usize;

    /// Records that the inference begins at once, on the thread of its caller.
    fn begin_at_once(&mut self);

    /// Returns whether a completion must be called when the inference has ended.
    fn has_completion(&self) -> bool;

    /// Takes the completion of the inference that has ended.
    fn take_completion(&mut self) -> Option<Self::Completion>;

    /// Calls a completion; `number` is that of the request among those of its set.
    fn completed(completion: Self::Completion, number: u32);

    /// Returns whether an inference failed because it was asked to end.
    fn is_interrupted(error: &Self::Error) -> bool;

    /// Runs the whole inference on the calling thread, unless it was asked to end. Cancelled where `check` says so.
    fn run(
        &mut self,
        request: &Request<Self>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), Self::Error>;

    /// Gives the inference to a device that works by itself.
    fn submit(&mut self, request: &Request<Self>) -> Result<(), Self::Error>;

    /// Waits for the device. Left to it where `check` says to wait no longer.
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
    /// The wait was given up, and the device still has the inference.
    LeftToDevice,
}

/// A job, and what the scheduler has for its present inference. Its owner is the thread that works on the inference.
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
    // Time that threads spent on the inference so far, where it is timed.
    spent_ns: Option<u64>,
    begun: u32,
}

impl<J: Job> Task<J> {
    pub(crate) fn new(job: J) -> Self {
        Self { job, permit: None, spent_ns: None, begun: 0 }
    }

    /// Has the inference that was just begun be timed, or one of a few.
    pub(crate) fn time_if(&mut self, is_unknown: bool) {
        self.begun = self.begun.wrapping_add(1);
        self.spent_ns = (is_unknown || self.begun.is_multiple_of(TIMED_EVERY)).then_some(0);
    }

    /// Time that threads spent on the inference, where it was timed.
    pub(crate) fn spent_ns(&self) -> Option<u64> {
        self.spent_ns
    }

    /// Gives the inference its place on a device, until it ends.
    pub(crate) fn permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Ends what belongs to one inference.
    pub(crate) fn end(&mut self) -> Option<J::Completion> {
        self.permit = None;
        self.job.take_completion()
    }

    pub(crate) fn run(
        &mut self,
        request: &Request<J>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), J::Error> {
        // Another thread may have begun it and was called away.
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
