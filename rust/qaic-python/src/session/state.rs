//! The state that the device keeps, as arrays: what a program compiled with `split_retained_state_io` lets callers read
//! and write between inferences (compile-options row 17).

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_runtime::buffer::StoragePool;
use qaic_runtime::program::Program;

use super::PyInferenceSet;
use super::blocks::{blocks_bytes, decode_array, encode_array};
use super::tensors::{Edge, names};
use crate::buffers::{ArrayLayout, Exports, array_over};
use crate::errors::{Raise, from_runtime};
use crate::gil::Door;

/// A state, or the part of it that belongs to one sequence.
struct Part<'a> {
    edge: &'a Edge,
    index: usize,
    program: &'a Arc<Program>,
    shape: Vec<isize>,
    /// Bytes of it on the device, and where they begin there.
    device_bytes: usize,
    device_offset: usize,
}

impl PyInferenceSet {
    /// Finds a state; with `sequence`, the part at this index of its first dimension.
    fn part(&self, py: Python<'_>, name: &str, sequence: Option<usize>) -> PyResult<Part<'_>> {
        self.origin.check().map_err(|error| from_runtime(py, error))?;
        // One activation: with state there is no more.
        let Some(program) = self.set.programs().first().filter(|program| program.duties().split_state) else {
            let text = "the program does not let its state be read or written between inferences";
            return Err(Raise::new(py, "StateError", "state.not_split", text)
                .hint("compile it with retained_state=True and split_retained_state_io=True")
                .build());
        };
        let states = || self.tensors.inputs.iter().enumerate().filter(|(_, edge)| edge.state.is_some());
        let Some((index, edge)) = states().find(|(_, edge)| edge.name == name) else {
            let known: Vec<_> = states().map(|(_, edge)| edge.name.clone()).collect();
            let text = format!(
                "the device keeps no state {name:?}; it keeps {known:?}, of the inputs {:?}",
                names(&self.tensors.inputs)
            );
            return Err(Raise::new(py, "InputError", "state.unknown_name", text)
                .with("known", known)
                .build());
        };
        let shape = &edge.form(0).shape;
        let bytes_of = |shape: &[isize]| match edge.blocks {
            Some(_) => blocks_bytes(shape).unwrap_or(0),
            None => {
                shape.iter().fold(edge.item_bytes, |bytes, &dim| bytes.saturating_mul(dim.unsigned_abs()))
            }
        };
        let Some(sequence) = sequence else {
            let device_bytes = bytes_of(shape);
            let shape = shape.clone();
            return Ok(Part { edge, index, program, shape, device_bytes, device_offset: 0 });
        };
        let part = match shape.split_first() {
            // Blocks lie along the last dimension, so there must be another one to choose from.
            Some((&count, rest))
                if sequence < count.unsigned_abs() && (edge.blocks.is_none() || !rest.is_empty()) =>
            {
                rest
            }
            _ => {
                let text = format!("state {name:?} of shape {shape:?} has no sequence {sequence}");
                return Err(Raise::new(py, "InputError", "state.sequence", text)
                    .with("name", name)
                    .with("shape", shape.clone())
                    .hint("sequences are counted from 0 along the first dimension")
                    .build());
            }
        };
        let device_bytes = bytes_of(part);
        let device_offset = sequence.saturating_mul(device_bytes);
        Ok(Part { edge, index, program, shape: part.to_vec(), device_bytes, device_offset })
    }

    /// The present value of a state.
    pub(super) fn state_array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        sequence: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let part = self.part(py, name, sequence)?;
        let failed = |error| from_runtime(py, error);
        let held = StoragePool::new(part.device_bytes, 0).take().map_err(failed)?;
        let read = || part.program.read_state(part.index, part.device_offset, held.memory());
        let layout = ArrayLayout::new(&part.shape, part.edge.format_name(), part.edge.item_bytes);
        let Some(columns) = part.edge.blocks else {
            py.detached(read)?;
            return array_over(py, held, &layout);
        };
        let array = StoragePool::new(part.array_bytes(), 0).take().map_err(failed)?;
        py.detached(|| {
            read()?;
            decode_array(columns, held.memory().as_const(), array.memory());
            Ok(())
        })?;
        array_over(py, array, &layout)
    }

    /// Replaces the present value of a state.
    pub(super) fn set_state(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        sequence: Option<usize>,
    ) -> PyResult<()> {
        let part = self.part(py, name, sequence)?;
        let arguments = (&part.edge.key, value, part.edge.dtype, part.shape.clone(), false);
        let array = self.coerce.bind(py).call1(arguments)?;
        let mut exports = Exports::with_capacity(1);
        let given = exports.take(&array, false).map(|exported| exported.memory.as_const());
        let Some(given) = given.filter(|given| given.len() == part.array_bytes()) else {
            let text = format!("state {name:?} was not converted to {} {:?}", part.edge.dtype, part.shape);
            return Err(Raise::new(py, "InternalError", "internal.coerce", text).build());
        };
        let outcome = match part.edge.blocks {
            None => py.detached(|| part.program.write_state(part.index, part.device_offset, given)),
            Some(columns) => {
                let blocks = StoragePool::new(part.device_bytes, 0).take();
                let blocks = blocks.map_err(|error| from_runtime(py, error))?;
                py.detached(|| {
                    encode_array(columns, given, blocks.memory());
                    let from = blocks.memory().as_const();
                    part.program.write_state(part.index, part.device_offset, from)
                })
            }
        };
        exports.clear(py);
        outcome
    }
}

impl Part<'_> {
    fn array_bytes(&self) -> usize {
        self.shape.iter().fold(self.edge.item_bytes, |bytes, &dim| bytes.saturating_mul(dim.unsigned_abs()))
    }
}
