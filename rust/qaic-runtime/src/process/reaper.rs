//! Threads that destroy objects after a caller drops them.
//!
//! Releasing a card's cores takes as long as its firmware takes to answer, up to a minute per message. Dropping an
//! inference takes until the device has released it. Meanwhile, a caller may hold a lock that all other threads need,
//! for example during Python's garbage collection. The last reference of an object therefore moves to a separate
//! thread, and the caller waits for the [`Teardown`] only as long as it needs: [`Teardown::wait_briefly`] for drops,
//! [`Teardown::wait`] for explicit calls.
//!
//! A forked child has its own threads. The parent destroys the objects that it has dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::fork::ForkLocal;
use super::log;
use super::{CancellationToken, Deadline, ForkGuard, WaitScope, ignore_signals_on_this_thread};
use crate::error::{CardError, DeviceError, ErrorDetail, RuntimeError};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// Time limit of an explicit teardown's wait, equal to the kernel's limit for an answer of a card's firmware.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Time limit for teardowns at the end of the process. The kernel frees the remaining objects.
pub(crate) const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of the wait in a drop. Most teardowns take less, so cores and memory are usually free when the drop
/// returns.
const BRIEFLY: Duration = Duration::from_millis(200);

/// Maximum number of threads. Further teardowns wait for a free thread.
const MOST_THREADS: usize = 8;

/// Time after which an idle thread ends.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

const WHAT: &str = "a teardown, which continues";

static REAPERS: ForkLocal<Arc<Reaper>> = ForkLocal::new();

static IS_EXITING: AtomicBool = AtomicBool::new(false);

type Work = Box<dyn FnOnce() + Send>;

/// State of the teardown of one object.
#[derive(Debug, Default)]
pub struct Teardown {
    phase: Mutex<Phase>,
    changed: Condvar,
    // Ids of the devices that the object uses.
    devices: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Other owners still have the object, or had it when its owner dropped it.
    #[default]
    NotBegun,
    UnderWay,
    Over,
}

impl Teardown {
    /// Creates the teardown of an existing object.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates the teardown of an object that uses these devices.
    pub(crate) fn of_devices(devices: Vec<u32>) -> Arc<Self> {
        Arc::new(Self { devices, ..Self::default() })
    }

    /// Waits until the object is destroyed; returns at once if no teardown has begun.
    ///
    /// Blocking: until then, or until `scope` ends the wait; the teardown then continues.
    pub fn wait(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        while !self.is_settled_within(scope.sleep_limit()) {
            scope.poll(WHAT)?;
        }
        Ok(())
    }

    /// Waits briefly, or at most ten seconds while the process ends.
    pub fn wait_briefly(&self) {
        let limit = if IS_EXITING.load(Ordering::Relaxed) { EXIT_LIMIT } else { BRIEFLY };
        // Late teardowns continue.
        let _ = self.wait(&mut WaitScope::until(Deadline::after(limit)));
    }

    /// Returns true if no teardown is in progress, after one wait of at most `limit`.
    fn is_settled_within(&self, limit: Duration) -> bool {
        let phase = self.phase.lock();
        if *phase != Phase::UnderWay {
            return true;
        }
        *self.changed.wait_at_most(phase, limit) != Phase::UnderWay
    }

    /// Returns true if the object is destroyed, after one wait of at most `limit`.
    fn is_over_within(&self, limit: Duration) -> bool {
        let phase = self.phase.lock();
        *phase == Phase::Over || *self.changed.wait_at_most(phase, limit) == Phase::Over
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }
}

/// Marks a teardown as finished on drop, also after a panic. An object whose teardown is announced has it as its last
/// field.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The progress of the teardown.
    pub(crate) teardown: Arc<Teardown>,
    // Another thread of the parent may hold the lock in a forked process.
    fork_guard: ForkGuard,
}

impl Ended {
    /// Creates the mark of the object that `teardown` monitors.
    pub(crate) fn new(teardown: Arc<Teardown>) -> Self {
        Self { teardown, fork_guard: ForkGuard::new() }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            self.teardown.set(Phase::Over);
        }
    }
}

/// Destroys an object if `last` is the last reference to it; returns `None` otherwise. Does not wait.
pub(crate) fn release<T: Send + Sync + 'static>(last: Arc<T>) -> Option<Arc<Teardown>> {
    let teardown = Teardown::new();
    release_as(&teardown, last).then_some(teardown)
}

/// Destroys an object as [`release`] does, with its progress in `teardown`. Returns true if it was the last
/// reference.
pub(crate) fn release_as<T: Send + Sync + 'static>(teardown: &Arc<Teardown>, last: Arc<T>) -> bool {
    let Some(object) = Arc::into_inner(last) else { return false };
    begin(teardown, Box::new(move || drop(object)));
    true
}

/// Runs an explicit teardown, and returns its outcome.
///
/// Blocking: as [`Teardown::wait`].
pub fn run<T: Send + 'static>(
    scope: &mut WaitScope<'_>,
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let (teardown, outcome) = (Teardown::new(), Arc::new(Mutex::new(None)));
    let slot = Arc::clone(&outcome);
    begin(&teardown, Box::new(move || *slot.lock() = Some(work())));
    teardown.wait(scope)?;
    let ended = outcome.lock().take();
    ended.unwrap_or_else(|| Err(RuntimeError::internal("a teardown panicked")))
}

/// Announces the teardown of an object whose owner has finished with it while others, such as inferences in flight, still
/// use it. [`when_free`] waits for it.
pub fn announce(teardown: &Arc<Teardown>) {
    reaper().state.lock().announced.push(Arc::clone(teardown));
}

/// Calls `attempt`, and calls it again as long as a device is busy while objects are being destroyed or while the
/// teardown of an object that uses this device is announced.
///
/// Blocking: as `attempt`, and at most [`LIMIT`] for teardowns.
pub fn when_free<T>(mut attempt: impl FnMut() -> Result<T, RuntimeError>) -> Result<T, RuntimeError> {
    let mut is_cancelled = CancellationToken::is_current_cancelled;
    let mut scope = WaitScope::until(Deadline::after(LIMIT)).checked_by(&mut is_cancelled);
    let reaper = reaper();
    let mut is_last = false;
    loop {
        let was_settled = reaper.is_settled(None);
        let outcome = attempt();
        let device = match outcome.as_ref().err().map(RuntimeError::detail) {
            Some(ErrorDetail::Device(DeviceError::Busy { id, .. })) => Some(*id),
            Some(
                ErrorDetail::Device(DeviceError::HostMemory { .. } | DeviceError::OutOfMemory { .. })
                | ErrorDetail::Card(CardError::Firmware { .. }),
            ) => None,
            _ => return outcome,
        };
        if reaper.is_settled(device) {
            // A teardown may have ended during the attempt.
            if was_settled || is_last {
                return outcome;
            }
            is_last = true;
            continue;
        }
        is_last = false;
        match reaper.settle(device, &mut scope) {
            Ok(()) => {}
            Err(error) if error.is_interrupted() => return Err(error),
            Err(_) => return outcome,
        }
    }
}

/// Waits until all dropped objects are destroyed.
///
/// Blocking: as [`Teardown::wait`].
pub fn drain(scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
    reaper().drain(scope)
}

/// Waits for all teardowns before the process ends, because libraries that they use are then unloaded. Later drops
/// also wait.
///
/// Blocking: at most ten seconds, or until `scope` ends the wait.
pub fn finish(scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
    IS_EXITING.store(true, Ordering::Relaxed);
    drain(&mut scope.narrowed(Deadline::after(EXIT_LIMIT)))
}

fn begin(teardown: &Arc<Teardown>, work: Work) {
    teardown.set(Phase::UnderWay);
    let ended = Ended::new(Arc::clone(teardown));
    reaper().submit(Box::new(move || {
        let _ended = ended;
        work();
    }));
}

fn reaper() -> Arc<Reaper> {
    REAPERS.with(|reaper| Arc::clone(reaper))
}

#[derive(Default)]
struct Reaper {
    state: Mutex<ReaperState>,
    arrived: Condvar,
    drained: Condvar,
}

#[derive(Default)]
struct ReaperState {
    queue: VecDeque<Work>,
    // Number of queued and running teardowns.
    unfinished: usize,
    threads: usize,
    idle: usize,
    announced: Vec<Arc<Teardown>>,
}

qaic_sync::debug_fields!(Reaper, |reaper| unfinished: reaper.state.lock().unfinished);

impl Reaper {
    fn submit(self: &Arc<Self>, work: Work) {
        let mut state = self.state.lock();
        state.queue.push_back(work);
        state.unfinished += 1;
        let needs_thread = state.queue.len() > state.idle && state.threads < MOST_THREADS;
        if needs_thread {
            state.threads += 1;
        }
        drop(state);
        self.arrived.notify_one();
        if !needs_thread {
            return;
        }
        let shared = Arc::clone(self);
        let life = move || {
            ignore_signals_on_this_thread();
            shared.serve();
        };
        if thread::Builder::new().name("qaic-reaper".to_owned()).spawn(life).is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            // Without threads, the caller's thread does the work.
            let work = if state.threads == 0 { state.queue.pop_front() } else { None };
            drop(state);
            if let Some(work) = work {
                self.perform(work);
            }
        }
    }

    fn drain(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        loop {
            let state = self.state.lock();
            if state.unfinished == 0 {
                return Ok(());
            }
            drop(self.drained.wait_at_most(state, scope.sleep_limit()));
            scope.poll(WHAT)?;
        }
    }

    /// Returns true if no object is being destroyed and no announced teardown is left, of this device or of any.
    fn is_settled(&self, device: Option<u32>) -> bool {
        self.state.lock().unfinished == 0 && self.first_announced(device).is_none()
    }

    /// Waits until the announced teardowns are over, of this device or of all, and those that have begun.
    fn settle(&self, device: Option<u32>, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        scope.poll(WHAT)?;
        while let Some(teardown) = self.first_announced(device) {
            teardown.is_over_within(scope.sleep_limit());
            scope.poll(WHAT)?;
        }
        self.drain(scope)
    }

    fn first_announced(&self, device: Option<u32>) -> Option<Arc<Teardown>> {
        let announced = &mut self.state.lock().announced;
        announced.retain(|teardown| !teardown.is_over_within(Duration::ZERO));
        announced.iter().find(|teardown| device.is_none_or(|id| teardown.devices.contains(&id))).cloned()
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        let mut idle_since = Instant::now();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                self.perform(work);
                state = self.state.lock();
                idle_since = Instant::now();
                continue;
            }
            let left = IDLE_LIMIT.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = self.arrived.wait_at_most(state, left);
            state.idle -= 1;
        }
    }

    fn perform(&self, work: Work) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            log::global().error(|| format!("a teardown panicked: {text}"));
        }
        let mut state = self.state.lock();
        state.unfinished -= 1;
        let is_drained = state.unfinished == 0;
        drop(state);
        if is_drained {
            self.drained.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StateError;
    use std::sync::mpsc::{Receiver, channel};

    use proptest::prelude::*;

    const LONG: Duration = Duration::from_mins(1);

    /// Its drop waits until the sender is dropped.
    struct Blocked(Mutex<Receiver<()>>);

    impl Drop for Blocked {
        fn drop(&mut self) {
            let _ = self.0.lock().recv();
        }
    }

    fn limited_to<'a>(limit: Duration) -> WaitScope<'a> {
        WaitScope::until(Deadline::after(limit))
    }

    #[test]
    fn release_of_a_shared_object_leaves_it_to_the_others() {
        let object = Arc::new(7);
        assert!(release(Arc::clone(&object)).is_none());
        assert_eq!(*object, 7);
        let teardown = release(object).unwrap();
        teardown.wait(&mut limited_to(LONG)).unwrap();
    }

    #[test]
    fn release_of_the_last_reference_does_not_wait_for_its_drop() {
        let (unblock, blocked) = channel();
        let teardown = release(Arc::new(Blocked(Mutex::new(blocked)))).unwrap();
        assert_eq!(teardown.wait(&mut limited_to(Duration::ZERO)).unwrap_err().code(), "device.timeout");
        let mut signaled = || true;
        let interrupted = teardown.wait(&mut limited_to(LONG).checked_by(&mut signaled));
        assert_eq!(interrupted.unwrap_err().code(), "call.interrupted");
        drop(unblock);
        teardown.wait(&mut limited_to(LONG)).unwrap();
        teardown.wait(&mut limited_to(Duration::ZERO)).unwrap();
    }

    #[test]
    fn wait_for_a_teardown_that_never_began_returns_at_once() {
        Teardown::new().wait(&mut limited_to(Duration::ZERO)).unwrap();
    }

    #[test]
    fn run_gives_the_outcome_and_leaves_late_work_going() {
        assert_eq!(run(&mut limited_to(LONG), || Ok(3)).unwrap(), 3);
        assert_eq!(
            run::<()>(&mut limited_to(LONG), || Err(StateError::InFlight.into())).unwrap_err().code(),
            "inference.in_flight"
        );
        let ((unblock, blocked), (ended, end)) = (channel::<()>(), channel());
        let late = run(&mut limited_to(Duration::ZERO), move || {
            let _ = blocked.recv();
            ended.send(()).map_err(|_| StateError::Forked.into())
        });
        assert_eq!(late.unwrap_err().code(), "device.timeout");
        drop(unblock);
        end.recv().unwrap();
    }

    #[test]
    fn panic_in_a_teardown_ends_it_and_no_thread() {
        for _ in 0..2 * MOST_THREADS {
            let outcome = run::<()>(&mut limited_to(LONG), || panic!("in a teardown"));
            assert_eq!(outcome.unwrap_err().code(), "internal");
        }
        assert_eq!(run(&mut limited_to(LONG), || Ok(1)).unwrap(), 1);
    }

    #[test]
    fn attempt_that_finds_a_device_busy_is_repeated_after_teardowns_under_way() {
        let (unblock, blocked) = channel();
        let teardown = release(Arc::new(Blocked(Mutex::new(blocked)))).unwrap();
        let mut unblock = Some(unblock);
        let attempt = || match unblock.take() {
            Some(_) => Err(DeviceError::Busy { id: 0, needed: 1, free: 0, total: 16 }.into()),
            None => Ok(()),
        };
        when_free(attempt).unwrap();
        teardown.wait(&mut limited_to(Duration::ZERO)).unwrap();
        let mut attempts = 0;
        let refused: Result<(), _> = when_free(|| {
            attempts += 1;
            Err(StateError::InFlight.into())
        });
        assert_eq!((refused.unwrap_err().code(), attempts), ("inference.in_flight", 1));
    }

    #[test]
    fn attempt_that_finds_a_device_busy_waits_for_the_announced_teardowns_of_that_device() {
        let busy = || RuntimeError::from(DeviceError::Busy { id: 3, needed: 1, free: 0, total: 16 });
        let (reaped, dropped, elsewhere) =
            (Teardown::of_devices(vec![3]), Teardown::of_devices(vec![2, 3]), Teardown::of_devices(vec![4]));
        for teardown in [&reaped, &dropped, &elsewhere] {
            announce(teardown);
        }
        let mut owned = Some((Arc::new(Ended::new(reaped)), Ended::new(dropped)));
        let mut attempts = 0;
        when_free(|| {
            attempts += 1;
            let Some((reaped, dropped)) = owned.take() else { return Ok(()) };
            thread::spawn(move || {
                assert!(release(reaped).is_some());
                // The last user of this object does not give it to a reaper thread.
                drop(dropped);
            });
            Err(busy())
        })
        .unwrap();
        assert_eq!(attempts, 2);
        let refused: Result<(), _> = when_free(|| Err(busy()));
        assert_eq!(refused.unwrap_err().code(), "device.busy");
        drop(Ended::new(elsewhere));
    }

    #[test]
    fn idle_threads_end() {
        let reaper = Arc::new(Reaper::default());
        reaper.submit(Box::new(|| ()));
        reaper.drain(&mut limited_to(LONG)).unwrap();
        while reaper.state.lock().threads > 0 {
            thread::yield_now();
        }
        reaper.submit(Box::new(|| ()));
        reaper.drain(&mut limited_to(LONG)).unwrap();
    }

    proptest! {
        // Some teardowns block until all others have ended: threads in addition to the blocked ones make progress.
        #[test]
        fn every_teardown_runs_once_and_drain_waits_for_all(
            blocks in prop::collection::vec(any::<bool>(), 0..40).prop_filter(
                "a thread has to be left",
                |blocks| blocks.iter().filter(|blocks| **blocks).count() < MOST_THREADS,
            ),
        ) {
            let reaper = Arc::new(Reaper::default());
            let (ran, runs) = channel();
            let unblock = blocks.iter().enumerate().map(|(index, &blocks)| {
                let (unblock, blocked) = channel::<()>();
                let ran = ran.clone();
                reaper.submit(Box::new(move || {
                    if blocks {
                        let _ = blocked.recv();
                    }
                    let _ = ran.send(index);
                }));
                unblock
            });
            let unblock: Vec<_> = unblock.collect();
            let free: Vec<_> = (0..blocks.len()).filter(|&index| !blocks[index]).collect();
            let mut found: Vec<_> = runs.iter().take(free.len()).collect();
            found.sort_unstable();
            prop_assert_eq!(&found, &free);
            prop_assert!(free.len() == blocks.len() || reaper.state.lock().unfinished > 0);
            drop(unblock);
            reaper.drain(&mut limited_to(LONG)).unwrap();
            prop_assert!(reaper.state.lock().queue.is_empty());
            found.extend(runs.try_iter());
            found.sort_unstable();
            prop_assert_eq!(found, (0..blocks.len()).collect::<Vec<_>>());
        }
    }
}
