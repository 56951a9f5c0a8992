//! Sizes of tensors, and the table of permitted shapes.
//!
//! The format has two definitions of a tensor's size: a copy moves nothing if any dim is zero, but a mapping ignores
//! zero dims. This module provides both, with distinct names.

use crate::bytes::to_u64;
use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::network_desc::NetworkDesc;

/// Number of bytes that a copy of the tensor moves; 0 if any dim is zero.
pub(crate) fn copy_bytes(binding: &str, dtype: ElementType, dims: &[i32]) -> Result<u64, QpcError> {
    let elements = product(binding, dims, false)?;
    elements.checked_mul(element_bytes(binding, dtype)?).ok_or_else(|| too_large(binding))
}

/// Number of bytes in mappings and `IoDesc`: the product of the non-zero dims.
pub(crate) fn mapping_bytes(binding: &str, dtype: ElementType, dims: &[i32]) -> Result<u32, QpcError> {
    let elements = product(binding, dims, true)?;
    let bytes = elements.checked_mul(element_bytes(binding, dtype)?).ok_or_else(|| too_large(binding))?;
    u32::try_from(bytes).map_err(|_| too_large(binding))
}

/// Bytes of one element, or an error that contains the binding's name.
pub(crate) fn element_bytes(binding: &str, dtype: ElementType) -> Result<u64, QpcError> {
    dtype
        .size_bytes()
        .ok_or_else(|| QpcError::UnknownElementType { binding: binding.to_owned(), code: dtype.code() })
}

fn too_large(binding: &str) -> QpcError {
    QpcError::TensorTooLarge { binding: binding.to_owned() }
}

fn product(binding: &str, dims: &[i32], skip_zeros: bool) -> Result<u64, QpcError> {
    let mut elements = 1_u64;
    let mut is_empty = false;
    for &dim in dims {
        let dim =
            u64::try_from(dim).map_err(|_| QpcError::NegativeDim { binding: binding.to_owned(), dim })?;
        if dim == 0 {
            is_empty = true;
        } else {
            elements = elements.checked_mul(dim).ok_or_else(|| too_large(binding))?;
        }
    }
    Ok(if is_empty && !skip_zeros { 0 } else { elements })
}

impl NetworkDesc {
    /// Checks that every entry of `allowed_shapes` lists every binding.
    pub fn check_allowed_shapes(&self) -> Result<(), QpcError> {
        let expected = to_u64(self.inputs.len()).saturating_add(to_u64(self.outputs.len()));
        for (entry, shapes) in (0..).zip(&self.allowed_shapes) {
            let found = to_u64(shapes.shapes.len());
            if found != expected {
                return Err(QpcError::AllowedShapes { entry, found, expected });
            }
        }
        Ok(())
    }
}
