//! Choice of the kernel: by what the machine can do, and by the operation.

#[cfg(target_arch = "x86_64")]
use super::x86::Features;
use super::{ElementOp, portable};
use crate::{HostSlice, HostSliceMut};

/// A family of kernels. Later ones are preferred where they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust; exists everywhere and defines the results.
    Portable,
    /// 256-bit vectors with half-float conversion and fused multiply-add.
    Avx2,
    /// 512-bit vectors with masks.
    Avx512,
}

impl Isa {
    /// The families this machine has.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|&isa| isa <= Self::best()).collect()
    }

    /// The family used by default.
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

/// Applies `op` to as many elements as both sides hold, with the kernels of `isa` (or of the best family this machine
/// has, if that is less).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_every_family_stop_where_the_shorter_side_ends() {
        let op = ElementOp::F16ToF32;
        // One in f16.
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
