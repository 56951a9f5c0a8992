//! Windows of device tensors: which binding is cut where (python-api §B.10).
//!
//! A specification is matched against the names of all bindings when it is made, so that a later call only looks up its
//! bindings.

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_runtime::wiring::{Owner, Window};
use serde_json::Value;

use super::edges::{Edge, Edges, refused};
use super::given::{Answer, held, in_c_order, scattered};
use crate::buffers::{Backing, Held};

/// How the bindings of a program are cut; made by `Program.createSlicingSpecHandle`.
#[pyclass(frozen, name = "SlicingSpecHandle", module = "qaicrt")]
pub(crate) struct PySlicingSpec {
    edges: Arc<Edges>,
    // Per binding; `None` where no specification matches.
    cuts: Vec<Option<Arc<Cut>>>,
}

/// What `ExecObj.setDataWithSlices` added to the next execution.
#[pyclass(frozen, name = "SlicingHandle", module = "qaicrt")]
pub(crate) struct PySlicing {
    windows: usize,
    parameters: Vec<(String, i64)>,
}

#[derive(Debug)]
struct Cut {
    item_bytes: u64,
    starts: Vec<Start>,
}

#[derive(Debug)]
enum Start {
    At(usize),
    Symbol(String),
}

impl PySlicingSpec {
    /// Reads a specification in JSON; the error says what is wrong with it.
    pub(crate) fn new(py: Python<'_>, edges: &Arc<Edges>, json: &str) -> PyResult<Result<Self, String>> {
        let specs = match read(json) {
            Ok(specs) => specs,
            Err(error) => return Ok(Err(error)),
        };
        let regular = py.import("re")?;
        let mut cuts = vec![None; edges.len()];
        for (pattern, cut) in specs {
            let pattern = match regular.call_method1("compile", (&pattern,)) {
                Ok(compiled) => compiled,
                Err(error) if error.is_instance(py, &regular.getattr("error")?) => {
                    return Ok(Err(format!("{pattern:?} is not a regular expression: {}", error.value(py))));
                }
                Err(error) => return Err(error),
            };
            let cut = Arc::new(cut);
            for (slot, edge) in cuts.iter_mut().zip(edges.iter()) {
                if slot.is_none() && !pattern.call_method1("fullmatch", (&edge.name,))?.is_none() {
                    *slot = Some(Arc::clone(&cut));
                }
            }
        }
        Ok(Ok(Self { edges: Arc::clone(edges), cuts }))
    }

    /// Whether it was made for this program.
    pub(crate) fn is_of(&self, edges: &Arc<Edges>) -> bool {
        Arc::ptr_eq(self.edges.program(), edges.program())
    }

    /// Whether the binding is cut; the others are wired whole.
    pub(crate) fn cuts(&self, index: usize) -> bool {
        self.cuts.get(index).is_some_and(Option::is_some)
    }

    /// The window of binding `index` that `value` is.
    pub(crate) fn window(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        parameters: &[(String, i64)],
    ) -> Answer<Window> {
        let (Ok(edge), Some(Some(cut))) = (self.edges.get(index), self.cuts.get(index)) else {
            return Ok(Err(refused(format!("binding {index} is not cut by this specification")).into()));
        };
        let array = held(edge, value)?;
        let origin = match cut.origin(edge, &array, parameters) {
            Ok(origin) => origin,
            Err(what) => return Ok(Err(refused(what).into())),
        };
        if edge.is_input && !edge.retained {
            let what =
                format!("input `{}` keeps no value on the device, so no part of it can be set", edge.name);
            return Ok(Err(refused(what).into()));
        }
        let (array, memory) = match array.memory() {
            _ if !edge.is_input && !array.is_contiguous() => {
                return Ok(Err(scattered(edge, &array).into()));
            }
            _ if !edge.is_input && array.is_readonly() => {
                let what = format!(
                    "output `{}` was given read-only memory; a writable array is expected",
                    edge.name
                );
                return Ok(Err(refused(what).into()));
            }
            Some(memory) => (array, memory),
            // Elements lie before the first one in memory.
            None => {
                let copy = Held::take(&in_c_order(value)?)?;
                match copy.memory() {
                    Some(memory) => (copy, memory),
                    None => return Ok(Err(scattered(edge, &copy).into())),
                }
            }
        };
        let extent = array.shape().iter().map(|&dim| dim.unsigned_abs()).collect();
        let (item_bytes, strides) = (array.item_bytes(), array.strides().to_vec());
        let owner: Owner = Backing::strided(array, memory);
        Ok(Ok(Window { binding: index, origin, extent, item_bytes, memory, strides, owner: Some(owner) }))
    }
}

impl Cut {
    /// First element of the window, after checking that the array fits.
    fn origin(&self, edge: &Edge, array: &Held, parameters: &[(String, i64)]) -> Result<Vec<usize>, String> {
        let (name, dims, shape) = (&edge.name, &edge.dims, array.shape());
        if self.item_bytes != edge.item_bytes as u64 || array.item_bytes() != edge.item_bytes {
            return Err(format!(
                "`{name}` has elements of {} bytes; the array has {}, the specification says {}",
                edge.item_bytes,
                array.item_bytes(),
                self.item_bytes
            ));
        }
        if self.starts.len() != dims.len() || shape.len() != dims.len() {
            return Err(format!(
                "`{name}` has {} dims; the array has {}, the specification {}",
                dims.len(),
                shape.len(),
                self.starts.len()
            ));
        }
        let mut origin = Vec::with_capacity(dims.len());
        for (start, (&dim, &extent)) in self.starts.iter().zip(dims.iter().zip(shape)) {
            let at = match start {
                Start::At(at) => i64::try_from(*at).unwrap_or(i64::MAX),
                Start::Symbol(symbol) => {
                    let found = parameters.iter().find(|(name, _)| name == symbol);
                    found.map(|(_, value)| *value).ok_or_else(|| {
                        let given: Vec<_> = parameters.iter().map(|(name, _)| name.as_str()).collect();
                        format!("`{name}` begins at {symbol:?}, which has no value; given are {given:?}")
                    })?
                }
            };
            let end = at.checked_add(extent as i64);
            if at < 0 || end.is_none_or(|end| end > i64::from(dim)) {
                return Err(format!(
                    "a window of {shape:?} elements with an element at {at} does not lie in `{name}` of {dims:?}"
                ));
            }
            origin.push(usize::try_from(at).unwrap_or(usize::MAX));
        }
        Ok(origin)
    }
}

/// Patterns and what they cut, in order.
fn read(json: &str) -> Result<Vec<(String, Cut)>, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| format!("no JSON: {error}"))?;
    let specs = value.get("BufferSpecs").and_then(Value::as_array);
    let specs = specs.ok_or("a list \"BufferSpecs\" is expected")?;
    specs
        .iter()
        .enumerate()
        .map(|(index, spec)| read_spec(spec).map_err(|what| format!("BufferSpecs[{index}]: {what}")))
        .collect()
}

fn read_spec(spec: &Value) -> Result<(String, Cut), String> {
    let name = spec.get("Name").and_then(Value::as_str).ok_or("a text \"Name\" is expected")?;
    let item_bytes =
        spec.get("ElemSize").and_then(Value::as_u64).ok_or("a number \"ElemSize\" is expected")?;
    let dims = spec.get("DimSpecs").and_then(Value::as_array).ok_or("a list \"DimSpecs\" is expected")?;
    let starts = dims.iter().enumerate().map(|(dim, entry)| {
        let start = entry.get("start");
        match start {
            Some(Value::String(symbol)) => Ok(Start::Symbol(symbol.clone())),
            Some(Value::Number(at)) => {
                at.as_u64().and_then(|at| usize::try_from(at).ok()).map(Start::At).ok_or(())
            }
            _ => Err(()),
        }
        .map_err(|()| {
            let found = start.map_or_else(|| "nothing".to_owned(), Value::to_string);
            format!("DimSpecs[{dim}]: \"start\" is {found}; a number from 0 on or a symbol is expected")
        })
    });
    Ok((name.to_owned(), Cut { item_bytes, starts: starts.collect::<Result<_, _>>()? }))
}

#[pymethods]
impl PySlicingSpec {
    fn __repr__(&self) -> String {
        let cut = self.edges.iter().zip(&self.cuts).filter(|(_, cut)| cut.is_some());
        let names: Vec<_> = cut.map(|(edge, _)| edge.name.as_str()).collect();
        format!("SlicingSpecHandle({names:?})")
    }
}

#[pymethods]
impl PySlicing {
    fn __repr__(&self) -> String {
        format!("SlicingHandle({} windows at {:?})", self.windows, self.parameters)
    }
}

impl PySlicing {
    pub(crate) fn new(windows: usize, parameters: Vec<(String, i64)>) -> Self {
        Self { windows, parameters }
    }
}
