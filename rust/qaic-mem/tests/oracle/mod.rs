//! Views of the tests' own vectors, and the simplest possible implementation of the arithmetic of
//! docs/reference/transfers.md.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test
#![allow(dead_code)] // each test binary uses a part

use std::sync::Arc;

use qaic_mem::convert::{ElementOp, QuantParams, QuantType};
use qaic_mem::{ForeignMemory, ForeignMemoryMut, HostSlice, HostSliceMut, Owner, Storage};

pub(crate) fn view(bytes: &[u8]) -> HostSlice<'_> {
    HostSlice::of(bytes)
}

pub(crate) fn view_mut(bytes: &mut [u8]) -> HostSliceMut<'_> {
    HostSliceMut::of(bytes)
}

/// An array of a caller, which the test can read and write while it is bound.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    storage: Arc<Storage>,
    offset: usize,
    len: usize,
}

impl Array {
    /// An array of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::at(0, bytes)
    }

    /// An array of these bytes that begins `offset` bytes after an address that is aligned for every type.
    pub(crate) fn at(offset: usize, bytes: &[u8]) -> Self {
        let mut storage = Storage::new(offset + bytes.len()).unwrap();
        storage.memory_mut().write_from(offset, bytes).unwrap();
        Self { storage: Arc::new(storage), offset, len: bytes.len() }
    }

    fn address(&self) -> *mut u8 {
        self.storage.as_mut_ptr().wrapping_add(self.offset)
    }

    fn owner(&self) -> Owner {
        Arc::clone(&self.storage) as Owner
    }

    /// Returns the memory that an input is bound to.
    pub(crate) fn memory(&self) -> ForeignMemory {
        // SAFETY: the storage, which is the owner, keeps the memory.
        unsafe { ForeignMemory::new(self.address(), self.len, self.owner()) }
    }

    /// Returns the memory that an output is bound to.
    pub(crate) fn memory_mut(&self) -> ForeignMemoryMut {
        // SAFETY: as above; no reference into the storage is ever created.
        unsafe { ForeignMemoryMut::new(self.address(), self.len, self.owner()) }
    }

    /// Returns the contents.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory().as_slice().to_vec()
    }

    /// Changes the contents.
    pub(crate) fn write(&self, bytes: &[u8]) {
        self.memory_mut().as_mut().copy_from(HostSlice::of(bytes));
    }
}

/// Bytes of float32 numbers.
pub(crate) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Converts float32 to the bits of a float16: the nearest multiple of the spacing at that magnitude, halves
/// to even.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn narrow(x: f32) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    if x.is_nan() {
        // A quiet NaN with the upper payload bits.
        return sign | 0x7e00 | ((x.to_bits() >> 13) & 0x3ff) as u16;
    }
    let magnitude = f64::from(x.abs());
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    let mut exponent = -14;
    while magnitude >= 2_f64.powi(exponent + 1) {
        exponent += 1;
    }
    let multiple = (magnitude / 2_f64.powi(exponent - 10)).round_ties_even() as u16;
    // Bits of a positive float16 count the representable values, 1024 per exponent above the first.
    sign | (multiple + 1024 * (exponent + 14) as u16)
}

/// Returns the float32 value of a float16.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn widen(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => {
            let payload = u32::from(bits & 0x3ff) << 13;
            return f32::from_bits(u32::from(bits & 0x8000) << 16 | 0x7fc0_0000 | payload);
        }
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    (sign * magnitude) as f32
}

/// Returns the quantized value as a number in its type (uint8 already shifted).
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
pub(crate) fn quantize(x: f32, to: QuantType, p: QuantParams) -> i64 {
    let (low, high) = match to {
        QuantType::I8 | QuantType::U8 => (-128, 127),
        QuantType::I16 => (-32768, 32767),
        QuantType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
    };
    let shifted = x / p.scale + p.offset as f32;
    let q =
        if shifted.is_nan() { low } else { (f64::from(shifted).round_ties_even() as i64).clamp(low, high) };
    if to == QuantType::U8 { q + 128 } else { q }
}

/// Returns the float32 value of a quantized value.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn dequantize(q: i64, from: QuantType, p: QuantParams) -> f32 {
    let signed = if from == QuantType::U8 { q - 128 } else { q };
    p.scale * ((signed - i64::from(p.offset)) as f32)
}

/// Applies `op` to one element; returns little-endian bytes.
pub(crate) fn element(op: ElementOp, bytes: &[u8]) -> Vec<u8> {
    let float = || f32::from_le_bytes(bytes.try_into().unwrap());
    match op {
        ElementOp::F32ToF16 => narrow(float()).to_le_bytes().to_vec(),
        ElementOp::F16ToF32 => widen(u16::from_le_bytes(bytes.try_into().unwrap())).to_le_bytes().to_vec(),
        ElementOp::Quantize(to, p) => quantize(float(), to, p).to_le_bytes()[..to.size_bytes()].to_vec(),
        ElementOp::Dequantize(from, p) => {
            let q = match from {
                QuantType::I8 => i64::from(bytes[0].cast_signed()),
                QuantType::U8 => i64::from(bytes[0]),
                QuantType::I16 => i64::from(i16::from_le_bytes(bytes.try_into().unwrap())),
                QuantType::I32 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
            };
            dequantize(q, from, p).to_le_bytes().to_vec()
        }
    }
}

/// Applies `op` to all elements.
pub(crate) fn elements(op: ElementOp, bytes: &[u8]) -> Vec<u8> {
    bytes.chunks_exact(op.source_size()).flat_map(|chunk| element(op, chunk)).collect()
}

/// Returns the elements in the order in which result dimension `k` is source dimension `shuffle[k]`.
pub(crate) fn transpose(bytes: &[u8], size: usize, dims: &[usize], shuffle: &[usize]) -> Vec<u8> {
    let result: Vec<usize> = shuffle.iter().map(|&k| dims[k]).collect();
    let count = bytes.len() / size;
    let mut out = Vec::with_capacity(bytes.len());
    for linear in 0..count {
        let mut rest = linear;
        let mut index = vec![0; dims.len()];
        for k in (0..result.len()).rev() {
            index[shuffle[k]] = rest % result[k];
            rest /= result[k];
        }
        let from = index.iter().zip(dims).fold(0, |offset, (i, dim)| offset * dim + i);
        out.extend_from_slice(&bytes[from * size..(from + 1) * size]);
    }
    out
}
