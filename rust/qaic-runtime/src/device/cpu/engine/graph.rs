//! The session of a program: its graph and its weights, ready to run.

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use ort_sys::{GraphOptimizationLevel, OrtSession, OrtSessionOptions};
use qaic_qpc::plan::Plan;

use super::library::{Engine, check};
use super::own_operators::StoredWeights;
use super::value::Tensor;
use super::weights::Weights;
use super::{custom_ops, external_data, own_operators};
use crate::device::cpu::executable::Constants;
use crate::error::{EngineError, ErrorDetail, RuntimeError};
use crate::process::cancellation::OnCancel;
use crate::process::{CancellationToken, ForkGuard};

/// Options for building a graph.
#[derive(Clone, Copy, Debug)]
pub(in crate::device::cpu) struct GraphOptions<'a> {
    /// Number of threads that work on one inference, including the calling thread.
    pub(in crate::device::cpu) intra_op_threads: u32,
    pub(in crate::device::cpu) purpose: Purpose,
    /// Hardware family that the program must be compiled for; `None` accepts any.
    pub(in crate::device::cpu) family: Option<&'static str>,
    /// Paths for the engine's optimized graph.
    pub(in crate::device::cpu) save: Option<&'a SavePaths>,
    /// Token that ends the build early.
    pub(in crate::device::cpu) token: &'a CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device::cpu) enum Purpose {
    /// To run inferences.
    Run,
    /// To check that the graph can be built: weights keep their layout, kernels pack no weights, and blocks are not
    /// decoded.
    Check,
}

/// Paths for an optimized graph.
#[derive(Debug)]
pub(in crate::device::cpu) struct SavePaths {
    pub(in crate::device::cpu) graph: CString,
    /// Name of the file in the same folder that contains the larger initializers.
    pub(in crate::device::cpu) constants: CString,
}

/// A graph that is ready to run. Any number of `Bindings` may execute it at the same time; its weights exist once.
#[derive(Debug)]
pub(in crate::device::cpu) struct Graph {
    pub(super) engine: &'static Engine,
    pub(super) session: *mut OrtSession,
    // Guard of the process that has the threads of the session.
    fork_guard: ForkGuard,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    // Number of specializations, 1 without.
    pub(super) variants: usize,
    // The session uses the weights during its whole life.
    weights: ManuallyDrop<Weights>,
    own_operators: ManuallyDrop<Option<own_operators::Domain>>,
}

// SAFETY: ONNX Runtime allows concurrent `Run` calls on one session; the graph is not changed after its creation.
unsafe impl Send for Graph {}
// SAFETY: as for `Send`.
unsafe impl Sync for Graph {}

/// Session options, released on drop.
pub(super) struct Options {
    engine: &'static Engine,
    pub(super) raw: *mut OrtSessionOptions,
}

impl Options {
    pub(super) fn new(
        engine: &'static Engine,
        threads: u32,
        level: GraphOptimizationLevel,
    ) -> Result<Self, String> {
        let api = engine.api;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        let status = unsafe { (api.CreateSessionOptions)(&raw mut raw) };
        check(api, status)?;
        let options = Self { engine, raw };
        let threads = c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: the options are live.
        let status = unsafe { (api.SetIntraOpNumThreads)(options.raw, threads) };
        check(api, status)?;
        // SAFETY: the options are live.
        let status = unsafe { (api.SetSessionGraphOptimizationLevel)(options.raw, level) };
        check(api, status)?;
        Ok(options)
    }

    /// Lets `token` end the creation of a session with these options until the result is dropped.
    pub(super) fn cancelled_by<'a>(
        &self,
        token: &'a CancellationToken,
    ) -> Result<OnCancel<'a>, RuntimeError> {
        let flag = CancelFlag { engine: self.engine, options: self.raw };
        token.on_cancel(Box::new(move || flag.set()))
    }

    /// Adds the device's operators that a program uses. The session must not outlive the result.
    fn add_own_operators(
        &self,
        plan: &Plan,
        constants: &Constants,
    ) -> Result<Option<own_operators::Domain>, String> {
        if let Some(unknown) =
            plan.own_operators.iter().find(|name| !own_operators::NAMES.contains(&&***name))
        {
            return Err(format!(
                "the program needs the operator `{unknown}`, which this release does not support"
            ));
        }
        if plan.own_operators.is_empty() {
            return Ok(None);
        }
        let api = self.engine.api;
        let stored = Arc::new(StoredWeights::of_plan(plan, constants)?);
        let domain = own_operators::Domain::new(api, &stored)?;
        // SAFETY: the options are live; they record the domain, which the session uses.
        let status = unsafe { (api.AddCustomOpDomain)(self.raw, domain.raw) };
        check(api, status)?;
        Ok(Some(domain))
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (self.engine.api.ReleaseSessionOptions)(self.raw) };
    }
}

/// Sets the flag that ends the creation of a session early.
struct CancelFlag {
    engine: &'static Engine,
    options: *mut OrtSessionOptions,
}

// SAFETY: the flag is designed to be set by a thread other than the one that creates the session.
unsafe impl Send for CancelFlag {}

impl CancelFlag {
    fn set(&self) {
        // SAFETY: `CancellationToken::on_cancel` guarantees that this runs only while the options are live.
        let status = unsafe { (self.engine.api.SessionOptionsSetLoadCancellationFlag)(self.options, true) };
        // Setting a flag cannot fail; the check releases the status.
        let _ = check(self.engine.api, status);
    }
}

impl Graph {
    /// Builds the session of a CPU program.
    ///
    /// Blocking: reads the weights and prepares them for the kernels.
    pub(in crate::device::cpu) fn build(
        engine: &'static Engine,
        plan: &Plan,
        graph: &[u8],
        constants: &Constants,
        options: GraphOptions<'_>,
    ) -> Result<Self, RuntimeError> {
        Self::try_build(engine, plan, graph, constants, options).map_err(|message| {
            if options.token.is_cancelled() {
                ErrorDetail::Interrupted.into()
            } else {
                EngineError::Graph { message }.into()
            }
        })
    }

    fn try_build(
        engine: &'static Engine,
        plan: &Plan,
        graph: &[u8],
        constants: &Constants,
        settings: GraphOptions<'_>,
    ) -> Result<Self, String> {
        let api = engine.api;
        external_data::check(graph, plan)?;
        let inputs = Tensor::of_edges(&plan.inputs, &plan.variants, |variant| &variant.inputs)?;
        let outputs = Tensor::of_edges(&plan.outputs, &plan.variants, |variant| &variant.outputs)?;

        let level = match settings.purpose {
            Purpose::Run => GraphOptimizationLevel::ORT_ENABLE_ALL,
            Purpose::Check => GraphOptimizationLevel::ORT_ENABLE_EXTENDED,
        };
        let options = Options::new(engine, settings.intra_op_threads, level)?;
        // Workers spin for the usual time between inferences, then sleep (docs/adr/0005). All data of a graph is in
        // the container (`external_data`). The path given to the engine cannot exist, so it does not look for files
        // in the working directory.
        let mut entries: Vec<(&CStr, &CStr)> = vec![
            (c"session.intra_op.spin_duration_us", c"1000"),
            (c"session.model_external_initializers_file_folder_path", c"/dev/null/none"),
            // A product with weights that a DequantizeLinear computes keeps its activations in floating
            // point. By default, the engine rounds them to int8.
            (c"session.qdq_matmulnbits_accuracy_level", c"0"),
            // Two roundings in a row keep both steps. By default, the engine merges pairs of QuantizeLinear and
            // DequantizeLinear into one pair with other parameters.
            (c"session.disable_double_qdq_remover", c"1"),
        ];
        if let Some(save) = settings.save {
            // Constants of 1 KiB or more are stored outside the graph, so that the graph has no size limit.
            entries.push((c"session.optimized_model_external_initializers_file_name", &save.constants));
            entries.push((c"session.optimized_model_external_initializers_min_size_in_bytes", c"1024"));
        }
        if settings.purpose == Purpose::Check {
            entries.push((c"session.disable_prepacking", c"1"));
        }
        if int8_products_saturate() {
            entries.push((c"session.x64quantprecision", c"1"));
        }
        for (key, value) in entries {
            // SAFETY: the options are live, both texts are NUL-terminated.
            let status = unsafe { (api.AddSessionConfigEntry)(options.raw, key.as_ptr(), value.as_ptr()) };
            check(api, status)?;
        }
        if let Some(save) = settings.save {
            // SAFETY: the options are live, the path is NUL-terminated.
            let status = unsafe { (api.SetOptimizedModelFilePath)(options.raw, save.graph.as_ptr()) };
            check(api, status)?;
        }
        let own_operators = options.add_own_operators(plan, constants)?;
        for library in &plan.custom_op_libraries {
            let path = custom_ops::find(library)?;
            let path = CString::new(path.into_os_string().into_encoded_bytes())
                .map_err(|error| error.to_string())?;
            // SAFETY: the options are live, the path is NUL-terminated; the user allowed this process to run the library.
            let status = unsafe { (api.RegisterCustomOpsLibrary_V2)(options.raw, path.as_ptr()) };
            check(api, status)?;
        }

        let weights = Weights::of_plan(engine, plan, constants, settings.purpose)?;
        let graph = weights.pinned_in(graph, plan);
        if !weights.values.is_empty() {
            let name_pointers: Vec<_> = weights.names.iter().map(|name| name.as_ptr()).collect();
            let value_pointers: Vec<_> = weights.values.iter().map(|value| value.raw.cast_const()).collect();
            // SAFETY: both arrays have the given length and live past the creation of the session.
            let status = unsafe {
                (api.AddExternalInitializers)(
                    options.raw,
                    name_pointers.as_ptr(),
                    value_pointers.as_ptr(),
                    value_pointers.len(),
                )
            };
            check(api, status)?;
            // With this call alone, the optimizer can read the weights, but the session would copy them; a shared
            // initializer is used in place (measured: docs/adr/0005).
            for (name, value) in name_pointers.iter().zip(value_pointers) {
                // SAFETY: name and value live as long as the options, the value as long as the session.
                let status = unsafe { (api.AddInitializer)(options.raw, *name, value) };
                check(api, status)?;
            }
        }

        let guard = options.cancelled_by(settings.token).map_err(|error| error.to_string())?;
        let mut session = ptr::null_mut();
        // SAFETY: the graph bytes are only read during the call; options and values are live.
        let status = unsafe {
            (api.CreateSessionFromArray)(
                engine.env,
                graph.as_ptr().cast::<c_void>(),
                graph.len(),
                options.raw,
                &raw mut session,
            )
        };
        drop(guard);
        check(api, status)?;
        Ok(Self {
            engine,
            session,
            fork_guard: ForkGuard::new(),
            inputs,
            outputs,
            variants: plan.variants.len().max(1),
            weights: ManuallyDrop::new(weights),
            own_operators: ManuallyDrop::new(own_operators),
        })
    }

    /// Number of specializations; 1 for a program without any.
    pub(in crate::device::cpu) fn variants(&self) -> usize {
        self.variants
    }

    /// The engine that the graph was built for.
    pub(in crate::device::cpu) fn engine(&self) -> &'static Engine {
        self.engine
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A forked process has no worker threads, so the release would wait forever for their end.
        if !self.fork_guard.is_current() {
            return;
        }
        // SAFETY: created by `build`; every `Bindings` holds an `Arc` of the graph, so none is left.
        unsafe { (self.engine.api.ReleaseSession)(self.session) };
        // SAFETY: dropped once, after the session that uses them.
        unsafe { ManuallyDrop::drop(&mut self.weights) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.own_operators) };
    }
}

/// Returns true if this processor adds products of u8 and s8 in 16 bits, which saturates. The engine then uses slower
/// kernels that do not saturate. On processors with VNNI, these kernels would only be slower.
fn int8_products_saturate() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        !(is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}
