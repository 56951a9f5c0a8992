//! Programs that are ready to run on emulated cards: one for each pair of loaded images, regardless of the number of
//! activations.

use std::path::PathBuf;
use std::sync::Arc;

use qaic_emu::Images;
use qaic_kmd::protocol::NncStatus;
use qaic_qpc::plan::{Dtype, PLAN_SECTION, Plan, PlanTensor, Variant};

use super::card_plan;
use super::protocol::{Protocol, Region};
use super::shared::Shared;
use super::{Refusal, metadata_of};
use crate::device::DeviceId;
use crate::device::cpu::{Constants, Description, Executable, ExecutableOptions, Parts};
use crate::error::{DeviceError, EngineError, ErrorDetail, RuntimeError};
use crate::process::CancellationToken;

/// A program that is ready to run.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) executable: Executable,
    pub(super) protocol: Protocol,
    pub(super) inputs: Vec<TensorPlace>,
    pub(super) outputs: Vec<TensorPlace>,
    pub(super) stats: Option<Region>,
    pub(super) control: Option<Region>,
}

/// Location of a tensor.
#[derive(Debug)]
pub(super) struct TensorPlace {
    /// Region with room for the largest shape.
    pub(super) region: Region,
    /// Bytes of the tensor for each set of shapes; one entry for a program without sets.
    pub(super) variant_bytes: Vec<usize>,
}

impl TensorPlace {
    /// Returns the bytes of the tensor in a set of shapes; the full size for a set that does not exist, which the
    /// engine refuses.
    pub(super) fn bytes(&self, variant: usize) -> usize {
        self.variant_bytes.get(variant).copied().unwrap_or(self.region.bytes)
    }
}

/// Programs in use, by the start addresses of their two images.
#[derive(Debug, Default)]
pub(super) struct PreparedPrograms {
    programs: Shared<(usize, usize), Prepared>,
}

impl PreparedPrograms {
    /// Returns the program of two images.
    ///
    /// Blocking: as long as preparing the program takes, if it does not exist.
    pub(super) fn get(
        &self,
        images: &Images,
        engine_candidates: &[PathBuf],
    ) -> Result<Arc<Prepared>, Refusal> {
        let key = (Arc::as_ptr(&images.elf).addr(), Arc::as_ptr(&images.constants).addr());
        self.programs.get(key, || Prepared::new(images, engine_candidates))
    }
}

impl Prepared {
    fn new(images: &Images, engine_candidates: &[PathBuf]) -> Result<Self, Refusal> {
        let metadata = metadata_of(&images.elf)?;
        let protocol = Protocol::of(&metadata)?;
        let no_plan = || Refusal::program(format!("its ELF has no section {PLAN_SECTION}"));
        let plan = card_plan::of_elf(&images.elf)?.ok_or_else(no_plan)?;
        let refused = |error: RuntimeError| Refusal::program(error.to_string());
        let whole = |buffer: Option<usize>, is_input| {
            buffer.map(|buffer| {
                let regions = &protocol.regions;
                let found =
                    regions.iter().find(|region| (region.buffer, region.is_input) == (buffer, is_input));
                found
                    .copied()
                    .ok_or_else(|| Refusal::metadata(format!("no DMA request moves buffer {buffer}")))
            })
        };
        let stats = card_plan::stats(&plan, &images.elf);
        Ok(Self {
            inputs: places(&plan, &protocol, true)?,
            outputs: places(&plan, &protocol, false)?,
            stats: whole(stats.as_ref().map(|stats| stats.buffer), false).transpose()?,
            control: whole(plan.control_buffer, true).transpose()?,
            executable: Executable::new(
                &Parts {
                    elf: &images.elf,
                    plan: Some(&plan),
                    constants: Constants::Card(Arc::clone(&images.constants)),
                    network: None,
                    device: DeviceId(0),
                },
                stats.map(Description::of_loaded),
                engine_candidates,
                &ExecutableOptions {
                    cores: u32::from(metadata.num_nsps).max(1),
                    activations: 1,
                    family: None,
                    // On emulated cards, the activation is the slow part of a load.
                    token: &CancellationToken::current(),
                },
            )
            .map_err(|error| match error.detail() {
                ErrorDetail::Engine(EngineError::Graph { .. })
                | ErrorDetail::Device(DeviceError::WrongTarget { .. })
                | ErrorDetail::Qpc(_) => refused(error),
                _ => Refusal { status: NncStatus::GENERAL, reason: error.to_string() },
            })?,
            protocol,
        })
    }
}

/// Returns the locations of the tensors of one side, computed from their offsets in the host's buffers.
fn places(plan: &Plan, protocol: &Protocol, is_input: bool) -> Result<Vec<TensorPlace>, Refusal> {
    let (plan_tensors, places) =
        if is_input { (&plan.inputs, &plan.places.inputs) } else { (&plan.outputs, &plan.places.outputs) };
    if plan_tensors.len() != places.len() {
        let reason = format!("its plan has {} tensors and places for {}", plan_tensors.len(), places.len());
        return Err(Refusal::program(reason));
    }
    let place = |(index, (plan_tensor, &(buffer, offset))): (usize, (&PlanTensor, &(usize, u64)))| {
        let nowhere =
            || Refusal::program(format!("no buffer of the card contains tensor `{}`", plan_tensor.name));
        let bytes = |dims: &[i64]| bytes_of(plan_tensor.dtype, dims).ok_or_else(nowhere);
        let largest = bytes(&plan_tensor.dims)?;
        let dims_of = |variant: &Variant| {
            let side = if is_input { &variant.inputs } else { &variant.outputs };
            let bytes = bytes(side.get(index).ok_or_else(nowhere)?)?;
            if bytes > largest { Err(nowhere()) } else { Ok(bytes) }
        };
        let mut variant_bytes = plan.variants.iter().map(dims_of).collect::<Result<Vec<_>, _>>()?;
        if variant_bytes.is_empty() {
            variant_bytes.push(largest);
        }
        let region = protocol.find(buffer, offset, largest, is_input).ok_or_else(nowhere)?;
        Ok(TensorPlace { region, variant_bytes })
    };
    plan_tensors.iter().zip(places).enumerate().map(place).collect()
}

fn bytes_of(dtype: Dtype, dims: &[i64]) -> Option<usize> {
    usize::try_from(dtype.dense_bytes(dims)?).ok()
}
