//! Choice of the kernel: once per process by what the machine can do, once per call by the operation.

use std::sync::OnceLock;

use super::{ElementOp, portable};
use crate::buffer::{Sink, Source};

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
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(Self::detect)
    }

    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Self::Avx512,
            (true, false) => Self::Avx2,
            (false, _) => Self::Portable,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Self {
        Self::Portable
    }
}

/// Applies `op` to as many elements as both sides hold, with the kernels of `isa` (or of the best family this machine
/// has, if that is less).
pub(super) fn apply(isa: Isa, op: ElementOp, src: Source<'_>, dst: Sink<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.min(Isa::best()) > Isa::Portable {
        super::x86::apply(isa.min(Isa::best()) == Isa::Avx512, op, src, dst);
        return;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    portable::apply(op, src, dst);
}
