//! The permitted combination of shapes that given tensors belong to.

use std::fmt::{self, Write};
use std::iter::repeat;

use super::{BindingSpec, BindingSpecs, BufferFacts, TensorShape};

/// Shape of a given tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenShape {
    /// Bytes of one element.
    pub item_bytes: u64,
    /// Elements in each dim; a dim of 0 omits the tensor.
    pub dims: Vec<u64>,
}

/// Error: the shapes are not a permitted combination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ShapeError {
    /// Name, bytes of one element and dims of the tensors that were passed.
    pub passed: Vec<(String, u64, Vec<u64>)>,
    /// Name and dims of these tensors in each permitted combination.
    pub allowed: Vec<Vec<(String, Vec<usize>)>>,
    /// Bytes of one element of each of these tensors.
    pub item_bytes: Vec<usize>,
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "No matching dimension found: {}", self.details())
    }
}

/// Number of permitted combinations in a message; a program can have thousands.
const SHOWN: usize = 4;

impl ShapeError {
    /// Returns the passed shapes and the allowed ones that are most similar.
    pub(crate) fn details(&self) -> String {
        let passed = self.passed.iter().zip(&self.item_bytes).map(|((name, found, dims), &expected)| {
            if usize::try_from(*found) == Ok(expected) {
                format!("{name} {dims:?}")
            } else {
                format!("{name} {dims:?} with elements of {found} bytes instead of {expected}")
            }
        });
        let mut text = format!("passed: {}", passed.collect::<Vec<_>>().join(", "));
        let mut nearest: Vec<_> = self.allowed.iter().enumerate().collect();
        nearest.sort_by_key(|(_, tensors)| self.distance(tensors));
        nearest.truncate(SHOWN);
        nearest.sort_by_key(|&(variant, _)| variant);
        for (variant, tensors) in nearest {
            let tensors = tensors.iter().map(|(name, dims)| format!("{name} {dims:?}"));
            let _ = write!(text, "; allowed {variant}: {}", tensors.collect::<Vec<_>>().join(", "));
        }
        let more = self.allowed.len().saturating_sub(SHOWN);
        if more > 0 {
            let _ = write!(text, "; and {more} more");
        }
        text
    }

    /// Returns the sum of the differences of all dims from the passed ones.
    fn distance(&self, allowed: &[(String, Vec<usize>)]) -> u64 {
        let dims = self.passed.iter().zip(allowed).flat_map(|((_, _, passed), (_, allowed))| {
            let (passed, allowed) = (passed.iter().copied(), allowed.iter().map(|&dim| dim as u64));
            let ranks = passed.len().max(allowed.len());
            passed.chain(repeat(0)).zip(allowed.chain(repeat(0))).take(ranks)
        });
        dims.fold(0, |sum, (passed, allowed)| sum.saturating_add(passed.abs_diff(allowed)))
    }
}

impl GivenShape {
    /// Returns true if the shape omits the tensor.
    pub(crate) fn is_left_out(&self) -> bool {
        self.dims.contains(&0)
    }

    /// Total bytes of the elements; `None` if they exceed the address space.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let bytes = self.dims.iter().try_fold(self.item_bytes, |bytes, &dim| bytes.checked_mul(dim))?;
        usize::try_from(bytes).ok()
    }

    fn has_elements_of(&self, shape: &TensorShape) -> bool {
        usize::try_from(self.item_bytes) == Ok(shape.item_bytes)
    }

    fn is(&self, shape: &TensorShape) -> bool {
        let (found, expected) = (rank_one(&self.dims, &1), rank_one(&shape.dims, &1));
        self.has_elements_of(shape)
            && found.len() == expected.len()
            && found.iter().zip(expected).all(|(&found, &dim)| usize::try_from(found) == Ok(dim))
    }
}

impl From<&TensorShape> for GivenShape {
    fn from(shape: &TensorShape) -> Self {
        Self { item_bytes: shape.item_bytes as u64, dims: shape.dims.iter().map(|&dim| dim as u64).collect() }
    }
}

/// Returns the dims with rank of at least one: a scalar is passed as one dim of 1 (docs/reference/transfers.md).
fn rank_one<'a, T>(dims: &'a [T], one: &'a T) -> &'a [T] {
    if dims.is_empty() { std::slice::from_ref(one) } else { dims }
}

impl BindingSpecs {
    /// Finds the combination that tensors of these shapes belong to. `None` is an omitted tensor, which matches all
    /// combinations.
    ///
    /// The result is the first combination that all tensors match. If there is none, it is the first combination that
    /// all inputs match, except partial ones, and whose outputs fit: clients keep buffers for the largest shape, and
    /// outputs fill the start of such a buffer.
    pub fn variant_of(&self, given: &[Option<GivenShape>]) -> Result<usize, ShapeError> {
        let find = |fits: &dyn Fn(&BindingSpec, &TensorShape, &GivenShape) -> bool| {
            (0..self.variants).find(|&variant| {
                let mut pairs = self.list.iter().zip(given);
                pairs.all(|(spec, given)| {
                    given.as_ref().is_none_or(|given| fits(spec, spec.shape(variant), given))
                })
            })
        };
        let is_exact = |_: &BindingSpec, shape: &TensorShape, given: &GivenShape| given.is(shape);
        let is_loose = |spec: &BindingSpec, shape: &TensorShape, given: &GivenShape| {
            given.is(shape)
                || spec.is_partial
                || (self.is_dynamic && !spec.is_input && has_room(shape, given))
        };
        find(&is_exact).or_else(|| find(&is_loose)).ok_or_else(|| self.mismatch(given))
    }

    /// Finds the combination as [`Self::variant_of`] does, for buffers of these sizes without shapes. A size of 0 is
    /// an omitted buffer.
    pub(crate) fn variant_of_sizes(&self, sizes: &[usize]) -> Option<usize> {
        let find = |fits: fn(&BindingSpec, usize, usize) -> bool| {
            (0..self.variants).find(|&variant| {
                let mut pairs = self.list.iter().zip(sizes);
                pairs.all(|(spec, &size)| size == 0 || fits(spec, spec.shape(variant).bytes, size))
            })
        };
        find(|_, bytes, size| bytes == size)
            .or_else(|| find(|spec, bytes, size| if spec.is_input { bytes == size } else { bytes <= size }))
    }

    /// Returns the shape of a buffer without one, if its size determines the shape. Returns `None` if combinations
    /// differ in the dims of a binding but not in its size, and for omitted or partial buffers.
    pub fn shape_of_buffer(&self, index: usize, buffer: BufferFacts) -> Option<GivenShape> {
        let spec = self.list.get(index)?;
        let size = spec.tensor_bytes(buffer);
        if size == spec.largest.bytes {
            return Some((&spec.largest).into());
        }
        let mut of_size = spec.variants.iter().filter(|shape| shape.bytes == size && size > 0);
        let first = of_size.next()?;
        of_size.all(|other| other.dims == first.dims).then(|| first.into())
    }

    /// Returns the shapes of buffers without shapes, and their combination.
    pub(crate) fn shapes_of_sizes(
        &self,
        sizes: &[usize],
        shapes: &mut [Option<GivenShape>],
    ) -> Result<usize, ShapeError> {
        let variant = self.variant_of_sizes(sizes);
        for ((slot, &size), spec) in shapes.iter_mut().zip(sizes).zip(&self.list) {
            if size == 0 {
                *slot = None;
                continue;
            }
            let slot = slot.get_or_insert_default();
            slot.item_bytes = spec.largest.item_bytes as u64;
            slot.dims.clear();
            let dims = |shape: &TensorShape| shape.dims.iter().map(|&dim| dim as u64).collect::<Vec<_>>();
            match variant {
                Some(variant) => slot.dims.extend(dims(spec.shape(variant))),
                None if size == spec.largest.bytes => slot.dims.extend(dims(&spec.largest)),
                // Without a shape, only the number of elements is known.
                None => slot.dims.push((size / spec.largest.item_bytes.max(1)) as u64),
            }
        }
        match variant {
            Some(variant) => Ok(variant),
            None => self.variant_of(shapes),
        }
    }

    fn mismatch(&self, given: &[Option<GivenShape>]) -> ShapeError {
        let passed: Vec<_> =
            self.list.iter().zip(given).filter_map(|(spec, given)| Some((spec, given.as_ref()?))).collect();
        let of_variant = |variant| {
            passed.iter().map(|(spec, _)| (spec.name.clone(), spec.shape(variant).dims.clone())).collect()
        };
        ShapeError {
            item_bytes: passed.iter().map(|(spec, _)| spec.largest.item_bytes).collect(),
            allowed: (0..self.variants).map(of_variant).collect(),
            passed: passed
                .into_iter()
                .map(|(spec, given)| (spec.name.clone(), given.item_bytes, given.dims.clone()))
                .collect(),
        }
    }
}

/// Returns true if the given array has at least the bytes of the tensor.
fn has_room(shape: &TensorShape, given: &GivenShape) -> bool {
    given.has_elements_of(shape) && given.bytes().is_some_and(|bytes| shape.bytes <= bytes)
}
