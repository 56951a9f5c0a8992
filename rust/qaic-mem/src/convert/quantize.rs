//! What tensors are quantized to, and with which numbers. The arithmetic is that of [`qaic_quant::affine`]; every kernel
//! reproduces it bit for bit.
//!
//! The offset of an unsigned 8-bit tensor refers to the stored value minus 128, so those kernels work on the signed
//! value and flip the top bit.

/// Integer types a float can be quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantType {
    /// Signed 8 bits.
    I8,
    /// Unsigned 8 bits; the offset refers to the value minus 128.
    U8,
    /// Signed 16 bits.
    I16,
    /// Signed 32 bits.
    I32,
}

impl QuantType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 => 2,
            Self::I32 => 4,
        }
    }
}

/// Scale and offset of a quantized tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantParams {
    scale: f32,
    offset: i32,
}

impl QuantParams {
    /// Parameters with `scale` the difference of two neighboring quantized values and `offset` the quantized value
    /// of zero.
    pub const fn new(scale: f32, offset: i32) -> Self {
        Self { scale, offset }
    }

    /// Difference of two neighboring quantized values.
    pub const fn scale(self) -> f32 {
        self.scale
    }

    /// Quantized value of zero.
    pub const fn offset(self) -> i32 {
        self.offset
    }

    /// Whether scale and offset are in the range where the vector kernels are proven exact: no intermediate value
    /// over- or underflows, and the shifted value fits 32 bits.
    pub(super) fn moderate(self) -> bool {
        let limit = 1.152_921_5e18_f32; // 2^60
        self.scale >= 1.0 / limit && self.scale <= limit && self.offset.unsigned_abs() <= 1 << 29
    }
}
