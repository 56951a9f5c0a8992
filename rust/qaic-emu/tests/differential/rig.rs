//! The drivers that calls are played on.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use qaic_emu::fault::Target;
use qaic_emu::{Control, EmuClock, EmuKmd, EmuOptions, ExecutionMode, FaultPlan, FirmwareConfig, Profile};
use qaic_kmd::{AccelFile, Errno, EventKind, EventSource, Kmd, NodeInfo, SysKmd, SystemClock};

/// Maximum duration of an operation that does not hang.
const LIMIT: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(2);

/// A driver with one card.
pub(crate) struct Rig {
    kmd: Arc<dyn Kmd>,
    node: NodeInfo,
    card: Behind,
    events: RefCell<Box<dyn EventSource>>,
}

/// The implementation of the card.
enum Behind {
    Emulated(Control),
    /// The file that the card reads its faults from.
    Guest(PathBuf),
}

impl Rig {
    /// The emulated driver, configured like the driver of the guest's kernel. Waits take no time.
    pub(crate) fn emulated() -> Self {
        Self::emulated_with(EmuOptions::default())
    }

    /// The same rig for concurrent calls.
    pub(crate) fn emulated_in_time() -> Self {
        let (clock, execution_mode) = (EmuClock::System(SystemClock::default()), ExecutionMode::Threads);
        Self::emulated_with(EmuOptions { clock, execution_mode, ..EmuOptions::default() })
    }

    fn emulated_with(options: EmuOptions) -> Self {
        // Its messages have checksums.
        let firmware = FirmwareConfig { status_flags: 1, ..FirmwareConfig::default() };
        let options = EmuOptions {
            profile: Profile::New,
            poisons_outputs: false,
            firmware,
            // The same as the parameter of the guest's kernel.
            control_timeout: Duration::from_secs(3),
            ..options
        };
        let kmd = EmuKmd::new(options).unwrap();
        let card = Behind::Emulated(kmd.control(0).unwrap());
        Self::of(kmd, card)
    }

    /// The driver of the running kernel, which has one card.
    pub(crate) fn mainline() -> Self {
        let kmd = Arc::new(SysKmd::default());
        let faults = std::env::var_os("QAIC_GUEST_FAULTS").unwrap();
        let rig = Self::of(kmd, Behind::Guest(faults.into()));
        rig.set_faults("");
        rig
    }

    fn of(kmd: Arc<dyn Kmd>, card: Behind) -> Self {
        let node = kmd.enumerate().unwrap().remove(0);
        let events = RefCell::new(kmd.events().unwrap());
        Self { kmd, node, card, events }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kmd.name()
    }

    pub(crate) fn open(&self) -> Result<Arc<dyn AccelFile>, Errno> {
        self.kmd.open(&self.node)
    }

    /// Sets the faults, before the next call reaches the card.
    pub(crate) fn set_faults(&self, plan: &str) {
        let parsed = FaultPlan::parse(plan, Target::Card).unwrap();
        match &self.card {
            Behind::Emulated(control) => control.set_faults(parsed),
            Behind::Guest(file) => {
                // The second line makes a repeated plan a new plan.
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let part = file.with_extension("part");
                fs::write(&part, format!("{plan}\n{number}\n")).unwrap();
                fs::rename(part, file).unwrap();
            }
        }
    }

    /// Resets the card and waits until it is offline.
    pub(crate) fn reset(&self) -> Result<(), Errno> {
        self.kmd.reset(&self.node)?;
        self.await_event(EventKind::Offline);
        Ok(())
    }

    /// Stops this process and continues it.
    pub(crate) fn stop_and_continue(&self) {
        match &self.card {
            Behind::Emulated(control) => control.stop_and_continue(),
            Behind::Guest(_) => {
                // Another process continues this one, because all of its threads are stopped.
                let stop = "kill -STOP $PPID
                    until grep -q '^State:.T' /proc/$PPID/status; do sleep 0.01; done
                    kill -CONT $PPID";
                assert!(Command::new("sh").args(["-c", stop]).status().unwrap().success());
            }
        }
    }

    /// Waits until a card that was reset can be used.
    pub(crate) fn await_online(&self) {
        self.await_event(EventKind::Online);
    }

    fn await_event(&self, kind: EventKind) {
        let mut events = self.events.borrow_mut();
        self.until(|| {
            if let Behind::Emulated(control) = &self.card
                && kind == EventKind::Online
            {
                control.hurry();
            }
            let event = events.next(STEP).unwrap();
            event.is_some_and(|event| event.kind == kind)
        });
    }

    /// Waits until a thread blocks in its call or has ended.
    pub(crate) fn await_blocked(&self, task: &Path, is_over: &dyn Fn() -> bool) {
        match &self.card {
            Behind::Emulated(control) => self.until(|| is_over() || control.waiters() > 0),
            Behind::Guest(_) => {
                // The thread sleeps longer than the short wait for a lock.
                let mut asleep = 0;
                self.until(|| {
                    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
                    let state = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
                    asleep = if state.starts_with(['S', 'D']) { asleep + 1 } else { 0 };
                    is_over() || asleep == 25
                });
            }
        }
    }

    fn until(&self, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < LIMIT, "{}: nothing happened", self.name());
            thread::sleep(STEP);
        }
    }
}
