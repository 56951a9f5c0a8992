//! When an inference passed what.

#[cfg(all(feature = "cpu", feature = "emu"))]
use qaic_qpc::plan::Control;

/// Times of one inference on [`crate::process::clock`], in this order; 0 is one that was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The call that started it.
    pub enqueued_ns: u64,
    /// A thread took it up, and whatever had to run before it was done.
    pub begun_ns: u64,
    /// The device's inputs were complete.
    pub inputs_ready_ns: u64,
    /// The device was done.
    pub executed_ns: u64,
    /// The caller's outputs were complete.
    pub outputs_ready_ns: u64,
    /// It was about to be said that the inference has ended.
    pub completed_ns: u64,
}

/// Which inference it is, as files and reports number it (stats-profiling §3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Number of the program.
    pub program: u32,
    /// Number of the activation in its program.
    pub activation: u32,
    /// Number of the inference in its program, over all activations.
    pub inference: u64,
}

#[cfg(all(feature = "cpu", feature = "emu"))]
impl Identity {
    /// That of the inference that a card was told about.
    pub(crate) fn of_control(control: &Control) -> Self {
        let Control { program, activation, inference, .. } = *control;
        Self { program, activation, inference }
    }
}

/// What is wanted of an inference, and what was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// When it passed what.
    pub stages: Stages,
    /// Which it is.
    pub identity: Identity,
    /// Whether the device's own measurements are wanted.
    pub wants_device: bool,
    /// The stats buffer as the device left it, where it was wanted and the program has one.
    pub stats: Option<Box<[u8]>>,
}
