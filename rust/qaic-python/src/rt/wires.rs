//! Wires the bindings of an exec object to the caller's memory, and remembers to what (python-api §B.8, §B.9).
//!
//! Everything is checked before anything changes: a refused call leaves the exec object as it was. The memory of a
//! binding is kept until another takes its place, which cannot happen while an inference uses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qaic_qpc::shape::RequestedShape;
use qaic_runtime::buffer::HostSliceMut;
use qaic_runtime::error::RuntimeError;
use qaic_runtime::exec_obj::ExecObj;
use qaic_runtime::wiring::{InputWire, OutputWire, Owner, Shapes, Window, Wiring};

use super::dims::Dims;
use super::edges::{Edge, Edges, refused};
use crate::buffers::Backing;

/// An exec object and what it is wired to.
pub(crate) struct Wires {
    exec: Arc<ExecObj>,
    edges: Arc<Edges>,
    state: Mutex<State>,
}

struct State {
    /// Per binding; `None` where nothing was wired.
    backings: Vec<Option<Arc<Backing>>>,
    /// Per binding; `None` where nothing takes part in the choice of shapes.
    shapes: Vec<Option<RequestedShape>>,
    /// Whether the shapes are those of the sizes of `backings`.
    by_size: bool,
}

/// One binding of a call that names bindings.
pub(crate) struct Listed {
    pub(crate) index: usize,
    pub(crate) backing: Arc<Backing>,
    /// Of the array that was listed; `None` for a buffer that has none.
    pub(crate) shape: Option<Dims>,
}

impl Wires {
    pub(crate) fn new(exec: Arc<ExecObj>, edges: Arc<Edges>) -> Self {
        let count = edges.len();
        let state = State { backings: vec![None; count], shapes: vec![None; count], by_size: false };
        Self { exec, edges, state: Mutex::new(state) }
    }

    pub(crate) fn exec(&self) -> &Arc<ExecObj> {
        &self.exec
    }

    pub(crate) fn edges(&self) -> &Arc<Edges> {
        &self.edges
    }

    /// What binding each is wired to; `None` where nothing was wired.
    pub(crate) fn backings(&self) -> Vec<Option<Arc<Backing>>> {
        self.state().backings.clone()
    }

    /// Has the next call wire everything, because the runtime has let go of it: a lease ends so.
    pub(crate) fn wire_anew(&self) {
        self.state().by_size = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces every wire. Without `dims` the buffers have the compiled shapes, or those that go with their sizes.
    pub(crate) fn replace_all(
        &self,
        backings: &[Arc<Backing>],
        dims: Option<&[Dims]>,
    ) -> Result<(), RuntimeError> {
        if dims.is_none() && self.has_all(backings)? {
            return Ok(());
        }
        let count = self.edges.len();
        let inputs = self.edges.inputs();
        if backings.len() != count {
            return Err(refused(format!(
                "{} buffers given; the program has {count} bindings: {inputs} inputs, then {} outputs",
                backings.len(),
                count - inputs
            )));
        }
        if let Some(dims) = dims
            && dims.len() != count
        {
            return Err(refused(format!(
                "{} element sizes and dims given for {count} bindings; one each is expected",
                dims.len()
            )));
        }
        for (index, (edge, backing)) in self.edges.iter().zip(backings).enumerate() {
            let entry = dims.and_then(|dims| dims.get(index));
            let is_left_out = backing.len() == 0 && entry.is_none_or(|(_, dims)| dims.contains(&0));
            if !is_left_out {
                edge.check(backing, entry)?;
            }
            self.check_place(index, backing)?;
        }
        self.check_apart(backings.iter().skip(inputs).map(|backing| backing.memory()).collect())?;
        self.exec.wire(|wiring| {
            let state = &mut *self.state();
            let shapes = match dims {
                Some(dims) => {
                    for (slot, (entry, backing)) in state.shapes.iter_mut().zip(dims.iter().zip(backings)) {
                        set_shape(slot, (backing.len() > 0).then_some(entry));
                    }
                    self.edges.shapes(&state.shapes)
                }
                None => self.shapes_of_sizes(backings, &mut state.shapes),
            };
            wiring.windows.clear();
            wiring.shapes = shapes;
            state.by_size = dims.is_none();
            for (index, backing) in backings.iter().enumerate() {
                self.connect(wiring, index, backing);
                state.backings[index] = Some(Arc::clone(backing));
            }
        })
    }

    /// Wires the listed bindings and leaves the others as they are; adds windows for the next execution.
    pub(crate) fn replace_some(&self, listed: &[Listed], windows: Vec<Window>) -> Result<(), RuntimeError> {
        for entry in listed {
            let edge = self.edges.get(entry.index)?;
            if entry.backing.len() > 0 {
                edge.check(&entry.backing, entry.shape.as_ref())?;
            }
            self.check_place(entry.index, &entry.backing)?;
        }
        self.exec.wire(|wiring| {
            let state = &mut *self.state();
            check_windows(&windows, listed, state)?;
            let first = self.edges.inputs();
            if listed.iter().any(|entry| entry.index >= first) {
                let kept = state.backings.iter().skip(first);
                let mut outputs: Vec<_> = kept
                    .map(|backing| backing.as_ref().map_or(HostSliceMut::empty(), |backing| backing.memory()))
                    .collect();
                for entry in listed {
                    if let Some(output) = entry.index.checked_sub(first).and_then(|at| outputs.get_mut(at)) {
                        *output = entry.backing.memory();
                    }
                }
                self.check_apart(outputs)?;
            }
            for entry in listed {
                self.connect(wiring, entry.index, &entry.backing);
                let given = entry.shape.as_ref().filter(|_| entry.backing.len() > 0);
                set_shape(&mut state.shapes[entry.index], given);
                state.backings[entry.index] = Some(Arc::clone(&entry.backing));
            }
            if !listed.is_empty() {
                state.by_size = false;
                wiring.shapes = self.edges.shapes(&state.shapes);
            }
            wiring.windows.extend(windows);
            Ok(())
        })?
    }

    /// Whether these very buffers are wired already, as is usual when the same ones are submitted again and again. Drops
    /// the windows if so.
    fn has_all(&self, backings: &[Arc<Backing>]) -> Result<bool, RuntimeError> {
        self.exec.wire(|wiring| {
            let state = self.state();
            let mut pairs = state.backings.iter().zip(backings);
            let same = state.by_size
                && state.backings.len() == backings.len()
                && pairs.all(|(wired, given)| wired.as_ref().is_some_and(|wired| Arc::ptr_eq(wired, given)));
            if same {
                wiring.windows.clear();
            }
            same
        })
    }

    /// Refuses outputs that share memory: which of them would win, nobody could say.
    fn check_apart(&self, outputs: Vec<HostSliceMut>) -> Result<(), RuntimeError> {
        if outputs.len() < 2 {
            return Ok(());
        }
        let mut placed: Vec<_> =
            outputs.into_iter().enumerate().filter(|(_, memory)| !memory.is_empty()).collect();
        placed.sort_unstable_by_key(|(_, memory)| memory.as_mut_ptr().addr());
        let shared = placed.windows(2).find(|pair| overlap(pair[0].1, pair[1].1));
        let Some(pair) = shared else { return Ok(()) };
        let name = |output: usize| {
            self.edges.get(self.edges.inputs() + output).map_or("", |edge| edge.name.as_str())
        };
        Err(refused(format!(
            "outputs `{}` and `{}` share memory; give every output memory of its own",
            name(pair[0].0),
            name(pair[1].0)
        )))
    }

    /// Shapes of buffers that came without dims.
    fn shapes_of_sizes(&self, backings: &[Arc<Backing>], shapes: &mut [Option<RequestedShape>]) -> Shapes {
        let tensors = backings.iter().enumerate();
        let sizes: Vec<usize> =
            tensors.map(|(index, backing)| self.edges.tensor_bytes(index, backing)).collect();
        let variant = self.edges.variant_of_sizes(&sizes);
        for (index, ((slot, &size), edge)) in shapes.iter_mut().zip(&sizes).zip(self.edges.iter()).enumerate()
        {
            if size == 0 {
                *slot = None;
                continue;
            }
            let slot = slot.get_or_insert_with(|| RequestedShape { element_bytes: 0, dims: Vec::new() });
            slot.element_bytes = edge.item_bytes as u64;
            slot.dims.clear();
            match variant {
                Some(variant) => slot.dims.extend_from_slice(self.edges.dims_in(variant, index)),
                None if size == edge.size => slot.dims.extend_from_slice(&edge.dims),
                // Nothing is known but the number of elements.
                None => slot.dims.push(i32::try_from(size / edge.item_bytes.max(1)).unwrap_or(i32::MAX)),
            }
        }
        match variant {
            Some(variant) => Shapes::Variant(variant),
            None => self.edges.shapes(shapes),
        }
    }

    /// Refuses memory behind a descriptor where the device cannot use it.
    fn check_place(&self, index: usize, backing: &Backing) -> Result<(), RuntimeError> {
        backing.dma_buf().map_or(Ok(()), |memory| self.edges.program().check_dma_buf(index, memory.len()))
    }

    fn connect(&self, wiring: &mut Wiring, index: usize, backing: &Arc<Backing>) {
        let memory = backing.memory();
        let owner = || Some(Arc::clone(backing) as Owner);
        let inputs = self.edges.inputs();
        if let Some(memory) = backing.dma_buf() {
            let memory = Arc::clone(memory);
            if let Some(wire) = wiring.inputs.get_mut(index) {
                *wire = InputWire::DmaBuf { memory };
            } else if let Some(wire) = wiring.outputs.get_mut(index - inputs) {
                *wire = OutputWire::DmaBuf { memory };
            }
            return;
        }
        if let Some(wire) = wiring.inputs.get_mut(index) {
            *wire = match memory.len() {
                0 => InputWire::Held,
                _ => InputWire::Memory { memory: memory.as_const(), owner: owner() },
            };
        } else if let Some(wire) = wiring.outputs.get_mut(index - inputs) {
            *wire = match memory.len() {
                0 => OutputWire::Dropped,
                _ => OutputWire::Memory { memory, owner: owner() },
            };
        }
    }
}

impl Edge {
    /// Checks a buffer that is not left out.
    fn check(&self, backing: &Backing, dims: Option<&Dims>) -> Result<(), RuntimeError> {
        let len = match (backing.dma_buf(), dims) {
            (None, _) => backing.len(),
            (Some(_), None) => self.size,
            // What lies behind the descriptor has the size of the DMA buffer, whatever the shape.
            (Some(_), Some((item_bytes, dims))) => {
                let dims = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX));
                dims.fold(usize::try_from(*item_bytes).unwrap_or(usize::MAX), usize::saturating_mul)
            }
        };
        if let Some((item_bytes, dims)) = dims {
            self.check_dims(*item_bytes, dims, len)?;
        }
        self.check_size(len, dims.is_some())?;
        if !self.is_input && backing.is_readonly() {
            return Err(refused(format!(
                "output `{}` was given read-only memory; a writable array is expected",
                self.name
            )));
        }
        Ok(())
    }
}

fn set_shape(slot: &mut Option<RequestedShape>, given: Option<&Dims>) {
    let Some((item_bytes, dims)) = given.filter(|(_, dims)| !dims.contains(&0)) else {
        *slot = None;
        return;
    };
    let slot = slot.get_or_insert_with(|| RequestedShape { element_bytes: 0, dims: Vec::new() });
    slot.element_bytes = *item_bytes;
    slot.dims.clear();
    // No permitted dim is as large as what stands for one that does not fit.
    slot.dims.extend(dims.iter().map(|&dim| i32::try_from(dim).unwrap_or(i32::MAX)));
}

/// Refuses boxes of tensors that only the device sees.
fn check_windows(windows: &[Window], listed: &[Listed], state: &State) -> Result<(), RuntimeError> {
    let unseen = windows.iter().find(|window| {
        let at_hand = listed.iter().find(|entry| entry.index == window.binding).map(|entry| &entry.backing);
        let wired = state.backings.get(window.binding).and_then(Option::as_ref);
        at_hand.or(wired).is_some_and(|backing| backing.dma_buf().is_some())
    });
    match unseen {
        None => Ok(()),
        Some(window) => Err(refused(format!(
            "binding {} lies behind a descriptor; no box of it can be copied",
            window.binding
        ))),
    }
}

fn overlap(one: HostSliceMut, other: HostSliceMut) -> bool {
    one.as_const().overlaps(other.as_const())
}
