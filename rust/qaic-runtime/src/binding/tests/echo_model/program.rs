//! Tensors in many forms, and programs of them.

use std::sync::Arc;

use proptest::prelude::*;
use qaic_mem::convert::{ElementOp, QuantParams, QuantType};
use qaic_qpc::{
    Direction, DmaBuffer, ElementType, IoBinding, IoDescriptor, NetworkDesc, Transform, TransformKind,
};
use qaic_runtime::Image;

use crate::descriptor::{copy, tensor};
use crate::echo::{container, synchronized_metadata};
use crate::oracle::{elements, transpose};

const SCALE: f32 = 0.05;
const OFFSET: i32 = -3;

/// A conversion step of a tensor.
#[derive(Clone, Debug)]
enum Step {
    Element(TransformKind, ElementType, Vec<ElementOp>),
    Transpose(Vec<usize>),
}

/// A tensor and its conversions between the caller and the device.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: ElementType,
    pub(super) dims: Vec<usize>,
    steps: Vec<Step>,
    pub(super) buffer: usize,
    pub(super) offset: usize,
}

/// A program. Its states, if there are any, come first among its inputs and outputs.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<Tensor>,
    pub(super) buffers: Vec<(Direction, usize)>,
    states: usize,
}

pub(super) fn item_bytes(dtype: ElementType) -> usize {
    usize::try_from(dtype.size_bytes().unwrap()).unwrap()
}

fn size(dtype: ElementType, dims: &[usize]) -> usize {
    dims.iter().product::<usize>() * item_bytes(dtype)
}

impl Tensor {
    /// Returns true if the tensor is not converted.
    pub(super) fn is_plain(&self) -> bool {
        self.steps.is_empty()
    }

    /// Form of the tensor after the steps.
    fn end(&self) -> (ElementType, Vec<usize>) {
        self.steps.iter().fold((self.dtype, self.dims.clone()), |(dtype, dims), step| match step {
            Step::Element(_, to, _) => (*to, dims),
            Step::Transpose(shuffle) => (dtype, shuffle.iter().map(|&k| dims[k]).collect()),
        })
    }

    pub(super) fn bytes_at_begin(&self) -> usize {
        size(self.dtype, &self.dims)
    }

    fn bytes_at_end(&self) -> usize {
        let (dtype, dims) = self.end();
        size(dtype, &dims)
    }

    /// The bytes after the steps.
    pub(super) fn through(&self, bytes: &[u8]) -> Vec<u8> {
        let start = (self.dtype, self.dims.clone(), bytes.to_vec());
        let (_, _, bytes) = self.steps.iter().fold(start, |(dtype, dims, bytes), step| match step {
            Step::Element(_, to, ops) => {
                (*to, dims, ops.iter().fold(bytes, |bytes, &op| elements(op, &bytes)))
            }
            Step::Transpose(shuffle) => {
                let turned = transpose(&bytes, item_bytes(dtype), &dims, shuffle);
                (dtype, shuffle.iter().map(|&k| dims[k]).collect(), turned)
            }
        });
        bytes
    }

    fn binding(&self, direction: Direction) -> IoBinding {
        let describe = |dtype, dims: &[usize]| IoDescriptor {
            qscale: SCALE,
            qoffset: OFFSET,
            ..tensor(dtype, &narrow(dims))
        };
        let place = [self.buffer, self.offset].map(|number| u32::try_from(number).unwrap());
        let copy = |dtype, dims: &[usize]| copy(direction, place.into(), dtype, &narrow(dims));
        let (mut dtype, mut dims) = (self.dtype, self.dims.clone());
        let mut sequence = Vec::new();
        for step in &self.steps {
            let mut transform = Transform { scale: SCALE, offset: OFFSET, ..Transform::default() };
            match step {
                Step::Element(kind, to, _) => {
                    dtype = *to;
                    transform.kind = *kind;
                }
                Step::Transpose(shuffle) => {
                    dims = shuffle.iter().map(|&k| dims[k]).collect();
                    transform.kind = TransformKind::Transpose;
                    transform.shuffle = narrow(shuffle);
                }
            }
            sequence.push(Transform { dtype, dims: narrow(&dims), ..transform });
        }
        if direction == Direction::In {
            sequence.push(copy(dtype, &dims));
        } else {
            sequence.insert(0, copy(self.dtype, &self.dims));
        }
        IoBinding {
            name: self.name.clone(),
            io_initial: describe(self.dtype, &self.dims),
            io_transformed: describe(dtype, &dims),
            transformseq: sequence,
            ..IoBinding::default()
        }
    }
}

fn narrow(numbers: &[usize]) -> Vec<i32> {
    numbers.iter().map(|&number| i32::try_from(number).unwrap()).collect()
}

/// Returns the step with this number, if there is one.
fn step(choice: u8, dtype: ElementType, rank: usize) -> Option<Step> {
    use ElementType::{Float16, Float32, Int8Q, Int16Q, Int32Q, UInt8Q};
    let params = QuantParams { scale: SCALE, offset: OFFSET };
    let integers =
        [(Int8Q, QuantType::I8), (UInt8Q, QuantType::U8), (Int16Q, QuantType::I16), (Int32Q, QuantType::I32)];
    if choice.is_multiple_of(3) {
        let mut shuffle: Vec<usize> = (0..rank).collect();
        shuffle.rotate_left(usize::from(choice / 3) % rank.max(1));
        return Some(Step::Transpose(shuffle));
    }
    let chosen = usize::from(choice / 3);
    let element = |kind, to, ops| Some(Step::Element(kind, to, ops));
    match (dtype, chosen % 5) {
        (Float32, 0) => element(TransformKind::Convert, Float16, vec![ElementOp::F32ToF16]),
        (Float16, 0) => element(TransformKind::Convert, Float32, vec![ElementOp::F16ToF32]),
        (Float32, which) => {
            let (to, kind) = integers[which - 1];
            element(TransformKind::Quantize, to, vec![ElementOp::Quantize(kind, params)])
        }
        (Float16, which) => {
            let (to, kind) = integers[which - 1];
            element(TransformKind::Quantize, to, vec![ElementOp::F16ToF32, ElementOp::Quantize(kind, params)])
        }
        (from, which) => {
            let (_, kind) = *integers.iter().find(|(dtype, _)| *dtype == from)?;
            let mut ops = vec![ElementOp::Dequantize(kind, params)];
            if which.is_multiple_of(2) {
                return element(TransformKind::Dequantize, Float32, ops);
            }
            ops.push(ElementOp::F32ToF16);
            element(TransformKind::Dequantize, Float16, ops)
        }
    }
}

/// Type, dims, choices of steps, the buffer and the gap before it.
type Parts = (ElementType, Vec<usize>, Vec<u8>, bool, usize);

fn parts() -> impl Strategy<Value = Parts> {
    use ElementType::{Float16, Float32, Int8Q, UInt8Q};
    (
        proptest::sample::select(vec![Float32, Float32, Float16, Int8Q, UInt8Q]),
        prop::collection::vec(1_usize..5, 0..4),
        prop::collection::vec(any::<u8>(), 0..5),
        any::<bool>(),
        0_usize..10,
    )
}

/// Programs of up to two states and a few other tensors, in up to two DMA buffers of each direction.
pub(crate) fn programs() -> impl Strategy<Value = Program> {
    let state = (prop::collection::vec(1_usize..5, 0..4), any::<bool>(), any::<bool>(), any::<bool>());
    let list = |range| prop::collection::vec(parts(), range);
    (prop::collection::vec(state, 0..3), list(1..4), list(1..4)).prop_map(|(states, inputs, outputs)| {
        let mut program =
            Program { inputs: Vec::new(), outputs: Vec::new(), buffers: Vec::new(), states: states.len() };
        // Buffer numbers alternate between the directions.
        program.buffers =
            [Direction::In, Direction::Out, Direction::In, Direction::Out].map(|dir| (dir, 0)).to_vec();
        for (number, (dims, is_converted, first, second)) in states.into_iter().enumerate() {
            let convert = |to, op| {
                if is_converted {
                    vec![Step::Element(TransformKind::Convert, to, vec![op])]
                } else {
                    Vec::new()
                }
            };
            let (wide, device) = (
                ElementType::Float32,
                if is_converted { ElementType::Float16 } else { ElementType::Float32 },
            );
            let name = format!("s{number}");
            let output = format!("{name}_RetainedState");
            program.add(
                Direction::In,
                (name, wide, dims.clone()),
                convert(device, ElementOp::F32ToF16),
                first,
                number,
            );
            program.add(
                Direction::Out,
                (output, device, dims),
                convert(wide, ElementOp::F16ToF32),
                second,
                3,
            );
        }
        for (dir, letter, tensors) in [(Direction::In, 'x', inputs), (Direction::Out, 'y', outputs)] {
            for (number, (dtype, dims, choices, second, gap)) in tensors.into_iter().enumerate() {
                let steps = steps(&choices, dtype, dims.len());
                program.add(dir, (format!("{letter}{number}"), dtype, dims), steps, second, gap);
            }
        }
        program
    })
}

fn steps(choices: &[u8], dtype: ElementType, rank: usize) -> Vec<Step> {
    let mut dtype = dtype;
    let mut steps = Vec::new();
    for &choice in choices {
        let Some(step) = step(choice, dtype, rank) else { continue };
        if let Step::Element(_, to, _) = &step {
            dtype = *to;
        }
        steps.push(step);
    }
    steps
}

impl Program {
    /// Adds a tensor to the `second` buffer of its direction or to the first, after a gap.
    fn add(
        &mut self,
        dir: Direction,
        (name, dtype, dims): (String, ElementType, Vec<usize>),
        steps: Vec<Step>,
        second: bool,
        gap: usize,
    ) {
        let is_input = dir == Direction::In;
        let buffer = usize::from(second) * 2 + usize::from(!is_input);
        let mut tensor = Tensor { name, dtype, dims, steps, buffer, offset: 0 };
        tensor.offset = self.buffers[buffer].1 + gap;
        self.buffers[buffer].1 =
            tensor.offset + if is_input { tensor.bytes_at_end() } else { tensor.bytes_at_begin() };
        if is_input { self.inputs.push(tensor) } else { self.outputs.push(tensor) }
    }

    /// Numbers of its states.
    pub(crate) fn states(&self) -> std::ops::Range<usize> {
        0..self.states
    }

    /// Descriptor of the program. Buffers without a tensor are omitted, because they have no bytes.
    pub(crate) fn network(&self) -> NetworkDesc {
        let size = |bytes: usize| u32::try_from(bytes).unwrap();
        NetworkDesc {
            major_version: 9,
            network_name: "echo".into(),
            inputs: self.inputs.iter().map(|tensor| tensor.binding(Direction::In)).collect(),
            outputs: self.outputs.iter().map(|tensor| tensor.binding(Direction::Out)).collect(),
            dma_buffers: self
                .buffers
                .iter()
                .map(|&(dir, bytes)| DmaBuffer { size: size(bytes), dir })
                .collect(),
            num_cores: 1,
            batch_size: 1,
            ..NetworkDesc::default()
        }
    }

    /// A container for devices without metadata.
    pub(crate) fn image(&self) -> Arc<Image> {
        container(&self.network(), &[])
    }

    /// A container for cards, which have a separate address for each buffer.
    #[cfg_attr(not(all(feature = "cpu", feature = "emu")), allow(dead_code))] // tests on cards need both features
    pub(crate) fn card_image(&self) -> Arc<Image> {
        let network = self.network();
        let metadata = synchronized_metadata(&network.dma_buffers);
        container(&network, &[("metadata_fb", &metadata.encode_flatbuffer())])
    }
}
