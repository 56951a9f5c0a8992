//! Specifications of windows, which assign a window to each matching binding.
//!
//! A specification is matched against the names of all bindings when it is created, so that later calls only look up
//! their bindings.

use std::sync::Arc;

use serde_json::Value;

use super::{Argument, BindingSpec, BindingSpecs};
use crate::error::RuntimeError;

/// Windows of the bindings of a program.
#[derive(Debug)]
pub struct SlicingSpec {
    specs: Arc<BindingSpecs>,
    // Indexed by binding; `None` if no pattern matches.
    cuts: Vec<Option<Arc<Cut>>>,
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

/// Error in a specification, or error of the callback that matches names.
#[derive(Debug)]
pub enum SlicingError<E> {
    /// Description of the error in the specification.
    Spec(String),
    /// Error of the callback that matches names.
    Match(E),
}

impl SlicingSpec {
    /// Parses a specification in JSON. `compile` turns a pattern into a function that returns true if a name matches;
    /// its error describes an invalid pattern.
    pub fn new<E, M: FnMut(&str) -> Result<bool, E>>(
        specs: &Arc<BindingSpecs>,
        json: &str,
        mut compile: impl FnMut(&str) -> Result<Result<M, String>, E>,
    ) -> Result<Self, SlicingError<E>> {
        let mut cuts = vec![None; specs.len()];
        for (pattern, cut) in read(json).map_err(SlicingError::Spec)? {
            let compiled = compile(&pattern).map_err(SlicingError::Match)?;
            let mut is_match = compiled.map_err(SlicingError::Spec)?;
            let cut = Arc::new(cut);
            for (slot, spec) in cuts.iter_mut().zip(specs.iter()) {
                if slot.is_none() && is_match(&spec.name).map_err(SlicingError::Match)? {
                    *slot = Some(Arc::clone(&cut));
                }
            }
        }
        Ok(Self { specs: Arc::clone(specs), cuts })
    }

    /// Fails if the bindings belong to another program than the specification.
    pub fn check_program(&self, specs: &Arc<BindingSpecs>) -> Result<(), RuntimeError> {
        if Arc::ptr_eq(&self.specs, specs) {
            return Ok(());
        }
        Err(RuntimeError::argument("the slicing specification was made for another program"))
    }

    /// Returns the requirements of a binding.
    pub fn spec(&self, index: usize) -> Result<&BindingSpec, RuntimeError> {
        self.specs.get(index)
    }

    /// Names of the bindings with a window.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let specs = self.specs.iter().zip(&self.cuts);
        specs.filter(|(_, cut)| cut.is_some()).map(|(spec, _)| spec.name.as_str())
    }

    /// Returns true if a binding has a window; other bindings are bound whole.
    pub fn cuts(&self, index: usize) -> bool {
        self.cuts.get(index).is_some_and(Option::is_some)
    }

    /// Returns the first element, in each dim, of the window that an array occupies in binding `index`.
    pub fn origin(
        &self,
        index: usize,
        argument: &Argument<'_>,
        parameters: &[(String, i64)],
    ) -> Result<Vec<usize>, RuntimeError> {
        let spec = self.spec(index)?;
        let Some(Some(cut)) = self.cuts.get(index) else {
            return Err(RuntimeError::argument(format!(
                "binding {index} is not in this slicing specification"
            )));
        };
        let origin = cut.origin(spec, argument, parameters).map_err(RuntimeError::argument)?;
        if spec.is_input && spec.retained.is_none() {
            let name = &spec.name;
            return Err(RuntimeError::argument(format!(
                "input `{name}` keeps no state on the device, so a slice of it cannot be set"
            )));
        }
        if !spec.is_input {
            spec.check_contiguous(argument)?;
        }
        spec.check_writable(argument.is_readonly)?;
        Ok(origin)
    }
}

impl Cut {
    /// Returns the first element of the window, after checking that the array fits.
    fn origin(
        &self,
        spec: &BindingSpec,
        argument: &Argument<'_>,
        parameters: &[(String, i64)],
    ) -> Result<Vec<usize>, String> {
        let (name, tensor) = (&spec.name, &spec.largest);
        if self.item_bytes != tensor.item_bytes as u64 || argument.item_bytes != tensor.item_bytes {
            return Err(format!(
                "`{name}` has elements of {} bytes; the array has {}, the specification {}",
                tensor.item_bytes, argument.item_bytes, self.item_bytes
            ));
        }
        let rank = tensor.dims.len();
        if self.starts.len() != rank || argument.shape.len() != rank {
            return Err(format!(
                "`{name}` has {rank} dims; the array has {}, the specification {}",
                argument.shape.len(),
                self.starts.len()
            ));
        }
        let mut origin = Vec::with_capacity(rank);
        for (start, (&dim, &extent)) in self.starts.iter().zip(tensor.dims.iter().zip(argument.shape)) {
            let at = match start {
                Start::At(at) => i64::try_from(*at).unwrap_or(i64::MAX),
                Start::Symbol(symbol) => {
                    let found = parameters.iter().find(|(name, _)| name == symbol);
                    found.map(|(_, value)| *value).ok_or_else(|| {
                        let given: Vec<_> = parameters.iter().map(|(name, _)| name.as_str()).collect();
                        format!("`{name}` begins at {symbol:?}, which has no value; found {given:?}")
                    })?
                }
            };
            let first = usize::try_from(at).ok();
            let end = first.zip(usize::try_from(extent).ok()).and_then(|(at, extent)| at.checked_add(extent));
            match (first, end) {
                (Some(first), Some(end)) if end <= dim => origin.push(first),
                _ => {
                    return Err(format!(
                        "a window of {:?} elements with an element at {at} is not inside `{name}` of {:?}",
                        argument.shape, tensor.dims
                    ));
                }
            }
        }
        Ok(origin)
    }
}

/// Parses the patterns and their windows, in order.
fn read(json: &str) -> Result<Vec<(String, Cut)>, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| format!("not JSON: {error}"))?;
    let specs = value.get("BufferSpecs").and_then(Value::as_array);
    let specs = specs.ok_or("a list \"BufferSpecs\" is expected")?;
    specs
        .iter()
        .enumerate()
        .map(|(index, spec)| read_spec(spec).map_err(|what| format!("BufferSpecs[{index}]: {what}")))
        .collect()
}

fn read_spec(spec: &Value) -> Result<(String, Cut), String> {
    let name = spec.get("Name").and_then(Value::as_str).ok_or("a string \"Name\" is expected")?;
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
            format!("DimSpecs[{dim}]: \"start\" is {found}; a number of at least 0 or a symbol is expected")
        })
    });
    Ok((name.to_owned(), Cut { item_bytes, starts: starts.collect::<Result<_, _>>()? }))
}
