//! Settings of emulated cards.

use std::sync::Arc;
use std::time::Duration;

use super::fault::FaultPlan;
use super::firmware::FirmwareConfig;
use super::workload::{Loopback, Workload};
use qaic_kmd::{Clock, SystemClock, Telemetry, VirtualClock};

/// Declares settings, each with its default.
macro_rules! settings {
    ($(#[$of_struct:meta])* pub struct $name:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$of_struct])*
        pub struct $name {
            $(
                #[allow(missing_docs)] // of fields whose names say what they are
                $(#[$of_field])*
                pub $field: $type,
            )*
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
    /// Options of emulated cards. The default is one card with a current kernel, without cores, and with time that
    /// advances only while a call waits. The same calls therefore always have the same results.
    #[derive(Clone, Debug)]
    pub struct EmuOptions {
        /// Number of cards, at most 255.
        cards: u32 = 1,
        /// Kernel version that the driver imitates.
        profile: Profile = Profile::default(),
        /// The work of the cores.
        workload: Arc<dyn Workload> = Arc::new(Loopback),
        /// Clock of the cards.
        clock: EmuClock = EmuClock::default(),
        /// Threads that drive the data path.
        execution_mode: ExecutionMode = ExecutionMode::default(),
        /// Faults of each card.
        faults: FaultPlan = FaultPlan::default(),
        /// Facts that the cards report.
        firmware: FirmwareConfig = FirmwareConfig::default(),
        /// Function that returns true if a signal waits for the calling thread; blocking calls then return
        /// `EINTR`. Called every 50 ms.
        signaled: Option<fn() -> bool> = None,
        /// Name of the nodes' driver.
        driver_name: String = "qaic".into(),
        /// Version of the driver interface: major, minor. That of the mainline kernel has none.
        driver_version: (i32, i32) = (0, 0),
        /// Values of the sensors.
        telemetry: Telemetry = Telemetry {
                soc_temperature_millicelsius: Some(45_000),
                board_power_microwatts: Some(20_000_000),
                tdp_cap_microwatts: Some(75_000_000),
            },
        /// Time from a reset until the card is online again.
        boot: Duration = Duration::from_secs(2),
        /// Time from the failure of a channel's cores to their restart.
        core_restart: Duration = Duration::from_millis(500),
        /// Time limit of the driver's wait for the firmware's reply.
        control_timeout: Duration = Duration::from_mins(1),
        /// Default time limit of a wait.
        wait_timeout: Duration = Duration::from_secs(5),
        /// Maximum size of a contiguous piece of a buffer object in the host's memory, at which slices are split.
        fragment_bytes: u64 = u64::from(u32::MAX),
        /// True if buffer objects from the device contain a pattern between an execute call and the completion, which
        /// exposes premature reads.
        poisons_outputs: bool = true,
    }
}

/// Kernel versions, which differ in their events and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// A reset removes the node, and older files fail. A partial execution of 0 bytes transfers all bytes, and slices
    /// beyond the size never complete.
    Old,
    /// Files survive a reset. A partial execution of 0 bytes transfers nothing, and all slices complete.
    New,
    /// Like `New`; in addition, the cores of one channel can restart.
    #[default]
    Ssr,
}

/// Clock of emulated cards.
#[derive(Clone, Debug)]
pub enum EmuClock {
    /// Virtual time, which advances only while a call waits. Waits take no real time.
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

/// Threads that drive the data path. Both modes have the same results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The threads in execute and wait calls.
    #[default]
    Inline,
    /// A thread for each channel in use.
    Threads,
}
