//! Binds the tensors of one inference to arrays that the caller lends for its duration.
//!
//! The device reads and writes the arrays directly if it can. A tensor uses memory of a pool if the device stores it
//! in another form, or if an output would overwrite an input before it is read. No reference counts change and, once
//! the pools are warm, no memory is allocated.

mod state;
mod tensor;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use qaic_mem::{HostSlice, HostSliceMut, Lender, Storage};

pub use state::ArrayState;
pub use tensor::ArrayTensors;

use crate::binding::{ArgumentError, Bindings, first_overlap};
use crate::error::RuntimeError;
use crate::inference_set::{
    BenchmarkOutcome, BenchmarkProgress, InferenceSet, PendingInference, PendingInput,
};
use crate::process::{Deadline, WaitScope};

/// Number of an array among the caller's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayId(pub usize);

/// Contiguous arrays that a caller provides.
pub trait Arrays {
    /// The bytes of an array.
    fn memory(&self, array: ArrayId) -> HostSlice<'_>;

    /// The bytes of a writable array; empty for other arrays. Several arrays may share memory.
    fn memory_mut(&self, array: ArrayId) -> HostSliceMut<'_>;
}

/// Arrays and memory that the tensors of one inference are bound to. The object and its allocations are reused for
/// the next inference.
#[derive(Debug, Default)]
pub struct BoundArrays {
    // Index of the combination of shapes of the arrays.
    variant: usize,
    inputs: Vec<Source>,
    outputs: Vec<Target>,
    lender: Lender,
    // Index of each output with a given array, and the address range of the array.
    given: Vec<(usize, Range<usize>)>,
}

/// Source from which the device reads an input.
#[derive(Debug)]
enum Source {
    /// The value that the device retains.
    Retained,
    /// The caller's array.
    Array(ArrayId),
    /// The array, converted to the device's form.
    Converted(Storage),
}

/// Memory to which the device writes an output.
#[derive(Debug)]
enum Target {
    Dropped,
    /// The start of the caller's array, and its length.
    Array(ArrayId, usize),
    /// Memory whose contents are copied to the start of the caller's array afterwards.
    Deferred(Storage, ArrayId, usize),
    /// Memory that becomes a new array.
    New(Storage),
}

/// Destination that a caller selects for an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// None: the output is discarded.
    Dropped,
    /// An existing array, or the start of it.
    Array(ArrayId),
    /// New memory, which [`BoundArrays::take_output`] returns.
    New,
}

impl Source {
    fn memory<'a>(&'a self, arrays: &'a impl Arrays) -> Option<HostSlice<'a>> {
        match self {
            Self::Retained => None,
            Self::Array(id) => Some(arrays.memory(*id)),
            Self::Converted(storage) => Some(storage.memory()),
        }
    }
}

impl Target {
    fn memory<'a>(&'a mut self, arrays: &'a impl Arrays) -> Option<HostSliceMut<'a>> {
        match self {
            Self::Dropped => None,
            Self::Array(id, bytes) => Some(arrays.memory_mut(*id).first(*bytes)),
            Self::Deferred(storage, ..) | Self::New(storage) => Some(storage.memory_mut()),
        }
    }
}

impl BoundArrays {
    /// Creates an object without bindings, with capacity for the tensors of an inference.
    pub fn for_tensors(tensors: &ArrayTensors) -> Self {
        let (inputs, outputs) = (tensors.specs.inputs().len(), tensors.specs.outputs().len());
        Self {
            inputs: Vec::with_capacity(inputs),
            outputs: Vec::with_capacity(outputs),
            lender: Lender::with_capacity(inputs + outputs),
            given: Vec::with_capacity(outputs),
            variant: 0,
        }
    }

    /// Removes all bindings; later bindings have this combination of shapes.
    pub fn begin(&mut self, variant: usize) {
        self.variant = variant;
        self.inputs.clear();
        self.outputs.clear();
        self.given.clear();
    }

    /// Binds the next input to an array that needs no conversion. Without an array, the device uses its retained
    /// value.
    pub fn push_input(
        &mut self,
        tensors: &ArrayTensors,
        arrays: &impl Arrays,
        array: Option<ArrayId>,
    ) -> Result<(), RuntimeError> {
        let source = match (array, tensors.input(self.inputs.len())) {
            (Some(id), Some(tensor)) if tensor.has_blocks() => {
                let converted = tensor.for_device(self.variant, arrays.memory(id))?;
                converted.map_or(Source::Array(id), Source::Converted)
            }
            (Some(id), _) => Source::Array(id),
            (None, _) => Source::Retained,
        };
        self.inputs.push(source);
        Ok(())
    }

    /// Binds the next output, after all inputs. An array must have room for the output.
    pub fn push_output(
        &mut self,
        tensors: &ArrayTensors,
        arrays: &impl Arrays,
        destination: Destination,
    ) -> Result<(), RuntimeError> {
        let number = self.outputs.len();
        let target = match (destination, tensors.output(number)) {
            (Destination::Dropped, _) | (_, None) => Target::Dropped,
            (Destination::New, Some(tensor)) => Target::New(tensor.device_memory(self.variant)?),
            (Destination::Array(id), Some(tensor)) => {
                let bytes =
                    tensors.specs.outputs().get(number).map_or(0, |spec| spec.shape(self.variant).bytes);
                let array = arrays.memory(id);
                let array = array.subslice(0, bytes).unwrap_or(array);
                let start = array.as_ptr().addr();
                self.given.push((number, start..start.saturating_add(array.len())));
                // A program may write an output before it has read all inputs.
                let mut inputs = self.inputs.iter().filter_map(|source| source.memory(arrays));
                if tensor.has_blocks() || inputs.any(|input| input.overlaps(array)) {
                    Target::Deferred(tensor.device_memory(self.variant)?, id, bytes)
                } else {
                    Target::Array(id, bytes)
                }
            }
        };
        self.outputs.push(target);
        Ok(())
    }

    /// Returns true if the device uses its retained value of an input.
    pub fn is_left_out(&self, input: usize) -> bool {
        matches!(self.inputs.get(input), Some(Source::Retained))
    }

    /// Refuses outputs that share memory, because the order of their writes is undefined.
    pub fn check_apart(&mut self, tensors: &ArrayTensors) -> Result<(), ArgumentError> {
        let Some((_, second)) = first_overlap(&mut self.given) else { return Ok(()) };
        let name = tensors.specs.outputs().get(second).map(|spec| spec.name.clone());
        Err(ArgumentError::OutputOverlap { name: name.unwrap_or_default() })
    }

    /// Runs one inference on a free exec object. After the call, the caller's arrays contain their outputs.
    ///
    /// Blocking: until there is a free exec object, then as [`ExecObj::run`](super::ExecObj::run).
    pub fn run(
        &mut self,
        set: &InferenceSet,
        tensors: &ArrayTensors,
        arrays: &impl Arrays,
        scope: &mut WaitScope<'_>,
    ) -> Result<(), RuntimeError> {
        let Self { variant, inputs, outputs, lender, .. } = self;
        lender.scope(|loan| {
            let lease = set.lease(scope)?;
            lease.bind(|bindings| {
                let inputs = inputs.iter().map(|source| source.memory(arrays));
                let outputs = outputs.iter_mut().map(|target| target.memory(arrays));
                bindings.lend(loan, *variant, inputs, outputs);
            })?;
            // Runs on this thread unless another one is faster.
            super::ExecObj::run(&lease, scope)
        })?;
        for (number, target) in self.outputs.iter_mut().enumerate() {
            let Some(tensor) = tensors.output(number) else { continue };
            match target {
                Target::Deferred(written, array, bytes) => {
                    tensor.bring(written, arrays.memory_mut(*array).first(*bytes));
                }
                Target::New(written) if tensor.has_blocks() => {
                    *written = tensor.array(self.variant, written)?;
                }
                Target::New(_) | Target::Array(..) | Target::Dropped => {}
            }
        }
        Ok(())
    }

    /// Returns the array of an output in new memory after a run; only the first call returns the array.
    pub fn take_output(&mut self, output: usize) -> Option<Storage> {
        let target = self.outputs.get_mut(output).filter(|target| matches!(target, Target::New(_)))?;
        match std::mem::replace(target, Target::Dropped) {
            Target::New(array) => Some(array),
            Target::Dropped | Target::Array(..) | Target::Deferred(..) => None,
        }
    }

    /// Runs many inferences on these inputs and discards their outputs: see [`InferenceSet::benchmark`].
    pub fn benchmark(
        &mut self,
        set: &InferenceSet,
        arrays: &impl Arrays,
        count: Option<u64>,
        limit: Option<Duration>,
        scope: &mut WaitScope<'_>,
    ) -> Result<BenchmarkOutcome, RuntimeError> {
        let progress = BenchmarkProgress::new(set);
        let Self { variant, inputs, lender, .. } = self;
        lender.scope(|loan| {
            let bind = |_, bindings: &mut Bindings| {
                bindings.lend(loan, *variant, inputs.iter().map(|source| source.memory(arrays)), []);
            };
            set.benchmark(count, limit, &progress, bind, |_| true, scope)
        })
    }

    /// Total bytes of all given inputs.
    pub fn input_bytes(&self, arrays: &impl Arrays) -> usize {
        self.inputs.iter().filter_map(|source| source.memory(arrays)).map(HostSlice::len).sum()
    }

    /// Creates an inference that starts later, with copies of these inputs, and new memory for every output that the
    /// device does not retain.
    pub fn prepare(
        &mut self,
        set: &Arc<InferenceSet>,
        tensors: &ArrayTensors,
        arrays: &impl Arrays,
        deadline: Option<Deadline>,
    ) -> Result<Arc<PendingInference>, RuntimeError> {
        let mut outputs = Vec::with_capacity(tensors.specs.outputs().len());
        for (number, spec) in tensors.specs.outputs().iter().enumerate() {
            let tensor =
                tensors.output(number).filter(|_| spec.is_delivered(None, |input| self.is_left_out(input)));
            outputs.push(tensor.map(|tensor| tensor.device_memory(self.variant)).transpose()?);
        }
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (number, source) in self.inputs.drain(..).enumerate() {
            inputs.push(copied(source, tensors, number, self.variant, arrays)?);
        }
        Ok(PendingInference::new(set, self.variant, inputs, outputs, deadline))
    }
}

/// Returns the memory of an input of an inference that outlives the caller's arrays.
fn copied(
    source: Source,
    tensors: &ArrayTensors,
    input: usize,
    variant: usize,
    arrays: &impl Arrays,
) -> Result<PendingInput, RuntimeError> {
    let (array, tensor) = match (source, tensors.input(input)) {
        (Source::Retained, _) | (_, None) => return Ok(None),
        (Source::Converted(storage), _) => {
            let bytes = storage.memory().len();
            return Ok(Some((storage, bytes)));
        }
        (Source::Array(id), Some(tensor)) => (arrays.memory(id), tensor),
    };
    let mut storage = tensor.device_memory(variant)?;
    storage.memory_mut().copy_from(array);
    Ok(Some((storage, array.len())))
}
