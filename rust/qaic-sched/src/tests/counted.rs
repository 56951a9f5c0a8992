// A job that counts its executions and lets the test end them. Examples and models include this file too.

use std::sync::Arc;

use qaic_sched::{CancellationCheck, Canceller, Error, Executor, Finished, Job, Request, SchedulerOptions};
use qaic_sync::atomic::{AtomicBool, AtomicU32, Ordering, yield_now};

/// A device whose executions end immediately by default.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// Executions that have begun.
    pub(crate) began: AtomicU32,
    /// Executions that are under way.
    pub(crate) executing: AtomicU32,
    /// True while executions wait for their release.
    pub(crate) is_held: AtomicBool,
    /// Number of coming executions that end only on request.
    pub(crate) stuck: AtomicU32,
    /// Properties of the device.
    pub(crate) is_bounded: bool,
    /// True if an execution occupies a CPU of the host.
    pub(crate) is_host: bool,
    /// True if the device is asynchronous.
    pub(crate) is_queue: bool,
}

impl Device {
    /// Options of a scheduler for the device: one queue, one worker.
    pub(crate) fn options(self: &Arc<Self>) -> SchedulerOptions {
        SchedulerOptions {
            queues: 1,
            is_ordered: false,
            capacity: 1000,
            threads: 1,
            variants: 1,
            limit: None,
            device: Arc::clone(self) as Arc<dyn Executor>,
            begin_worker: || (),
            warn: |text| panic!("{text}"),
        }
    }

    fn execute(
        &self,
        request: &Request<Counted>,
        check: &mut Option<CancellationCheck<'_>>,
    ) -> Result<(), Error> {
        if request.is_asked_to_end() {
            return Err(Error::Interrupted);
        }
        self.began.fetch_add(1, Ordering::AcqRel);
        let less = |count: u32| count.checked_sub(1);
        let is_stuck = self.stuck.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok();
        self.executing.fetch_add(1, Ordering::AcqRel);
        let mut outcome = Ok(());
        while is_stuck || self.is_held.load(Ordering::Acquire) {
            let is_given_up = check.as_mut().is_some_and(|check| check());
            if is_given_up || request.is_asked_to_end() || request.is_called_away() {
                outcome = Err(Error::Interrupted);
                break;
            }
            yield_now();
        }
        self.executing.fetch_sub(1, Ordering::AcqRel);
        outcome
    }
}

impl Executor for Device {
    fn executes_on_host(&self) -> bool {
        self.is_host
    }

    fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    fn queues_on_device(&self) -> bool {
        self.is_queue
    }
}

impl Canceller for Device {
    fn cancel(&self) {}
}

/// A job of a device.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) device: Arc<Device>,
    /// Counts the completions that were called.
    pub(crate) completion: Option<Arc<AtomicU32>>,
    /// Combination of shapes.
    pub(crate) variant: usize,
}

impl Counted {
    /// A job without completion.
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), completion: None, variant: 0 }
    }
}

impl Job for Counted {
    type Error = Error;
    type Completion = Arc<AtomicU32>;

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::clone(&self.device) as Arc<dyn Canceller>
    }

    fn variant(&self) -> usize {
        self.variant
    }

    fn begin_at_once(&mut self) {}

    fn has_completion(&self) -> bool {
        self.completion.is_some()
    }

    fn take_completion(&mut self) -> Option<Arc<AtomicU32>> {
        self.completion.take()
    }

    fn completed(completion: Arc<AtomicU32>, _: u32) {
        completion.fetch_add(1, Ordering::AcqRel);
    }

    fn is_interrupted(error: &Error) -> bool {
        *error == Error::Interrupted
    }

    fn run(
        &mut self,
        request: &Request<Self>,
        mut check: Option<CancellationCheck<'_>>,
    ) -> Result<(), Error> {
        self.device.execute(request, &mut check)
    }

    fn submit(&mut self, request: &Request<Self>) -> Result<(), Error> {
        if request.is_asked_to_end() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn finish(
        &mut self,
        request: &Request<Self>,
        mut check: Option<CancellationCheck<'_>>,
    ) -> Finished<Error> {
        let outcome = self.device.execute(request, &mut check);
        if outcome.is_err() && !request.is_asked_to_end() {
            return Finished::LeftToDevice;
        }
        Finished::Ended(outcome)
    }
}
