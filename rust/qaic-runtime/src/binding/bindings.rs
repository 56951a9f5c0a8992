//! Buffers of the next execution of an exec object.
//!
//! Bound memory owns a reference that keeps it alive. The memory stays valid until other memory is bound in its
//! place, and the thread that binds the other memory releases it.

use std::fmt;
use std::mem;
use std::sync::Arc;

use qaic_mem::{DmaBuf, ForeignMemory, ForeignMemoryMut, HostSlice, HostSliceMut, Loan, Storage};

/// Source of an input.
#[derive(Debug, Default)]
pub enum InputBinding {
    /// Never bound: the device's value if the program retains one, otherwise an error.
    #[default]
    Unset,
    /// Omitted on purpose: the device uses its retained value.
    Retained,
    /// Memory of the caller that contains the tensor, in the bindings' combination of shapes.
    Memory(ForeignMemory),
    /// Memory behind a descriptor, which the device reads directly.
    DmaBuf {
        /// The tensor, in the device's format.
        memory: Arc<DmaBuf>,
    },
}

/// Destination of an output.
#[derive(Debug, Default)]
pub enum OutputBinding {
    /// Computed, but not copied to the host. A retained output stays on the device.
    #[default]
    Dropped,
    /// Memory of the caller with room for the tensor, in the bindings' combination of shapes.
    Memory(ForeignMemoryMut),
    /// Memory behind a descriptor, which the device writes directly.
    DmaBuf {
        /// The tensor, in the device's format.
        memory: Arc<DmaBuf>,
    },
}

/// A box of a device tensor that is copied from or to an array of the host.
pub struct Window {
    /// Index of the binding, inputs then outputs.
    pub binding: usize,
    /// First element of the box in each dim.
    pub origin: Vec<usize>,
    /// Elements of the box in each dim.
    pub extent: Vec<usize>,
    /// Bytes of an element.
    pub item_bytes: usize,
    /// The host array, starting at its first element.
    pub array: WindowArray,
    /// Byte distance of neighbors in the host array, in each dim; zero if one element is broadcast.
    pub strides: Vec<isize>,
}

/// Host array of a window.
#[derive(Debug)]
pub enum WindowArray {
    /// Source of an input.
    Source(ForeignMemory),
    /// Destination of an output.
    Target(ForeignMemoryMut),
}

/// Permitted combination of shapes of the bound tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Index among the program's variants.
    Variant(usize),
    /// No combination matches. The execution fails with this text, which lists the passed and the allowed shapes. The
    /// error is deferred because clients pass shapes long before they check a status.
    Mismatch(Arc<str>),
}

/// All bindings of an exec object.
#[derive(Debug)]
pub struct Bindings {
    /// Shapes of the bound tensors.
    pub shapes: Shapes,
    /// Binding of each input.
    pub inputs: Vec<InputBinding>,
    /// Binding of each output.
    pub outputs: Vec<OutputBinding>,
    /// Boxes that the next execution copies, in order, and then removes.
    pub windows: Vec<Window>,
}

impl Bindings {
    /// Creates bindings without memory, in the first combination of shapes.
    pub(crate) fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            shapes: Shapes::Variant(0),
            inputs: (0..inputs).map(|_| InputBinding::Unset).collect(),
            outputs: (0..outputs).map(|_| OutputBinding::Dropped).collect(),
            windows: Vec::new(),
        }
    }

    /// Lends memory for every tensor, in binding order and in a combination of shapes. An input without memory is
    /// omitted; an output without memory is discarded.
    pub(crate) fn lend<'env>(
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

    /// Binds memory that owns its backing, as [`Bindings::lend`] does for borrowed memory.
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

    /// Releases all memory.
    pub(crate) fn clear(&mut self) {
        self.shapes = Shapes::Variant(0);
        self.inputs.fill_with(InputBinding::default);
        self.outputs.fill_with(OutputBinding::default);
        self.windows.clear();
    }

    /// Takes back the storage that output `index` was bound to; `None` if the output is bound to other memory.
    pub fn take_storage(&mut self, index: usize) -> Option<Storage> {
        match mem::take(self.outputs.get_mut(index)?) {
            OutputBinding::Memory(memory) => memory.into_storage(),
            OutputBinding::Dropped | OutputBinding::DmaBuf { .. } => None,
        }
    }
}

/// Binds elements pairwise, up to the length of the shorter list.
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
