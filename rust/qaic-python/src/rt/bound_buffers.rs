//! Binds the bindings of an exec object to the caller's memory, and remembers to what.
//!
//! Everything is checked before anything changes: a refused call leaves the exec object as it was. The memory of a
//! binding is kept until another takes its place, which cannot happen while an inference uses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qaic_mem::HostSlice;
use qaic_runtime::binding::{
    BindingSpecs, Bindings, GivenShape, InputBinding, OutputBinding, ShapeError, Shapes, Window,
    first_overlap,
};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::request::ExecObj;

use super::numbers::refused;
use crate::buffers::Backing;

/// An exec object and what it is bound to.
pub(crate) struct BoundBuffers {
    exec: Arc<ExecObj>,
    specs: Arc<BindingSpecs>,
    state: Mutex<State>,
}

struct State {
    /// Per binding; `None` where nothing was bound.
    backings: Vec<Option<Arc<Backing>>>,
    /// Per binding; `None` where nothing takes part in the choice of shapes.
    shapes: Vec<Option<GivenShape>>,
    /// Whether the shapes are those of the sizes of `backings`.
    by_size: bool,
}

/// One binding of a call that names bindings.
pub(crate) struct Listed {
    pub(crate) index: usize,
    pub(crate) backing: Arc<Backing>,
    /// Of the array that was listed; `None` for a buffer that has none.
    pub(crate) shape: Option<GivenShape>,
}

impl BoundBuffers {
    pub(crate) fn new(exec: Arc<ExecObj>, specs: Arc<BindingSpecs>) -> Self {
        let count = specs.len();
        let state = State { backings: vec![None; count], shapes: vec![None; count], by_size: false };
        Self { exec, specs, state: Mutex::new(state) }
    }

    pub(crate) fn exec(&self) -> &Arc<ExecObj> {
        &self.exec
    }

    pub(crate) fn specs(&self) -> &Arc<BindingSpecs> {
        &self.specs
    }

    /// What each binding is bound to; `None` where nothing was bound.
    pub(crate) fn backings(&self) -> Vec<Option<Arc<Backing>>> {
        self.state().backings.clone()
    }

    /// Has the next call bind everything, because the runtime has let go of it: a lease ends so.
    pub(crate) fn bind_again(&self) {
        self.state().by_size = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces every buffer. Without `dims` the buffers have the compiled shapes, or those that go with their sizes.
    pub(crate) fn replace_all(
        &self,
        backings: &[Arc<Backing>],
        dims: Option<&[GivenShape]>,
    ) -> Result<(), RuntimeError> {
        if dims.is_none() && self.has_all(backings)? {
            return Ok(());
        }
        let count = self.specs.len();
        let inputs = self.specs.inputs().len();
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
        for (index, (spec, backing)) in self.specs.iter().zip(backings).enumerate() {
            let given = dims.and_then(|dims| dims.get(index));
            let is_left_out = backing.len() == 0 && given.is_none_or(GivenShape::is_left_out);
            if !is_left_out {
                spec.check_buffer(backing.facts(), given)?;
            }
            self.check_place(index, backing)?;
        }
        self.check_apart(backings.iter().skip(inputs).map(|backing| backing.memory()).collect())?;
        self.exec.bind(|bindings| {
            let state = &mut *self.state();
            let shapes = if let Some(dims) = dims {
                for (slot, (given, backing)) in state.shapes.iter_mut().zip(dims.iter().zip(backings)) {
                    set_shape(slot, (backing.len() > 0).then_some(given));
                }
                self.specs.variant_of(&state.shapes)
            } else {
                let pairs = self.specs.iter().zip(backings);
                let sizes: Vec<_> = pairs.map(|(spec, backing)| spec.tensor_bytes(backing.facts())).collect();
                self.specs.shapes_of_sizes(&sizes, &mut state.shapes)
            };
            bindings.windows.clear();
            bindings.shapes = chosen(shapes);
            state.by_size = dims.is_none();
            for (index, backing) in backings.iter().enumerate() {
                self.connect(bindings, index, backing);
                state.backings[index] = Some(Arc::clone(backing));
            }
        })
    }

    /// Binds the listed bindings and leaves the others as they are; adds windows for the next execution.
    pub(crate) fn replace_some(&self, listed: &[Listed], windows: Vec<Window>) -> Result<(), RuntimeError> {
        for entry in listed {
            let spec = self.specs.get(entry.index)?;
            if entry.backing.len() > 0 {
                spec.check_buffer(entry.backing.facts(), entry.shape.as_ref())?;
            }
            self.check_place(entry.index, &entry.backing)?;
        }
        self.exec.bind(|bindings| {
            let state = &mut *self.state();
            check_windows(&windows, listed, state)?;
            let first = self.specs.inputs().len();
            if listed.iter().any(|entry| entry.index >= first) {
                let kept = state.backings.iter().skip(first);
                let mut outputs: Vec<_> = kept
                    .map(|backing| backing.as_ref().map_or(HostSlice::empty(), |backing| backing.memory()))
                    .collect();
                for entry in listed {
                    if let Some(output) = entry.index.checked_sub(first).and_then(|at| outputs.get_mut(at)) {
                        *output = entry.backing.memory();
                    }
                }
                self.check_apart(outputs)?;
            }
            for entry in listed {
                self.connect(bindings, entry.index, &entry.backing);
                let given = entry.shape.as_ref().filter(|_| entry.backing.len() > 0);
                set_shape(&mut state.shapes[entry.index], given);
                state.backings[entry.index] = Some(Arc::clone(&entry.backing));
            }
            if !listed.is_empty() {
                state.by_size = false;
                bindings.shapes = chosen(self.specs.variant_of(&state.shapes));
            }
            bindings.windows.extend(windows);
            Ok(())
        })?
    }

    /// Whether these very buffers are bound already, as is usual when the same ones are submitted again and again. Drops
    /// the windows if so.
    fn has_all(&self, backings: &[Arc<Backing>]) -> Result<bool, RuntimeError> {
        self.exec.bind(|bindings| {
            let state = self.state();
            let mut pairs = state.backings.iter().zip(backings);
            let same = state.by_size
                && state.backings.len() == backings.len()
                && pairs.all(|(bound, given)| bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, given)));
            if same {
                bindings.windows.clear();
            }
            same
        })
    }

    /// Refuses outputs that share memory: which of them would win is not defined.
    fn check_apart(&self, outputs: Vec<HostSlice<'_>>) -> Result<(), RuntimeError> {
        let ranges = outputs.into_iter().map(|memory| {
            let start = memory.as_ptr().addr();
            start..start.saturating_add(memory.len())
        });
        let Some((one, other)) = first_overlap(&mut ranges.enumerate().collect()) else { return Ok(()) };
        let name = |output: usize| self.specs.outputs().get(output).map_or("", |spec| spec.name.as_str());
        Err(refused(format!(
            "outputs `{}` and `{}` share memory; give every output memory of its own",
            name(one),
            name(other)
        )))
    }

    /// Refuses memory behind a descriptor where the device cannot use it.
    fn check_place(&self, index: usize, backing: &Backing) -> Result<(), RuntimeError> {
        backing.dma_buf().map_or(Ok(()), |memory| self.exec.program().check_dma_buf(index, memory.len()))
    }

    fn connect(&self, bindings: &mut Bindings, index: usize, backing: &Arc<Backing>) {
        let inputs = self.specs.inputs().len();
        if let Some(memory) = backing.dma_buf() {
            let memory = Arc::clone(memory);
            if let Some(binding) = bindings.inputs.get_mut(index) {
                *binding = InputBinding::DmaBuf { memory };
            } else if let Some(binding) = bindings.outputs.get_mut(index - inputs) {
                *binding = OutputBinding::DmaBuf { memory };
            }
            return;
        }
        if let Some(binding) = bindings.inputs.get_mut(index) {
            *binding = match backing.len() {
                0 => InputBinding::Retained,
                _ => InputBinding::Memory(backing.input()),
            };
        } else if let Some(binding) = bindings.outputs.get_mut(index - inputs) {
            // Read-only memory of an output was refused.
            *binding = match backing.output().filter(|_| backing.len() > 0) {
                None => OutputBinding::Dropped,
                Some(memory) => OutputBinding::Memory(memory),
            };
        }
    }
}

fn set_shape(slot: &mut Option<GivenShape>, given: Option<&GivenShape>) {
    match (given.filter(|given| !given.is_left_out()), slot) {
        // Reuses what is allocated.
        (Some(given), Some(known)) => {
            known.item_bytes = given.item_bytes;
            known.dims.clone_from(&given.dims);
        }
        (given, slot) => *slot = given.cloned(),
    }
}

/// What an inference needs to know of the combination that was found.
fn chosen(found: Result<usize, ShapeError>) -> Shapes {
    match found {
        Ok(variant) => Shapes::Variant(variant),
        Err(error) => Shapes::Mismatch(error.details().into()),
    }
}

/// Refuses boxes of tensors that only the device sees.
fn check_windows(windows: &[Window], listed: &[Listed], state: &State) -> Result<(), RuntimeError> {
    let unseen = windows.iter().find(|window| {
        let at_hand = listed.iter().find(|entry| entry.index == window.binding).map(|entry| &entry.backing);
        let bound = state.backings.get(window.binding).and_then(Option::as_ref);
        at_hand.or(bound).is_some_and(|backing| backing.dma_buf().is_some())
    });
    match unseen {
        None => Ok(()),
        Some(window) => Err(refused(format!(
            "binding {} lies behind a descriptor; no box of it can be copied",
            window.binding
        ))),
    }
}
