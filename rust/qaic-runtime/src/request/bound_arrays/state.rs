//! Retained state as arrays. A program compiled with `split_retained_state_io` lets callers read and write its state
//! between inferences (compile-options row 17).

use std::sync::Arc;

use qaic_mem::{HostSlice, Storage};

use super::ArrayTensors;
use super::tensor::{decode, encode};
use crate::binding::{ArgumentError, ArrayLayout, BindingSpec, StatePart};
use crate::error::RuntimeError;
use crate::inference_set::InferenceSet;
use crate::process::WaitScope;
use crate::program::Program;

/// A state of a program, or the part of the state that belongs to one sequence.
#[derive(Debug)]
pub struct ArrayState<'a> {
    program: &'a Program,
    spec: &'a BindingSpec,
    part: StatePart,
}

impl ArrayTensors {
    /// Finds a state; with `sequence`, finds the part at this index of its first dimension.
    pub fn state<'a>(
        &'a self,
        set: &'a InferenceSet,
        name: &str,
        sequence: Option<usize>,
    ) -> Result<ArrayState<'a>, RuntimeError> {
        // One activation: with state there is no more.
        let program = set.programs.first().filter(|program| program.io_options.split_state);
        let program = program.ok_or(ArgumentError::StateNotSplit)?;
        let part = self.specs.state_part(name, sequence)?;
        Ok(ArrayState { program, spec: self.specs.get(part.input)?, part })
    }
}

impl ArrayState<'_> {
    /// Dims of the state as an array.
    pub fn dims(&self) -> &[usize] {
        &self.part.dims
    }

    /// Name of the state's element type.
    pub fn element_type(&self) -> &'static str {
        self.spec.element_type().1
    }

    /// Memory layout of the state's array.
    pub fn layout(&self) -> Arc<ArrayLayout> {
        self.spec.layout(&self.part.dims)
    }

    /// Returns the current value as an array.
    ///
    /// Blocking: until the inferences submitted before have ended, or until `scope` ends the wait.
    pub fn read(&self, scope: &mut WaitScope<'_>) -> Result<Storage, RuntimeError> {
        let Self { program, spec, part } = self;
        let mut held = Storage::new(part.device_bytes)?;
        program.read_state(part.input, part.device_offset, held.memory_mut(), scope)?;
        let Some(columns) = spec.block_columns else { return Ok(held) };
        let mut array = Storage::new(part.array_bytes)?;
        decode(columns, held.memory(), array.memory_mut());
        Ok(array)
    }

    /// Replaces the current value; an array of another size is refused.
    ///
    /// Blocking: as [`Self::read`].
    pub fn write(&self, array: HostSlice<'_>, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        let Self { program, spec, part } = self;
        if array.len() != part.array_bytes {
            let (what, shape) = (format!("state {:?}", spec.name), part.dims.clone());
            return Err(ArgumentError::NotConverted { what, dtype: self.element_type(), shape }.into());
        }
        let Some(columns) = spec.block_columns else {
            return program.write_state(part.input, part.device_offset, array, scope);
        };
        let mut blocks = Storage::new(part.device_bytes)?;
        encode(columns, array, blocks.memory_mut());
        program.write_state(part.input, part.device_offset, blocks.memory(), scope)
    }
}
