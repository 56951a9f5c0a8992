//! `qaic._core`: the Python binding. It only converts between Python and the runtime.
//!
//! The block below contains the whole interface; `python/qaic/_core.pyi` documents it.

#![deny(unsafe_code)]

#[allow(unsafe_code)] // the buffer protocol; every block states why it is sound
mod buffers;
mod context;
mod emu_control;
mod error_catalogue;
mod errors;
mod gil;
#[allow(unsafe_code)] // the id of the interpreter
mod interpreter;
mod noop_control;
mod payload;
mod profiling;
mod qpc;
mod quant;
mod requests;
mod rt;
mod session;
mod stats;
mod stats_output;
mod writer;

/// The compiled module.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    use super::{buffers, rt};

    #[pymodule_export]
    use super::buffers::{BytesView, OutputBuffer};
    #[pymodule_export]
    use super::context::{
        PyContext, allow_custom_op_library, check_program, engine_info, open_user_directory,
        save_optimized_graph, try_model,
    };
    #[pymodule_export]
    use super::emu_control::PyEmuControl;
    #[pymodule_export]
    use super::error_catalogue::error_catalogue;
    #[pymodule_export]
    use super::gil::{PyTeardown, await_teardown};
    #[pymodule_export]
    use super::noop_control::PyNoopControl;
    #[pymodule_export]
    use super::payload::PyPayload;
    #[pymodule_export]
    use super::profiling::{PyProfiler, PySamples, profiling_clock};
    #[pymodule_export]
    use super::qpc::{PyQpc, PyTensor, validate_container};
    #[pymodule_export]
    use super::quant::{
        PyTensorHistogram, calibrate_range, mx_decode, mx_encode, quant_range, quantize_tensor,
    };
    #[pymodule_export]
    use super::requests::{
        join_bytes, read_json_numbers, read_message_numbers, split_infer_json, split_infer_message,
    };
    #[pymodule_export]
    use super::rt::benchmark::rt_log_error;
    #[pymodule_export]
    use super::rt::exec_obj::io_crcs;
    #[pymodule_export]
    use super::rt::program::choose_devices;
    #[pymodule_export]
    use super::session::{PyCompletions, PyInference, PyInferenceSet};
    #[pymodule_export]
    use super::stats::{PyStatsBuffer, PyStatsDescriptor, encode_stats, stats_capacity, stats_record_fields};
    #[pymodule_export]
    use super::stats_output::{stats_summary, stats_trace};
    #[pymodule_export]
    use super::writer::{PyQpcWriter, encode_elf, encode_metadata, encode_network_desc};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::interpreter::require_main(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::context::watch_forks(module.py())?;
        super::gil::finish_with_interpreter(module.py())?;
        let py = module.py();
        let factory = rt::factory_method(py)?;
        // The same names in `qaicrt` refer to other classes.
        for (name, class) in [
            ("RtQBuffer", py.get_type::<buffers::PyQBuffer>()),
            ("RtBufferDimensionsVecRef", py.get_type::<rt::dims::PyDims>()),
            ("RtChannel", py.get_type::<rt::callback_channel::RtChannel>()),
            ("RtReceiver", py.get_type::<rt::callback_channel::RtReceiver>()),
            ("RtSlicingHandle", py.get_type::<rt::slicing::PySlicing>()),
            ("RtSlicingSpecHandle", py.get_type::<rt::slicing::PySlicingSpec>()),
            ("RtInferenceHandle", py.get_type::<rt::inference_handle::PyInferenceHandle>()),
            ("RtBenchmark", py.get_type::<rt::benchmark::PyBenchmark>()),
        ] {
            module.add(name, class)?;
        }
        for (name, class) in [
            ("RtContext", py.get_type::<rt::context::RtContext>()),
            ("RtExecObj", py.get_type::<rt::exec_obj::PyExecObj>()),
            ("RtInferenceSet", py.get_type::<rt::inference_set::PyQaicInferenceSet>()),
            ("RtInferenceVector", py.get_type::<rt::inference_vector::PyInferenceVector>()),
            ("RtProgram", py.get_type::<rt::program::PyProgram>()),
            ("RtQpc", py.get_type::<rt::qpc::RtQpc>()),
            ("RtQueue", py.get_type::<rt::queue::PyQueue>()),
        ] {
            class.setattr("Factory", &factory)?;
            module.add(name, class)?;
        }
        super::errors::register(module)
    }
}
