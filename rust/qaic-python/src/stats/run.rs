//! Conversion between the facts of an inference and a Python dictionary.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use qaic_stats::{DeviceKind, Run, RunFlags};

use super::argument;

/// Reads the facts of a dictionary; missing ones are 0.
pub(super) fn of_dict(py: Python<'_>, facts: &Bound<'_, PyDict>) -> PyResult<Run> {
    let mut run = Run::default();
    for (name, value) in facts {
        let name = name.cast::<PyString>()?.to_string();
        match name.as_str() {
            "stats_level" => run.stats_level = value.extract()?,
            "op_stats_level" => run.op_stats_level = value.extract()?,
            "cores" => run.cores = value.extract()?,
            "threads_per_core" => run.threads_per_core = value.extract()?,
            "batch_size" => run.batch_size = value.extract()?,
            "ucycle_hz" => run.ucycle_hz = value.extract()?,
            "epoch_utc_ns" => run.epoch_utc_ns = value.extract()?,
            "inference" => run.inference = value.extract()?,
            "program" => run.program = value.extract()?,
            "activation" => run.activation = value.extract()?,
            "flags" => run.flags = RunFlags::from_bits_retain(value.extract()?),
            "device" => run.device = DeviceKind::from_code(value.extract()?),
            "specialization" => run.specialization = value.extract()?,
            // `to_dict` adds this key for display.
            "device_name" => {}
            _ => return Err(argument(py, format!("{name:?} is not a field of an inference"))),
        }
    }
    Ok(run)
}

pub(super) fn to_dict<'py>(py: Python<'py>, run: &Run) -> PyResult<Bound<'py, PyDict>> {
    let facts = PyDict::new(py);
    facts.set_item("stats_level", run.stats_level)?;
    facts.set_item("op_stats_level", run.op_stats_level)?;
    facts.set_item("cores", run.cores)?;
    facts.set_item("threads_per_core", run.threads_per_core)?;
    facts.set_item("batch_size", run.batch_size)?;
    facts.set_item("ucycle_hz", run.ucycle_hz)?;
    facts.set_item("epoch_utc_ns", run.epoch_utc_ns)?;
    facts.set_item("inference", run.inference)?;
    facts.set_item("program", run.program)?;
    facts.set_item("activation", run.activation)?;
    facts.set_item("flags", run.flags.bits())?;
    facts.set_item("device", run.device.code())?;
    facts.set_item("device_name", run.device.name())?;
    facts.set_item("specialization", run.specialization)?;
    Ok(facts)
}
