//! The checked sequences of each permitted combination of shapes.
//!
//! The bindings describe the largest tensors; a combination uses a part of the same memory. All combinations have the
//! offsets, the DMA buffers and the operations of the bindings. Only sizes differ; equal parts are shared.

use std::sync::Arc;

use super::{BindingPlan, Direction, FLAT, Planner, TransferPlan, same_bits};
use crate::bytes::to_u64;
use crate::error::{QpcError, ShapeDefect};
use crate::network_desc::{IoBinding, IoDescriptor, NetworkDesc, TensorShape, Transform, TransformKind};

/// Maximum number of tensors of all entries. Real programs have thousands. The limit bounds the memory, which does
/// not depend on the size of the file.
const MAX_TENSORS: u64 = 1 << 20;

/// Maximum number of steps; real sequences have up to four.
const MAX_STEPS: usize = 16;

impl TransferPlan {
    /// Returns one plan per entry of `allowed_shapes`, in order, or one plan if there are no entries.
    ///
    /// Fails as [`TransferPlan::new`], and if an entry does not list every binding, has another type, or is larger
    /// than the binding. Returns [`QpcError::UnsupportedTransform`] for a permutation or a tiled layout in a binding
    /// whose dims differ between entries, because its effect on other dims is unknown.
    pub fn variants(network: &NetworkDesc) -> Result<Vec<Self>, QpcError> {
        let base = Self::new(network)?;
        if network.allowed_shapes.is_empty() {
            return Ok(vec![base]);
        }
        network.check_allowed_shapes()?;
        let tensors = to_u64(network.inputs.len()).saturating_add(to_u64(network.outputs.len()));
        if tensors.saturating_mul(to_u64(network.allowed_shapes.len())) > MAX_TENSORS {
            return Err(QpcError::LimitExceeded { what: "tensors of allowed_shapes", max: MAX_TENSORS });
        }
        let mut variants = Vec::with_capacity(network.allowed_shapes.len());
        for (entry, shapes) in (0..).zip(&network.allowed_shapes) {
            let mut shapes = shapes.shapes.iter();
            let mut side = |bindings: &[IoBinding], plans: &[Arc<BindingPlan>], direction| {
                // `shapes` has one entry per binding; it is last in the zip, so that each side takes only its own
                // entries.
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

/// One binding in one combination of shapes.
struct Variant<'a> {
    network: &'a NetworkDesc,
    entry: u64,
    binding: &'a IoBinding,
    base: &'a Arc<BindingPlan>,
    direction: Direction,
}

impl Variant<'_> {
    fn build(&self, shape: &TensorShape) -> Result<Arc<BindingPlan>, QpcError> {
        let binding = self.binding;
        let user =
            if self.direction == Direction::In { &binding.io_initial } else { &binding.io_transformed };
        if !same_bits(shape.dtype, user.dtype) {
            return Err(self.refuse(ShapeDefect::Type));
        }
        if shape.dims == user.dims {
            return Ok(Arc::clone(self.base));
        }
        let fixed =
            |transform: &Transform| transform.kind == TransformKind::Transpose || transform.layout != FLAT;
        if let Some(step) = binding.transformseq.iter().position(fixed) {
            let kind = binding.transformseq.get(step).map(|transform| transform.kind).unwrap_or_default();
            return Err(QpcError::UnsupportedTransform {
                binding: binding.name.clone(),
                step: to_u64(step),
                kind: kind.into(),
            });
        }
        if binding.transformseq.len() > MAX_STEPS {
            let max = to_u64(MAX_STEPS);
            return Err(QpcError::LimitExceeded { what: "steps of a binding with several shapes", max });
        }
        let plan = match self.plan(shape, String::new()) {
            Ok(plan) => BindingPlan { name: Arc::clone(&self.base.name), ..plan },
            // Repeats the check to report the name, which may be long and is therefore not copied for every entry.
            Err(_) => self.plan(shape, binding.name.clone())?,
        };
        // Another tensor may follow the largest shape in the buffer.
        if plan.user_bytes > self.base.user_bytes {
            return Err(self.refuse(ShapeDefect::Size));
        }
        Ok(Arc::new(plan))
    }

    fn plan(&self, shape: &TensorShape, name: String) -> Result<BindingPlan, QpcError> {
        let resized = |descriptor: &IoDescriptor| IoDescriptor { dims: shape.dims.clone(), ..*descriptor };
        let step = |transform: &Transform| Transform {
            kind: transform.kind,
            dtype: transform.dtype,
            scale: transform.scale,
            offset: transform.offset,
            layout: transform.layout,
            dims: shape.dims.clone(),
            copy_dma_buffer: transform.copy_dma_buffer.clone(),
            ..Transform::default()
        };
        let binding = IoBinding {
            name,
            io_initial: resized(&self.binding.io_initial),
            io_transformed: resized(&self.binding.io_transformed),
            transformseq: self.binding.transformseq.iter().map(step).collect(),
            ..*self.binding
        };
        Planner { binding: &binding, direction: self.direction, buffers: &self.network.dma_buffers }.build()
    }

    fn refuse(&self, defect: ShapeDefect) -> QpcError {
        QpcError::AllowedShape { entry: self.entry, binding: self.binding.name.clone(), defect }
    }
}
