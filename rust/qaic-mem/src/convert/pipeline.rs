//! A sequence of element operations and permutations as one pass over the data.
//!
//! Element operations do not depend on the position of an element, so they commute with permutations. Any sequence
//! therefore equals one permutation and one chain of element operations. The pass reads each source element once and
//! writes each destination element once; intermediate values stay in a few KiB of scratch memory.

use crate::{HostSlice, HostSliceMut};

use super::transpose::{MAX_RANK, Permutation};
use super::{ElementOp, Isa, dispatch};

/// Number of words of a scratch block (4 KiB).
const SCRATCH: usize = 512;

/// One step of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An operation on every element.
    Element(ElementOp),
    /// Result dimension `k` is source dimension `shuffle[k]`.
    Transpose {
        /// Dimensions of the source.
        dims: Vec<usize>,
        /// The permutation.
        shuffle: Vec<usize>,
    },
}

/// Reason why a sequence cannot be built or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// A step reads elements of another size than the step before it writes.
    #[error("step {step} reads elements of {expected} bytes, but gets {found}")]
    ElementSize {
        /// Position of the step.
        step: usize,
        /// Bytes per element that the step reads.
        expected: usize,
        /// Bytes per element that the step before it writes.
        found: usize,
    },
    /// The permutation is invalid, has too many dimensions, or does not match the tensor.
    #[error("step {step} is not a permutation of the tensor's dimensions")]
    Shuffle {
        /// Position of the step.
        step: usize,
    },
    /// The tensor has more bytes than memory can have.
    #[error("the tensor is too large")]
    TooLarge,
    /// A buffer does not have the size of the tensor.
    #[error("{found} bytes given, {expected} expected")]
    BufferSize {
        /// Bytes of the tensor.
        expected: usize,
        /// Bytes of the buffer.
        found: usize,
    },
}

/// A fused sequence for a tensor of fixed size.
#[derive(Clone, Debug)]
pub struct Pipeline {
    elements: usize,
    source_size: usize,
    result_size: usize,
    ops: Vec<ElementOp>,
    permutation: Option<Permutation>,
}

impl Pipeline {
    /// Builds the sequence `steps` for a tensor of `elements` elements of `element_size` bytes (1, 2, 4 or 8).
    pub fn new(elements: usize, element_size: usize, steps: &[Step]) -> Result<Self, PipelineError> {
        let mut size = element_size;
        let mut ops = Vec::new();
        let mut order: Option<(Vec<usize>, Vec<usize>)> = None;
        let mut largest = size;
        for (step, what) in steps.iter().enumerate() {
            match what {
                Step::Element(op) => {
                    if op.source_size() != size {
                        return Err(PipelineError::ElementSize {
                            step,
                            expected: op.source_size(),
                            found: size,
                        });
                    }
                    size = op.result_size();
                    largest = largest.max(size);
                    ops.push(*op);
                }
                Step::Transpose { dims, shuffle } => {
                    let bad = PipelineError::Shuffle { step };
                    if !is_permutation(shuffle, dims.len()) || product(dims) != Some(elements) {
                        return Err(bad);
                    }
                    order = Some(match order {
                        None => (dims.clone(), shuffle.clone()),
                        Some((first, so_far)) => {
                            if so_far.len() != dims.len()
                                || so_far.iter().zip(dims).any(|(&from, &dim)| first[from] != dim)
                            {
                                return Err(bad);
                            }
                            let composed = shuffle.iter().map(|&k| so_far[k]).collect();
                            (first, composed)
                        }
                    });
                }
            }
        }
        elements
            .checked_mul(largest)
            .filter(|&n| isize::try_from(n).is_ok())
            .ok_or(PipelineError::TooLarge)?;
        let permutation = order.and_then(|(dims, order)| Permutation::new(&dims, &order, element_size));
        Ok(Self { elements, source_size: element_size, result_size: size, ops, permutation })
    }

    /// Bytes of the source tensor.
    pub fn source_bytes(&self) -> usize {
        self.elements * self.source_size
    }

    /// Bytes of the result tensor.
    pub fn result_bytes(&self) -> usize {
        self.elements * self.result_size
    }

    /// Returns true if the result equals the source, byte for byte.
    pub fn is_copy(&self) -> bool {
        self.ops.is_empty() && self.permutation.is_none()
    }

    /// Runs the sequence with a family of kernels. `src` and `dst` must have exactly the sizes of the two tensors. If
    /// they overlap, the result is unspecified.
    pub fn run(&self, isa: Isa, src: HostSlice<'_>, dst: HostSliceMut<'_>) -> Result<(), PipelineError> {
        check(self.source_bytes(), src.len())?;
        check(self.result_bytes(), dst.len())?;
        self.pass(isa, src, dst);
        Ok(())
    }

    /// Runs the sequence for a destination that has room for only the first bytes of the result.
    pub fn run_prefix(&self, src: HostSlice<'_>, mut dst: HostSliceMut<'_>) -> Result<(), PipelineError> {
        if dst.len() >= self.result_bytes() {
            return self.run(Isa::best(), src, dst.first(self.result_bytes()));
        }
        check(self.source_bytes(), src.len())?;
        if self.permutation.is_none() && dst.len().is_multiple_of(self.result_size) {
            // The kernels stop at the end of the shorter side.
            chain(Isa::best(), &self.ops, src, dst);
            return Ok(());
        }
        // Rare: the end cuts an element or the order changes, so the whole result is computed in a separate buffer.
        let mut whole = vec![0_u8; self.result_bytes()];
        self.pass(Isa::best(), src, HostSliceMut::of(&mut whole));
        dst.copy_from(HostSlice::of(&whole));
        Ok(())
    }

    /// Runs the pass. Both sides have the sizes of the tensors, so the internal checks cannot fail.
    fn pass(&self, isa: Isa, src: HostSlice<'_>, mut dst: HostSliceMut<'_>) {
        let complete = match &self.permutation {
            None => {
                chain(isa, &self.ops, src, dst);
                Some(())
            }
            Some(permutation) if self.ops.is_empty() => permutation.copy(src, &mut dst),
            Some(permutation) => {
                let mut scratch = [0_u64; SCRATCH];
                permutation.run(src, &mut scratch, |to, run| {
                    let bytes = run.len() / self.source_size * self.result_size;
                    chain(isa, &self.ops, run, dst.reborrow().subslice(to * self.result_size, bytes)?);
                    Some(())
                })
            }
        };
        debug_assert!(complete.is_some(), "the sizes were checked");
    }
}

/// Applies `ops` in sequence to as many elements as both sides contain.
fn chain(isa: Isa, ops: &[ElementOp], src: HostSlice<'_>, mut dst: HostSliceMut<'_>) {
    match ops {
        [] => {
            dst.copy_from(src);
        }
        [op] => dispatch::apply(isa, *op, src, dst),
        [first, middle @ .., last] => {
            let largest = ops.iter().map(|op| op.source_size().max(op.result_size())).max().unwrap_or(8);
            let (size_in, size_out) = (first.source_size(), last.result_size());
            let total = (src.len() / size_in).min(dst.len() / size_out);
            let block = SCRATCH * size_of::<u64>() / largest;
            let (mut here, mut there) = ([0_u64; SCRATCH], [0_u64; SCRATCH]);
            let mut done = 0;
            while done < total {
                let count = block.min(total - done);
                let (Some(from), Some(to)) = (
                    src.subslice(done * size_in, count * size_in),
                    dst.reborrow().subslice(done * size_out, count * size_out),
                ) else {
                    return;
                };
                dispatch::apply(isa, *first, from, HostSliceMut::of(&mut here));
                for op in middle {
                    block_op(isa, *op, count, &here, &mut there);
                    std::mem::swap(&mut here, &mut there);
                }
                let held = HostSlice::of(&here);
                dispatch::apply(isa, *last, held.subslice(0, count * last.source_size()).unwrap_or(held), to);
                done += count;
            }
        }
    }
}

fn block_op(isa: Isa, op: ElementOp, count: usize, from: &[u64], to: &mut [u64]) {
    let held = HostSlice::of(from);
    dispatch::apply(
        isa,
        op,
        held.subslice(0, count * op.source_size()).unwrap_or(held),
        HostSliceMut::of(to),
    );
}

fn check(expected: usize, found: usize) -> Result<(), PipelineError> {
    if expected == found { Ok(()) } else { Err(PipelineError::BufferSize { expected, found }) }
}

fn product(dims: &[usize]) -> Option<usize> {
    if dims.contains(&0) { Some(0) } else { dims.iter().try_fold(1_usize, |all, &dim| all.checked_mul(dim)) }
}

fn is_permutation(shuffle: &[usize], rank: usize) -> bool {
    let mut seen = [false; MAX_RANK];
    shuffle.len() == rank
        && rank <= MAX_RANK
        && shuffle.iter().all(|&k| k < rank && !std::mem::replace(&mut seen[k], true))
}
