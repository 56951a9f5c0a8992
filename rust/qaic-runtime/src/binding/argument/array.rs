//! Description of a caller's array.

use crate::binding::ArrayType;

/// An array that a caller passes, as described by the buffer protocol. No method reads the array's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Element format of the buffer protocol, without the prefix of the native byte order. Empty if the format was
    /// not requested.
    pub format: &'a [u8],
    /// Bytes of one element.
    pub item_bytes: usize,
    /// Elements in each dim; empty for a scalar.
    pub shape: &'a [isize],
    /// Byte distance between neighbors in each dim.
    pub strides: &'a [isize],
    /// Address of the first element.
    pub address: usize,
    /// True if the memory must not be written.
    pub is_readonly: bool,
}

impl Argument<'_> {
    /// Number of elements; 0 if a dim is negative, `None` if the number exceeds the address space.
    fn elements(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).unwrap_or(0)))
    }

    /// Total bytes of the elements; `None` if they exceed the address space.
    pub(crate) fn len_bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.item_bytes)
    }

    /// Returns true if the elements follow each other in C order.
    pub fn is_contiguous(&self) -> bool {
        let mut step = isize::try_from(self.item_bytes).unwrap_or(isize::MAX);
        for (&dim, &stride) in self.shape.iter().zip(self.strides).rev() {
            // A dim with one element has no steps, so its stride is irrelevant.
            if dim > 1 && stride != step {
                return self.shape.contains(&0);
            }
            step = step.saturating_mul(dim);
        }
        true
    }

    /// Number of bytes from the first element to the end of the last one; `None` if elements precede the first one,
    /// or are beyond the address space.
    pub fn span_bytes(&self) -> Option<usize> {
        if self.shape.iter().any(|&dim| dim <= 0) {
            return Some(0);
        }
        let mut span = isize::try_from(self.item_bytes).ok()?;
        for (&dim, &stride) in self.shape.iter().zip(self.strides) {
            if stride < 0 && dim > 1 {
                return None;
            }
            span = span.checked_add((dim - 1).checked_mul(stride)?)?;
        }
        usize::try_from(span).ok()
    }

    /// Returns true if the elements have type `dtype`, including their alignment, because kernels need aligned
    /// elements.
    pub(crate) fn has_elements_of(&self, dtype: ArrayType) -> bool {
        let (format, _, item_bytes) = dtype.numpy();
        let wanted = format.to_bytes();
        self.item_bytes == item_bytes
            && self.address.is_multiple_of(item_bytes)
            && (self.format == wanted || is_same_integer(self.format, wanted))
    }

    pub(crate) fn has_dims(&self, dims: &[usize]) -> bool {
        self.shape.len() == dims.len()
            && self.shape.iter().zip(dims).all(|(&found, &dim)| usize::try_from(found) == Ok(dim))
    }
}

/// Returns true if two formats are the same integer type. C has several names for integers of one size; the caller
/// has compared the sizes.
fn is_same_integer(format: &[u8], wanted: &[u8]) -> bool {
    matches!((format, wanted), (b"l" | b"q" | b"i" | b"n", b"q" | b"i") | (b"c", b"b"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn array<'a>(shape: &'a [isize], strides: &'a [isize], item_bytes: usize) -> Argument<'a> {
        Argument { format: b"", item_bytes, shape, strides, address: 0, is_readonly: false }
    }

    /// Returns the offsets of all elements in C order.
    fn offsets(shape: &[isize], strides: &[isize]) -> Vec<isize> {
        shape.iter().zip(strides).fold(vec![0], |before, (&dim, &stride)| {
            before.iter().flat_map(|&at| (0..dim).map(move |index| at + index * stride)).collect()
        })
    }

    proptest! {
        #[test]
        fn array_of_any_strides_has_the_contiguity_and_span_of_its_offsets(
            dims in prop::collection::vec((0_isize..4, -3_isize..13), 0..5),
            item_bytes in 1_usize..5,
            dense in any::<bool>(),
        ) {
            let shape: Vec<_> = dims.iter().map(|dim| dim.0).collect();
            let item = isize::try_from(item_bytes).unwrap();
            let mut strides: Vec<_> = dims.iter().map(|dim| dim.1 * item).collect();
            if dense {
                let mut step = item;
                for (stride, &dim) in strides.iter_mut().zip(&shape).rev() {
                    *stride = step;
                    step *= dim.max(1);
                }
            }
            let argument = array(&shape, &strides, item_bytes);
            let offsets = offsets(&shape, &strides);
            let follow = offsets.iter().zip(0..).all(|(&offset, index)| offset == index * item);
            prop_assert_eq!(argument.is_contiguous(), follow);
            prop_assert!(follow || !dense);
            let expected = match (offsets.iter().min(), offsets.iter().max()) {
                (Some(&first), Some(&last)) => (first >= 0).then(|| usize::try_from(last + item).unwrap()),
                _ => Some(0),
            };
            prop_assert_eq!(argument.span_bytes(), expected);
            prop_assert_eq!(argument.len_bytes(), Some(offsets.len() * item_bytes));
            if follow {
                prop_assert_eq!(argument.span_bytes(), argument.len_bytes());
            }
        }

        #[test]
        fn array_of_hostile_numbers_does_not_panic(
            shape in prop::collection::vec(any::<isize>(), 0..5),
            strides in prop::collection::vec(any::<isize>(), 0..5),
            item_bytes: usize,
        ) {
            let argument = array(&shape, &strides, item_bytes);
            let _ = (argument.is_contiguous(), argument.span_bytes(), argument.len_bytes());
        }
    }

    #[test]
    fn formats_of_the_same_integer_are_equal() {
        let of = |format: &'static [u8], item_bytes, address| Argument {
            format,
            item_bytes,
            shape: &[],
            strides: &[],
            address,
            is_readonly: false,
        };
        for (format, dtype) in [
            (&b"f"[..], ArrayType::Float32),
            (b"e", ArrayType::Float16),
            (b"q", ArrayType::Int64),
            (b"l", ArrayType::Int64),
            (b"n", ArrayType::Int64),
            (b"i", ArrayType::Int32),
            (b"l", ArrayType::Int32),
            (b"c", ArrayType::Int8),
            (b"?", ArrayType::Bool),
        ] {
            let item_bytes = dtype.numpy().2;
            assert!(of(format, item_bytes, 64).has_elements_of(dtype), "{format:?}");
            assert!(!of(format, item_bytes + 1, 64).has_elements_of(dtype), "{format:?}");
            assert_eq!(of(format, item_bytes, 65).has_elements_of(dtype), item_bytes == 1);
        }
        for (format, dtype) in [
            (&b">f"[..], ArrayType::Float32),
            (b"I", ArrayType::Int32),
            (b"b", ArrayType::Bool),
            (b"?", ArrayType::Int8),
            (b"", ArrayType::Float32),
            (b"T{f:a:}", ArrayType::Float32),
        ] {
            assert!(!of(format, dtype.numpy().2, 64).has_elements_of(dtype), "{format:?}");
        }
    }
}
