//! Checks that a plan matches the other parts of its container, which determine the buffer sizes.

use std::collections::HashSet;

use super::{CONTROL_BYTES, Initializer, Plan, PlanError};
use crate::bytes::to_u64;
use crate::network_desc::{Direction, NetworkDesc};

impl Plan {
    /// Checks that each tensor of the plan matches the binding at its index, and each specialization the permitted
    /// combination that selects it.
    pub fn check_network(&self, network: &NetworkDesc) -> Result<(), PlanError> {
        self.check_tensors(network)?;
        self.check_variants(network)
    }

    fn check_tensors(&self, network: &NetworkDesc) -> Result<(), PlanError> {
        let computed = network.computed_outputs();
        if self.inputs.len() != network.inputs.len() || self.outputs.len() != computed.len() {
            return Err(PlanError::TensorCount {
                inputs: self.inputs.len(),
                outputs: self.outputs.len(),
                expected_inputs: network.inputs.len(),
                expected_outputs: computed.len(),
            });
        }
        if let Some(partial) = network.inputs.iter().find(|binding| binding.is_partial_allowed) {
            return Err(PlanError::PartialInput { input: partial.name.clone() });
        }
        let inputs = self.inputs.iter().zip(&network.inputs);
        let inputs = inputs.map(|(tensor, binding)| (tensor, binding, &binding.io_transformed));
        let outputs = self.outputs.iter().zip(computed);
        let outputs = outputs.map(|(tensor, binding)| (tensor, binding, &binding.io_initial));
        for (tensor, binding, device_side) in inputs.chain(outputs) {
            let same_dims = tensor.dims.iter().copied().eq(device_side.dims.iter().copied().map(i64::from));
            let same_size = device_side.dtype.size_bytes() == Some(tensor.dtype.size_bytes());
            if tensor.name != binding.name || !same_dims || !same_size {
                return Err(PlanError::Tensor {
                    tensor: format!("`{}` ({} {:?})", tensor.name, tensor.dtype.name(), tensor.dims),
                    binding: format!("`{}` ({:?} {:?})", binding.name, device_side.dtype, device_side.dims),
                });
            }
        }
        Ok(())
    }

    /// Checks that specializations match. The program computes with those of the plan, but callers select those of
    /// the descriptor.
    fn check_variants(&self, network: &NetworkDesc) -> Result<(), PlanError> {
        let (found, expected) = (self.variants.len(), network.allowed_shapes.len());
        if found != expected {
            return Err(PlanError::VariantCount { found, expected });
        }
        let bindings = network.inputs.len().saturating_add(network.outputs.len());
        for (number, (variant, entry)) in self.variants.iter().zip(&network.allowed_shapes).enumerate() {
            let dims = variant.inputs.iter().chain(&variant.outputs);
            let allowed = entry.shapes.iter().map(|shape| shape.dims.iter().copied().map(i64::from));
            // The output of the statistics, the last binding, is not a tensor of the plan.
            let is_same = variant.inputs.len() == self.inputs.len()
                && variant.outputs.len() == self.outputs.len()
                && entry.shapes.len() == bindings
                && dims.zip(allowed).all(|(dims, allowed)| dims.iter().copied().eq(allowed));
            if !is_same {
                return Err(PlanError::Variant { number });
            }
        }
        Ok(())
    }

    /// Checks that the control buffer exists, is large enough, is inbound, and contains no tensor.
    pub fn check_control_buffer(&self, network: &NetworkDesc) -> Result<(), PlanError> {
        let Some(number) = self.control_buffer else { return Ok(()) };
        let refused = |found: String| Err(PlanError::ControlBuffer { number, found });
        let Some(buffer) = network.dma_buffers.get(number) else {
            return refused("which does not exist".to_owned());
        };
        if u64::from(buffer.size) < to_u64(CONTROL_BYTES) {
            return refused(format!("which has {} bytes", buffer.size));
        }
        if buffer.dir != Direction::In {
            return refused("which is an output".to_owned());
        }
        let mut copies = network.inputs.iter().flat_map(|input| &input.transformseq);
        let holds_tensor = copies.any(|step| {
            step.copy_dma_buffer.as_ref().is_some_and(|copy| u64::from(copy.buffer_num) == to_u64(number))
        });
        if holds_tensor { refused("which contains a tensor".to_owned()) } else { Ok(()) }
    }
}

impl Plan {
    /// Checks that each initializer has its size within `len` bytes of constants, which begin at `start` of a mapping
    /// or file, and that no two share a name or bytes.
    pub fn check_initializers(&self, len: usize, start: u64) -> Result<(), PlanError> {
        self.initializers.iter().try_for_each(|initializer| initializer.range(len, start).map(drop))?;
        self.check_distinct()
    }

    /// Checks that no two initializers share a name or bytes.
    pub(crate) fn check_distinct(&self) -> Result<(), PlanError> {
        let mut names = HashSet::new();
        if let Some(twice) = self.initializers.iter().find(|initializer| !names.insert(&initializer.name)) {
            return Err(PlanError::Duplicate { name: twice.name.clone() });
        }
        let mut sorted: Vec<_> =
            self.initializers.iter().filter(|initializer| initializer.size > 0).collect();
        sorted.sort_by_key(|initializer| initializer.offset);
        let overlaps =
            |one: &Initializer, other: &Initializer| one.offset.saturating_add(one.size) > other.offset;
        match sorted.iter().zip(sorted.iter().skip(1)).find(|(one, other)| overlaps(one, other)) {
            Some((one, other)) => Err(PlanError::Overlap {
                name: other.name.clone(),
                other: one.name.clone(),
                offset: other.offset,
            }),
            None => Ok(()),
        }
    }
}
