//! The calls into ONNX Runtime: a graph that any number of activations share, and the bindings of one exec object.
//!
//! Raw calls, because an inference must cost the engine's own time and nothing else: tensors are bound once and
//! bound again only when the memory behind them changes.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::process;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ort_sys::{
    GraphOptimizationLevel, ONNXTensorElementDataType, OrtIoBinding, OrtRunOptions, OrtSession,
    OrtSessionOptions, OrtValue,
};

use super::custom_ops;
use super::encoded::{self, Elements};
use super::external_data;
use super::loader::{Engine, check};
use super::plan::{Dtype, Edge, Plan, Variant, dense_bytes};
use crate::buffer::{HostSlice, HostSliceMut};
use crate::clock;
use crate::device::LoadToken;
use crate::error::RuntimeError;
use crate::sync::Mutex;

/// How a graph is built.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphOptions<'a> {
    /// Threads that work on one inference, the calling one included.
    pub(super) intra_op_threads: u32,
    /// What for.
    pub(super) purpose: Purpose,
    /// Hardware family that the program must be for; `None` when it makes no difference.
    pub(super) family: Option<&'static str>,
    /// Where the engine writes the graph that it made of the program's.
    pub(super) save: Option<&'a SavePaths>,
    /// Ends the build early.
    pub(super) token: &'a LoadToken,
}

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To run inferences.
    Run,
    /// To see whether it can be built: weights keep their layout, kernels pack none, blocks are not decoded.
    Check,
}

/// The constants of a program, used where they lie.
#[derive(Debug)]
pub(super) struct Constants<'a> {
    /// The payload of `constants.bin`.
    pub(super) bytes: &'a [u8],
    /// Owns them, and never changes or moves them.
    pub(super) keeper: Arc<dyn Any + Send + Sync>,
}

/// Where an optimized graph goes.
#[derive(Debug)]
pub(super) struct SavePaths {
    /// File of the graph.
    pub(super) graph: CString,
    /// Name of the file beside it that takes the larger initializers.
    pub(super) constants: CString,
}

/// A graph ready to run. Any number of [`Bindings`] may execute it at the same time; weights exist once.
#[derive(Debug)]
pub(super) struct Graph {
    engine: &'static Engine,
    session: *mut OrtSession,
    // The process whose threads the session has.
    process: u32,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    // Number of specializations, 1 without.
    variants: usize,
    // The session uses these as long as it lives; they refer to the program's constants.
    weights: Vec<Value>,
    // What some of them refer to instead: the elements of the weights that the constants have in blocks.
    decoded: Vec<Elements>,
    keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: ONNX Runtime allows concurrent `Run` calls on one session; the graph is not changed after its creation.
unsafe impl Send for Graph {}
// SAFETY: as for `Send`.
unsafe impl Sync for Graph {}

/// An input or output of the graph in all its shapes.
#[derive(Debug)]
struct Tensor {
    name: CString,
    dtype: ONNXTensorElementDataType,
    // Each shape once.
    shapes: Vec<Shape>,
    // Per specialization, which shape; empty when there is one.
    by_variant: Vec<usize>,
}

#[derive(Debug)]
struct Shape {
    dims: Vec<i64>,
    size_bytes: usize,
}

/// Session options that are released whatever happens.
struct Options {
    engine: &'static Engine,
    raw: *mut OrtSessionOptions,
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: created by `Graph::build`, released once.
        unsafe { (self.engine.api().ReleaseSessionOptions)(self.raw) };
    }
}

/// Sets the flag that makes the creation of a session end early.
struct CancelFlag {
    engine: &'static Engine,
    options: *mut OrtSessionOptions,
}

// SAFETY: the flag is made to be set from another thread than the one creating the session.
unsafe impl Send for CancelFlag {}

impl CancelFlag {
    fn set(&self) {
        // SAFETY: `LoadToken::during` guarantees that this runs only while the options are live.
        let status = unsafe { (self.engine.api().SessionOptionsSetLoadCancellationFlag)(self.options, true) };
        // Setting a flag has no failure mode; the check releases the status.
        let _ = check(self.engine.api(), status);
    }
}

/// A tensor over memory of somebody else.
#[derive(Debug)]
struct Value {
    engine: &'static Engine,
    raw: *mut OrtValue,
}

impl Value {
    /// A tensor at `address`, where at least `shape.size_bytes` bytes stay valid as long as the value is run with.
    fn new(
        engine: &'static Engine,
        dtype: ONNXTensorElementDataType,
        shape: &Shape,
        address: *mut u8,
    ) -> Result<Self, String> {
        let mut raw = ptr::null_mut();
        // SAFETY: dims describe exactly `size_bytes` bytes, and the value only records pointers.
        let status = unsafe {
            (engine.api().CreateTensorWithDataAsOrtValue)(
                engine.host_memory(),
                address.cast::<c_void>(),
                shape.size_bytes,
                shape.dims.as_ptr(),
                shape.dims.len(),
                dtype,
                &raw mut raw,
            )
        };
        check(engine.api(), status)?;
        Ok(Self { engine, raw })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: created by `Value::new`, released once; a binding that still names it holds its own reference.
        unsafe { (self.engine.api().ReleaseValue)(self.raw) };
    }
}

impl Graph {
    /// Builds the session of a CPU program.
    ///
    /// Blocking: reads the weights and prepares them for the kernels.
    pub(super) fn build(
        engine: &'static Engine,
        plan: &Plan,
        graph: &[u8],
        constants: &Constants<'_>,
        options: GraphOptions<'_>,
    ) -> Result<Self, RuntimeError> {
        Self::try_build(engine, plan, graph, constants, options).map_err(|message| {
            if options.token.was_cancelled() {
                RuntimeError::Interrupted
            } else {
                RuntimeError::EngineGraph { message }
            }
        })
    }

    fn try_build(
        engine: &'static Engine,
        plan: &Plan,
        graph: &[u8],
        constants: &Constants<'_>,
        settings: GraphOptions<'_>,
    ) -> Result<Self, String> {
        let api = engine.api();
        external_data::check(graph, plan)?;
        let inputs = Tensor::of_edges(&plan.inputs, &plan.variants, |variant| &variant.inputs)?;
        let outputs = Tensor::of_edges(&plan.outputs, &plan.variants, |variant| &variant.outputs)?;

        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is writable.
        let status = unsafe { (api.CreateSessionOptions)(&raw mut raw) };
        check(api, status)?;
        let options = Options { engine, raw };
        let threads = c_int::try_from(settings.intra_op_threads.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: the options are live.
        let status = unsafe { (api.SetIntraOpNumThreads)(options.raw, threads) };
        check(api, status)?;
        let level = match settings.purpose {
            Purpose::Run => GraphOptimizationLevel::ORT_ENABLE_ALL,
            Purpose::Check => GraphOptimizationLevel::ORT_ENABLE_EXTENDED,
        };
        // SAFETY: the options are live.
        let status = unsafe { (api.SetSessionGraphOptimizationLevel)(options.raw, level) };
        check(api, status)?;
        // Workers wait awake for as long as the next inference usually takes to come, then sleep (docs/adr/0005).
        // A graph has all its data in the container (`external_data`). The engine is sent where no file can be, so that it
        // looks for none in the working folder.
        let mut entries: Vec<(&CStr, &CStr)> = vec![
            (c"session.intra_op.spin_duration_us", c"1000"),
            (c"session.model_external_initializers_file_folder_path", c"/dev/null/none"),
        ];
        if let Some(save) = settings.save {
            // Constants of a KiB and more stay away from the graph, so that it has no size limit.
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
        for library in &plan.custom_op_libraries {
            let path = custom_ops::find(library)?;
            let path = CString::new(path.into_os_string().into_encoded_bytes())
                .map_err(|error| error.to_string())?;
            // SAFETY: the options are live, the path is NUL-terminated; the user allowed this process to run the library.
            let status = unsafe { (api.RegisterCustomOpsLibrary_V2)(options.raw, path.as_ptr()) };
            check(api, status)?;
        }

        let Weights { names, values, decoded } =
            Weights::of_plan(engine, plan, constants.bytes, settings.purpose)?;
        if !values.is_empty() {
            let name_pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
            let value_pointers: Vec<_> = values.iter().map(|value| value.raw.cast_const()).collect();
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
            // That alone lets the optimizer read the weights, but the session would then copy them; a shared initializer
            // is used where it lies (measured: docs/adr/0005).
            for (name, value) in name_pointers.iter().zip(value_pointers) {
                // SAFETY: name and value live as long as the options, the value as long as the session.
                let status = unsafe { (api.AddInitializer)(options.raw, *name, value) };
                check(api, status)?;
            }
        }

        let flag = CancelFlag { engine, options: options.raw };
        let guard = settings.token.during(Box::new(move || flag.set())).map_err(|error| error.to_string())?;
        let mut session = ptr::null_mut();
        // SAFETY: the graph bytes are only read during the call; options and values are live.
        let status = unsafe {
            (api.CreateSessionFromArray)(
                engine.env(),
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
            process: process::id(),
            inputs,
            outputs,
            variants: plan.variants.len().max(1),
            weights: values,
            decoded,
            keeper: Arc::clone(&constants.keeper),
        })
    }

    /// The engine that it is for.
    pub(super) fn engine(&self) -> &'static Engine {
        self.engine
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A forked process has no worker threads, and the release would wait for them to end forever.
        if self.process != process::id() {
            std::mem::take(&mut self.weights).into_iter().for_each(std::mem::forget);
            std::mem::forget(std::mem::take(&mut self.decoded));
            std::mem::forget(Arc::clone(&self.keeper));
            return;
        }
        // SAFETY: created by `build`; every `Bindings` holds an `Arc` of the graph, so none is left.
        unsafe { (self.engine.api().ReleaseSession)(self.session) };
    }
}

/// Whether this processor adds products of u8 and s8 in 16 bits, which saturates (compile-options §4.3). The engine is then
/// told to use slower kernels that do not; where there is VNNI they would only be slower.
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

/// The initializers of a plan as tensors.
struct Weights {
    names: Vec<CString>,
    values: Vec<Value>,
    // Memory of those that the container has in blocks.
    decoded: Vec<Elements>,
}

impl Weights {
    /// Tensors over the bytes, or over what they decode to; over zeros of that size where it only has to be built.
    fn of_plan(
        engine: &'static Engine,
        plan: &Plan,
        constants: &[u8],
        purpose: Purpose,
    ) -> Result<Self, String> {
        let mut names = Vec::with_capacity(plan.initializers.len());
        let mut values = Vec::with_capacity(plan.initializers.len());
        let mut decoded = Vec::new();
        for initializer in &plan.initializers {
            let encoding = initializer.encoding.as_deref();
            let bytes = initializer_bytes(initializer.offset, initializer.size, constants)
                .filter(|_| {
                    encoding.is_some()
                        || dense_bytes(initializer.dtype, &initializer.dims) == Some(initializer.size)
                })
                .ok_or_else(|| {
                    format!(
                        "initializer `{}`: {} bytes at offset {} do not describe a tensor inside constants.bin \
                         ({} bytes)",
                        initializer.name,
                        initializer.size,
                        initializer.offset,
                        constants.len()
                    )
                })?;
            let name = c_name(&initializer.name)?;
            let shape = Shape::new(&initializer.name, initializer.dtype, &initializer.dims)?;
            let address = match encoding {
                None => bytes.as_ptr(),
                Some(encoding) => {
                    let elements = match purpose {
                        Purpose::Run => encoded::decode(initializer, encoding, bytes)?,
                        Purpose::Check => encoded::zeros(initializer, encoding, bytes)?,
                    };
                    let address = elements.address();
                    decoded.push(elements);
                    address
                }
            };
            // The C interface has no const tensors; kernels never write initializers. The graph keeps the bytes'
            // owner, and what was decoded from them.
            let dtype = element_type(initializer.dtype);
            values.push(Value::new(engine, dtype, &shape, address.cast_mut())?);
            names.push(name);
        }
        Ok(Self { names, values, decoded })
    }
}

fn initializer_bytes(offset: u64, size: u64, constants: &[u8]) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    constants.get(start..end)
}

impl Tensor {
    /// The tensors of one side; `dims_of` tells their dims in a specialization.
    fn of_edges(
        edges: &[Edge],
        variants: &[Variant],
        dims_of: impl Fn(&Variant) -> &[Vec<i64>],
    ) -> Result<Vec<Self>, String> {
        let tensor = |(index, edge): (usize, &Edge)| {
            let mut tensor = Self {
                name: c_name(&edge.name)?,
                dtype: element_type(edge.dtype),
                shapes: Vec::new(),
                by_variant: Vec::new(),
            };
            if variants.is_empty() {
                tensor.shapes.push(Shape::new(&edge.name, edge.dtype, &edge.dims)?);
            }
            let mut known = HashMap::new();
            for variant in variants {
                let dims = dims_of(variant)
                    .get(index)
                    .ok_or_else(|| format!("a specialization has no dims for tensor `{}`", edge.name))?;
                let number = *known.entry(dims).or_insert(tensor.shapes.len());
                if number == tensor.shapes.len() {
                    tensor.shapes.push(Shape::new(&edge.name, edge.dtype, dims)?);
                }
                tensor.by_variant.push(number);
            }
            Ok(tensor)
        };
        edges.iter().enumerate().map(tensor).collect()
    }

    /// Number of the shape it has in a specialization.
    fn shape_in(&self, variant: usize) -> usize {
        self.by_variant.get(variant).copied().unwrap_or(0)
    }
}

impl Shape {
    fn new(name: &str, dtype: Dtype, dims: &[i64]) -> Result<Self, String> {
        let size_bytes = dense_bytes(dtype, dims)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| format!("tensor `{name}`: dims {dims:?} are not a dense shape"))?;
        Ok(Self { dims: dims.to_vec(), size_bytes })
    }
}

fn c_name(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| format!("tensor name {name:?} holds a NUL"))
}

const fn element_type(dtype: Dtype) -> ONNXTensorElementDataType {
    use ONNXTensorElementDataType as E;
    match dtype {
        Dtype::Float32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        Dtype::Float64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        Dtype::Float16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        Dtype::Bfloat16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        Dtype::Int8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        Dtype::Uint8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        Dtype::Int16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        Dtype::Uint16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        Dtype::Int32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        Dtype::Uint32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        Dtype::Int64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        Dtype::Uint64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        Dtype::Bool => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    }
}

/// Stops an execution from another thread.
#[derive(Debug)]
pub(in crate::device) struct Stop {
    engine: &'static Engine,
    run_options: *mut OrtRunOptions,
    requested: AtomicBool,
    // Whether no execution is to begin any more.
    is_final: AtomicBool,
    // Held while the engine's flag and `requested` change, so that neither is ever cleared without the other.
    change: Mutex<()>,
}

// SAFETY: the terminate flag of run options is made to be set from another thread than the running one.
unsafe impl Send for Stop {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stop {}

impl Stop {
    fn new(engine: &'static Engine) -> Result<Self, String> {
        let mut run_options = ptr::null_mut();
        // SAFETY: `run_options` is writable.
        let status = unsafe { (engine.api().CreateRunOptions)(&raw mut run_options) };
        check(engine.api(), status)?;
        Ok(Self {
            engine,
            run_options,
            requested: AtomicBool::new(false),
            is_final: AtomicBool::new(false),
            change: Mutex::new(()),
        })
    }

    /// Asks the running execution to end at its next node. Without one, nothing happens: an execution clears
    /// what was asked before it began, so whoever must be sure asks again until the execution has ended.
    pub(super) fn request(&self) {
        let _change = self.change.lock();
        // SAFETY: the options live as long as `self`.
        let status = unsafe { (self.engine.api().RunOptionsSetTerminate)(self.run_options) };
        // Setting a flag has no failure mode; the check releases the status.
        let _ = check(self.engine.api(), status);
        self.requested.store(true, Ordering::Release);
    }

    /// [`Self::request`] for the running execution and all that would follow.
    pub(in crate::device) fn request_for_good(&self) {
        self.is_final.store(true, Ordering::Release);
        self.request();
    }

    /// Clears what was asked before an execution. Costs one load where nothing was; a request that is just being made
    /// counts for the execution. Returns whether there is to be none.
    fn clear(&self) -> bool {
        if self.requested.load(Ordering::Acquire) {
            self.take();
        }
        self.is_final.load(Ordering::Acquire)
    }

    /// Whether a stop was asked for since it was last cleared; clears it, unless it was for good.
    fn take(&self) -> bool {
        let _change = self.change.lock();
        if self.is_final.load(Ordering::Acquire) {
            return true;
        }
        if !self.requested.swap(false, Ordering::AcqRel) {
            return false;
        }
        // SAFETY: the options live as long as `self`; nobody runs with them now.
        let status = unsafe { (self.engine.api().RunOptionsUnsetTerminate)(self.run_options) };
        let _ = check(self.engine.api(), status);
        true
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (self.engine.api().ReleaseRunOptions)(self.run_options) };
    }
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Input,
    Output,
}

/// Memory bound to one input or output.
#[derive(Debug)]
struct Bound {
    address: *mut u8,
    // Number of the shape it is bound with.
    shape: usize,
    // Kept because the binding refers to it.
    _value: Value,
}

/// The tensors of one exec object. Executions of one `Bindings` never overlap (`&mut self`).
#[derive(Debug)]
pub(super) struct Bindings {
    graph: Arc<Graph>,
    raw: *mut OrtIoBinding,
    inputs: Vec<Option<Bound>>,
    outputs: Vec<Option<Bound>>,
    // The specialization of the next execution.
    variant: usize,
    // Whether the begin and end of executions are noted.
    is_timed: bool,
    ran_ns: (u64, u64),
    stop: Arc<Stop>,
}

// SAFETY: an IoBinding has no thread affinity; it is used through `&mut self` only.
unsafe impl Send for Bindings {}

impl Bindings {
    /// Bindings without memory; every binding must be bound before [`Self::execute`].
    pub(super) fn new(graph: &Arc<Graph>) -> Result<Self, RuntimeError> {
        let engine = graph.engine;
        let internal = |what| RuntimeError::Internal { what };
        let stop = Arc::new(Stop::new(engine).map_err(internal)?);
        let mut raw = ptr::null_mut();
        // SAFETY: the session lives as long as the graph, which `self` keeps.
        let status = unsafe { (engine.api().CreateIoBinding)(graph.session, &raw mut raw) };
        check(engine.api(), status).map_err(internal)?;
        let unbound = |count| (0..count).map(|_| None).collect();
        Ok(Self {
            raw,
            inputs: unbound(graph.inputs.len()),
            outputs: unbound(graph.outputs.len()),
            variant: 0,
            is_timed: false,
            ran_ns: (0, 0),
            graph: Arc::clone(graph),
            stop,
        })
    }

    /// The handle that stops an execution of these bindings.
    pub(super) fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// Picks the specialization of the executions that follow. What is bound with another shape than the tensor has in
    /// it must be bound again.
    pub(super) fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        if variant == self.variant {
            return Ok(());
        }
        if variant >= self.graph.variants {
            return Err(RuntimeError::Internal {
                what: format!("specialization {variant} of {}", self.graph.variants),
            });
        }
        self.variant = variant;
        let inputs = self.graph.inputs.iter().zip(&mut self.inputs);
        for (tensor, slot) in inputs.chain(self.graph.outputs.iter().zip(&mut self.outputs)) {
            let shape = tensor.shape_in(variant);
            // An execution with the shape of another specialization would run over the end of the memory.
            slot.take_if(|bound| bound.shape != shape);
        }
        Ok(())
    }

    /// Binds memory to input `index`. A no-op when it is the memory already bound, with the shape in use.
    pub(super) fn bind_input(&mut self, index: usize, memory: HostSlice) -> Result<(), RuntimeError> {
        // The engine has one type for tensors it reads and writes; it only reads inputs.
        self.bind(Side::Input, index, memory.as_ptr().cast_mut(), memory.len())
    }

    /// Binds memory to output `index`. A no-op when it is the memory already bound, with the shape in use.
    pub(super) fn bind_output(&mut self, index: usize, memory: HostSliceMut) -> Result<(), RuntimeError> {
        self.bind(Side::Output, index, memory.as_mut_ptr(), memory.len())
    }

    fn bind(&mut self, side: Side, index: usize, address: *mut u8, len: usize) -> Result<(), RuntimeError> {
        let graph = &*self.graph;
        let (tensors, bound) = match side {
            Side::Input => (&graph.inputs, &mut self.inputs),
            Side::Output => (&graph.outputs, &mut self.outputs),
        };
        let (Some(tensor), Some(slot)) = (tensors.get(index), bound.get_mut(index)) else {
            return Err(RuntimeError::Internal { what: format!("binding {index} of {}", tensors.len()) });
        };
        let number = tensor.shape_in(self.variant);
        let Some(shape) = tensor.shapes.get(number) else {
            return Err(RuntimeError::Internal { what: format!("shape {number} of binding {index}") });
        };
        if len < shape.size_bytes {
            return Err(RuntimeError::BufferSize {
                buffer: tensor.name.to_string_lossy().into_owned(),
                expected: shape.size_bytes as u64,
                found: len as u64,
            });
        }
        if slot.as_ref().is_some_and(|bound| bound.address == address && bound.shape == number) {
            return Ok(());
        }
        let api = graph.engine.api();
        let internal = |what| RuntimeError::Internal { what };
        let value = Value::new(graph.engine, tensor.dtype, shape, address).map_err(internal)?;
        let name = tensor.name.as_ptr();
        let status = match side {
            // SAFETY: binding and value are live, the name is NUL-terminated.
            Side::Input => unsafe { (api.BindInput)(self.raw, name, value.raw) },
            // SAFETY: as above.
            Side::Output => unsafe { (api.BindOutput)(self.raw, name, value.raw) },
        };
        // The plan may name a tensor that the graph does not have.
        check(api, status).map_err(|message| RuntimeError::EngineGraph { message })?;
        *slot = Some(Bound { address, shape: number, _value: value });
        Ok(())
    }

    /// Has the engine write a profile of every execution until [`Self::end_profiling`], to a file whose name begins so.
    pub(super) fn begin_profiling(&mut self, prefix: &CStr) -> Result<(), String> {
        let engine = self.graph.engine;
        let profiling = engine.run_profiling().ok_or_else(|| {
            format!("onnxruntime {} cannot profile single runs, 1.25 or newer can", engine.version())
        })?;
        // SAFETY: the options are live, nobody runs with them now, and the text is NUL-terminated.
        let status = unsafe { (profiling.enable)(self.stop.run_options, prefix.as_ptr()) };
        check(engine.api(), status)
    }

    /// Undoes [`Self::begin_profiling`].
    pub(super) fn end_profiling(&mut self) {
        let Some(profiling) = self.graph.engine.run_profiling() else { return };
        // SAFETY: the options are live, and nobody runs with them now.
        let status = unsafe { (profiling.disable)(self.stop.run_options) };
        // Clearing a flag has no failure mode; the check releases the status.
        let _ = check(self.graph.engine.api(), status);
    }

    /// Whether the begin and end of executions are noted; they cost two looks at the clock.
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// Has them noted, or not.
    pub(super) fn set_timed(&mut self, is_timed: bool) {
        self.is_timed = is_timed;
    }

    /// When the last execution that was timed began and ended, on [`clock`].
    pub(super) fn ran_ns(&self) -> (u64, u64) {
        self.ran_ns
    }

    /// The specialization of the next execution.
    pub(super) fn variant(&self) -> usize {
        self.variant
    }

    /// Runs the graph once on the calling thread, from the bound inputs into the bound outputs.
    ///
    /// Blocking: as long as the graph takes. Ends early with [`RuntimeError::Interrupted`] after [`Stop::request`].
    pub(super) fn execute(&mut self) -> Result<(), RuntimeError> {
        if self.inputs.iter().chain(&self.outputs).any(Option::is_none) {
            return Err(RuntimeError::Internal { what: "a binding has no memory".to_owned() });
        }
        if self.stop.clear() {
            return Err(RuntimeError::Interrupted);
        }
        if !self.is_timed {
            return self.execute_bound();
        }
        let begin_ns = clock::now_ns();
        let outcome = self.execute_bound();
        self.ran_ns = (begin_ns, clock::now_ns());
        outcome
    }

    fn execute_bound(&mut self) -> Result<(), RuntimeError> {
        let engine = self.graph.engine;
        // SAFETY: session, options and binding are live; every bound memory is valid for the duration of the call by
        // the contract of `HostSliceMut`.
        let status =
            unsafe { (engine.api().RunWithBinding)(self.graph.session, self.stop.run_options, self.raw) };
        match check(engine.api(), status) {
            Ok(()) => Ok(()),
            Err(_) if self.stop.take() => Err(RuntimeError::Interrupted),
            Err(message) => Err(RuntimeError::Inference { status: "QS_ERROR", message }),
        }
    }
}

impl Drop for Bindings {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once, before the graph's session.
        unsafe { (self.graph.engine.api().ReleaseIoBinding)(self.raw) };
    }
}
