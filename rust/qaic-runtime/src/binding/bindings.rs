//! Buffers of the next execution of an exec object.
//!
//! Bound memory has what keeps it. So it stays valid until it is bound elsewhere, and is let go on whichever thread does
//! that.

use std::fmt;
use std::mem;
use std::sync::Arc;

use qaic_mem::{DmaBuf, ForeignMemory, ForeignMemoryMut, HostSlice, HostSliceMut, Loan, Storage};

/// Source of an input.
#[derive(Debug, Default)]
pub enum InputBinding {
    /// Never bound: the value on the device where the program retains one, else an error.
    #[default]
    Unset,
    /// Left out of the inference on purpose: the value on the device.
    Retained,
    /// The caller's memory: bytes of the tensor, in the shape the bindings name.
    Memory(ForeignMemory),
    /// Memory behind a descriptor, which the device reads by itself.
    DmaBuf {
        /// The tensor, as the device has it.
        memory: Arc<DmaBuf>,
    },
}

/// Destination of an output.
#[derive(Debug, Default)]
pub enum OutputBinding {
    /// Computed, and not copied to the host; a retained one stays on the device.
    #[default]
    Dropped,
    /// The caller's memory: room for the tensor, in the shape the bindings name.
    Memory(ForeignMemoryMut),
    /// Memory behind a descriptor, which the device writes by itself.
    DmaBuf {
        /// The tensor, as the device has it.
        memory: Arc<DmaBuf>,
    },
}

/// A box of a device tensor that is copied from or to an array of the host.
pub struct Window {
    /// Binding, inputs then outputs.
    pub binding: usize,
    /// First element of the box in each dim.
    pub origin: Vec<usize>,
    /// Elements of the box in each dim.
    pub extent: Vec<usize>,
    /// Bytes of an element.
    pub item_bytes: usize,
    /// The host array, from its first element on.
    pub array: WindowArray,
    /// Bytes between neighbors of the host array in each dim; zero where one element stands for all.
    pub strides: Vec<isize>,
}

/// The host's side of a box.
#[derive(Debug)]
pub enum WindowArray {
    /// Read, for an input.
    Source(ForeignMemory),
    /// Written, for an output.
    Target(ForeignMemoryMut),
}

/// Which permitted combination of shapes the bound tensors have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Position in the program's variants.
    Variant(usize),
    /// None of them. The execution fails with this text, which lists what was passed and what is allowed: clients pass
    /// shapes long before they look at a status.
    Mismatch(Arc<str>),
}

/// All bindings of an exec object.
#[derive(Debug)]
pub struct Bindings {
    /// Shapes of the bound tensors.
    pub shapes: Shapes,
    /// One per input.
    pub inputs: Vec<InputBinding>,
    /// One per output.
    pub outputs: Vec<OutputBinding>,
    /// Boxes that the next execution copies, in order; it consumes them.
    pub windows: Vec<Window>,
}

impl Bindings {
    /// Nothing bound, in the first combination of shapes.
    pub(crate) fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            shapes: Shapes::Variant(0),
            inputs: (0..inputs).map(|_| InputBinding::Unset).collect(),
            outputs: (0..outputs).map(|_| OutputBinding::Dropped).collect(),
            windows: Vec::new(),
        }
    }

    /// Lends every tensor its memory, in binding order and in a combination of shapes. An input without memory is left out,
    /// an output without is dropped.
    pub fn lend<'env>(
        &mut self,
        loan: &mut Loan<'_, 'env>,
        variant: usize,
        inputs: impl IntoIterator<Item = Option<HostSlice<'env>>>,
        outputs: impl IntoIterator<Item = Option<HostSliceMut<'env>>>,
    ) {
        self.shapes = Shapes::Variant(variant);
        let inputs = inputs.into_iter().map(|memory| memory.map(|memory| loan.lend(memory)));
        fill(&mut self.inputs, inputs);
        let outputs = outputs.into_iter().map(|memory| memory.map(|memory| loan.lend_mut(memory)));
        fill(&mut self.outputs, outputs);
    }

    /// [`Bindings::lend`] of memory with its backing.
    pub(crate) fn assign(
        &mut self,
        variant: usize,
        inputs: impl IntoIterator<Item = Option<ForeignMemory>>,
        outputs: impl IntoIterator<Item = Option<ForeignMemoryMut>>,
    ) {
        self.shapes = Shapes::Variant(variant);
        fill(&mut self.inputs, inputs);
        fill(&mut self.outputs, outputs);
    }

    /// Lets all memory go.
    pub fn clear(&mut self) {
        self.shapes = Shapes::Variant(0);
        self.inputs.fill_with(InputBinding::default);
        self.outputs.fill_with(OutputBinding::default);
        self.windows.clear();
    }

    /// Takes back the storage that output `index` was bound to; `None` where it is bound to something else.
    pub fn take_storage(&mut self, index: usize) -> Option<Storage> {
        match mem::take(self.outputs.get_mut(index)?) {
            OutputBinding::Memory(memory) => memory.into_storage(),
            OutputBinding::Dropped | OutputBinding::DmaBuf { .. } => None,
        }
    }
}

/// Binds one after the other, as many as there are of both.
fn fill<B: From<Option<M>>, M>(bindings: &mut [B], memory: impl IntoIterator<Item = Option<M>>) {
    for (binding, memory) in bindings.iter_mut().zip(memory) {
        *binding = memory.into();
    }
}

impl From<Option<ForeignMemory>> for InputBinding {
    fn from(memory: Option<ForeignMemory>) -> Self {
        memory.map_or(Self::Retained, Self::Memory)
    }
}

impl From<Option<ForeignMemoryMut>> for OutputBinding {
    fn from(memory: Option<ForeignMemoryMut>) -> Self {
        memory.map_or(Self::Dropped, Self::Memory)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binding, origin, extent, .. } = self;
        write!(formatter, "Window({binding}: {origin:?} + {extent:?})")
    }
}
