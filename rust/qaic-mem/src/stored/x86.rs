//! The vector operations of x86-64: AVX2 with F16C and FMA, and AVX-512 with VBMI.
//!
//! A value of [`Avx2`] or [`Avx512`] exists only if the machine has the instructions, which makes the calls below
//! sound.

// All loads and stores are unaligned, so casts need not keep the alignment.
#![allow(clippy::cast_ptr_alignment)]
// The names of the intrinsics show their family; a list of 40 imports adds no information.
#![allow(clippy::wildcard_imports)]
// These calls must be inlined into functions that are compiled for the same instructions.
#![allow(clippy::inline_always)]

use std::arch::x86_64::*;

use super::UNIT;
use super::simd::{BYTE_BASE, LANES, MX_BYTES, Prefetcher, Simd, Task};
use crate::convert::Isa;

/// 256-bit vectors, two for sixteen numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

/// 512-bit vectors, with permutations of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx2 {
    /// Returns a value if the machine has the instructions and `isa` includes them.
    pub(super) fn detect(isa: Isa) -> Option<Self> {
        let has_all = isa >= Isa::Avx2
            && !cfg!(miri)
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        has_all.then_some(Self(()))
    }
}

impl Avx512 {
    /// Returns a value if the machine has the instructions and `isa` includes them.
    pub(super) fn detect(isa: Isa) -> Option<Self> {
        let has_all = isa >= Isa::Avx512
            && Avx2::detect(isa).is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi");
        has_all.then_some(Self(()))
    }
}

/// Returns the prefetcher of this machine. Only processors of AMD and Hygon have `sse4a`, and of these, Zen 5 is the first
/// with `avxvnni`.
pub(super) fn prefetcher() -> Prefetcher {
    match (is_x86_feature_detected!("sse4a"), is_x86_feature_detected!("avxvnni")) {
        (false, _) => Prefetcher::StopsAtPages,
        (true, false) => Prefetcher::CrossesPages,
        (true, true) => Prefetcher::FallsBehind,
    }
}

/// Decodes the elements of half an MXFP6 block to float16, times 2^-14.
///
/// `PLACE` is the index, in the sixteen bytes that are read, of the byte with the first element's six bits.
#[target_feature(enable = "avx2")]
#[inline]
fn mxfp6_halves<const PLACE: i8>(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: sixteen bytes are read.
    let read = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    // Each element gets two bytes; its bits begin at 0, 6, 4 or 10.
    let pairs = |place: i8| {
        let steps = _mm_setr_epi8(0, 1, 0, 1, 1, 2, 1, 2, 3, 4, 3, 4, 4, 5, 4, 5);
        _mm_add_epi8(steps, _mm_set1_epi8(place))
    };
    let places = _mm256_set_m128i(pairs(PLACE + 6), pairs(PLACE));
    let spread = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(read), places);
    // The highest bit of an element becomes the sign.
    let shifts = _mm256_set1_epi64x(0x0001_0040_0010_0400);
    let high = _mm256_mullo_epi16(spread, shifts);
    // Moves the exponent to the lower end of its field, and the fraction to the upper end.
    _mm256_and_si256(_mm256_srai_epi16::<3>(high), _mm256_set1_epi16(0x8f80_u16.cast_signed()))
}

/// The two halves of a block that [`mxfp6_halves`] reads.
#[inline(always)]
fn mxfp6_parts(block: &[u8; MX_BYTES]) -> (&[u8; 16], &[u8; 16]) {
    let [_, elements @ ..] = block;
    let (Some(first), Some(second)) = (elements.first_chunk(), elements.last_chunk()) else {
        unreachable!("a block has 24 bytes of elements")
    };
    (first, second)
}

/// Unpacks thirty-two numbers of four bits to bytes, in order.
#[target_feature(enable = "avx2")]
#[inline]
fn uint4_bytes(bytes: &[u8; 16]) -> (__m128i, __m128i) {
    // SAFETY: sixteen bytes are read.
    let read = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    let low = _mm_and_si128(read, _mm_set1_epi8(15));
    let high = _mm_and_si128(_mm_srli_epi16::<4>(read), _mm_set1_epi8(15));
    (_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high))
}

mod avx2 {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct Pair(pub(super) __m256, pub(super) __m256);

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn splat(number: f32) -> Pair {
        Pair(_mm256_set1_ps(number), _mm256_set1_ps(number))
    }

    /// # Safety
    ///
    /// `address` has sixteen numbers.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) unsafe fn load(address: *const f32) -> Pair {
        // SAFETY: the first eight of sixteen numbers.
        let first = unsafe { _mm256_loadu_ps(address) };
        // SAFETY: eight more numbers follow them.
        let behind = unsafe { address.add(8) };
        // SAFETY: as above.
        Pair(first, unsafe { _mm256_loadu_ps(behind) })
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn store(vector: Pair, numbers: &mut [f32; LANES]) {
        let (halves, _) = numbers.as_chunks_mut::<8>();
        // SAFETY: eight numbers are written.
        unsafe { _mm256_storeu_ps(halves[0].as_mut_ptr(), vector.0) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(halves[1].as_mut_ptr(), vector.1) };
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn add(a: Pair, b: Pair) -> Pair {
        Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn mul(a: Pair, b: Pair) -> Pair {
        Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn mul_add(a: Pair, b: Pair, c: Pair) -> Pair {
        Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn sub_mul(a: Pair, b: Pair, c: Pair) -> Pair {
        let first = _mm256_mul_ps(_mm256_sub_ps(a.0, b.0), c.0);
        Pair(first, _mm256_mul_ps(_mm256_sub_ps(a.1, b.1), c.1))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn widen(halves: __m256i) -> Pair {
        let first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        Pair(first, _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn float16(bytes: &[u8; 32]) -> Pair {
        // SAFETY: 32 bytes are read.
        widen(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn bfloat16(bytes: &[u8; 32]) -> Pair {
        // SAFETY: 32 bytes are read.
        let halves = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        let wide = |half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)));
        Pair(wide(_mm256_castsi256_si128(halves)), wide(_mm256_extracti128_si256::<1>(halves)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn round_to_float16(Pair(first, second): Pair) -> Pair {
        let rounded = |eight| _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight));
        Pair(rounded(first), rounded(second))
    }

    /// Decodes sixteen signed bytes.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn bytes(bytes: __m128i, zero: Pair, scale: Pair) -> Pair {
        let base = _mm256_set1_epi32(BYTE_BASE.cast_signed());
        let wide = |eight| _mm256_castsi256_ps(_mm256_xor_si256(_mm256_cvtepu8_epi32(eight), base));
        sub_mul(Pair(wide(bytes), wide(_mm_srli_si128::<8>(bytes))), zero, scale)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn int8(numbers: &[u8; UNIT], zero: Pair, scale: Pair) -> [Pair; 2] {
        // SAFETY: 32 bytes are read.
        let read = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
        let halves = [_mm256_castsi256_si128(read), _mm256_extracti128_si256::<1>(read)];
        [bytes(halves[0], zero, scale), bytes(halves[1], zero, scale)]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn uint4(numbers: &[u8; 16], [zero, scale]: [Pair; 2]) -> [Pair; 2] {
        let (first, second) = uint4_bytes(numbers);
        [bytes(first, zero, scale), bytes(second, zero, scale)]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn mxfp6(block: &[u8; MX_BYTES]) -> [Pair; 2] {
        let (first, second) = mxfp6_parts(block);
        let factor = _mm256_set1_ps(16384.0);
        let scaled = |Pair(a, b)| Pair(_mm256_mul_ps(a, factor), _mm256_mul_ps(b, factor));
        [scaled(widen(mxfp6_halves::<0>(first))), scaled(widen(mxfp6_halves::<4>(second)))]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn transposed([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
        let pairs = |a, b| (_mm256_castps_pd(a), _mm256_castps_pd(b));
        let (ab, cd) = pairs(_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let first = [_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd)];
        let (ab, cd) = pairs(_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        let second = [_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd)];
        let [a, b] = first;
        let [c, d] = second;
        [_mm256_castpd_ps(a), _mm256_castpd_ps(b), _mm256_castpd_ps(c), _mm256_castpd_ps(d)]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn pairs_transposed([a, b, c, d]: [Pair; 4]) -> [Pair; 4] {
        let (first, second) = (transposed([a.0, b.0, c.0, d.0]), transposed([a.1, b.1, c.1, d.1]));
        [
            Pair(first[0], second[0]),
            Pair(first[1], second[1]),
            Pair(first[2], second[2]),
            Pair(first[3], second[3]),
        ]
    }

    /// Adds the upper half of eight numbers to the lower.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn fold(eight: __m256) -> __m128 {
        _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn sums([a, b, c, d]: [__m128; 4]) -> [f32; 4] {
        let sums = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
        let mut numbers = [0.0; 4];
        // SAFETY: four numbers are written.
        unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), sums) };
        numbers
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn pair_sums([a, b, c, d]: [Pair; 4]) -> [f32; 4] {
        let four = |Pair(first, second)| fold(_mm256_add_ps(first, second));
        sums([four(a), four(b), four(c), four(d)])
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn run<T: Task>(simd: Avx2, task: T) {
        task.run(simd);
    }
}

mod avx512 {
    use super::*;

    /// Indices of the two bytes that contain the bits of each element of a block, alternating between the two halves.
    const PLACES: [u16; 32] = {
        let mut places = [0; 32];
        let mut lane = 0;
        while lane < 32 {
            let first = (lane / 2 + lane % 2 * 16) * 6 / 8;
            places[lane as usize] = first | (first + 1) << 8;
            lane += 1;
        }
        places
    };

    /// Upper halves of the float32 values of all elements, positive and negative, of a block.
    const NUMBERS: [[u16; 32]; 2] = {
        let mut numbers = [[0; 32]; 2];
        let mut code = 0_u16;
        while code < 32 {
            let (mut exponent, mut fraction) = (126 + (code >> 3), (code & 7) << 4);
            if code == 0 {
                exponent = 0;
            } else if code < 8 {
                exponent = 127;
                while fraction < 0x80 {
                    fraction <<= 1;
                    exponent -= 1;
                }
            }
            let bits = exponent << 7 | fraction & 0x7f;
            numbers[0][code as usize] = bits;
            numbers[1][code as usize] = bits | 0x8000;
            code += 1;
        }
        numbers
    };

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn words(words: &[u16; 32]) -> __m512i {
        // SAFETY: 64 bytes are read.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    fn sub_mul(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_mul_ps(_mm512_sub_ps(a, b), c)
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn bfloat16(bytes: &[u8; 32]) -> __m512 {
        // SAFETY: 32 bytes are read.
        let halves = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn float16(bytes: &[u8; 32]) -> __m512 {
        // SAFETY: 32 bytes are read.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn round_to_float16(vector: __m512) -> __m512 {
        _mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn int8(numbers: &[u8; UNIT], zero: __m512, scale: __m512) -> [__m512; 2] {
        // SAFETY: 32 bytes are read.
        let read = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
        // One permutation puts each byte into the lowest place of a lane, and the bytes of the base into the others.
        let base = _mm512_set1_epi32(BYTE_BASE.cast_signed());
        let bytes = _mm512_castsi256_si512(_mm256_xor_si256(read, _mm256_set1_epi8(-128)));
        let half =
            |places| sub_mul(_mm512_castsi512_ps(_mm512_permutex2var_epi8(bytes, places, base)), zero, scale);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let places = _mm512_or_si512(lanes, _mm512_set1_epi32(0x4342_4100));
        [half(places), half(_mm512_add_epi32(places, _mm512_set1_epi32(16)))]
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn numbers4(zero: __m512, scale: __m512) -> __m512 {
        let codes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let codes = _mm512_xor_si512(codes, _mm512_set1_epi32(BYTE_BASE.cast_signed()));
        sub_mul(_mm512_castsi512_ps(codes), zero, scale)
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn uint4(numbers: &[u8; 16], table: __m512) -> [__m512; 2] {
        // SAFETY: sixteen bytes are read.
        let read = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(numbers.as_ptr().cast()) });
        // The upper four bits of each byte become the lower ones of a second copy. A permutation of numbers reads the
        // lower four bits of a lane.
        let copies = _mm512_castsi256_si512(_mm256_srlv_epi64(read, _mm256_setr_epi64x(0, 0, 4, 4)));
        let half = |places| _mm512_permutexvar_ps(_mm512_permutexvar_epi8(places, copies), table);
        let places = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        [half(places), half(_mm512_add_epi32(places, _mm512_set1_epi32(8)))]
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn mxfp6(block: &[u8; MX_BYTES]) -> [__m512; 2] {
        // SAFETY: the mask selects the 24 bytes after the exponent.
        let read = unsafe { _mm256_maskz_loadu_epi8(0xff_ffff, block.as_ptr().wrapping_add(1).cast()) };
        let spread = _mm512_permutexvar_epi8(words(&PLACES), _mm512_castsi256_si512(read));
        // A permutation reads the lower six bits of a word.
        let shifts = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0, 6, 6, 4, 4, 2, 2));
        let codes = _mm512_srlv_epi16(spread, shifts);
        let halves = _mm512_permutex2var_epi16(words(&NUMBERS[0]), codes, words(&NUMBERS[1]));
        let first = _mm512_slli_epi32::<16>(halves);
        let second = _mm512_and_si512(halves, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        [_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)]
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn transposed([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (first, second) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        let (ab, cd) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (third, fourth) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        [_mm512_castpd_ps(first), _mm512_castpd_ps(second), _mm512_castpd_ps(third), _mm512_castpd_ps(fourth)]
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[inline]
    pub(super) fn sums([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let four = |vector| {
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(vector)));
            avx2::fold(_mm256_add_ps(_mm512_castps512_ps256(vector), upper))
        };
        avx2::sums([four(a), four(b), four(c), four(d)])
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(super) fn run<T: Task>(simd: Avx512, task: T) {
        task.run(simd);
    }
}

/// Defines the operations that each family implements with its own function or with an intrinsic.
macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $call:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: a value of this type exists, so the machine has the instructions. Reads and writes use
            // references of their size; a prefetch accepts any address, accesses no memory and cannot fault.
            unsafe { $call }
        }
    )*};
}

impl Simd for Avx2 {
    type V = avx2::Pair;
    type Numbers4 = [avx2::Pair; 2];
    const IS_WIDE: bool = false;

    operations! {
        splat(number: f32) -> Self::V = avx2::splat(number);
        load(numbers: &[f32; LANES]) -> Self::V = avx2::load(numbers.as_ptr());
        store(vector: Self::V, numbers: &mut [f32; LANES]) -> () = avx2::store(vector, numbers);
        add(a: Self::V, b: Self::V) -> Self::V = avx2::add(a, b);
        mul(a: Self::V, b: Self::V) -> Self::V = avx2::mul(a, b);
        mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V = avx2::mul_add(a, b, c);
        float32(bytes: &[u8; 64]) -> Self::V = avx2::load(bytes.as_ptr().cast());
        float16(bytes: &[u8; 32]) -> Self::V = avx2::float16(bytes);
        bfloat16(bytes: &[u8; 32]) -> Self::V = avx2::bfloat16(bytes);
        round_to_float16(vector: Self::V) -> Self::V = avx2::round_to_float16(vector);
        int8(bytes: &[u8; UNIT], zero: Self::V, scale: Self::V) -> [Self::V; 2] = avx2::int8(bytes, zero, scale);
        mxfp6(block: &[u8; MX_BYTES]) -> [Self::V; 2] = avx2::mxfp6(block);
        uint4(bytes: &[u8; 16], numbers: Self::Numbers4) -> [Self::V; 2] = avx2::uint4(bytes, numbers);
        transposed(vectors: [Self::V; 4]) -> [Self::V; 4] = avx2::pairs_transposed(vectors);
        sums(vectors: [Self::V; 4]) -> [f32; 4] = avx2::pair_sums(vectors);
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(address.cast());
        prefetch_near(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }

    #[inline(always)]
    fn numbers4(self, zero: Self::V, scale: Self::V) -> Self::Numbers4 {
        [zero, scale]
    }

    fn run<T: Task>(self, task: T) {
        // SAFETY: as above.
        unsafe { avx2::run(self, task) }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    type Numbers4 = __m512;
    const IS_WIDE: bool = true;

    operations! {
        splat(number: f32) -> Self::V = _mm512_set1_ps(number);
        load(numbers: &[f32; LANES]) -> Self::V = _mm512_loadu_ps(numbers.as_ptr());
        store(vector: Self::V, numbers: &mut [f32; LANES]) -> () = _mm512_storeu_ps(numbers.as_mut_ptr(), vector);
        add(a: Self::V, b: Self::V) -> Self::V = _mm512_add_ps(a, b);
        mul(a: Self::V, b: Self::V) -> Self::V = _mm512_mul_ps(a, b);
        mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V = _mm512_fmadd_ps(a, b, c);
        float32(bytes: &[u8; 64]) -> Self::V = _mm512_loadu_ps(bytes.as_ptr().cast());
        float16(bytes: &[u8; 32]) -> Self::V = avx512::float16(bytes);
        bfloat16(bytes: &[u8; 32]) -> Self::V = avx512::bfloat16(bytes);
        round_to_float16(vector: Self::V) -> Self::V = avx512::round_to_float16(vector);
        int8(bytes: &[u8; UNIT], zero: Self::V, scale: Self::V) -> [Self::V; 2] = avx512::int8(bytes, zero, scale);
        mxfp6(block: &[u8; MX_BYTES]) -> [Self::V; 2] = avx512::mxfp6(block);
        numbers4(zero: Self::V, scale: Self::V) -> Self::Numbers4 = avx512::numbers4(zero, scale);
        uint4(bytes: &[u8; 16], numbers: Self::Numbers4) -> [Self::V; 2] = avx512::uint4(bytes, numbers);
        transposed(vectors: [Self::V; 4]) -> [Self::V; 4] = avx512::transposed(vectors);
        sums(vectors: [Self::V; 4]) -> [f32; 4] = avx512::sums(vectors);
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(address.cast());
        prefetch_near(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }

    fn run<T: Task>(self, task: T) {
        // SAFETY: as above.
        unsafe { avx512::run(self, task) }
    }
}
