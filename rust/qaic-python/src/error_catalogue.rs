//! Table of error codes with their exceptions and statuses. `make docs` generates the reference page from it.

use pyo3::prelude::*;
use qaic_qpc::QpcError;
use qaic_runtime::{QStatus, RuntimeError};
use qaic_stats::StatsError;

/// Exceptions and codes of errors that the binding detects. A test compares the list with the sources.
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

/// (code, exception, status, example message) of every error. Errors of statistics have no status; errors of the
/// binding have neither status nor example. The order is runtime, containers, statistics, binding.
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
