//! Memory layout of an array, for consumers of the buffer protocol.

use std::ffi::{CStr, CString};
use std::sync::Arc;

/// Shape, strides and element format of an array in C order, in the terms of the buffer protocol.
#[derive(Debug)]
pub struct ArrayLayout {
    /// Elements in each dim.
    pub shape: Box<[isize]>,
    /// Byte distance between neighbors in each dim.
    pub strides: Box<[isize]>,
    /// Format of an element.
    pub format: CString,
    /// Bytes of an element.
    pub item_bytes: isize,
}

impl ArrayLayout {
    /// Returns the layout of an array whose dims fit into the address space.
    pub fn new(dims: &[usize], format: &CStr, item_bytes: usize) -> Arc<Self> {
        let signed = |number: usize| isize::try_from(number).unwrap_or(isize::MAX);
        let shape: Box<[_]> = dims.iter().map(|&dim| signed(dim)).collect();
        let item_bytes = signed(item_bytes);
        let mut step = item_bytes;
        let mut strides: Box<[_]> = shape.iter().map(|_| 0).collect();
        for (stride, dim) in strides.iter_mut().zip(&shape).rev() {
            *stride = step;
            step = step.saturating_mul(*dim.max(&1));
        }
        Arc::new(Self { shape, strides, format: format.to_owned(), item_bytes })
    }

    /// Returns the layout of an array of bytes.
    pub fn of_bytes(len: usize) -> Arc<Self> {
        Self::new(&[len], c"B", 1)
    }
}

/// Returns a format without the prefix of the native byte order.
pub fn native_format(format: &[u8]) -> &[u8] {
    let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
    match format {
        [b'@' | b'=', rest @ ..] => rest,
        [prefix, rest @ ..] if *prefix == native => rest,
        all => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_those_of_c_order() {
        let strides = |dims: &[usize]| ArrayLayout::new(dims, c"f", 4).strides.to_vec();
        assert_eq!(strides(&[2, 3, 5]), [60, 20, 4]);
        assert!(strides(&[]).is_empty());
        // A dim of 0 counts as one.
        assert_eq!(strides(&[2, 0, 5]), [20, 20, 4]);
        let bytes = ArrayLayout::of_bytes(7);
        assert_eq!((&bytes.shape[..], &bytes.strides[..], bytes.item_bytes), (&[7][..], &[1][..], 1));
    }

    #[test]
    fn only_the_prefix_of_the_native_order_is_left_out() {
        let (native, other) = if cfg!(target_endian = "little") { ("<", ">") } else { (">", "<") };
        for prefix in ["@", "=", native, ""] {
            assert_eq!(native_format(format!("{prefix}f").as_bytes()), b"f");
        }
        let foreign = format!("{other}f");
        assert_eq!(native_format(foreign.as_bytes()), foreign.as_bytes());
    }
}
