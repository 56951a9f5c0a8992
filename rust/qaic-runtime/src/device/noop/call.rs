//! Calls of the device seam that a `noop` device counts, and that can go wrong there.

use qaic_emu::fault::Trigger;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Loading a program.
    Load,
    /// Activating it.
    Activate,
    /// Making an exec.
    Exec,
    /// Running an inference.
    Execute,
}

impl Call {
    /// All of them, in the order of a program's life.
    pub const ALL: [Self; 4] = [Self::Load, Self::Activate, Self::Exec, Self::Execute];

    /// Name in a plan of faults.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Activate => "activate",
            Self::Exec => "exec",
            Self::Execute => "execute",
        }
    }

    /// Returns the trigger of this call in plans of faults.
    pub(super) const fn trigger(self) -> Trigger {
        match self {
            Self::Load => Trigger::Load,
            Self::Activate => Trigger::Activate,
            Self::Exec => Trigger::Exec,
            Self::Execute => Trigger::Execute,
        }
    }
}
