//! Sizes of tensors and the table of permitted shapes.
//!
//! The format counts a tensor's bytes in two ways: a copy moves nothing if any dim is zero, while a mapping leaves
//! zero dims out of the product. Both are here, so that none is picked by accident.

use crate::bytes::to_u64;
use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::network_desc::NetworkDesc;

/// Bytes that a copy of the tensor moves; a zero dim makes it 0.
pub(crate) fn copy_bytes(binding: &str, dtype: ElementType, dims: &[i32]) -> Result<u64, QpcError> {
    let elements = product(binding, dims, false)?;
    elements.checked_mul(element_bytes(binding, dtype)?).ok_or_else(|| too_large(binding))
}

/// Bytes that mappings and `IoDesc` report: the product of the dims that are not zero.
pub(crate) fn mapping_bytes(binding: &str, dtype: ElementType, dims: &[i32]) -> Result<u32, QpcError> {
    let elements = product(binding, dims, true)?;
    let bytes = elements.checked_mul(element_bytes(binding, dtype)?).ok_or_else(|| too_large(binding))?;
    u32::try_from(bytes).map_err(|_| too_large(binding))
}

/// Bytes of one element, or an error naming the binding.
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

/// Shape that a caller passes for one binding; `None` in a list means that the inference leaves the buffer
/// out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedShape {
    /// Bytes of one element.
    pub element_bytes: u64,
    /// Dims; a scalar is `[1]` or empty.
    pub dims: Vec<i32>,
}

/// Which permitted combination a request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeMatch {
    /// The program has one combination: the dims of its bindings.
    Static,
    /// Position in `allowed_shapes`.
    Entry(usize),
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

    /// The first permitted combination that fits all requested tensors, inputs then outputs, or `None`.
    ///
    /// A tensor fits if element size and dims are equal; left-out buffers fit everything.
    pub fn match_shapes(&self, requested: &[Option<RequestedShape>]) -> Option<ShapeMatch> {
        if self.allowed_shapes.is_empty() {
            let inputs = self.inputs.iter().map(|binding| &binding.io_initial);
            let outputs = self.outputs.iter().map(|binding| &binding.io_transformed);
            let own = inputs.chain(outputs).map(|tensor| (tensor.dtype, tensor.dims.as_slice()));
            return fits(own, requested).then_some(ShapeMatch::Static);
        }
        let position = self.allowed_shapes.iter().position(|entry| {
            fits(entry.shapes.iter().map(|shape| (shape.dtype, shape.dims.as_slice())), requested)
        });
        position.map(ShapeMatch::Entry)
    }
}

fn fits<'a>(
    mut allowed: impl Iterator<Item = (ElementType, &'a [i32])>,
    requested: &[Option<RequestedShape>],
) -> bool {
    let all = requested.iter().all(|request| {
        allowed.next().is_some_and(|(dtype, dims)| {
            request.as_ref().is_none_or(|request| {
                dtype.size_bytes() == Some(request.element_bytes) && rank_one(dims) == rank_one(&request.dims)
            })
        })
    });
    all && allowed.next().is_none()
}

/// A scalar is passed as one dim of 1.
fn rank_one(dims: &[i32]) -> &[i32] {
    if dims.is_empty() { &[1] } else { dims }
}
