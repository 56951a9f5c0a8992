//! Operations on vectors of sixteen float32 numbers, and their portable form.

use half::{bf16, f16};
use qaic_quant::mx::{self, MxFormat};

use super::UNIT;
use crate::convert::Isa;

/// Numbers of a vector.
pub(super) const LANES: usize = 16;
/// Bytes of an MXFP6 block.
pub(super) const MX_BYTES: usize = 25;
/// Bytes of an MXINT8 block.
pub(super) const MXINT8_BYTES: usize = 33;

/// The vector operations of a machine. A value proves that the machine supports them.
pub(super) trait Simd: Copy {
    /// Sixteen numbers.
    type V: Copy;
    /// Values of all codes of four bits.
    type Numbers4: Copy;
    /// True if twenty sums of vectors fit into registers.
    const IS_WIDE: bool;

    /// Returns a vector with sixteen copies of a number.
    fn splat(self, number: f32) -> Self::V;
    /// Reads sixteen numbers.
    fn load(self, numbers: &[f32; LANES]) -> Self::V;
    /// Writes sixteen numbers.
    fn store(self, vector: Self::V, numbers: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Little-endian float32.
    fn float32(self, bytes: &[u8; 64]) -> Self::V;
    /// Little-endian float16, widened.
    fn float16(self, bytes: &[u8; 32]) -> Self::V;
    /// Little-endian bfloat16, widened.
    fn bfloat16(self, bytes: &[u8; 32]) -> Self::V;
    /// Rounds to the nearest values of float16, ties to even.
    fn round_to_float16(self, vector: Self::V) -> Self::V;
    /// Decodes signed bytes to `(byte - zero point) * scale`; `zero` is the entry of [`ZEROS`] for the zero point.
    fn int8(self, bytes: &[u8; UNIT], zero: Self::V, scale: Self::V) -> [Self::V; 2];
    /// Prepares `(code - zero point) * scale` for the four-bit codes of a group; `zero` is as for [`Self::int8`].
    fn numbers4(self, zero: Self::V, scale: Self::V) -> Self::Numbers4;
    /// Decodes unsigned codes of four bits, the lower four bits of a byte first.
    fn uint4(self, bytes: &[u8; 16], numbers: Self::Numbers4) -> [Self::V; 2];
    /// Decodes the elements of an MXFP6 block, without its exponent.
    fn mxfp6(self, block: &[u8; MX_BYTES]) -> [Self::V; 2];
    /// Exchanges the four vectors with the four lanes of each quarter: lane `4 q + c` of result `i` is lane `4 q + i` of
    /// vector `c`.
    fn transposed(self, vectors: [Self::V; 4]) -> [Self::V; 4];
    /// Sums the elements of each of four vectors. Halves are added until four numbers `x` remain, then `(x0 + x1) +
    /// (x2 + x3)`.
    fn sums(self, vectors: [Self::V; 4]) -> [f32; 4];
    /// Prefetches the line of memory at an address, which need not be valid, into the second cache.
    fn prefetch(self, _: *const u8) {}
    /// Prefetches a line as [`Self::prefetch`] does, into the nearest cache.
    fn prefetch_near(self, _: *const u8) {}
    /// Runs a task that is compiled for this machine.
    fn run<T: Task>(self, task: T);
}

/// A computation that is compiled separately for each machine.
pub(super) trait Task {
    /// Runs the task.
    fn run<S: Simd>(self, simd: S);
}

/// The way in which the prefetcher of a processor follows a stream of memory, which decides how products with few rows
/// read weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetcher {
    /// Follows a stream to the end of its page, as on processors of Intel. Weights that are not packed are read as
    /// several streams with AVX-512, and packed weights are prefetched.
    StopsAtPages,
    /// Follows a stream beyond its page, as on processors of AMD up to Zen 4. Packed weights are prefetched only if
    /// rows are long.
    CrossesPages,
    /// Follows a stream beyond its page, but more slowly than Zen 5 decodes weights. All weights are prefetched, from
    /// further ahead.
    FallsBehind,
}

impl Prefetcher {
    /// Returns the prefetcher of this machine.
    pub(super) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        return super::x86::prefetcher();
        #[cfg(not(target_arch = "x86_64"))]
        return Self::CrossesPages;
    }

    /// Distance in bytes from the unit that is read to the memory that is prefetched.
    pub(super) const fn ahead(self, is_packed: bool, has_long_rows: bool) -> Option<usize> {
        match self {
            Self::FallsBehind => Some(8192),
            _ if !is_packed => None,
            Self::StopsAtPages => Some(4096),
            Self::CrossesPages if has_long_rows => Some(4096),
            Self::CrossesPages => None,
        }
    }
}

/// Runs a task with the vectors of `isa`, or of the best family of this machine if that is lower.
pub(super) fn run(isa: Isa, task: impl Task) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = super::x86::Avx512::detect(isa) {
            return simd.run(task);
        }
        if let Some(simd) = super::x86::Avx2::detect(isa) {
            return simd.run(task);
        }
    }
    let _ = isa;
    Portable.run(task);
}

/// Portable Rust, which defines the results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

/// Widens sixteen numbers of two bytes.
fn widened(bytes: &[u8; 32], widen: impl Fn([u8; 2]) -> f32) -> [f32; LANES] {
    let (pairs, _) = bytes.as_chunks::<2>();
    std::array::from_fn(|lane| widen(pairs[lane]))
}

/// Powers of two, indexed by the exponent of an MXFP6 block.
pub(super) const MX_FACTORS: [f32; 256] = {
    // The smallest factor is half of the smallest normal number.
    let mut factors = [f32::from_bits(1 << 22); 256];
    let mut exponent = 1_u32;
    while exponent < 255 {
        factors[exponent as usize] = f32::from_bits(exponent << 23);
        exponent += 1;
    }
    factors[255] = f32::NAN;
    factors
};
/// Bits of the float32 number 2^23 + 128. Exclusive-or with a signed byte adds the byte to the number, exactly.
pub(super) const BYTE_BASE: u32 = 0x4b00_0080;
/// Zero points plus the number of [`BYTE_BASE`], indexed by the byte of the zero point.
pub(super) const ZEROS: [f32; 256] = {
    let mut zeros = [0.0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        zeros[byte as usize] = f32::from_bits(BYTE_BASE ^ byte);
        byte += 1;
    }
    zeros
};
/// The exponent of the power one.
const MX_ONE: u8 = 127;

impl Simd for Portable {
    type V = [f32; LANES];
    type Numbers4 = [Self::V; 2];
    const IS_WIDE: bool = false;

    fn splat(self, number: f32) -> Self::V {
        [number; LANES]
    }

    fn load(self, numbers: &[f32; LANES]) -> Self::V {
        *numbers
    }

    fn store(self, vector: Self::V, numbers: &mut [f32; LANES]) {
        *numbers = vector;
    }

    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    fn float32(self, bytes: &[u8; 64]) -> Self::V {
        let (numbers, _) = bytes.as_chunks::<4>();
        std::array::from_fn(|lane| f32::from_le_bytes(numbers[lane]))
    }

    fn float16(self, bytes: &[u8; 32]) -> Self::V {
        widened(bytes, |pair| f16::from_le_bytes(pair).to_f32())
    }

    fn bfloat16(self, bytes: &[u8; 32]) -> Self::V {
        widened(bytes, |pair| bf16::from_le_bytes(pair).to_f32())
    }

    fn round_to_float16(self, vector: Self::V) -> Self::V {
        vector.map(|number| f16::from_f32(number).to_f32())
    }

    fn int8(self, bytes: &[u8; UNIT], zero: Self::V, scale: Self::V) -> [Self::V; 2] {
        let number = |at: usize| f32::from_bits(BYTE_BASE ^ u32::from(bytes[at]));
        [0, LANES].map(|start| std::array::from_fn(|lane| (number(start + lane) - zero[lane]) * scale[lane]))
    }

    fn numbers4(self, zero: Self::V, scale: Self::V) -> [Self::V; 2] {
        [zero, scale]
    }

    fn uint4(self, bytes: &[u8; 16], [zero, scale]: [Self::V; 2]) -> [Self::V; 2] {
        let code = |at: usize| bytes[at / 2] >> (at % 2 * 4) & 15;
        self.int8(&std::array::from_fn(code), zero, scale)
    }

    fn mxfp6(self, block: &[u8; MX_BYTES]) -> [Self::V; 2] {
        let mut unscaled = *block;
        unscaled[0] = MX_ONE;
        let mut numbers = [[0.0; LANES]; 2];
        mx::decode(MxFormat::Fp6E2M3, UNIT, &unscaled, numbers.as_flattened_mut());
        numbers
    }

    fn transposed(self, vectors: [Self::V; 4]) -> [Self::V; 4] {
        std::array::from_fn(|at| std::array::from_fn(|lane| vectors[lane % 4][lane / 4 * 4 + at]))
    }

    fn sums(self, vectors: [Self::V; 4]) -> [f32; 4] {
        vectors.map(|vector| {
            let eight: [f32; 8] = std::array::from_fn(|lane| vector[lane] + vector[lane + 8]);
            let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
            (four[0] + four[1]) + (four[2] + four[3])
        })
    }

    fn run<T: Task>(self, task: T) {
        task.run(self);
    }
}
