//! The times of the stages of an inference.

#[cfg(all(feature = "cpu", feature = "emu"))]
use qaic_qpc::plan::Control;

/// Times of one inference on [`crate::process::clock`], in this order; 0 means that the stage was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_field_names)] // the unit
pub(crate) struct Stages {
    /// Time of the call that started the inference.
    pub(crate) enqueued_ns: u64,
    /// Time at which a thread began the inference, after all inferences that precede it in order.
    pub(crate) begun_ns: u64,
    /// Time at which the device's inputs were complete.
    pub(crate) inputs_ready_ns: u64,
    /// Time at which the device had finished.
    pub(crate) executed_ns: u64,
    /// Time at which the caller's outputs were complete.
    pub(crate) outputs_ready_ns: u64,
    /// Time just before the completion is published.
    pub(crate) completed_ns: u64,
}

/// Identity of an inference in files and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Number of the program.
    pub(crate) program: u32,
    /// Number of the activation in its program.
    pub(crate) activation: u32,
    /// Number of the inference in its program, over all activations.
    pub(crate) inference: u64,
}

#[cfg(all(feature = "cpu", feature = "emu"))]
impl Identity {
    /// Returns the identity that a card read from its control buffer.
    pub(crate) fn of_control(control: &Control) -> Self {
        let Control { program, activation, inference, .. } = *control;
        Self { program, activation, inference }
    }
}

/// Requested measurements and results of an inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Times of the stages.
    pub(crate) stages: Stages,
    /// Identity of the inference.
    pub(crate) identity: Identity,
    /// True to fetch the device's stats buffer.
    pub(crate) wants_device: bool,
    /// Stats buffer of the device, if `wants_device` is set and the program has one.
    pub(crate) stats: Option<Box<[u8]>>,
}
