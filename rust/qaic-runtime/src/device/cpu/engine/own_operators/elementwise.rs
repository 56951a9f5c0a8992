//! Arithmetic on single elements whose results are rounded, in one pass over the memory.
//!
//! `Elementwise(operands...)` computes an expression of float32 operands, which broadcast as in ONNX. The attribute
//! `steps` has the words of the expression in postfix notation:
//!
//! | word | computes |
//! |---|---|
//! | `read` | the next operand |
//! | `rotate` | the next operand, with the halves of its last axis exchanged and the numbers of the first of them negated |
//! | `add`, `sub`, `mul`, `div` | the two last results, and rounds |
//! | `round` | rounds the last result |
//!
//! `rounding` is the ONNX type to which all steps round.

use std::ops::Range;

use qaic_mem::convert::Isa;
use qaic_mem::stored::{Arithmetic, Rounding};

use super::Attributes;
use super::call::{Call, Operand};

/// Number of elements that a step computes at a time.
const BLOCK_LEN: usize = 512;
/// Number of elements that one thread computes at a time.
const PART_LEN: usize = 1 << 13;
/// Minimum number of elements for which several threads compute.
const PARALLEL_LEN: usize = 1 << 15;
/// Maximum number of results that wait for a later step.
const MOST_WAITING: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Rotate,
    Round,
    Compute(Arithmetic),
}

impl Step {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "read" => Self::Read,
            "rotate" => Self::Rotate,
            "round" => Self::Round,
            "add" => Self::Compute(Arithmetic::Add),
            "sub" => Self::Compute(Arithmetic::Sub),
            "mul" => Self::Compute(Arithmetic::Mul),
            "div" => Self::Compute(Arithmetic::Div),
            _ => return None,
        })
    }

    /// Number of earlier results that the step uses.
    const fn uses(self) -> usize {
        match self {
            Self::Read | Self::Rotate => 0,
            Self::Round => 1,
            Self::Compute(_) => 2,
        }
    }
}

/// The kernel of an `Elementwise`.
#[derive(Debug)]
pub(super) struct ElementwiseKernel {
    steps: Vec<Step>,
    operands: usize,
    // Maximum number of results that wait at the same time.
    waiting: usize,
    rounding: Rounding,
}

/// An operand in the order of the result.
#[derive(Debug)]
struct Source<'a> {
    numbers: &'a [f32],
    // Distance of neighbors along each axis of the result; 0 if the operand is repeated.
    strides: Vec<usize>,
}

/// The result's shape, and rows of it in which each operand is either contiguous or one number.
#[derive(Debug)]
struct Grid<'a> {
    dims: Vec<usize>,
    len: usize,
    row_len: usize,
    // Number of axes whose positions select a row.
    outer: usize,
    sources: Vec<Source<'a>>,
}

impl<'a> Grid<'a> {
    /// Broadcasts operands, each with its dims; fails if they do not fit.
    fn new(operands: &[(Vec<usize>, &'a [f32])]) -> Result<Self, String> {
        let rank = operands.iter().map(|(dims, _)| dims.len()).max().unwrap_or(0);
        let mut dims = vec![1; rank];
        for (found, _) in operands {
            for (dim, &found) in dims[rank - found.len()..].iter_mut().zip(found) {
                match (*dim, found) {
                    (1, _) => *dim = found,
                    (dim, found) if found == 1 || found == dim => {}
                    (dim, found) => return Err(format!("dims {found} and {dim} of one axis")),
                }
            }
        }
        let sources: Vec<_> =
            operands.iter().map(|(dims, numbers)| Source::new(dims, rank, numbers)).collect();
        // Axes from the last on belong to a row as long as every operand remains contiguous or one number.
        let last = dims.iter().rposition(|&dim| dim != 1);
        let is_repeated = |source: &Source<'_>| last.is_none_or(|last| source.strides[last] == 0);
        let (mut row_len, mut outer) = (1, rank);
        while let Some(axis) = outer.checked_sub(1) {
            let fits =
                |source: &Source<'_>| source.strides[axis] == if is_repeated(source) { 0 } else { row_len };
            if dims[axis] != 1 && !sources.iter().all(fits) {
                break;
            }
            row_len *= dims[axis];
            outer = axis;
        }
        let len = dims.iter().product();
        Ok(Self { dims, len, row_len, outer, sources })
    }

    /// Copies elements of an operand, from the element `first` of a row on.
    fn read(&self, operand: usize, row: usize, first: usize, into: &mut [f32]) {
        let source = &self.sources[operand];
        let start = self.start(source, row);
        if source.strides[self.outer..].iter().all(|&stride| stride == 0) {
            into.fill(source.numbers[start]);
        } else {
            into.copy_from_slice(&source.numbers[start + first..][..into.len()]);
        }
    }

    /// Copies elements of an operand for which [`Grid::rotates`] is true.
    fn read_rotated(&self, operand: usize, row: usize, first: usize, into: &mut [f32]) {
        let source = &self.sources[operand];
        let start = self.start(source, row);
        let width = self.dims.last().copied().unwrap_or(1);
        let mut done = 0;
        while done < into.len() {
            let position = (first + done) % width;
            let is_first_half = position < width / 2;
            let half_end = if is_first_half { width / 2 } else { width };
            let end = into.len().min(done + half_end - position);
            let into = &mut into[done..end];
            let at = start + first + done;
            if is_first_half {
                let numbers = &source.numbers[at + width / 2..];
                into.iter_mut().zip(numbers).for_each(|(into, number)| *into = -number);
            } else {
                into.copy_from_slice(&source.numbers[at - width / 2..][..into.len()]);
            }
            done = end;
        }
    }

    /// Returns true if the last axis of an operand has two halves, and is that of the result.
    fn rotates(&self, operand: usize) -> bool {
        let is_whole = self.sources[operand].strides.last() == Some(&1);
        is_whole && self.dims.last().is_some_and(|dim| dim % 2 == 0)
    }

    /// Position of the first element of a row in an operand.
    fn start(&self, source: &Source<'_>, row: usize) -> usize {
        if source.numbers.len() == self.len {
            return row * self.row_len;
        }
        let (mut start, mut rest) = (0, row);
        for (dim, stride) in self.dims[..self.outer].iter().zip(&source.strides[..self.outer]).rev() {
            start += rest % dim * stride;
            rest /= dim;
        }
        start
    }
}

impl<'a> Source<'a> {
    fn new(dims: &[usize], rank: usize, numbers: &'a [f32]) -> Self {
        let mut strides = vec![0; rank];
        let mut stride = 1;
        for (into, &dim) in strides.iter_mut().rev().zip(dims.iter().rev()) {
            if dim != 1 {
                *into = stride;
            }
            stride *= dim;
        }
        Self { numbers, strides }
    }
}

impl ElementwiseKernel {
    pub(super) fn new(attributes: &Attributes) -> Result<Self, String> {
        Self::parse(&attributes.text(c"steps")?, attributes.rounding()?)
    }

    fn parse(text: &str, rounding: Rounding) -> Result<Self, String> {
        let wrong = || format!("the steps `{text}`; one expression in postfix notation is expected");
        let (mut steps, mut left, mut waiting) = (Vec::new(), 0_usize, 0);
        for word in text.split_ascii_whitespace() {
            let step = Step::named(word).ok_or_else(wrong)?;
            left = left.checked_sub(step.uses()).ok_or_else(wrong)? + 1;
            waiting = waiting.max(left);
            steps.push(step);
        }
        if left != 1 || waiting > MOST_WAITING {
            return Err(wrong());
        }
        let operands = steps.iter().filter(|step| step.uses() == 0).count();
        Ok(Self { steps, operands, waiting, rounding })
    }

    pub(super) fn run(&self, call: Call) -> Result<(), String> {
        let operands: Vec<Operand> =
            (0..self.operands).map(|index| call.required(index)).collect::<Result<_, _>>()?;
        let shaped = operands.iter().map(|operand| {
            let dims = operand.dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
            // SAFETY: the engine has checked the type of every operand, and they do not change during the call.
            (dims, unsafe { operand.elements::<f32>() })
        });
        let grid = Grid::new(&shaped.collect::<Vec<_>>())?;
        let reads = self.steps.iter().filter(|step| step.uses() == 0);
        if reads.enumerate().any(|(operand, step)| *step == Step::Rotate && !grid.rotates(operand)) {
            return Err(
                "an operand whose last axis has no two halves, or is not that of the result".to_owned()
            );
        }
        let dims: Vec<i64> = grid.dims.iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect();
        let len = grid.len;
        let result = call.result(&dims, len)?;
        let part = |part: usize| {
            let range = part * PART_LEN..len.min((part + 1) * PART_LEN);
            // SAFETY: ranges of parts do not overlap, and the engine calls once for each part.
            self.compute(&grid, range.clone(), unsafe { result.part(range) });
        };
        let parts = len.div_ceil(PART_LEN);
        if len < PARALLEL_LEN {
            (0..parts).for_each(part);
            return Ok(());
        }
        call.in_parallel(parts, &part)
    }

    /// Computes a range of the result's elements.
    fn compute(&self, grid: &Grid<'_>, range: Range<usize>, result: &mut [f32]) {
        let isa = Isa::best();
        let mut results = vec![[0.0; BLOCK_LEN]; self.waiting];
        let mut at = range.start;
        while at < range.end {
            let (row, first) = (at / grid.row_len, at % grid.row_len);
            let len = BLOCK_LEN.min(grid.row_len - first).min(range.end - at);
            let (mut left, mut operand) = (0, 0);
            for &step in &self.steps {
                left -= step.uses();
                let (before, after) = results.split_at_mut(left + 1);
                let into = &mut before[left][..len];
                match step {
                    Step::Read => grid.read(operand, row, first, into),
                    Step::Rotate => grid.read_rotated(operand, row, first, into),
                    Step::Round => self.rounding.round(isa, into),
                    Step::Compute(operation) => {
                        self.rounding.compute(isa, operation, into, &after[0][..len]);
                    }
                }
                left += 1;
                operand += usize::from(step.uses() == 0);
            }
            result[at - range.start..][..len].copy_from_slice(&results[0][..len]);
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    /// Rounds one number.
    fn rounded(rounding: Rounding, number: f32) -> f32 {
        match rounding {
            Rounding::Float32 => number,
            Rounding::Float16 => f16::from_f32(number).to_f32(),
            Rounding::Bfloat16 => bf16::from_f32(number).to_f32(),
        }
    }

    /// Returns the element of an operand at a position of the result.
    fn element(dims: &[usize], numbers: &[f32], position: &[usize]) -> f32 {
        let position = &position[position.len() - dims.len()..];
        let at = dims.iter().zip(position).fold(0, |at, (dim, index)| at * dim + index.min(&(dim - 1)));
        numbers[at]
    }

    /// Returns the element of a rotated operand at a position of the result.
    fn rotated_element(dims: &[usize], numbers: &[f32], position: &[usize]) -> f32 {
        let (mut other, width) = (position.to_vec(), dims[dims.len() - 1]);
        let last = other.last_mut().unwrap();
        let is_first_half = *last < width / 2;
        *last = (*last + width / 2) % width;
        let number = element(dims, numbers, &other);
        if is_first_half { -number } else { number }
    }

    /// Computes an expression of the elements of one position, by recursion from the last word.
    fn expected(words: &mut Vec<&str>, operands: &mut Vec<f32>, rounding: Rounding) -> f32 {
        let word = words.pop().unwrap();
        if word == "read" || word == "rotate" {
            return operands.pop().unwrap();
        }
        let second = expected(words, operands, rounding);
        let result = if word == "round" {
            second
        } else {
            let first = expected(words, operands, rounding);
            match word {
                "add" => first + second,
                "sub" => first - second,
                "mul" => first * second,
                _ => first / second,
            }
        };
        rounded(rounding, result)
    }

    /// An expression with some operands.
    fn expressions() -> impl Strategy<Value = Vec<&'static str>> {
        prop_oneof![3 => Just(vec!["read"]), 1 => Just(vec!["rotate"])].prop_recursive(3, 12, 2, |inner| {
            let step = prop::sample::select(vec!["add", "sub", "mul", "div"]);
            prop_oneof![
                inner.clone().prop_map(|words| [words, vec!["round"]].concat()),
                (inner.clone(), inner, step)
                    .prop_map(|(first, second, step)| [first, second, vec![step]].concat()),
            ]
        })
    }

    proptest! {
        #[test]
        fn elements_are_computed_one_by_one(
            mut words in expressions(),
            dims in prop_oneof![
                prop::collection::vec(0_usize..4, 0..5),
                (1_usize..3, 500_usize..1100).prop_map(|(rows, len)| vec![rows, len]),
            ],
            masks in prop::collection::vec((prop::collection::vec(any::<bool>(), 5), 0_usize..5), 16),
            rounding in prop::sample::select(vec![Rounding::Float32, Rounding::Float16, Rounding::Bfloat16]),
            split in any::<prop::sample::Index>(),
        ) {
            let count = words.iter().filter(|word| ["read", "rotate"].contains(word)).count();
            // Each operand has some of the axes, or all but the first ones; the first operand has all.
            let shapes: Vec<Vec<usize>> = (0..count)
                .map(|operand| {
                    let (kept, omitted) = &masks[operand];
                    let all = dims.iter().zip(kept).map(|(dim, kept)| if *kept || operand == 0 { *dim } else { 1 });
                    all.skip(if operand == 0 { 0 } else { *omitted }).collect()
                })
                .collect();
            let values = [0.1, -3.0, 70_000.0, 1e-7, -0.0, f32::INFINITY, 1.0 / 3.0, 2048.5];
            let numbers: Vec<Vec<f32>> = shapes
                .iter()
                .enumerate()
                .map(|(at, dims)| (0..dims.iter().product::<usize>()).map(|index| values[(index * 3 + at) % values.len()]).collect())
                .collect();
            let operands: Vec<_> = shapes.iter().cloned().zip(numbers.iter().map(Vec::as_slice)).collect();
            let grid = Grid::new(&operands).unwrap();
            prop_assert_eq!(&grid.dims, &dims);
            let mut is_rotated = Vec::new();
            for word in words.iter_mut().filter(|word| ["read", "rotate"].contains(word)) {
                let operand = is_rotated.len();
                let width = shapes[operand].last().copied().unwrap_or(1);
                prop_assert_eq!(grid.rotates(operand), width % 2 == 0 && Some(&width) == dims.last());
                if !grid.rotates(operand) {
                    *word = "read";
                }
                is_rotated.push(*word == "rotate");
            }
            let kernel = ElementwiseKernel::parse(&words.join(" "), rounding).unwrap();
            prop_assert_eq!(kernel.operands, count);
            let mut result = vec![0.0; grid.len];
            let middle = split.index(grid.len + 1);
            let (before, after) = result.split_at_mut(middle);
            kernel.compute(&grid, 0..middle, before);
            kernel.compute(&grid, middle..grid.len, after);
            for (at, number) in result.iter().enumerate() {
                let mut rest = at;
                let mut position: Vec<usize> = dims.iter().rev().map(|dim| { let index = rest % dim; rest /= dim; index }).collect();
                position.reverse();
                let mut elements: Vec<f32> = operands
                    .iter()
                    .zip(&is_rotated)
                    .map(|((dims, numbers), is_rotated)| {
                        if *is_rotated { rotated_element(dims, numbers, &position) } else { element(dims, numbers, &position) }
                    })
                    .collect();
                let expected = expected(&mut words.clone(), &mut elements, rounding);
                prop_assert!(number.to_bits() == expected.to_bits() || (number.is_nan() && expected.is_nan()), "{number} {expected}");
            }
        }
    }

    #[test]
    fn steps_that_are_no_expression_are_refused() {
        let parse = |text: &str| ElementwiseKernel::parse(text, Rounding::Float16);
        for text in
            ["", "round", "read add", "read read", "read read mul add", "read square", &"read ".repeat(17)]
        {
            let failure = parse(text).unwrap_err();
            assert_eq!(
                failure,
                format!("the steps `{text}`; one expression in postfix notation is expected")
            );
        }
        let kernel = parse(&format!("{}{}", "read ".repeat(16), "sub ".repeat(15))).unwrap();
        assert_eq!((kernel.operands, kernel.waiting), (16, 16));
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let failure = Grid::new(&[(vec![2, 3], &[0.0; 6]), (vec![2], &[0.0; 2])]).unwrap_err();
        assert_eq!(failure, "dims 2 and 3 of one axis");
    }
}
