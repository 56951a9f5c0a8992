//! The times of the stages of an inference.

#[cfg(all(feature = "cpu", feature = "emu"))]
use qaic_qpc::plan::Control;

/// Times of one inference on [`crate::process::clock`], in this order; 0 is one that was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The call that started it.
    pub enqueued_ns: u64,
    /// A thread began it, after all inferences that precede it in order.
    pub begun_ns: u64,
    /// The device's inputs were complete.
    pub inputs_ready_ns: u64,
    /// The device was done.
    pub executed_ns: u64,
    /// The caller's outputs were complete.
    pub outputs_ready_ns: u64,
    /// The completion is published next.
    pub completed_ns: u64,
}

/// Which inference it is, as files and reports number it.
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
    /// The identity that a card read from its control buffer.
    pub(crate) fn of_control(control: &Control) -> Self {
        let Control { program, activation, inference, .. } = *control;
        Self { program, activation, inference }
    }
}

/// Requested and taken measurements of an inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Times of the stages.
    pub stages: Stages,
    /// Which inference it is.
    pub identity: Identity,
    /// True to fetch the device's stats buffer.
    pub wants_device: bool,
    /// The stats buffer as the device left it, where `wants_device` is set and the program has one.
    pub stats: Option<Box<[u8]>>,
}
