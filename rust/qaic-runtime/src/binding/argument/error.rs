//! Errors about the arguments of a call.

use super::ShapeError;

/// Arguments that a program cannot take.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A name that no tensor of the model has.
    #[error("{side} {shown} does not exist; the program has {known:?}")]
    UnknownName {
        /// `input` or `output`.
        side: &'static str,
        /// The name.
        name: String,
        /// The name as the caller wrote it.
        shown: String,
        /// Names there are.
        known: Vec<String>,
    },

    /// Inputs that were not given, and that the device keeps no value of.
    #[error("missing inputs: {}; the program needs {known:?}", missing.join(", "))]
    Missing {
        /// Their names.
        missing: Vec<String>,
        /// Names of all inputs.
        known: Vec<String>,
    },

    /// Shapes that are no permitted combination.
    #[error(transparent)]
    Shapes(#[from] ShapeError),

    /// An output asked for by a name that none has.
    #[error("output `{name}` does not exist; the program has {known:?}")]
    UnknownOutput {
        /// The name.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },

    /// An array that cannot receive its output.
    #[error(
        "out[{name:?}] is {found}; a writable, aligned, C-contiguous {dtype} array of shape {shape:?} is expected"
    )]
    OutputArray {
        /// Output.
        name: String,
        /// The value found.
        found: String,
        /// Element type.
        dtype: &'static str,
        /// Its shape in this inference.
        shape: Vec<usize>,
    },

    /// Two outputs that would be written to the same memory.
    #[error("out[{name:?}] shares memory with the array of another output")]
    OutputOverlap {
        /// One of them.
        name: String,
    },

    /// Callers may not touch the state of this program.
    #[error("the program does not let its state be read or written between inferences")]
    StateNotSplit,

    /// No state has this name.
    #[error("the device keeps no state {name:?}; it keeps {known:?}, of the inputs {inputs:?}")]
    UnknownState {
        /// The name.
        name: String,
        /// Names of the states.
        known: Vec<String>,
        /// Names of all inputs.
        inputs: Vec<String>,
    },

    /// A state has no such part.
    #[error("state {name:?} of shape {shape:?} has no sequence {sequence}")]
    StateSequence {
        /// The state.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The part.
        sequence: usize,
    },

    /// State would be torn apart.
    #[error(
        "num_activations is {activations}; the program keeps state between inferences, and each activation its own"
    )]
    StatePerActivation {
        /// Activations asked for.
        activations: u32,
    },

    /// A tensor that no array of this host can be.
    #[error("tensor `{name}` of dims {dims:?} is too large for this host")]
    TensorTooLarge {
        /// Binding.
        name: String,
        /// Its dims.
        dims: Vec<u64>,
    },

    /// A conversion of ours gave something else than it should.
    #[error("{what} was not converted to {dtype} {shape:?}")]
    NotConverted {
        /// The tensor that was converted.
        what: String,
        /// Element type expected.
        dtype: &'static str,
        /// Shape expected.
        shape: Vec<usize>,
    },
}

impl ArgumentError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::UnknownName { .. } => "input.unknown_name",
            Self::Missing { .. } => "input.missing",
            Self::Shapes(_) => "input.shapes",
            Self::UnknownOutput { .. } => "output.unknown_name",
            Self::OutputArray { .. } => "output.array",
            Self::OutputOverlap { .. } => "output.overlap",
            Self::StateNotSplit => "state.not_split",
            Self::UnknownState { .. } => "state.unknown_name",
            Self::StateSequence { .. } => "state.sequence",
            Self::StatePerActivation { .. } => "option.state_per_activation",
            Self::TensorTooLarge { .. } => "qpc.tensor_too_large",
            Self::NotConverted { .. } => "internal.coerce",
        }
    }

    /// One example of each variant, in the order of the variants.
    pub fn examples() -> Vec<Self> {
        let text = str::to_owned;
        let known = || vec![text("image"), text("mask")];
        vec![
            Self::UnknownName { side: "input", name: text("imgae"), shown: text("'imgae'"), known: known() },
            Self::Missing { missing: vec![text("mask")], known: known() },
            Self::Shapes(ShapeError {
                passed: vec![(text("x"), 4, vec![2, 4])],
                allowed: vec![vec![(text("x"), vec![1, 4])], vec![(text("x"), vec![8, 4])]],
                item_bytes: vec![4],
            }),
            Self::UnknownOutput { name: text("logit"), known: vec![text("logits")] },
            Self::OutputArray {
                name: text("logits"),
                found: text("float64 of shape (1, 10)"),
                dtype: "float32",
                shape: vec![1, 10],
            },
            Self::OutputOverlap { name: text("logits") },
            Self::StateNotSplit,
            Self::UnknownState { name: text("cache"), known: vec![text("past")], inputs: vec![text("past")] },
            Self::StateSequence { name: text("past"), shape: vec![4, 8], sequence: 4 },
            Self::StatePerActivation { activations: 2 },
            Self::TensorTooLarge { name: text("image"), dims: vec![1 << 40, 1 << 40] },
            Self::NotConverted { what: text("input `image`"), dtype: "float32", shape: vec![1, 10] },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn code_of_every_error_has_an_example() {
        let text = include_str!("error.rs");
        let in_text: BTreeSet<&str> =
            text.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let examples: BTreeSet<&str> = ArgumentError::examples().iter().map(ArgumentError::code).collect();
        assert_eq!(examples, in_text);
    }
}
