//! Expected data of an inference.

use std::collections::HashMap;

use proptest::prelude::*;
use qaic_qpc::Direction;
use qaic_runtime::binding::{Bindings, InputBinding, OutputBinding, Shapes, Window, WindowArray};

use super::program::{Program, Tensor, item_bytes};
use crate::oracle::Array;

/// Contents of outputs before an inference.
const UNTOUCHED: u8 = 0xcc;

/// Inputs and outputs of one inference, as numbers that select them.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    seed: u64,
    choices: Vec<u8>,
}

/// The echo of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    DmaBuffers,
    Tensors,
}

/// A few inferences.
pub(crate) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = (any::<u64>(), prop::collection::vec(any::<u8>(), 24))
        .prop_map(|(seed, choices)| Call { seed, choices });
    prop::collection::vec(call, 1..5)
}

/// Numbers for one call, taken from the numbers that proptest drew.
struct Draw<'a> {
    state: u64,
    choices: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl Draw<'_> {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| {
                self.state = self
                    .state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                self.state.to_le_bytes()[7]
            })
            .collect()
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(*self.choices.next().unwrap()) % limit.max(1)
    }
}

/// A box of a tensor.
#[derive(Clone, Debug)]
struct Area {
    origin: Vec<usize>,
    extent: Vec<usize>,
}

impl Area {
    fn draw(draw: &mut Draw<'_>, dims: &[usize]) -> Self {
        let origin: Vec<usize> = dims.iter().map(|&dim| draw.below(dim)).collect();
        let extent = dims.iter().zip(&origin).map(|(dim, at)| 1 + draw.below(dim - at)).collect();
        Self { origin, extent }
    }

    /// Returns the places of the box's elements in a tensor of these dims, in the order of the box.
    fn places(&self, dims: &[usize]) -> Vec<usize> {
        let count = self.extent.iter().product();
        (0..count)
            .map(|number: usize| {
                let (mut rest, mut place, mut step) = (number, 0, 1);
                for dim in (0..dims.len()).rev() {
                    place += (self.origin[dim] + rest % self.extent[dim]) * step;
                    rest /= self.extent[dim];
                    step *= dims[dim];
                }
                place
            })
            .collect()
    }

    fn window(&self, binding: usize, item_bytes: usize, array: WindowArray) -> Window {
        let mut strides = vec![0; self.extent.len()];
        let mut step = isize::try_from(item_bytes).unwrap();
        for dim in (0..strides.len()).rev() {
            strides[dim] = step;
            step *= isize::try_from(self.extent[dim]).unwrap();
        }
        Window {
            binding,
            origin: self.origin.clone(),
            extent: self.extent.clone(),
            item_bytes,
            array,
            strides,
        }
    }
}

/// An array, and its expected contents after the inference.
#[derive(Debug)]
pub(crate) struct Expected {
    what: String,
    array: Array,
    bytes: Vec<u8>,
}

impl Expected {
    /// Checks that the expected data arrived.
    pub(crate) fn check(&self) -> Result<(), TestCaseError> {
        let found = self.array.bytes();
        prop_assert!(found == self.bytes, "{}: found {found:02x?}, expected {:02x?}", self.what, self.bytes);
        Ok(())
    }
}

/// Results of a program's inferences on a device that echoes.
#[derive(Debug)]
pub(crate) struct Model {
    program: Program,
    echo: Echo,
    buffers: Vec<Vec<u8>>,
    /// Values of the states.
    values: HashMap<usize, Vec<u8>>,
}

impl Model {
    pub(crate) fn new(program: &Program, echo: Echo) -> Self {
        let values =
            (0..program.states().end).map(|state| (state, vec![0; program.inputs[state].bytes_at_begin()]));
        Self {
            program: program.clone(),
            echo,
            buffers: program.buffers.iter().map(|&(_, bytes)| vec![0; bytes]).collect(),
            values: values.collect(),
        }
    }

    /// Binds one inference and returns the expected data.
    pub(crate) fn bind(&mut self, call: &Call, bindings: &mut Bindings) -> Vec<Expected> {
        let draw = &mut Draw { state: call.seed | 1, choices: call.choices.iter().cycle() };
        let program = self.program.clone();
        bindings.clear();
        bindings.shapes = Shapes::Variant(0);
        let mut expected = Vec::new();
        let mut given = Vec::new();
        let mut arrays = Vec::new();
        for (index, tensor) in program.inputs.iter().enumerate() {
            let is_state = index < program.states().end;
            // States are omitted, changed in boxes, or passed like other inputs.
            let how = if is_state { draw.below(4) } else { 3 };
            if how == 2 {
                self.upload(draw, index, bindings);
            }
            if how < 3 {
                if how > 0 {
                    bindings.inputs[index] = InputBinding::Retained;
                }
                given.push(self.values[&index].clone());
                continue;
            }
            let bytes = draw.bytes(tensor.bytes_at_begin());
            let array = Array::at([0, 8, 2, 1][draw.below(4)], &bytes);
            // Memory may be larger than the tensor.
            bindings.inputs[index] = InputBinding::Memory(array.memory());
            given.push(bytes);
            arrays.push(array);
        }
        let results = self.infer(&given);
        for (index, (tensor, result)) in program.outputs.iter().zip(&results).enumerate() {
            let room = match draw.below(6) {
                0 => continue,
                1 => result.len() + 5,
                2 => result.len().saturating_sub(draw.below(7)),
                3 if draw.below(2) == 0
                    && self.shares(&mut arrays, result, index, bindings, &mut expected) =>
                {
                    continue;
                }
                _ => result.len(),
            };
            let array = Array::at([0, 8, 2, 1][draw.below(4)], &vec![UNTOUCHED; room]);
            bindings.outputs[index] = OutputBinding::Memory(array.memory_mut());
            let bytes = result.iter().copied().chain([UNTOUCHED; 5]).take(room).collect();
            expected.push(Expected { what: format!("output `{}`", tensor.name), array, bytes });
        }
        for (index, (tensor, result)) in program.outputs.iter().zip(&results).enumerate() {
            if tensor.is_plain() && draw.below(3) == 0 {
                self.download(draw, index, result, bindings, &mut expected);
            }
            if index < program.states().end {
                self.values.insert(index, result.clone());
            }
        }
        expected
    }

    /// Binds an output to the array of an input, if there is one of its size.
    fn shares(
        &self,
        arrays: &mut Vec<Array>,
        result: &[u8],
        index: usize,
        bindings: &mut Bindings,
        expected: &mut Vec<Expected>,
    ) -> bool {
        let Some(at) = arrays.iter().position(|array| array.bytes().len() == result.len()) else {
            return false;
        };
        let array = arrays.swap_remove(at);
        bindings.outputs[index] = OutputBinding::Memory(array.memory_mut());
        let what = format!("output `{}`, which is an input", self.program.outputs[index].name);
        expected.push(Expected { what, array, bytes: result.to_vec() });
        true
    }

    /// Changes a box of a state.
    fn upload(&mut self, draw: &mut Draw<'_>, index: usize, bindings: &mut Bindings) {
        let tensor = &self.program.inputs[index];
        let (item, area) = (item_bytes(tensor.dtype), Area::draw(draw, &tensor.dims));
        let places = area.places(&tensor.dims);
        let bytes = draw.bytes(places.len() * item);
        let value = self.values.get_mut(&index).unwrap();
        for (place, element) in places.into_iter().zip(bytes.chunks(item)) {
            value[place * item..][..item].copy_from_slice(element);
        }
        let array = WindowArray::Source(Array::of(&bytes).memory());
        bindings.windows.push(area.window(index, item, array));
    }

    /// Requests a box of an output.
    fn download(
        &self,
        draw: &mut Draw<'_>,
        index: usize,
        result: &[u8],
        bindings: &mut Bindings,
        expected: &mut Vec<Expected>,
    ) {
        let tensor = &self.program.outputs[index];
        let (item, area) = (item_bytes(tensor.dtype), Area::draw(draw, &tensor.dims));
        let places = area.places(&tensor.dims);
        let bytes: Vec<u8> =
            places.iter().flat_map(|place| result[place * item..][..item].to_vec()).collect();
        let array = Array::of(&vec![UNTOUCHED; bytes.len()]);
        let window =
            area.window(self.program.inputs.len() + index, item, WindowArray::Target(array.memory_mut()));
        bindings.windows.push(window);
        expected.push(Expected { what: format!("a box of output `{}`", tensor.name), array, bytes });
    }

    /// The outputs of an inference with these inputs.
    fn infer(&mut self, given: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let tensors: Vec<_> =
            self.program.inputs.iter().zip(given).map(|(tensor, bytes)| tensor.through(bytes)).collect();
        for (tensor, bytes) in self.program.inputs.iter().zip(&tensors) {
            self.buffers[tensor.buffer][tensor.offset..][..bytes.len()].copy_from_slice(bytes);
        }
        let buffers = self.program.buffers.iter().zip(&self.buffers);
        let inbound: Vec<u8> = match self.echo {
            Echo::DmaBuffers => buffers
                .filter(|((dir, _), _)| *dir == Direction::In)
                .flat_map(|(_, bytes)| bytes.clone())
                .collect(),
            Echo::Tensors => tensors.concat(),
        };
        let mut source = inbound.iter().copied().cycle();
        if self.echo == Echo::Tensors {
            let outputs = self.program.outputs.iter();
            return outputs
                .map(|tensor| {
                    tensor.through(&source.by_ref().take(tensor.bytes_at_begin()).collect::<Vec<_>>())
                })
                .collect();
        }
        let outward = self.program.buffers.iter().zip(&mut self.buffers);
        for (_, bytes) in outward.filter(|((dir, _), _)| *dir == Direction::Out) {
            bytes.fill_with(|| source.next().unwrap());
        }
        let part = |tensor: &Tensor| &self.buffers[tensor.buffer][tensor.offset..][..tensor.bytes_at_begin()];
        self.program.outputs.iter().map(|tensor| tensor.through(part(tensor))).collect()
    }
}
