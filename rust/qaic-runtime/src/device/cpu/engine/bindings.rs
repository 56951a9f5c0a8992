//! The tensors of one exec object, which stay bound to memory until it changes.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use ort_sys::OrtIoBinding;

use super::graph::Graph;
use super::library::check;
use super::terminator::Terminator;
use super::value::Value;
use crate::device::HostTensors;
use crate::error::{EngineError, ErrorDetail, InputError, RuntimeError};
use crate::process::clock;

#[derive(Clone, Copy, Debug)]
enum Side {
    Input,
    Output,
}

/// Memory bound to one input or output.
#[derive(Debug)]
struct Bound {
    address: *mut u8,
    // Number of the bound shape.
    shape: usize,
    // Kept because the binding refers to it.
    _value: Value,
}

/// The tensors of one exec object. Executions of one `Bindings` never overlap (`&mut self`).
#[derive(Debug)]
pub(in crate::device::cpu) struct Bindings {
    graph: Arc<Graph>,
    raw: *mut OrtIoBinding,
    inputs: Vec<Option<Bound>>,
    outputs: Vec<Option<Bound>>,
    // The specialization of the next execution.
    variant: usize,
    // True if start and end of executions are recorded.
    is_timed: bool,
    ran_ns: (u64, u64),
    terminator: Arc<Terminator>,
}

// SAFETY: an IoBinding has no thread affinity; it is used through `&mut self` only.
unsafe impl Send for Bindings {}

impl Bindings {
    /// Creates bindings without memory.
    pub(in crate::device::cpu) fn new(graph: &Arc<Graph>) -> Result<Self, RuntimeError> {
        let engine = graph.engine;
        let terminator = Arc::new(Terminator::new(engine).map_err(RuntimeError::internal)?);
        let mut raw = ptr::null_mut();
        // SAFETY: the session lives as long as the graph, which `self` keeps.
        let status = unsafe { (engine.api.CreateIoBinding)(graph.session, &raw mut raw) };
        check(engine.api, status).map_err(RuntimeError::internal)?;
        let unbound = |count| (0..count).map(|_| None).collect();
        Ok(Self {
            raw,
            inputs: unbound(graph.inputs.len()),
            outputs: unbound(graph.outputs.len()),
            variant: 0,
            is_timed: false,
            ran_ns: (0, 0),
            graph: Arc::clone(graph),
            terminator,
        })
    }

    /// Returns the handle that ends an execution of these bindings from another thread.
    pub(in crate::device::cpu) fn terminator(&self) -> Arc<Terminator> {
        Arc::clone(&self.terminator)
    }

    /// Selects the specialization of the following executions.
    pub(in crate::device::cpu) fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        if variant == self.variant {
            return Ok(());
        }
        if variant >= self.graph.variants {
            return Err(RuntimeError::internal(format!(
                "specialization {variant} of {}",
                self.graph.variants
            )));
        }
        self.variant = variant;
        let inputs = self.graph.inputs.iter().zip(&mut self.inputs);
        for (tensor, slot) in inputs.chain(self.graph.outputs.iter().zip(&mut self.outputs)) {
            let shape = tensor.shape_in(variant);
            // An execution with the shape of another specialization would exceed the memory.
            slot.take_if(|bound| bound.shape != shape);
        }
        Ok(())
    }

    /// Binds every tensor of the graph. Does nothing for memory that is already bound with the current shape.
    fn bind_all(&mut self, tensors: &HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::internal("a tensor of the graph has no memory");
        for index in 0..self.graph.inputs.len() {
            let memory = tensors.inputs.get(index).and_then(Option::as_ref).ok_or_else(missing)?;
            // The engine has one type for tensors that it reads or writes; it only reads inputs.
            self.bind(Side::Input, index, memory.as_ptr().cast_mut(), memory.len())?;
        }
        for index in 0..self.graph.outputs.len() {
            let memory = tensors.outputs.get(index).and_then(Option::as_ref).ok_or_else(missing)?;
            self.bind(Side::Output, index, memory.as_mut_ptr(), memory.len())?;
        }
        Ok(())
    }

    /// Binds memory. Only [`Self::execute_bound`] lets the engine access the memory.
    fn bind(&mut self, side: Side, index: usize, address: *mut u8, len: usize) -> Result<(), RuntimeError> {
        let graph = &*self.graph;
        let (tensors, bound) = match side {
            Side::Input => (&graph.inputs, &mut self.inputs),
            Side::Output => (&graph.outputs, &mut self.outputs),
        };
        let (Some(tensor), Some(slot)) = (tensors.get(index), bound.get_mut(index)) else {
            return Err(RuntimeError::internal(format!("binding {index} of {}", tensors.len())));
        };
        let number = tensor.shape_in(self.variant);
        let Some(shape) = tensor.shapes.get(number) else {
            return Err(RuntimeError::internal(format!("shape {number} of binding {index}")));
        };
        if len < shape.size_bytes {
            return Err(InputError::BufferSize {
                buffer: tensor.name.to_string_lossy().into_owned(),
                expected: shape.size_bytes as u64,
                found: len as u64,
            }
            .into());
        }
        if slot.as_ref().is_some_and(|bound| bound.address == address && bound.shape == number) {
            return Ok(());
        }
        let api = graph.engine.api;
        if !address.addr().is_multiple_of(tensor.item_bytes) {
            let what = format!("tensor `{}` begins within an element", tensor.name.to_string_lossy());
            return Err(RuntimeError::internal(what));
        }
        // SAFETY: there are as many bytes as the shape has, and they are aligned. They are valid whenever a session runs with
        // the value: `execute` binds every tensor to memory that is borrowed until it returns.
        let value = unsafe { Value::new(graph.engine, tensor.dtype, shape, address) }
            .map_err(RuntimeError::internal)?;
        let name = tensor.name.as_ptr();
        let status = match side {
            // SAFETY: binding and value are live, the name is NUL-terminated.
            Side::Input => unsafe { (api.BindInput)(self.raw, name, value.raw) },
            // SAFETY: as above.
            Side::Output => unsafe { (api.BindOutput)(self.raw, name, value.raw) },
        };
        // The plan may name a tensor that the graph does not have.
        check(api, status).map_err(|message| EngineError::Graph { message })?;
        *slot = Some(Bound { address, shape: number, _value: value });
        Ok(())
    }

    /// Makes the engine write a profile of every execution to a file with this name prefix, until
    /// [`Self::end_profiling`].
    pub(in crate::device::cpu) fn begin_profiling(&mut self, prefix: &CStr) -> Result<(), String> {
        let engine = self.graph.engine;
        let profiling = engine.run_profiling().ok_or_else(|| {
            format!("onnxruntime {} cannot profile single runs; expected 1.25 or newer", engine.version)
        })?;
        // SAFETY: the options are live, no run uses them now, and the text is NUL-terminated.
        let status = unsafe { (profiling.enable)(self.terminator.run_options, prefix.as_ptr()) };
        check(engine.api, status)
    }

    /// Stops the profiling that [`Self::begin_profiling`] started.
    pub(in crate::device::cpu) fn end_profiling(&mut self) {
        let Some(profiling) = self.graph.engine.run_profiling() else { return };
        // SAFETY: the options are live, and no run uses them now.
        let status = unsafe { (profiling.disable)(self.terminator.run_options) };
        // Clearing a flag cannot fail; the check releases the status.
        let _ = check(self.graph.engine.api, status);
    }

    /// Returns true if the start and end of executions are recorded, which costs two clock reads.
    pub(in crate::device::cpu) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// Enables or disables the recording of start and end times.
    pub(in crate::device::cpu) fn set_timed(&mut self, is_timed: bool) {
        self.is_timed = is_timed;
    }

    /// Start and end of the last timed execution, on [`clock`].
    pub(in crate::device::cpu) fn ran_ns(&self) -> (u64, u64) {
        self.ran_ns
    }

    /// The specialization of the next execution.
    pub(in crate::device::cpu) fn variant(&self) -> usize {
        self.variant
    }

    /// Runs the graph once on the calling thread, with these tensors.
    ///
    /// Blocking: as long as the graph takes. Ends early with [`ErrorDetail::Interrupted`] after
    /// [`Terminator::terminate`].
    pub(in crate::device::cpu) fn execute(
        &mut self,
        tensors: &mut HostTensors<'_, '_>,
    ) -> Result<(), RuntimeError> {
        self.bind_all(tensors)?;
        if self.terminator.clear() {
            return Err(ErrorDetail::Interrupted.into());
        }
        if !self.is_timed {
            return self.execute_bound(tensors);
        }
        let begin_ns = clock::now_ns();
        let outcome = self.execute_bound(tensors);
        self.ran_ns = (begin_ns, clock::now_ns());
        outcome
    }

    /// Runs the graph with the memory that [`Self::bind_all`] bound for `tensors`.
    fn execute_bound(&mut self, _tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let engine = self.graph.engine;
        // SAFETY: session, options and binding are live; all bound memory comes from the tensors, which are
        // borrowed for the duration of the call.
        let status =
            unsafe { (engine.api.RunWithBinding)(self.graph.session, self.terminator.run_options, self.raw) };
        match check(engine.api, status) {
            Ok(()) => Ok(()),
            Err(_) if self.terminator.take() => Err(ErrorDetail::Interrupted.into()),
            Err(message) => Err(EngineError::inference(message).into()),
        }
    }
}

impl Drop for Bindings {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once, before the graph's session.
        unsafe { (self.graph.engine.api.ReleaseIoBinding)(self.raw) };
    }
}
