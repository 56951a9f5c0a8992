//! Errors of devices and of their choice.

/// A device cannot be had, was lost, or does not do what was asked of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The container was built for something this device cannot run.
    #[error("the container was built for {built_for}; device {device} ({kind}) cannot run it: {reason}")]
    WrongTarget {
        /// Target the container names.
        built_for: String,
        /// Device asked.
        device: u32,
        /// Kind of that device.
        kind: &'static str,
        /// The missing part.
        reason: String,
    },

    /// The program was compiled for another hardware family.
    #[error("the program was compiled for {built_for}; device {device} is of the hardware family {family}")]
    HardwareFamily {
        /// Family the container names.
        built_for: String,
        /// Device asked.
        device: u32,
        /// Its family.
        family: &'static str,
    },

    /// No device with this id.
    #[error("device {id} does not exist; {}", existing_ids(existing))]
    NotFound {
        /// Id asked for.
        id: u32,
        /// Ids that exist.
        existing: Vec<u32>,
    },

    /// A program needs more devices than can be chosen from.
    #[error(
        "the program is partitioned for {needed} devices; of kind `{kind}` there {} {}, with the ids {existing:?}{}",
        if existing.len() == 1 { "is" } else { "are" },
        existing.len(),
        more_devices(*needed, kind, *hidden)
    )]
    TooFew {
        /// Devices it needs.
        needed: u32,
        /// Kind of the devices it runs on.
        kind: &'static str,
        /// Ids of those of them that could be chosen.
        existing: Vec<u32>,
        /// Number of those that `QAIC_VISIBLE_DEVICES` hides.
        hidden: usize,
    },

    /// `QAIC_DEVICE` or an argument names a kind of device that does not exist.
    #[error("device kind `{kind}` does not exist; known kinds: {known}")]
    Kind {
        /// Kind asked for.
        kind: String,
        /// Kinds that exist.
        known: &'static str,
    },

    /// Not enough free cores.
    #[error("device {id} has {free} free cores of {total}; {needed} are needed")]
    Busy {
        /// Device.
        id: u32,
        /// Cores needed.
        needed: u32,
        /// Cores free.
        free: u32,
        /// Cores of the device.
        total: u32,
    },

    /// The device went away.
    #[error("device {id} is lost: {reason}")]
    Lost {
        /// Device.
        id: u32,
        /// The observation.
        reason: String,
    },

    /// The device is there and cannot be used.
    #[error("device {id} cannot be used: {reason}")]
    Unavailable {
        /// Device.
        id: u32,
        /// Why not, and what helps.
        reason: String,
    },

    /// The device does not do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// The missing part and its place.
        what: String,
    },

    /// Memory for a buffer could not be had.
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// The purpose.
        what: &'static str,
    },
}

impl DeviceError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::WrongTarget { .. } => "device.wrong_target",
            Self::HardwareFamily { .. } => "device.hardware_family",
            Self::NotFound { .. } => "device.not_found",
            Self::TooFew { .. } => "device.too_few",
            Self::Kind { .. } => "device.kind",
            Self::Busy { .. } => "device.busy",
            Self::Lost { .. } => "device.lost",
            Self::Unavailable { .. } => "device.unavailable",
            Self::Unsupported { .. } => "device.unsupported",
            Self::OutOfMemory { .. } => "device.memory",
        }
    }
}

/// How to get more devices of a kind.
fn existing_ids(existing: &[u32]) -> String {
    if existing.is_empty() { "there is no device".to_owned() } else { format!("existing ids: {existing:?}") }
}

fn more_devices(needed: u32, kind: &str, hidden: usize) -> String {
    match (hidden, kind) {
        (0, "cpu") => format!("; set QAIC_CPU_DEVICES={needed} to have {needed} virtual cards"),
        (0, _) => String::new(),
        (hidden, _) => format!("; {hidden} more can be named in QAIC_VISIBLE_DEVICES"),
    }
}
