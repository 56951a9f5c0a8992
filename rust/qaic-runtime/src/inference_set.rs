//! A fixed number of exec objects over a number of activations, shared by any number of threads.

use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::buffer::HostSlice;
use crate::context::Context;
use crate::device::{Canceller, DeviceId, LoadOptions};
use crate::error::RuntimeError;
use crate::exec_obj::ExecObj;
use crate::image::Image;
use crate::program::Program;
use crate::sync::{Condvar, Mutex};

/// How long a wait lasts before the caller's interrupt check runs again.
const INTERRUPT_CHECK_PERIOD: Duration = Duration::from_millis(50);

/// Exec objects of a set at most. Each costs kilobytes, and none beyond the threads that call can ever run.
const MAX_EXEC_OBJECTS: usize = 1 << 16;

/// `set_size` exec objects for each of `activations` activations of one container.
#[derive(Debug)]
pub struct InferenceSet {
    free: Mutex<Free>,
    returned: Condvar,
    image: Arc<Image>,
    handle_count: usize,
    // Declared, so dropped, last: the exec objects refer to the activations.
    programs: Vec<Program>,
}

#[derive(Debug)]
struct Free {
    // Used from its end: the exec object that ran last is the one whose memory is in the cache.
    execs: Vec<ExecObj>,
    // Threads in `acquire`: without any, returning an exec object needs no system call.
    waiting: usize,
}

impl InferenceSet {
    /// Loads the container once, activates it `options.activations` times and makes the exec objects.
    ///
    /// Blocking: as [`Program::load`].
    pub fn new(
        context: &Arc<Context>,
        image: &Arc<Image>,
        device: DeviceId,
        set_size: u32,
        options: LoadOptions,
    ) -> Result<Self, RuntimeError> {
        if set_size == 0 || options.activations == 0 {
            return Err(RuntimeError::Argument {
                what: format!(
                    "set_size {set_size} and num_activations {} must be at least 1",
                    options.activations
                ),
            });
        }
        context.check_free_cores(
            &device.into(),
            image.network().num_cores,
            options.activations,
            options.share_group.as_deref(),
        )?;
        let activations = options.activations as usize;
        let count = activations.saturating_mul(set_size as usize);
        if count > MAX_EXEC_OBJECTS {
            return Err(RuntimeError::Argument {
                what: format!(
                    "set_size {set_size} times num_activations {activations} is {count}; \
                     at most {MAX_EXEC_OBJECTS} inferences can be in flight"
                ),
            });
        }
        let first = Program::new(context, image, device, options)?;
        first.load()?;
        let mut programs = vec![first];
        while programs.len() < activations {
            programs.push(programs[0].share());
        }
        let mut free = Vec::with_capacity(count);
        for program in &programs {
            program.activate()?;
        }
        for _ in 0..set_size {
            for program in &programs {
                free.push(program.create_exec_obj()?);
            }
        }
        Ok(Self {
            handle_count: free.len(),
            free: Mutex::new(Free { execs: free, waiting: 0 }),
            returned: Condvar::default(),
            image: Arc::clone(image),
            programs,
        })
    }

    /// The container.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Number of exec objects.
    pub fn handle_count(&self) -> usize {
        self.handle_count
    }

    /// A free exec object if there is one now. Never blocks.
    pub fn try_acquire(&self) -> Option<Handle<'_>> {
        let exec = self.free.lock().execs.pop()?;
        Some(Handle { set: self, exec: Some(exec) })
    }

    /// A free exec object.
    ///
    /// Blocking: until one is returned, until `deadline`, or until `interrupted` says so; it is asked about every
    /// 50 ms, without any lock held.
    pub fn acquire(
        &self,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Handle<'_>, RuntimeError> {
        let started = Instant::now();
        loop {
            let mut free = self.free.lock();
            if free.execs.is_empty() {
                free.waiting += 1;
                free = self.returned.wait_at_most(free, INTERRUPT_CHECK_PERIOD);
                free.waiting -= 1;
            }
            if let Some(exec) = free.execs.pop() {
                return Ok(Handle { set: self, exec: Some(exec) });
            }
            drop(free);
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(RuntimeError::Timeout {
                    what: "a free exec object",
                    timeout_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                });
            }
            if interrupted() {
                return Err(RuntimeError::Interrupted);
            }
        }
    }
}

/// What a benchmark measured.
#[derive(Clone, Copy, Debug)]
pub struct BenchmarkOutcome {
    /// Inferences that ended.
    pub completed: u64,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
}

impl InferenceSet {
    /// Runs inferences on the same inputs from as many threads as there are exec objects and CPUs, until `count` have
    /// begun or `limit` has passed since the first could. Outputs are computed and dropped.
    ///
    /// Blocking: until all that began have ended. `interrupted` is asked about every 50 ms on the calling thread.
    pub fn benchmark(
        &self,
        inputs: &[HostSlice],
        count: Option<u64>,
        limit: Option<Duration>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<BenchmarkOutcome, RuntimeError> {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = self.handle_count.min(cpus.max(self.programs.len()));
        let begun = AtomicU64::new(0);
        let completed = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let running: Mutex<Vec<Arc<dyn Canceller>>> = Mutex::default();
        let started = Instant::now();
        // A limit beyond what the clock can express is none.
        let deadline = limit.and_then(|limit| started.checked_add(limit));
        let outcome = thread::scope(|scope| {
            let (failed, failures) = channel();
            for _ in 0..workers {
                let failed = failed.clone();
                let (begun, completed, stop, running) = (&begun, &completed, &stop, &running);
                scope.spawn(move || {
                    let work = || -> Result<(), RuntimeError> {
                        let mut handle = self.acquire(deadline, || stop.load(Ordering::Relaxed))?;
                        running.lock().push(handle.canceller());
                        let outputs = vec![None; self.image.network().outputs.len()];
                        while !stop.load(Ordering::Relaxed)
                            && deadline.is_none_or(|deadline| Instant::now() < deadline)
                            && count.is_none_or(|count| begun.fetch_add(1, Ordering::Relaxed) < count)
                        {
                            handle.run(inputs, &outputs)?;
                            completed.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    };
                    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                        Err(RuntimeError::Internal { what: "a benchmark thread panicked".to_owned() })
                    });
                    if let Err(error) = result {
                        stop.store(true, Ordering::Relaxed);
                        // The receiver lives until every worker has ended.
                        let _ = failed.send(error);
                    }
                });
            }
            drop(failed);
            let mut outcome = Ok(());
            loop {
                match failures.recv_timeout(INTERRUPT_CHECK_PERIOD) {
                    // What ended first is the reason; that others were cancelled then is its consequence.
                    Ok(error) if outcome.is_ok() => outcome = Err(error),
                    Err(RecvTimeoutError::Timeout) if outcome.is_ok() && interrupted() => {
                        stop.store(true, Ordering::Relaxed);
                        outcome = Err(RuntimeError::Interrupted);
                    }
                    Err(RecvTimeoutError::Disconnected) => return outcome,
                    _ => {}
                }
                if outcome.is_err() {
                    for canceller in &*running.lock() {
                        canceller.cancel();
                    }
                }
            }
        });
        outcome?;
        Ok(BenchmarkOutcome { completed: completed.into_inner(), elapsed: started.elapsed() })
    }
}

/// An exec object on loan; dropping it returns it to the set.
#[derive(Debug)]
pub struct Handle<'a> {
    set: &'a InferenceSet,
    // Empty only while being dropped.
    exec: Option<ExecObj>,
}

impl Deref for Handle<'_> {
    type Target = ExecObj;

    #[allow(clippy::expect_used)]
    fn deref(&self) -> &ExecObj {
        self.exec.as_ref().expect("taken only by drop")
    }
}

impl DerefMut for Handle<'_> {
    #[allow(clippy::expect_used)]
    fn deref_mut(&mut self) -> &mut ExecObj {
        self.exec.as_mut().expect("taken only by drop")
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec.take() {
            let mut free = self.set.free.lock();
            free.execs.push(exec);
            let is_awaited = free.waiting > 0;
            drop(free);
            if is_awaited {
                self.set.returned.notify_one();
            }
        }
    }
}
