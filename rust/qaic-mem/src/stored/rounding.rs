//! Arithmetic of float32 numbers whose results are rounded to narrower formats, and widening of float16.

// Inlined functions are compiled for the same instructions as their caller.
#![allow(clippy::inline_always)]

use half::{bf16, f16};

use super::simd::{LANES, Simd, Task, run};
use crate::convert::Isa;

/// Format to which results are rounded; results are always stored as float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Float32.
    #[default]
    Float32,
    /// Float16.
    Float16,
    /// Bfloat16.
    Bfloat16,
}

/// An operation on pairs of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Addition.
    Add,
    /// Subtraction of the second number.
    Sub,
    /// Multiplication.
    Mul,
    /// Division by the second number.
    Div,
}

impl Rounding {
    /// Rounds numbers with the kernels of a family, to nearest and ties to even.
    pub fn round(self, isa: Isa, numbers: &mut [f32]) {
        run(isa, Compute { operation: None, rounding: self, first: numbers, second: &[] });
    }

    /// Computes an operation with the kernels of a family, in place of its first operands, and rounds the results.
    pub fn compute(self, isa: Isa, operation: Arithmetic, first: &mut [f32], second: &[f32]) {
        run(isa, Compute { operation: Some(operation), rounding: self, first, second });
    }
}

/// Widens float16 numbers with the kernels of a family, as many as both slices contain.
pub fn widen_float16(isa: Isa, narrow: &[f16], numbers: &mut [f32]) {
    let count = narrow.len().min(numbers.len());
    run(isa, Widen { narrow: &narrow[..count], numbers: &mut numbers[..count] });
}

struct Compute<'a> {
    operation: Option<Arithmetic>,
    rounding: Rounding,
    first: &'a mut [f32],
    second: &'a [f32],
}

impl Task for Compute<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operation, rounding, first, second } = self;
        let pairs = first.iter_mut().zip(second);
        match operation {
            None => {}
            Some(Arithmetic::Add) => pairs.for_each(|(first, second)| *first += second),
            Some(Arithmetic::Sub) => pairs.for_each(|(first, second)| *first -= second),
            Some(Arithmetic::Mul) => pairs.for_each(|(first, second)| *first *= second),
            Some(Arithmetic::Div) => pairs.for_each(|(first, second)| *first /= second),
        }
        match rounding {
            Rounding::Float32 => {}
            Rounding::Float16 => round_to_float16(simd, first),
            Rounding::Bfloat16 => {
                for number in first {
                    *number = bf16::from_f32(*number).to_f32();
                }
            }
        }
    }
}

#[inline(always)]
fn round_to_float16<S: Simd>(simd: S, numbers: &mut [f32]) {
    let (vectors, rest) = numbers.as_chunks_mut();
    for numbers in vectors {
        simd.store(simd.round_to_float16(simd.load(numbers)), numbers);
    }
    if !rest.is_empty() {
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        simd.store(simd.round_to_float16(simd.load(&last)), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

struct Widen<'a> {
    narrow: &'a [f16],
    numbers: &'a mut [f32],
}

impl Task for Widen<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (vectors, rest) = self.narrow.as_chunks::<LANES>();
        let (into, into_rest) = self.numbers.as_chunks_mut();
        for (numbers, narrow) in into.iter_mut().zip(vectors) {
            simd.store(simd.float16(bytemuck::cast_ref(narrow)), numbers);
        }
        for (number, narrow) in into_rest.iter_mut().zip(rest) {
            *number = narrow.to_f32();
        }
    }
}
