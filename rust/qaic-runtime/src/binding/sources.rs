//! Sources of an inference's inputs.

use qaic_mem::HostSlice;

use super::retained::RetainedValues;
use crate::binding::{BindingTransfer, InputBinding, Window};
use crate::error::{InputError, RuntimeError};

/// The inputs of one inference: arrays of the caller, or retained values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) inputs: &'a [InputBinding],
    pub(super) windows: &'a [Window],
    pub(super) values: Option<&'a RetainedValues<'a>>,
}

impl<'a> Sources<'a> {
    /// Returns the host's bytes of input `index`; `None` if there are none to move, because the input is optimized
    /// away or behind a descriptor.
    pub(super) fn get(
        &self,
        index: usize,
        transfer: &BindingTransfer,
    ) -> Result<Option<HostSlice<'a>>, RuntimeError> {
        // Boxes were written into the retained value, which therefore replaces the bound array.
        let is_retained = self.windows.iter().any(|window| window.binding == index);
        match self.inputs.get(index) {
            Some(InputBinding::Memory(memory)) if !is_retained => Ok(Some(memory.as_slice())),
            Some(InputBinding::DmaBuf { .. }) if !is_retained => Ok(None),
            _ if transfer.place.is_none() => Ok(None),
            _ => match self.values.and_then(|values| values.input(index)) {
                Some(value) => Ok(Some(value)),
                None if transfer.is_partial => Ok(Some(HostSlice::empty())),
                None => Err(state_required(&transfer.name)),
            },
        }
    }
}

/// Returns the error for an input without memory or retained value.
pub(super) fn state_required(name: &str) -> RuntimeError {
    InputError::StateRequired { binding: name.to_owned() }.into()
}
