//! `qaicrt.InferenceHandle`: one exec object of an inference set, on loan to the caller.
//!
//! A handle does not keep its set alive. What is done with it after the set is gone is answered with a status.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::binding::GivenShape;
use qaic_runtime::context::Context;
use qaic_runtime::error::{RuntimeError, StateError};
use qaic_runtime::inference_set::HandleId;

use super::argument::{Refused, buffers};
use super::bound_buffers::Listed;
use super::call_failed;
use super::dims::entries;
use super::exec_obj::PyExecObj;
use super::inference_set::{Place, SetCore};
use super::numbers::refused;
use super::status::{Origin, QStatus, invalid, refusal_as};
use crate::buffers::{Backing, PyQBuffer};
use crate::gil::Reaped;

/// An exec object of an inference set.
#[pyclass(frozen, name = "InferenceHandle", module = "qaicrt")]
pub(crate) struct PyInferenceHandle {
    set: Weak<SetCore>,
    context: Arc<Context>,
    number: HandleId,
}

/// Dims that the caller gave apart from the buffers.
#[derive(Default)]
pub(crate) struct Announced {
    dims: Option<Vec<GivenShape>>,
    // By binding: the buffer of one whose dims leave it out.
    left_out: Vec<Option<Arc<Backing>>>,
    // The buffers at hand do not have them; others have to come before the inference.
    waiting: bool,
}

impl PyInferenceHandle {
    pub(crate) fn new(set: &Weak<SetCore>, context: &Arc<Context>, number: HandleId) -> Self {
        Self { set: Weak::clone(set), context: Arc::clone(context), number }
    }

    /// The set while it lives.
    fn set(&self) -> Option<Reaped<SetCore>> {
        self.set.upgrade().map(Reaped::new)
    }

    /// Its number, if it belongs to `set`.
    pub(crate) fn number_in(&self, set: &Arc<SetCore>) -> Option<HandleId> {
        (self.set.as_ptr() == Arc::as_ptr(set)).then_some(self.number)
    }
}

#[pymethods]
impl PyInferenceHandle {
    /// Gives it a buffer for every binding, inputs then outputs.
    #[pyo3(name = "setBuffers")]
    fn set_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::All)
    }

    /// Gives it the buffers of the inputs; those of the outputs stay.
    #[pyo3(name = "setInputBuffers")]
    fn set_input_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::Inputs)
    }

    /// Gives it the buffers of the outputs; those of the inputs stay.
    #[pyo3(name = "setOutputBuffers")]
    fn set_output_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::Outputs)
    }

    /// Says element size and dims of every binding; a dim of 0 leaves it out. They stay until others are given or the
    /// handle is put back, and may come before the buffers they belong to.
    #[pyo3(name = "setBufferDimensions")]
    fn set_buffer_dimensions(&self, py: Python<'_>, dims: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let dims = entries(dims)?;
        self.with_place(py, |place| Ok(announce(place, dims)))
    }

    /// (status, buffers): one per binding, of size 0 where there is none.
    #[pyo3(name = "getBuffers")]
    fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Some(set) = self.set() else {
            return (self.gone(py)?, py.None()).into_pyobject(py);
        };
        let backings = set.place(self.number).map(|place| place.bound().backings()).unwrap_or_default();
        let buffers = PyList::empty(py);
        for backing in backings {
            let backing = backing.map_or_else(|| Backing::zeroed(py, 0), Ok)?;
            buffers.append(Bound::new(py, PyQBuffer::new(backing))?)?;
        }
        (QStatus::Success.member(py)?, buffers).into_pyobject(py)
    }

    /// Its exec object, whose ``getData`` gives the outputs.
    #[pyo3(name = "execObj")]
    fn exec_obj(&self, py: Python<'_>) -> PyResult<Py<PyExecObj>> {
        let set = self.set();
        let Some(place) = set.as_ref().and_then(|set| set.place(self.number).ok()) else {
            return Err(call_failed(py, "call.state", GONE));
        };
        place.exec_obj(py)
    }

    /// Its number in the set.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.number.0
    }

    fn __repr__(&self) -> String {
        format!("InferenceHandle({})", self.number.0)
    }
}

const GONE: &str = "the inference set of this handle is gone; keep the set as long as its handles";

/// Which bindings a call is about.
#[derive(Clone, Copy)]
enum Part {
    All,
    Inputs,
    Outputs,
}

impl PyInferenceHandle {
    fn gone(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        invalid(py, &self.context, Origin::InferenceSet, GONE)
    }

    /// Runs `work` on the handle's place in its set and answers with a status.
    fn with_place(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Place) -> PyResult<Result<(), Refused>>,
    ) -> PyResult<Py<PyAny>> {
        let Some(set) = self.set() else { return self.gone(py) };
        let outcome = match set.place(self.number) {
            Ok(place) => work(place)?,
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => QStatus::Success.member(py),
            Err(Refused { status, error }) => {
                // Only the caller has the handle: while its inference is under way the call is a mistake.
                let status = if status == QStatus::Busy { QStatus::Inval } else { status };
                refusal_as(py, &self.context, Origin::InferenceSet, status, &error)
            }
        }
    }

    fn change(&self, py: Python<'_>, given: &Bound<'_, PyAny>, part: Part) -> PyResult<Py<PyAny>> {
        let list = match given.cast::<PyList>() {
            Ok(list) => list.clone(),
            Err(_) => PyList::new(py, given.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
        };
        self.with_place(py, |place| {
            Ok(match buffers(&list)? {
                Ok(backings) => set_part(place, part, &backings).map_err(Refused::from),
                Err(refused) => Err(refused),
            })
        })
    }
}

fn set_part(place: &Place, part: Part, backings: &[Arc<Backing>]) -> Result<(), RuntimeError> {
    let bound = place.bound();
    let (inputs, all) = (bound.specs().inputs().len(), bound.specs().len());
    let (first, end, what) = match part {
        Part::All => (0, all, "buffers"),
        Part::Inputs => (0, inputs, "inputs"),
        Part::Outputs => (inputs, all, "outputs"),
    };
    if backings.len() != end - first {
        return Err(refused(format!("{} {what} given; the program has {}", backings.len(), end - first)));
    }
    if bound.exec().is_in_flight() {
        return Err(StateError::InFlight.into());
    }
    let announced = &mut *place.announced();
    for kept in announced.left_out.iter_mut().take(end).skip(first) {
        *kept = None;
    }
    let Some(dims) = announced.dims.take() else {
        return wire_part(place, first, backings, None);
    };
    // The others as they are: dims and buffers go together.
    let mut together = bound.backings();
    together.resize(all, None);
    together.splice(first..end, backings.iter().cloned().map(Some));
    let together: Option<Vec<_>> = together.into_iter().collect();
    let outcome = match together.map(|together| wire_all(place, announced, together, &dims)) {
        Some(Ok(())) => {
            announced.waiting = false;
            Ok(())
        }
        // They belonged to buffers that are gone.
        Some(Err(_)) if !announced.waiting => return wire_part(place, first, backings, None),
        Some(Err(error)) if matches!(part, Part::All) => Err(error),
        // The rest of those they are meant for is still to come.
        _ => wire_part(place, first, backings, Some(&dims)),
    };
    announced.dims = Some(dims);
    outcome
}

fn announce(place: &Place, dims: Vec<GivenShape>) -> Result<(), Refused> {
    let bound = place.bound();
    let count = bound.specs().len();
    if dims.len() != count {
        return Err(refused(format!(
            "{} element sizes and dims given for {count} bindings; one each is expected",
            dims.len()
        ))
        .into());
    }
    if bound.exec().is_in_flight() {
        return Err(RuntimeError::from(StateError::InFlight).into());
    }
    let announced = &mut *place.announced();
    let at_hand = bound.backings().into_iter().collect::<Option<Vec<_>>>().filter(|all| all.len() == count);
    // Buffers that do not have these dims are not the ones they are meant for.
    announced.waiting = at_hand.is_none_or(|backings| wire_all(place, announced, backings, &dims).is_err());
    announced.dims = Some(dims);
    Ok(())
}

/// Binds buffers with their dims. What has a dim of 0 is left out, and comes back with other dims.
fn wire_all(
    place: &Place,
    announced: &mut Announced,
    mut backings: Vec<Arc<Backing>>,
    dims: &[GivenShape],
) -> Result<(), RuntimeError> {
    let mut left_out = announced.left_out.clone();
    left_out.resize(backings.len(), None);
    for ((backing, kept), shape) in backings.iter_mut().zip(&mut left_out).zip(dims) {
        if !shape.is_left_out() {
            if let Some(kept) = kept.take() {
                *backing = kept;
            }
        } else if backing.len() > 0 {
            *kept = Some(std::mem::replace(backing, Arc::clone(place.nothing())));
        }
    }
    place.bound().replace_all(&backings, Some(dims))?;
    announced.left_out = left_out;
    Ok(())
}

/// Binds the buffers of the bindings from `first` on; without dims they have those that go with their sizes.
fn wire_part(
    place: &Place,
    first: usize,
    backings: &[Arc<Backing>],
    dims: Option<&[GivenShape]>,
) -> Result<(), RuntimeError> {
    let bound = place.bound();
    if dims.is_none() && backings.len() == bound.specs().len() {
        return bound.replace_all(backings, None);
    }
    let listed: Vec<_> = (first..)
        .zip(backings)
        .map(|(index, backing)| {
            let specs = bound.specs();
            let sized = || {
                let bytes = specs.get(index).map_or(0, |spec| spec.tensor_bytes(backing.facts()));
                specs.shape_of_size(index, bytes)
            };
            let shape = dims.map_or_else(sized, |dims| dims.get(index).cloned());
            Listed { index, shape, backing: Arc::clone(backing) }
        })
        .collect();
    bound.replace_some(&listed, Vec::new())
}

impl Announced {
    /// Says why an inference cannot begin yet.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        if self.waiting {
            return Err(refused(
                "the dims given by setBufferDimensions do not fit the buffers; give it the buffers they belong to"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Forgets them.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
