//! Settings of emulated cards.

use std::sync::Arc;
use std::time::Duration;

use super::fault::FaultPlan;
use super::firmware::FirmwareConfig;
use super::workload::{Loopback, Workload};
use qaic_kmd::clock::{Clock, SystemClock, VirtualClock};
use qaic_kmd::kmd::Telemetry;

/// Declares settings, each with its default.
macro_rules! settings {
    ($(#[$of_struct:meta])* pub struct $name:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$of_struct])*
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
pub(crate) use settings;

settings! {
    /// Emulated cards. The default is one card under a kernel of today, without cores, in time that goes by only while
    /// a call waits: the same calls have the same results every time.
    #[derive(Clone, Debug)]
    pub struct EmuOptions {
        /// Cards, 255 at most.
        cards: u32 = 1,
        /// Which kernels the driver behaves like.
        profile: Profile = Profile::default(),
        /// The work of the cores.
        workload: Arc<dyn Workload> = Arc::new(Loopback),
        /// The time.
        clock: EmuClock = EmuClock::default(),
        /// Threads that drive the data path.
        execution_mode: ExecutionMode = ExecutionMode::default(),
        /// Faults of each card.
        faults: FaultPlan = FaultPlan::default(),
        /// Facts that the cards report.
        firmware: FirmwareConfig = FirmwareConfig::default(),
        /// Returns whether a signal waits for the calling thread; blocking calls then return `EINTR`. Called
        /// every 50 ms.
        signaled: Option<fn() -> bool> = None,
        /// Name of the driver behind the nodes.
        driver_name: String = "qaic".into(),
        /// Version of its interface: major, minor. That of the mainline kernel has none.
        driver_version: (i32, i32) = (0, 0),
        /// Values of the sensors.
        telemetry: Telemetry = Telemetry {
                soc_temperature_millicelsius: Some(45_000),
                board_power_microwatts: Some(20_000_000),
                tdp_cap_microwatts: Some(75_000_000),
            },
        /// From a reset to the card's being online again.
        boot: Duration = Duration::from_secs(2),
        /// From the failure of a channel's cores to their start.
        core_restart: Duration = Duration::from_millis(500),
        /// How long the driver waits for the firmware's reply.
        control_timeout: Duration = Duration::from_mins(1),
        /// Time limit of a wait that has none of its own.
        wait_timeout: Duration = Duration::from_secs(5),
        /// Largest piece of a buffer object that is in one place of the host's memory: slices are split there.
        fragment_bytes: u64 = u64::from(u32::MAX),
        /// True if buffer objects from the device hold a pattern between an execute call and the completion,
        /// which exposes reads that come too early.
        poisons_outputs: bool = true,
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
