//! What the next execution of an exec object reads and writes.
//!
//! Memory is named by address, and whoever wires it guarantees that it stays valid until it is wired elsewhere and no
//! execution uses it; an [`Owner`] makes the runtime keep it alive for that long.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::buffer::{DmaBuf, HostSlice, HostSliceMut};

/// Keeps wired memory alive. Dropped on whichever thread drops the wire.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// Where an input comes from.
#[derive(Clone, Default)]
pub enum InputWire {
    /// Never wired: the value on the device where the program retains one, else an error.
    #[default]
    Unset,
    /// Left out of the inference on purpose: the value on the device.
    Held,
    /// The caller's memory.
    Memory {
        /// Bytes of the tensor, in the shape the wiring names.
        memory: HostSlice,
        /// What keeps them alive.
        owner: Option<Owner>,
    },
    /// Memory behind a descriptor, which the device reads by itself.
    DmaBuf {
        /// The tensor, as the device has it.
        memory: Arc<DmaBuf>,
    },
}

/// Where an output goes.
#[derive(Clone, Default)]
pub enum OutputWire {
    /// Computed, and not copied to the host; a retained one stays on the device.
    #[default]
    Dropped,
    /// The caller's memory.
    Memory {
        /// Room for the tensor, in the shape the wiring names.
        memory: HostSliceMut,
        /// What keeps it alive.
        owner: Option<Owner>,
    },
    /// Memory behind a descriptor, which the device writes by itself.
    DmaBuf {
        /// The tensor, as the device has it.
        memory: Arc<DmaBuf>,
    },
}

/// A box of a device tensor that is copied from or to an array of the host (python-api §B.10).
#[derive(Clone)]
pub struct Window {
    /// Binding, inputs then outputs.
    pub binding: usize,
    /// First element of the box in each dim.
    pub origin: Vec<usize>,
    /// Elements of the box in each dim.
    pub extent: Vec<usize>,
    /// Bytes of an element.
    pub item_bytes: usize,
    /// The host array's first element.
    pub memory: HostSliceMut,
    /// Bytes between neighbours of the host array in each dim; zero where one element stands for all.
    pub strides: Vec<isize>,
    /// What keeps the array alive.
    pub owner: Option<Owner>,
}

/// Which permitted combination of shapes the wired tensors have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Position in the program's variants.
    Variant(usize),
    /// None of them. The execution fails with this text, which lists what was passed and what is allowed: clients pass
    /// shapes long before they look at a status.
    Mismatch(Arc<str>),
}

/// All bindings of an exec object.
#[derive(Clone)]
pub struct Wiring {
    /// Shapes of the wired tensors.
    pub shapes: Shapes,
    /// One per input.
    pub inputs: Vec<InputWire>,
    /// One per output.
    pub outputs: Vec<OutputWire>,
    /// Boxes that the next execution copies, in order; it consumes them.
    pub windows: Vec<Window>,
}

impl Wiring {
    /// Nothing wired, in the first combination of shapes.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            shapes: Shapes::Variant(0),
            inputs: vec![InputWire::Unset; inputs],
            outputs: vec![OutputWire::Dropped; outputs],
            windows: Vec::new(),
        }
    }

    /// Forgets all memory, so that none can be used after its owner is gone.
    pub fn clear(&mut self) {
        self.shapes = Shapes::Variant(0);
        self.inputs.fill(InputWire::Unset);
        self.outputs.fill(OutputWire::Dropped);
        self.windows.clear();
    }
}

impl fmt::Debug for InputWire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => formatter.write_str("Unset"),
            Self::Held => formatter.write_str("Held"),
            Self::Memory { memory, .. } => formatter.debug_tuple("Memory").field(&memory.len()).finish(),
            Self::DmaBuf { memory } => formatter.debug_tuple("DmaBuf").field(&memory.len()).finish(),
        }
    }
}

impl fmt::Debug for OutputWire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => formatter.write_str("Dropped"),
            Self::Memory { memory, .. } => formatter.debug_tuple("Memory").field(&memory.len()).finish(),
            Self::DmaBuf { memory } => formatter.debug_tuple("DmaBuf").field(&memory.len()).finish(),
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { binding, origin, extent, .. } = self;
        write!(formatter, "Window({binding}: {origin:?} + {extent:?})")
    }
}

impl fmt::Debug for Wiring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shapes, inputs, outputs, windows } = self;
        formatter
            .debug_struct("Wiring")
            .field("shapes", shapes)
            .field("inputs", inputs)
            .field("outputs", outputs)
            .field("windows", windows)
            .finish()
    }
}
