//! Which code is which exception and which status, as data: `make docs` writes the reference page from it.

use pyo3::prelude::*;
use qaic_qpc::QpcError;
use qaic_runtime::{QStatus, RuntimeError};
use qaic_stats::StatsError;

/// Exceptions and codes of what the binding itself finds wrong. A test compares the list with the sources.
const OWN: [(&str, &str); 16] = [
    ("CompileError", "compile.engine_refused"),
    ("InputError", "quant.not_finite"),
    ("InputError", "quant.parameters"),
    ("InputError", "quant.range"),
    ("InputError", "serving.request"),
    ("InputTypeError", "input.not_a_dict"),
    ("InputTypeError", "quant.array"),
    ("InternalError", "internal.json"),
    ("InternalError", "internal.panic"),
    ("OptionError", "option.timeout"),
    ("OptionError", "quant.name"),
    ("QpcError", "qpc.multi_device"),
    ("QpcError", "writer.misuse"),
    ("StateError", "inference.fetched"),
    ("StateError", "writer.finished"),
    ("StatsError", "stats.argument"),
];

type Row = (&'static str, &'static str, &'static str, String);

/// (code, exception, status, message of an example) of every error of the runtime and of containers, then of statistics,
/// which have no status, and last the exceptions of the binding, which have neither status nor example.
#[pyfunction]
pub(crate) fn error_catalogue() -> Vec<Row> {
    let containers = QpcError::examples().into_iter().map(RuntimeError::from);
    let runtime = RuntimeError::examples()
        .chain(containers)
        .map(|error| (error.code(), error.report().class, QStatus::of(&error).name(), error.to_string()));
    let stats = StatsError::examples().into_iter();
    let stats = stats.map(|error| (error.code(), error.report().class, "", error.to_string()));
    let own = OWN.map(|(exception, code)| (code, exception, "", String::new()));
    runtime.chain(stats).chain(own).collect()
}
