//! Which code is which exception and which status, as data: `make docs` writes the reference page from it.

use pyo3::prelude::*;
use qaic_qpc::error::QpcError;
use qaic_runtime::binding::ArgumentError;
use qaic_runtime::error::{ErrorDetail, RuntimeError};
use qaic_stats::error::StatsError;

use crate::errors;
use crate::rt::status::QStatus;

/// Exceptions and codes of what the binding itself finds wrong. A test compares the list with the sources.
const OWN: [(&str, &str); 17] = [
    ("CompileError", "compile.engine_refused"),
    ("InputError", "quant.not_finite"),
    ("InputError", "quant.parameters"),
    ("InputError", "quant.range"),
    ("InputTypeError", "input.not_a_dict"),
    ("InputTypeError", "quant.array"),
    ("InternalError", "internal.json"),
    ("InternalError", "internal.panic"),
    ("OptionError", "option.cpu_devices"),
    ("OptionError", "option.cpu_shared"),
    ("OptionError", "option.timeout"),
    ("OptionError", "quant.name"),
    ("QpcError", "qpc.multi_device"),
    ("QpcError", "writer.misuse"),
    ("StateError", "inference.fetched"),
    ("StateError", "writer.finished"),
    ("StatsError", "stats.argument"),
];

type Row = (&'static str, String, &'static str, String);

/// (code, exception, status, message of an example) of every error of the runtime and of containers, then of statistics,
/// which have no status, and last the exceptions of the binding, which have neither status nor example.
#[pyfunction]
pub(crate) fn error_catalogue(py: Python<'_>) -> PyResult<Vec<Row>> {
    let containers = QpcError::examples().into_iter().map(ErrorDetail::Qpc);
    let inputs = ArgumentError::examples().into_iter().map(ErrorDetail::from);
    let mut rows = Vec::new();
    for error in ErrorDetail::examples().into_iter().chain(inputs).chain(containers).map(RuntimeError::from) {
        let (code, status, message) = (error.code(), QStatus::of(&error).name(), error.to_string());
        let exception = errors::from_runtime(py, error).get_type(py).name()?.to_string();
        rows.push((code, exception, status, message));
    }
    for error in StatsError::examples() {
        let exception = errors::from_stats(py, &error, None).get_type(py).name()?.to_string();
        rows.push((error.code(), exception, "", error.to_string()));
    }
    rows.extend(OWN.map(|(exception, code)| (code, exception.to_owned(), "", String::new())));
    Ok(rows)
}
