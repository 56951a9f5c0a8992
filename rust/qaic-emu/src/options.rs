//! Settings of emulated cards.

use std::sync::Arc;
use std::time::Duration;

use super::fault::FaultPlan;
use super::firmware::FirmwareConfig;
use super::workload::{Loopback, Workload};
use qaic_kmd::clock::{Clock, SystemClock, VirtualClock};
use qaic_kmd::kmd::Telemetry;

/// Emulated cards. The default is one card under a kernel of today, without cores, in time that goes by only while
/// a call waits: the same calls have the same results every time.
#[derive(Clone, Debug)]
pub struct EmuOptions {
    /// Cards, 255 at most.
    pub cards: u32,
    /// Which kernels the driver behaves like.
    pub profile: Profile,
    /// The work of the cores.
    pub workload: Arc<dyn Workload>,
    /// The time.
    pub clock: EmuClock,
    /// Threads that drive the data path.
    pub execution_mode: ExecutionMode,
    /// Faults of each card.
    pub faults: FaultPlan,
    /// Facts that the cards report.
    pub firmware: FirmwareConfig,
    /// Returns whether a signal waits for the calling thread; blocking calls then return `EINTR`. Called
    /// every 50 ms.
    pub signaled: Option<fn() -> bool>,
    /// Name of the driver behind the nodes.
    pub driver_name: String,
    /// Version of its interface: major, minor. That of the mainline kernel has none.
    pub driver_version: (i32, i32),
    /// Values of the sensors.
    pub telemetry: Telemetry,
    /// From a reset to the card's being online again.
    pub boot: Duration,
    /// From the failure of a channel's cores to their start.
    pub core_restart: Duration,
    /// How long the driver waits for the firmware's reply.
    pub control_timeout: Duration,
    /// Time limit of a wait that has none of its own.
    pub wait_timeout: Duration,
    /// Largest piece of a buffer object that is in one place of the host's memory: slices are split there.
    pub fragment_bytes: u64,
    /// True if buffer objects from the device hold a pattern between an execute call and the completion,
    /// which exposes reads that come too early.
    pub poisons_outputs: bool,
}

impl Default for EmuOptions {
    fn default() -> Self {
        Self {
            cards: 1,
            profile: Profile::default(),
            workload: Arc::new(Loopback),
            clock: EmuClock::default(),
            execution_mode: ExecutionMode::default(),
            faults: FaultPlan::default(),
            firmware: FirmwareConfig::default(),
            signaled: None,
            driver_name: "qaic".into(),
            driver_version: (0, 0),
            telemetry: Telemetry {
                soc_temperature_millicelsius: Some(45_000),
                board_power_microwatts: Some(20_000_000),
                tdp_cap_microwatts: Some(75_000_000),
            },
            boot: Duration::from_secs(2),
            core_restart: Duration::from_millis(500),
            control_timeout: Duration::from_mins(1),
            wait_timeout: Duration::from_secs(5),
            fragment_bytes: u64::from(u32::MAX),
            poisons_outputs: true,
        }
    }
}

/// Kernels, by the events and calls that they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// A reset takes the node away; files of before are dead. A partial execution of 0 bytes moves all, and slices beyond
    /// the size never complete.
    Old,
    /// Files survive a reset. A partial execution of 0 bytes moves nothing; all slices complete.
    New,
    /// As new ones, and the cores of one channel can be restarted.
    #[default]
    Ssr,
}

/// Time of emulated cards.
#[derive(Clone, Debug)]
pub enum EmuClock {
    /// Goes on while a call waits by it, and at no other time. Waits take no time.
    Virtual(Arc<VirtualClock>),
    /// The clock of the system.
    System(SystemClock),
}

impl EmuClock {
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Virtual(clock) => clock.now(),
            Self::System(clock) => clock.now(),
        }
    }

    pub(crate) fn shared(&self) -> Arc<dyn Clock> {
        match self {
            Self::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Self::System(clock) => Arc::new(*clock),
        }
    }
}

impl Default for EmuClock {
    fn default() -> Self {
        Self::Virtual(Arc::default())
    }
}

/// Threads that drive the data path. Both give the same results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The threads that are in execute and wait calls.
    #[default]
    Inline,
    /// A thread for each channel in use.
    Threads,
}
