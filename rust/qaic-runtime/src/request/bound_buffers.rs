//! Binds an exec object to memory that callers share with it, and records the bound memory.
//!
//! All checks precede all changes: a refused call leaves the exec object unchanged. A binding keeps its memory until
//! other memory replaces it, which cannot happen while an inference uses the memory.
//!
//! No call waits for another, and none takes a lock. A call that comes while another thread binds the same exec
//! object is refused.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use qaic_mem::{ForeignMemoryMut, HostSlice, SharedMemory};
use qaic_qpc::counted;
use qaic_sync::ExclusiveCell;

use super::ExecObj;
use crate::binding::{
    BindingSpecs, Bindings, GivenShape, InputBinding, OutputBinding, ShapeError, Shapes, Window,
    first_overlap,
};
use crate::error::{RuntimeError, StateError};
use crate::inference_set::{HandleId, InferenceSet};
use crate::sync::{AtomicBool, Ordering};

/// An exec object and its bound buffers.
#[derive(Debug)]
pub struct BoundBuffers {
    /// The exec object, which is never replaced: the buffers are bound for it.
    pub exec: Arc<ExecObj>,
    /// Requirements of the program.
    pub specs: Arc<BindingSpecs>,
    state: ExclusiveCell<BoundState>,
    // True if there are announced dims. The thread that handles them stores the flag; any thread reads it.
    has_announced: AtomicBool,
    is_waiting: AtomicBool,
}

#[derive(Debug)]
struct BoundState {
    /// Buffer per binding; `None` if none is bound.
    buffers: Vec<Option<Arc<SharedMemory>>>,
    /// Shape per binding; `None` if the binding does not affect the choice of shapes.
    shapes: Vec<Option<GivenShape>>,
    /// True if the shapes follow from the sizes of `buffers`.
    by_size: bool,
    /// True if windows were bound since they were last cleared; an inference may have consumed them.
    has_windows: bool,
    announced: Announced,
}

impl BoundState {
    /// Returns true if exactly these `count` buffers are bound, in the shapes that follow from their sizes.
    fn is_bound_to(&self, count: usize, mut is_same: impl FnMut(usize, &Arc<SharedMemory>) -> bool) -> bool {
        let mut bound = self.buffers.iter().enumerate();
        self.by_size
            && self.buffers.len() == count
            && bound.all(|(index, bound)| bound.as_ref().is_some_and(|bound| is_same(index, bound)))
    }
}

/// Dims that the caller announced separately from the buffers.
#[derive(Debug, Default)]
struct Announced {
    dims: Option<Vec<GivenShape>>,
    // Indexed by binding: the buffer of a binding that its dims omit.
    left_out: Vec<Option<Arc<SharedMemory>>>,
    // True if the present buffers do not match the dims; other buffers must be set before the inference.
    is_waiting: bool,
}

impl Announced {
    /// Returns true if any dims are announced.
    fn is_something(&self) -> bool {
        self.dims.is_some() || self.left_out.iter().any(Option::is_some)
    }
}

/// One binding of a call that names bindings.
#[derive(Debug)]
pub struct ListedBuffer {
    /// Index of the binding.
    pub index: usize,
    /// Memory for the binding.
    pub memory: Arc<SharedMemory>,
    /// Shape of the array in the list; `None` for a buffer without one.
    pub shape: Option<GivenShape>,
}

/// Part of the bindings that a call applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All bindings, inputs then outputs.
    All,
    /// The inputs.
    Inputs,
    /// The outputs.
    Outputs,
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "buffer",
            Self::Inputs => "input",
            Self::Outputs => "output",
        }
    }
}

impl BoundBuffers {
    /// Creates an object for `exec` without bound buffers; `specs` are the program's requirements.
    pub fn new(exec: Arc<ExecObj>, specs: Arc<BindingSpecs>) -> Self {
        let count = specs.len();
        let (buffers, shapes) = (vec![None; count], vec![None; count]);
        let state = BoundState {
            buffers,
            shapes,
            by_size: false,
            has_windows: false,
            announced: Announced::default(),
        };
        let (has_announced, is_waiting) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { exec, specs, state: ExclusiveCell::new(state), has_announced, is_waiting }
    }

    /// Creates an object for each exec object of a set, in the order of the handles.
    pub(crate) fn of_set(set: &InferenceSet) -> Result<Vec<Self>, RuntimeError> {
        let specs = set.programs.iter().map(|program| BindingSpecs::of_buffers(program).map(Arc::new));
        let specs = specs.collect::<Result<Vec<_>, _>>()?;
        let handles = (0..u32::try_from(set.handle_count()).unwrap_or(u32::MAX)).map(HandleId);
        handles
            .map(|handle| {
                let exec = Arc::clone(set.exec_obj(handle)?);
                exec.id.store(handle.0, Ordering::Relaxed);
                let specs = specs.get(set.activation_of(handle) as usize).ok_or_else(|| {
                    RuntimeError::internal(format!("handle {} has no activation", handle.0))
                })?;
                Ok(Self::new(exec, Arc::clone(specs)))
            })
            .collect()
    }

    /// Returns the buffer of each binding; `None` if no buffer is bound.
    pub fn buffers(&self) -> Result<Vec<Option<Arc<SharedMemory>>>, RuntimeError> {
        self.edit(|state| Ok(state.buffers.clone()))
    }

    /// Makes the next call bind everything again, because the runtime has released the bindings, as at the end of a
    /// lease.
    pub(crate) fn bind_again(&self) -> Result<(), RuntimeError> {
        self.edit(|state| {
            state.by_size = false;
            Ok(())
        })
    }

    /// Reads or changes the state. `change` runs no code of a caller: memory that it replaces is released afterwards.
    fn edit<T, E: From<RuntimeError>>(
        &self,
        change: impl FnOnce(&mut BoundState) -> Result<T, E>,
    ) -> Result<T, E> {
        let edited = self.state.try_with(|state| {
            let outcome = change(state);
            // Release: the thread that reads them sees the earlier bindings.
            self.has_announced.store(state.announced.is_something(), Ordering::Release);
            self.is_waiting.store(state.announced.is_waiting, Ordering::Release);
            outcome
        });
        edited.unwrap_or_else(|| {
            let what = "another thread binds buffers to this exec object; use one thread at a time";
            Err(RuntimeError::from(StateError::Invalid { what: what.to_owned() }).into())
        })
    }

    /// Replaces every buffer. Without `dims`, the buffers have the compiled shapes, or the shapes that match their
    /// sizes.
    pub fn replace_all(
        &self,
        buffers: &[Arc<SharedMemory>],
        dims: Option<&[GivenShape]>,
    ) -> Result<(), RuntimeError> {
        self.edit(|state| self.bind_all(state, buffers, dims))
    }

    /// Replaces every buffer of a newly acquired handle as [`Self::replace_all`] does without dims; dims that were
    /// announced for the last inference are forgotten.
    ///
    /// Repeated submissions of the same buffers are detected and bind nothing: `is_same` returns true if the binding
    /// at an index, among `count`, has the same buffer. `buffers` is called only otherwise. Neither function binds.
    pub(crate) fn bind_for_new_inference<E: From<RuntimeError>>(
        &self,
        count: usize,
        is_same: impl FnMut(usize, &Arc<SharedMemory>) -> bool,
        buffers: impl FnOnce() -> Result<Vec<Arc<SharedMemory>>, E>,
    ) -> Result<(), E> {
        self.edit(|state| {
            state.announced = Announced::default();
            if state.is_bound_to(count, is_same) {
                return Ok(self.clear_windows(state)?);
            }
            Ok(self.bind_all(state, &buffers()?, None)?)
        })
    }

    /// Clears the windows of an earlier call. Refused while an inference is in flight.
    fn clear_windows(&self, state: &mut BoundState) -> Result<(), RuntimeError> {
        if state.has_windows {
            self.exec.bind(|bindings| bindings.windows.clear())?;
            state.has_windows = false;
        } else if self.exec.is_in_flight() {
            return Err(StateError::InFlight.into());
        }
        Ok(())
    }

    /// Replaces the listed bindings and keeps the others; adds windows for the next inference.
    pub fn replace_some(&self, listed: &[ListedBuffer], windows: Vec<Window>) -> Result<(), RuntimeError> {
        self.edit(|state| self.bind_some(state, listed, windows))
    }

    /// Replaces the buffers of a part. Announced dims apply to the buffers if they match.
    pub fn replace_part(&self, part: Part, buffers: &[Arc<SharedMemory>]) -> Result<(), RuntimeError> {
        let (inputs, all) = (self.specs.inputs().len(), self.specs.len());
        let (first, end) = match part {
            Part::All => (0, all),
            Part::Inputs => (0, inputs),
            Part::Outputs => (inputs, all),
        };
        if buffers.len() != end - first {
            let found = counted(buffers.len(), part.name());
            return Err(RuntimeError::argument(format!("found {found}, expected {}", end - first)));
        }
        self.edit(|state| self.bind_announced_part(state, part, first..end, buffers))
    }

    fn bind_announced_part(
        &self,
        state: &mut BoundState,
        part: Part,
        range: Range<usize>,
        buffers: &[Arc<SharedMemory>],
    ) -> Result<(), RuntimeError> {
        if self.exec.is_in_flight() {
            return Err(StateError::InFlight.into());
        }
        let first = range.start;
        for kept in state.announced.left_out.iter_mut().take(range.end).skip(first) {
            *kept = None;
        }
        let Some(dims) = state.announced.dims.take() else {
            return self.bind_part(state, first, buffers, None);
        };
        // The other buffers are checked unchanged, because dims and buffers belong together.
        let mut together = state.buffers.clone();
        together.splice(range, buffers.iter().cloned().map(Some));
        let together: Option<Vec<_>> = together.into_iter().collect();
        let outcome = match together.map(|together| self.bind_announced(state, together, &dims)) {
            Some(Ok(())) => {
                state.announced.is_waiting = false;
                Ok(())
            }
            // The dims belonged to deleted buffers.
            Some(Err(_)) if !state.announced.is_waiting => {
                return self.bind_part(state, first, buffers, None);
            }
            Some(Err(error)) if part == Part::All => Err(error),
            // Some of the buffers for these dims are still to be set.
            _ => self.bind_part(state, first, buffers, Some(&dims)),
        };
        state.announced.dims = Some(dims);
        outcome
    }

    /// Sets element size and dims of every binding; a dim of 0 omits the binding. The dims are valid until the next
    /// call, and may be set before their buffers.
    pub fn announce(&self, dims: Vec<GivenShape>) -> Result<(), RuntimeError> {
        self.check_dims(&dims)?;
        self.edit(|state| {
            if self.exec.is_in_flight() {
                return Err(StateError::InFlight.into());
            }
            let at_hand = state.buffers.iter().cloned().collect::<Option<Vec<_>>>();
            // Buffers with other dims are not the buffers for these dims.
            let is_waiting =
                at_hand.is_none_or(|buffers| self.bind_announced(state, buffers, &dims).is_err());
            state.announced.is_waiting = is_waiting;
            state.announced.dims = Some(dims);
            Ok(())
        })
    }

    /// Returns the reason why an inference cannot begin yet. Reads one flag.
    pub(crate) fn check_announced(&self) -> Result<(), RuntimeError> {
        if self.is_waiting.load(Ordering::Acquire) {
            let what = "the dims of setBufferDimensions do not fit the buffers; set those buffers first";
            return Err(RuntimeError::argument(what.to_owned()));
        }
        Ok(())
    }

    /// Forgets the announced dims.
    pub(crate) fn forget_announced(&self) -> Result<(), RuntimeError> {
        if !self.has_announced.load(Ordering::Acquire) {
            return Ok(());
        }
        self.edit(|state| {
            state.announced = Announced::default();
            Ok(())
        })
    }

    fn check_dims(&self, dims: &[GivenShape]) -> Result<(), RuntimeError> {
        let count = self.specs.len();
        if dims.len() == count {
            return Ok(());
        }
        let given = dims.len();
        Err(RuntimeError::argument(format!(
            "found element sizes and dims for {}, expected {count}",
            counted(given, "binding")
        )))
    }

    fn bind_all(
        &self,
        state: &mut BoundState,
        buffers: &[Arc<SharedMemory>],
        dims: Option<&[GivenShape]>,
    ) -> Result<(), RuntimeError> {
        let is_same =
            |index: usize, bound: &_| buffers.get(index).is_some_and(|given| Arc::ptr_eq(bound, given));
        if dims.is_none() && state.is_bound_to(buffers.len(), is_same) {
            return self.clear_windows(state);
        }
        let count = self.specs.len();
        let inputs = self.specs.inputs().len();
        if buffers.len() != count {
            return Err(RuntimeError::argument(format!(
                "found {}, expected {count}: {}, then {}",
                counted(buffers.len(), "buffer"),
                counted(inputs, "input"),
                counted(count - inputs, "output")
            )));
        }
        dims.map_or(Ok(()), |dims| self.check_dims(dims))?;
        for (index, (spec, memory)) in self.specs.iter().zip(buffers).enumerate() {
            let given = dims.and_then(|dims| dims.get(index));
            let is_left_out = memory.is_empty() && given.is_none_or(GivenShape::is_left_out);
            if !is_left_out {
                spec.check_buffer((&**memory).into(), given)?;
            }
            self.check_place(index, memory)?;
        }
        self.check_apart(buffers.iter().skip(inputs).map(|memory| memory.memory()))?;
        self.exec.bind(|bindings| {
            let shapes = if let Some(dims) = dims {
                for (slot, (given, memory)) in state.shapes.iter_mut().zip(dims.iter().zip(buffers)) {
                    set_shape(slot, (!memory.is_empty()).then_some(given));
                }
                self.specs.variant_of(&state.shapes)
            } else {
                let pairs = self.specs.iter().zip(buffers);
                let sizes: Vec<_> =
                    pairs.map(|(spec, memory)| spec.tensor_bytes((&**memory).into())).collect();
                self.specs.shapes_of_sizes(&sizes, &mut state.shapes)
            };
            bindings.windows.clear();
            state.has_windows = false;
            bindings.shapes = chosen(shapes);
            state.by_size = dims.is_none();
            for (index, memory) in buffers.iter().enumerate() {
                self.connect(bindings, index, memory);
                state.buffers[index] = Some(Arc::clone(memory));
            }
        })
    }

    fn bind_some(
        &self,
        state: &mut BoundState,
        listed: &[ListedBuffer],
        windows: Vec<Window>,
    ) -> Result<(), RuntimeError> {
        for entry in listed {
            let spec = self.specs.get(entry.index)?;
            if !entry.memory.is_empty() {
                spec.check_buffer((&*entry.memory).into(), entry.shape.as_ref())?;
            }
            self.check_place(entry.index, &entry.memory)?;
        }
        check_windows(&windows, listed, state)?;
        let first = self.specs.inputs().len();
        if listed.iter().any(|entry| entry.index >= first) {
            let outputs = (first..).zip(state.buffers.iter().skip(first));
            self.check_apart(outputs.map(|(index, bound)| {
                let given = listed.iter().rfind(|entry| entry.index == index).map(|entry| &entry.memory);
                given.or(bound.as_ref()).map_or(HostSlice::empty(), |memory| memory.memory())
            }))?;
        }
        self.exec.bind(|bindings| {
            for entry in listed {
                self.connect(bindings, entry.index, &entry.memory);
                let given = entry.shape.as_ref().filter(|_| !entry.memory.is_empty());
                set_shape(&mut state.shapes[entry.index], given);
                state.buffers[entry.index] = Some(Arc::clone(&entry.memory));
            }
            if !listed.is_empty() {
                state.by_size = false;
                bindings.shapes = chosen(self.specs.variant_of(&state.shapes));
            }
            state.has_windows |= !windows.is_empty();
            bindings.windows.extend(windows);
        })
    }

    /// Binds the buffers of the bindings from `first` on. Without dims, the buffers have the shapes that match their
    /// sizes.
    fn bind_part(
        &self,
        state: &mut BoundState,
        first: usize,
        buffers: &[Arc<SharedMemory>],
        dims: Option<&[GivenShape]>,
    ) -> Result<(), RuntimeError> {
        if dims.is_none() && buffers.len() == self.specs.len() {
            return self.bind_all(state, buffers, None);
        }
        let listed: Vec<_> = (first..)
            .zip(buffers)
            .map(|(index, memory)| {
                let shape = match dims {
                    Some(dims) => dims.get(index).cloned(),
                    None => self.specs.shape_of_buffer(index, (&**memory).into()),
                };
                ListedBuffer { index, shape, memory: Arc::clone(memory) }
            })
            .collect();
        self.bind_some(state, &listed, Vec::new())
    }

    /// Binds buffers with announced dims. A binding with a dim of 0 is omitted until it gets other dims.
    fn bind_announced(
        &self,
        state: &mut BoundState,
        mut buffers: Vec<Arc<SharedMemory>>,
        dims: &[GivenShape],
    ) -> Result<(), RuntimeError> {
        let mut left_out = state.announced.left_out.clone();
        left_out.resize(buffers.len(), None);
        for ((memory, kept), shape) in buffers.iter_mut().zip(&mut left_out).zip(dims) {
            if !shape.is_left_out() {
                if let Some(kept) = kept.take() {
                    *memory = kept;
                }
            } else if !memory.is_empty() {
                *kept = Some(mem::replace(memory, SharedMemory::empty()));
            }
        }
        self.bind_all(state, &buffers, Some(dims))?;
        state.announced.left_out = left_out;
        Ok(())
    }

    /// Refuses outputs that share memory, because the order of their writes is undefined.
    fn check_apart<'a>(&self, outputs: impl Iterator<Item = HostSlice<'a>>) -> Result<(), RuntimeError> {
        let ranges = outputs.map(|memory| {
            let start = memory.as_ptr().addr();
            start..start.saturating_add(memory.len())
        });
        let Some((one, other)) = first_overlap(&mut ranges.enumerate().collect()) else { return Ok(()) };
        let name = |output: usize| self.specs.outputs().get(output).map_or("", |spec| spec.name.as_str());
        Err(RuntimeError::argument(format!(
            "outputs `{}` and `{}` share memory; give each output separate memory",
            name(one),
            name(other)
        )))
    }

    /// Refuses memory behind a descriptor if the device cannot use it.
    fn check_place(&self, index: usize, memory: &SharedMemory) -> Result<(), RuntimeError> {
        memory.dma_buf().map_or(Ok(()), |memory| self.exec.program.check_dma_buf(index, memory.len))
    }

    fn connect(&self, bindings: &mut Bindings, index: usize, memory: &Arc<SharedMemory>) {
        let inputs = self.specs.inputs().len();
        let dma_buf = memory.dma_buf().cloned();
        if let Some(binding) = bindings.inputs.get_mut(index) {
            *binding = match dma_buf {
                Some(memory) => InputBinding::DmaBuf { memory },
                None => (!memory.is_empty()).then(|| memory.into()).into(),
            };
        } else if let Some(binding) = bindings.outputs.get_mut(index - inputs) {
            // Read-only memory for an output was already refused.
            let writable = || ForeignMemoryMut::of_shared(memory).filter(|_| !memory.is_empty());
            *binding = match dma_buf {
                Some(memory) => OutputBinding::DmaBuf { memory },
                None => writable().into(),
            };
        }
    }
}

fn set_shape(slot: &mut Option<GivenShape>, given: Option<&GivenShape>) {
    match (given.filter(|given| !given.is_left_out()), slot) {
        // Reuses the allocation.
        (Some(given), Some(known)) => {
            known.item_bytes = given.item_bytes;
            known.dims.clone_from(&given.dims);
        }
        (given, slot) => *slot = given.cloned(),
    }
}

/// Converts the result of the search for a combination of shapes to the shapes of an inference.
fn chosen(found: Result<usize, ShapeError>) -> Shapes {
    match found {
        Ok(variant) => Shapes::Variant(variant),
        Err(error) => Shapes::Mismatch(error.details().into()),
    }
}

/// Refuses windows of tensors that only the device accesses.
fn check_windows(
    windows: &[Window],
    listed: &[ListedBuffer],
    state: &BoundState,
) -> Result<(), RuntimeError> {
    let unseen = windows.iter().find(|window| {
        let at_hand = listed.iter().find(|entry| entry.index == window.binding).map(|entry| &entry.memory);
        let bound = state.buffers.get(window.binding).and_then(Option::as_ref);
        at_hand.or(bound).is_some_and(|memory| memory.dma_buf().is_some())
    });
    match unseen {
        None => Ok(()),
        Some(window) => Err(RuntimeError::argument(format!(
            "binding {} belongs to a descriptor; a part of it cannot be copied",
            window.binding
        ))),
    }
}
