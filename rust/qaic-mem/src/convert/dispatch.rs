//! Selection of the kernel for a machine and an operation.

use qaic_quant::mx::{self, MxFormat, NotFinite};

#[cfg(target_arch = "x86_64")]
use super::x86::Features;
use super::{ElementOp, portable};
use crate::{HostSlice, HostSliceMut};

/// A family of kernels. Later families are preferred if the machine supports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Portable Rust, which exists on all machines and defines the results.
    Portable,
    /// 256-bit vectors with half-float conversion and fused multiply-add.
    Avx2,
    /// 512-bit vectors with masks.
    Avx512,
}

impl Isa {
    /// Returns the families that this machine supports.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|&isa| isa <= Self::best()).collect()
    }

    /// Returns the default family.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        match Features::detect(Self::Avx512) {
            Some(features) if features.is_wide() => Self::Avx512,
            Some(_) => Self::Avx2,
            None => Self::Portable,
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Portable
    }
}

/// Applies `op` to as many elements as both sides contain, with the kernels of `isa`, or of the best family of this
/// machine if that is lower.
pub(super) fn apply(isa: Isa, op: ElementOp, src: HostSlice<'_>, dst: HostSliceMut<'_>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(features) = Features::detect(isa) {
        super::x86::apply(features, op, src, dst);
        return;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    portable::apply(op, src, dst);
}

/// Encodes rows of `row_len` numbers as blocks of MXFP6, as [`mx::encode`] does.
pub(super) fn encode_mxfp6(isa: Isa, row_len: usize, values: &[f32], stored: &mut [u8]) -> NotFinite {
    #[cfg(target_arch = "x86_64")]
    if let Some(features) = Features::detect(isa) {
        return super::x86::encode_mxfp6(features, row_len, values, stored);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    mx::encode(MxFormat::Fp6E2M3, row_len, values, stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_family_are_equal() {
        // Every exponent, and signs, zeros, infinities and NaN among them.
        let value = |at: u32| f32::from_bits(at.wrapping_mul(0x9e37_79b9) ^ (at << 23));
        let values: Vec<f32> = (0..200 * 67).map(value).collect();
        let mut expected = vec![0; 200 * 3 * 25];
        let found = mx::encode(MxFormat::Fp6E2M3, 67, &values, &mut expected);
        for isa in Isa::available() {
            let mut stored = vec![1; expected.len()];
            assert_eq!(encode_mxfp6(isa, 67, &values, &mut stored), found, "{isa:?}");
            assert!(stored == expected, "{isa:?}");
        }
    }

    #[test]
    fn kernels_of_every_family_stop_where_the_shorter_side_ends() {
        let op = ElementOp::F16ToF32;
        // 1.0 in float16.
        let src = [0x3c00_u16; 100];
        for isa in Isa::available() {
            for (from, to) in [(100, 100), (100, 41), (41, 100), (7, 3), (3, 7), (0, 7), (7, 0)] {
                let mut dst = [2.0_f32; 100];
                apply(isa, op, HostSlice::of(&src[..from]), HostSliceMut::of(&mut dst[..to]));
                let expected = |at| if at < from.min(to) { 1.0_f32 } else { 2.0 };
                let found = dst.map(f32::to_bits);
                let expected: [u32; 100] = std::array::from_fn(|at| expected(at).to_bits());
                assert_eq!(found, expected, "{isa:?} {from} {to}");
            }
        }
    }
}
