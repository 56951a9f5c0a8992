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
