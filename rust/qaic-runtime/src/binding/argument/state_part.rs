//! The part of a state that callers read and write between inferences.

use super::spec::names;
use super::{ArgumentError, BindingSpecs};

/// A state, or the part of the state that belongs to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatePart {
    /// Index of the input whose value is the state.
    pub input: usize,
    /// Dims of the part as an array.
    pub dims: Vec<usize>,
    /// Bytes of the part as an array.
    pub array_bytes: usize,
    /// Bytes of the part on the device.
    pub device_bytes: usize,
    /// Offset of the part in the device's tensor.
    pub device_offset: usize,
}

impl BindingSpecs {
    /// Finds a state; with `sequence`, finds the part at this index of its first dimension.
    pub(crate) fn state_part(&self, name: &str, sequence: Option<usize>) -> Result<StatePart, ArgumentError> {
        let states = || self.inputs().iter().enumerate().filter(|(_, spec)| spec.retained.is_some());
        let Some((input, spec)) = states().find(|(_, spec)| spec.name == name) else {
            return Err(ArgumentError::UnknownState {
                name: name.to_owned(),
                known: states().map(|(_, spec)| spec.name.clone()).collect(),
                inputs: names(self.inputs()),
            });
        };
        // A state has the same shape in all combinations.
        let whole = spec.shape(0);
        let device_bytes = |shape: &super::TensorShape| match spec.block_columns {
            Some(_) => shape.block_bytes().unwrap_or(0),
            None => shape.bytes,
        };
        let Some(sequence) = sequence else {
            return Ok(StatePart {
                input,
                dims: whole.dims.clone(),
                array_bytes: whole.bytes,
                device_bytes: device_bytes(whole),
                device_offset: 0,
            });
        };
        let rest = match whole.dims.split_first() {
            // Blocks follow the last dimension, so the part needs another dimension.
            Some((&count, rest))
                if sequence < count && (spec.block_columns.is_none() || !rest.is_empty()) =>
            {
                rest
            }
            _ => {
                return Err(ArgumentError::StateSequence {
                    name: name.to_owned(),
                    shape: whole.dims.clone(),
                    sequence,
                });
            }
        };
        let bytes = rest.iter().fold(whole.item_bytes, |bytes, &dim| bytes.saturating_mul(dim));
        let part = super::TensorShape { item_bytes: whole.item_bytes, dims: rest.to_vec(), bytes };
        let device_bytes = device_bytes(&part);
        let device_offset = sequence.saturating_mul(device_bytes);
        Ok(StatePart { input, dims: part.dims, array_bytes: bytes, device_bytes, device_offset })
    }
}
