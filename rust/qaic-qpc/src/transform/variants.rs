//! The checked sequences of each permitted combination of shapes (qpc-format §8.2).
//!
//! The bindings describe the largest tensors; a combination fills less of the same places. So the places, the DMA
//! buffers and the operations are those of the bindings, and only sizes differ.

use super::{BindingPlan, Direction, FLAT, Planner, TransferPlan, same_bits};
use crate::bytes::to_u64;
use crate::error::{QpcError, ShapeDefect};
use crate::network_desc::{IoBinding, NetworkDesc, TensorShape, TransformKind};

impl TransferPlan {
    /// One plan per entry of `allowed_shapes`, in order; exactly one without entries.
    ///
    /// Fails as [`TransferPlan::new`], and when an entry does not list every binding, names another type, or is larger
    /// than the binding. [`QpcError::UnsupportedTransform`] is returned for a permutation or a tiled layout in a binding
    /// whose dims differ between entries: what it does to other dims cannot be derived.
    pub fn variants(network: &NetworkDesc) -> Result<Vec<Self>, QpcError> {
        let base = Self::new(network)?;
        if network.allowed_shapes.is_empty() {
            return Ok(vec![base]);
        }
        network.check_allowed_shapes()?;
        let mut variants = Vec::with_capacity(network.allowed_shapes.len());
        for (entry, shapes) in (0..).zip(&network.allowed_shapes) {
            let mut shapes = shapes.shapes.iter();
            let mut side = |bindings: &[IoBinding], plans: &[BindingPlan], direction| {
                // `shapes` has one per binding; it comes last, so that a side takes no more than its own.
                let pairs = bindings.iter().zip(plans).zip(shapes.by_ref());
                let build = |((binding, plan), shape)| {
                    Variant { network, entry, binding, base: plan, direction }.build(shape)
                };
                pairs.map(build).collect::<Result<Vec<_>, _>>()
            };
            variants.push(Self {
                inputs: side(&network.inputs, &base.inputs, Direction::In)?,
                outputs: side(&network.outputs, &base.outputs, Direction::Out)?,
                dma_sizes: base.dma_sizes.clone(),
            });
        }
        Ok(variants)
    }
}

/// One binding of one entry.
struct Variant<'a> {
    network: &'a NetworkDesc,
    entry: u64,
    binding: &'a IoBinding,
    base: &'a BindingPlan,
    direction: Direction,
}

impl Variant<'_> {
    fn build(&self, shape: &TensorShape) -> Result<BindingPlan, QpcError> {
        let binding = self.binding;
        let user =
            if self.direction == Direction::In { &binding.io_initial } else { &binding.io_transformed };
        if !same_bits(shape.dtype, user.dtype) {
            return Err(self.refuse(ShapeDefect::Type));
        }
        if shape.dims == user.dims {
            return Ok(self.base.clone());
        }
        let fixed = |transform: &crate::network_desc::Transform| {
            transform.kind == TransformKind::Transpose || transform.layout != FLAT
        };
        if let Some(step) = binding.transformseq.iter().position(fixed) {
            let kind = binding.transformseq.get(step).map(|transform| transform.kind).unwrap_or_default();
            return Err(QpcError::UnsupportedTransform {
                binding: binding.name.clone(),
                step: to_u64(step),
                kind: kind.into(),
            });
        }
        let mut resized = binding.clone();
        resized.io_initial.dims.clone_from(&shape.dims);
        resized.io_transformed.dims.clone_from(&shape.dims);
        for transform in &mut resized.transformseq {
            transform.dims.clone_from(&shape.dims);
        }
        let planner =
            Planner { binding: &resized, direction: self.direction, buffers: &self.network.dma_buffers };
        let plan = planner.build()?;
        // Behind the largest tensor another one may lie.
        if plan.user_bytes > self.base.user_bytes {
            return Err(self.refuse(ShapeDefect::Size));
        }
        Ok(plan)
    }

    fn refuse(&self, defect: ShapeDefect) -> QpcError {
        QpcError::AllowedShape { entry: self.entry, binding: self.binding.name.clone(), defect }
    }
}
