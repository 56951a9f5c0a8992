//! The driver's behavior during long computations of cores, and after failures of cores.

use std::sync::{Condvar, Mutex};

use crate::tests::prelude::*;
use crate::tests::rig::{Active, activate, events};

const LIMIT: Duration = Duration::from_mins(1);

/// State of the cores, and their permission to continue.
#[derive(Debug, Default)]
struct ComputeBarrier {
    status: Mutex<Status>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Status {
    computing: usize,
    is_open: bool,
}

impl ComputeBarrier {
    fn await_computing(&self, count: usize) {
        let status = self.status.lock().unwrap();
        let wait = self.changed.wait_timeout_while(status, LIMIT, |status| status.computing < count);
        assert!(wait.unwrap().0.computing >= count);
    }

    fn open(&self) {
        self.status.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }
}

/// Cores that compute until they may continue or must stop.
#[derive(Debug, Default)]
struct Slow(Arc<ComputeBarrier>);

#[derive(Debug)]
struct SlowCores {
    barrier: Arc<ComputeBarrier>,
    stop: Arc<ComputeBarrier>,
}

impl Workload for Slow {
    fn activate(&self, _images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        Ok(Box::new(SlowCores { barrier: Arc::clone(&self.0), stop: Arc::default() }))
    }
}

impl Running for SlowCores {
    fn honors_semaphores(&self) -> bool {
        false
    }

    fn advance(&mut self, _card: &mut CoreView<'_>) -> Progress {
        let mut status = self.barrier.status.lock().unwrap();
        status.computing += 1;
        self.barrier.changed.notify_all();
        while !status.is_open && !self.stop.status.lock().unwrap().is_open {
            status = self.barrier.changed.wait_timeout(status, Duration::from_millis(1)).unwrap().0;
        }
        status.computing -= 1;
        Progress::Idle
    }

    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        let stop = Arc::clone(&self.stop);
        Arc::new(move || stop.open())
    }
}

/// Cores that fail immediately.
#[derive(Debug)]
struct Failing;

impl Workload for Failing {
    fn activate(&self, _images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        Ok(Box::new(Self))
    }
}

impl Running for Failing {
    fn honors_semaphores(&self) -> bool {
        false
    }

    fn advance(&mut self, _card: &mut CoreView<'_>) -> Progress {
        Progress::Crashed
    }
}

/// A card whose cores compute one inference until the barrier opens.
fn computing() -> (Rig, Arc<ComputeBarrier>, Active, u32) {
    let workload = Slow::default();
    let barrier = Arc::clone(&workload.0);
    let options = EmuOptions {
        workload: Arc::new(workload),
        clock: EmuClock::System(SystemClock::default()),
        execution_mode: ExecutionMode::Threads,
        ..EmuOptions::default()
    };
    let rig = Rig::new(options);
    let (active, output) = rig.active_with_output();
    rig.execute(active, &[output]).unwrap();
    barrier.await_computing(1);
    (rig, barrier, active, output)
}

#[test]
fn calls_beside_cores_that_compute_are_answered() {
    let (rig, barrier, active, output) = computing();
    // Calls to the same channel and card, to another file's channel, and the end of that file.
    assert_eq!(rig.file().wait(active.dbc_id, output, 1), Err(Errno::TIMEDOUT));
    assert_eq!(rig.file().detach_slices(output), Err(Errno::BUSY));
    let other = rig.open().unwrap();
    let theirs = activate(&*other, 16).unwrap();
    let second = rig.activate(16);
    let second_output = rig.output(second);
    rig.execute(second, &[second_output]).unwrap();
    barrier.await_computing(2);
    assert_ne!(theirs.dbc_id, second.dbc_id);
    drop(other);
    barrier.open();
    assert_eq!(rig.wait(active, output), Ok(()));
    assert_eq!(rig.wait(second, second_output), Ok(()));
}

#[test]
fn loss_of_a_channel_does_not_wait_for_its_cores() {
    let (rig, _barrier, active, output) = computing();
    let file = Arc::clone(&rig.file);
    let wait = std::thread::spawn(move || file.wait(active.dbc_id, output, 3_600_000));
    assert!(rig.control.await_waiters(1, LIMIT));
    rig.control.reset();
    assert_eq!(wait.join().unwrap(), Err(Errno::PERM));
}

#[test]
fn close_while_cores_compute_ends_them() {
    let (rig, barrier, _, _) = computing();
    drop(rig);
    assert_eq!(barrier.status.lock().unwrap().computing, 0);
}

#[test]
fn cores_that_fail_are_restarted() {
    for execution_mode in [ExecutionMode::Inline, ExecutionMode::Threads] {
        let rig =
            Rig::new(EmuOptions { workload: Arc::new(Failing), execution_mode, ..EmuOptions::default() });
        let mut listener = rig.kmd.events().unwrap();
        let active = rig.activate(16);
        let (input, output) = (rig.input(active), rig.output(active));
        rig.execute(active, &[input, output]).unwrap();
        // The loss may come before the wait.
        let waited = rig.wait(active, output);
        assert!(matches!(waited, Err(Errno::PIPE | Errno::PERM)), "{waited:?}");
        rig.control.hurry();
        let last = events(&mut *listener).pop().unwrap();
        assert_eq!(last.kind, EventKind::Channel { dbc_id: active.dbc_id, state: DbcState::Idle });
        rig.activate(16);
    }
}

#[test]
fn failed_cores_under_kernels_without_restarts_hang() {
    let rig =
        Rig::new(EmuOptions { workload: Arc::new(Failing), profile: Profile::New, ..EmuOptions::default() });
    let active = rig.activate(16);
    let output = rig.slice(active, DIR_FROM_DEVICE, 64, 0);
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::TIMEDOUT));
}

/// Cores that violate the contract of a workload, in either of two places.
#[derive(Clone, Copy, Debug)]
struct Panicking {
    when_activated: bool,
}

impl Workload for Panicking {
    fn activate(&self, _images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        assert!(!self.when_activated, "as the test wants");
        Ok(Box::new(*self))
    }
}

impl Running for Panicking {
    fn honors_semaphores(&self) -> bool {
        false
    }

    fn advance(&mut self, _card: &mut CoreView<'_>) -> Progress {
        panic!("as the test wants")
    }
}

#[test]
fn cores_that_panic_free_all_they_had() {
    for (when_activated, execution_mode) in
        [(true, ExecutionMode::Inline), (false, ExecutionMode::Inline), (false, ExecutionMode::Threads)]
    {
        let workload = Arc::new(Panicking { when_activated });
        let rig = Rig::new(EmuOptions { workload, execution_mode, ..EmuOptions::default() });
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (active, output) = rig.active_with_output();
            rig.execute(active, &[output]).unwrap();
            rig.wait(active, output)
        }));
        match execution_mode {
            ExecutionMode::Inline => assert!(run.is_err()),
            ExecutionMode::Threads => assert_eq!(run.unwrap(), Err(Errno::TIMEDOUT)),
        }
        assert_eq!(rig.control.waiters(), 0);
    }
}
