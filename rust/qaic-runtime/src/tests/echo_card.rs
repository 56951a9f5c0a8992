//! An emulated card that works by itself: its cores return the input of each inference, and wait at a barrier of the
//! test.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::tests::prelude::*;
use qaic_emu::{Control, CoreView, EmuClock, ExecutionMode, Images, Progress, Running, Workload};
use qaic_kmd::SystemClock;
use qaic_kmd::protocol::NncStatus;

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(1);

/// A card that no other test uses. Nothing may be left on it at the end of a test.
pub(crate) struct EchoCard {
    context: Arc<Context>,
    cores: Arc<EchoCores>,
    // The control is dropped after the context, which keeps a file open.
    control: CleanedCard,
}

impl Default for EchoCard {
    fn default() -> Self {
        let cores = Arc::new(EchoCores::default());
        let kmd = EmuKmd::new(EmuOptions {
            workload: Arc::new(HeldWorkload(Arc::clone(&cores))),
            clock: EmuClock::System(SystemClock::default()),
            execution_mode: ExecutionMode::Threads,
            ..EmuOptions::default()
        });
        let kmd = kmd.unwrap();
        let control = CleanedCard(kmd.control(0).unwrap());
        Self { context: Context::of_cards(&(kmd as Arc<dyn Kmd>)).unwrap(), cores, control }
    }
}

impl EchoCard {
    /// Sets the faults of the driver.
    pub(crate) fn plan(&self, faults: &str) {
        self.control.0.set_faults(FaultPlan::parse(faults, Target::Card).unwrap());
    }

    /// Lets the held cores run `count` more inferences, the oldest first.
    pub(crate) fn let_through(&self, count: u32) {
        let mut state = self.cores.lock();
        state.passes = state.passes.map(|passes| passes + count);
        self.cores.changed.notify_all();
    }

    /// First values of the inputs that the cores have read, in order.
    pub(crate) fn inputs(&self) -> Vec<f32> {
        self.cores.lock().inputs.clone()
    }

    /// Number of inferences that the card has taken and not run, unless it has refused or lost some.
    pub(crate) fn executing(&self) -> u32 {
        let ended = self.cores.lock().inputs.len() as u64;
        u32::try_from(self.control.0.calls(Request::ExecuteBo) - ended).unwrap()
    }
}

impl HeldDevice for EchoCard {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Limits that only a hanging test exceeds, in calls that notice a cancellation soon.
    fn wait_limits(&self) -> WaitLimits {
        WaitLimits { try_ms: 60_000, retries: 5, slice_ms: Some(1) }
    }

    fn hold(&self) {
        self.cores.set_barrier(Some(0));
    }

    fn release(&self) {
        self.cores.set_barrier(None);
    }

    fn await_executing(&self, count: u32) {
        let deadline = Instant::now() + LONG;
        while self.executing() < count {
            assert!(Instant::now() < deadline, "the card has {} of {count} inferences", self.executing());
            thread::yield_now();
        }
    }

    fn fail_next(&self) {
        self.plan("execute@1=EFAULT");
    }

    fn lose(&self) {
        self.control.0.reset();
    }

    fn recover(&self) {
        self.control.0.hurry();
    }
}

/// The control of a card. When it is dropped, the threads of the test soon release the card.
struct CleanedCard(Control);

impl Drop for CleanedCard {
    fn drop(&mut self) {
        let deadline = Instant::now() + LONG;
        while !thread::panicking() && !self.0.invariants().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", self.0.invariants());
            thread::yield_now();
        }
    }
}

/// The cores of all activations.
#[derive(Debug, Default)]
struct EchoCores {
    state: Mutex<CoresState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CoresState {
    // Number of inferences that a closed barrier still lets through; `None` if the barrier is open.
    passes: Option<u32>,
    inputs: Vec<f32>,
}

impl EchoCores {
    fn lock(&self) -> MutexGuard<'_, CoresState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_barrier(&self, passes: Option<u32>) {
        self.lock().passes = passes;
        self.changed.notify_all();
    }

    /// Waits at the barrier; returns `None` if the activation ends first.
    fn pass(&self, is_stopped: &AtomicBool) -> Option<MutexGuard<'_, CoresState>> {
        let is_held = |state: &mut CoresState| state.passes == Some(0) && !is_stopped.load(Ordering::Relaxed);
        let state = self.changed.wait_while(self.lock(), is_held);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        state.passes = state.passes.map(|passes| passes - 1);
        Some(state)
    }
}

/// Leaves the data where it was written.
#[derive(Debug)]
struct HeldWorkload(Arc<EchoCores>);

impl Workload for HeldWorkload {
    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        let (cores, is_stopped) = (Arc::clone(&self.0), Arc::default());
        Ok(Box::new(RunningEcho { cores, address: images.ddr_base, is_stopped }))
    }
}

#[derive(Debug)]
struct RunningEcho {
    cores: Arc<EchoCores>,
    address: u64,
    is_stopped: Arc<AtomicBool>,
}

impl Running for RunningEcho {
    fn honors_semaphores(&self) -> bool {
        false
    }

    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        let Some(mut state) = self.cores.pass(&self.is_stopped) else { return Progress::Idle };
        let mut input = [0; 4];
        card.memory.read(self.address, &mut input);
        state.inputs.push(f32::from_le_bytes(input));
        Progress::Worked
    }

    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        let (cores, is_stopped) = (Arc::clone(&self.cores), Arc::clone(&self.is_stopped));
        Arc::new(move || {
            // The flag is set under the lock, so that cores that are about to wait see it.
            let _state = cores.lock();
            is_stopped.store(true, Ordering::Relaxed);
            cores.changed.notify_all();
        })
    }
}
