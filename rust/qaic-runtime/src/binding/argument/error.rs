//! Errors about the arguments of a call.

use super::ShapeError;

qaic_qpc::errors! {
    /// Errors about arguments that a program cannot take.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum ArgumentError: "InputError" {
        /// No tensor of the model has this name.
        #[error("{side} {shown} does not exist; the program has {known:?}")]
        UnknownName {
            side: &'static str = "input", name: String = "imgae".into(), shown: String = "'imgae'".into(),
            known: Vec<String> = vec!["image".into(), "mask".into()],
        } => "input.unknown_name" [name, known],
        /// Inputs are missing, and the device retains no value for them.
        #[error("missing inputs: {}; the program needs {known:?}", missing.join(", "))]
        Missing {
            missing: Vec<String> = vec!["mask".into()], known: Vec<String> = vec!["image".into(), "mask".into()],
        } => "input.missing" "MissingInputError" [missing],
        /// The shapes are not a permitted combination.
        #[error(transparent)]
        Shapes(#[from] ShapeError = ShapeError {
            passed: vec![("x".into(), 4, vec![2, 4])],
            allowed: vec![vec![("x".into(), vec![1, 4])], vec![("x".into(), vec![8, 4])]],
            item_bytes: vec![4],
        }) => "input.shapes" "InputShapeError" hint "pass arrays with the shapes of one of these combinations",
        /// No output has the requested name.
        #[error("output `{name}` does not exist; the program has {known:?}")]
        UnknownOutput {
            name: String = "logit".into(), known: Vec<String> = vec!["logits".into()],
        } => "output.unknown_name" [name, known],
        /// The array cannot receive its output.
        #[error(
            "out[{name:?}] is {found}; a writable, aligned, C-contiguous {dtype} array of shape {shape:?} is expected"
        )]
        OutputArray {
            name: String = "logits".into(), found: String = "float64 of shape (1, 10)".into(),
            dtype: &'static str = "float32", shape: Vec<usize> = vec![1, 10],
        } => "output.array" [name],
        /// Two outputs would be written to the same memory.
        #[error("out[{name:?}] shares memory with the array of another output")]
        OutputOverlap { name: String = "logits".into() } => "output.overlap" [name]
            hint "give each output separate memory",
        /// The program does not let callers access its state.
        #[error("the state of this program cannot be read or written between inferences")]
        StateNotSplit => "state.not_split" "StateError"
            hint "compile it with retained_state=True and split_retained_state_io=True",
        /// No state has this name.
        #[error("state {name:?} does not exist; the device keeps {known:?} of the inputs {inputs:?}")]
        UnknownState {
            name: String = "cache".into(), known: Vec<String> = vec!["past".into()],
            inputs: Vec<String> = vec!["past".into()],
        } => "state.unknown_name" [known],
        /// The state has no part for this sequence.
        #[error("state {name:?} of shape {shape:?} has no sequence {sequence}")]
        StateSequence {
            name: String = "past".into(), shape: Vec<usize> = vec![4, 8], sequence: usize = 4,
        } => "state.sequence" [name, shape] hint "sequences are numbered from 0 along the first dimension",
        /// Several activations would each have their own state.
        #[error(
            "num_activations is {activations}; each activation of a program with retained state has its own state"
        )]
        StatePerActivation { activations: u32 = 2 } => "option.state_per_activation" "OptionError"
            hint "use num_activations=1, or select the activation of each inference with qaicrt",
        /// The tensor is too large for an array on this host.
        #[error("tensor `{name}` of dims {dims:?} is too large for this host")]
        TensorTooLarge {
            name: String = "image".into(), dims: Vec<u64> = vec![1 << 40, 1 << 40],
        } => "qpc.tensor_too_large" "QpcLimitError",
        /// An internal conversion produced an unexpected result.
        #[error("{what} was not converted to {dtype} {shape:?}")]
        NotConverted {
            what: String = "input `image`".into(), dtype: &'static str = "float32",
            shape: Vec<usize> = vec![1, 10],
        } => "internal.coerce" "InternalError",
    }
}
