//! Parameters of quantization. [`qaic_quant::affine`] defines the arithmetic, which every kernel reproduces bit for
//! bit.
//!
//! The offset of an unsigned 8-bit tensor refers to the stored value minus 128, so its kernels compute with the
//! signed value and flip the top bit.

use qaic_quant::QuantParams;

/// Integer types to which float32 values can be quantized.
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

/// Returns true if scale and offset are in the range where the vector kernels are proven exact: no
/// intermediate value overflows or underflows, and the shifted value fits 32 bits.
pub(super) fn is_moderate(params: QuantParams) -> bool {
    let limit = 1.152_921_5e18_f32; // 2^60
    params.scale >= 1.0 / limit && params.scale <= limit && params.offset.unsigned_abs() <= 1 << 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_kernels_serve_scales_to_the_60th_power_of_two_and_offsets_of_30_bits() {
        let (low, high, most) = (2_f32.powi(-60), 2_f32.powi(60), 1 << 29);
        for (scale, offset) in [(0.5, -3), (low, 0), (high, 0), (1.0, most), (1.0, -most), (low, -most)] {
            assert!(is_moderate(QuantParams { scale, offset }), "{scale:e} {offset}");
        }
        let scales = [low.next_down(), high.next_up(), 0.0, -1.0, f32::INFINITY, f32::NAN];
        let offsets = [most + 1, -most - 1, i32::MIN, i32::MAX];
        let far = scales.map(|scale| (scale, 0)).into_iter().chain(offsets.map(|offset| (1.0, offset)));
        for (scale, offset) in far {
            assert!(!is_moderate(QuantParams { scale, offset }), "{scale:e} {offset}");
        }
    }
}
