//! Whether the program for the `cpu` device, if there is one, is complete.
//!
//! Its plan and graph are sections of `network.elf`; the plan says where in `constants.bin` each initializer lies.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::{Image, Report};
use crate::bytes::range_within;
use crate::container::names::{CONSTANTS, NETWORK_ELF};
use crate::elf;
use crate::network_desc::{Direction, NetworkDesc};

/// ELF section with the resolved plan, as JSON.
const PLAN_SECTION: &str = "openqaic_plan";
/// ELF section with the ONNX graph.
const GRAPH_SECTION: &str = "openqaic_graph";
/// The versions of the plan this library knows.
const PLAN_VERSIONS: RangeInclusive<u64> = 1..=2;
/// Begin of the name of the output that carries statistics.
const STATS_OUTPUT: &str = "aiccyclecounts";
/// Bytes by which the host tells a card about an inference.
const CONTROL_BYTES: u32 = 64;
/// Initializers start at multiples of this, so that kernels may use them from the mapped file.
const INITIALIZER_ALIGNMENT: u64 = 64;

/// The part of the plan that the container can contradict; the device that runs it reads the rest.
#[derive(Deserialize)]
struct Plan {
    version: u64,
    #[serde(default)]
    initializers: Vec<Initializer>,
    #[serde(default)]
    variants: Vec<Variant>,
    #[serde(default)]
    control_buffer: Option<u64>,
}

/// Dims of all tensors in one specialization.
#[derive(Deserialize)]
struct Variant {
    inputs: Vec<Vec<i64>>,
    outputs: Vec<Vec<i64>>,
}

#[derive(Deserialize)]
struct Initializer {
    name: String,
    offset: u64,
    size: u64,
}

pub(super) fn validate(image: Image<'_>, network: Option<&NetworkDesc>, file: &[u8], report: &mut Report) {
    let Some(plan) = report.take(NETWORK_ELF, elf::section(file, PLAN_SECTION)).flatten() else { return };
    let plan: Plan = match serde_json::from_slice(file.get(plan).unwrap_or_default()) {
        Ok(plan) => plan,
        Err(error) => {
            return report.wrong("qpc.cpu_plan", NETWORK_ELF, format!("the plan cannot be read: {error}"));
        }
    };
    if !PLAN_VERSIONS.contains(&plan.version) {
        let (first, last) = (PLAN_VERSIONS.start(), PLAN_VERSIONS.end());
        let message = format!("plan version {} is not known, {first} to {last} are", plan.version);
        return report.wrong("qpc.cpu_plan_version", NETWORK_ELF, message);
    }
    match elf::section(file, GRAPH_SECTION) {
        Ok(Some(graph)) if !graph.is_empty() => {}
        Ok(_) => report.wrong("qpc.cpu_graph", NETWORK_ELF, "there is a plan but no graph".to_owned()),
        Err(error) => report.error(Some(NETWORK_ELF), &error),
    }
    if let Some(network) = network {
        validate_variants(&plan.variants, network, report);
        if let Some(number) = plan.control_buffer {
            validate_control_buffer(number, network, report);
        }
    }
    let constants = image.payload(CONSTANTS).unwrap_or_default();
    for Initializer { name, offset, size } in &plan.initializers {
        if range_within(constants.len(), *offset, *size).is_none() {
            let message = format!(
                "initializer {name}: {size} bytes at {offset} lie outside the {} bytes",
                constants.len()
            );
            report.wrong("qpc.initializer_out_of_bounds", CONSTANTS, message);
        }
        if offset.checked_rem(INITIALIZER_ALIGNMENT) != Some(0) {
            let message =
                format!("initializer {name} at {offset} is not aligned to {INITIALIZER_ALIGNMENT} bytes");
            report.odd("qpc.initializer_alignment", CONSTANTS, message);
        }
    }
}

/// The plan says what the program computes with, the descriptor what callers choose by.
fn validate_variants(variants: &[Variant], network: &NetworkDesc, report: &mut Report) {
    if variants.len() != network.allowed_shapes.len() {
        let message = format!(
            "the plan has {} specializations, the descriptor allows {} combinations of shapes",
            variants.len(),
            network.allowed_shapes.len()
        );
        return report.wrong("qpc.cpu_plan_variants", NETWORK_ELF, message);
    }
    // The output of the statistics is no tensor of the plan.
    let last = network.outputs.last().filter(|_| network.stats.is_some());
    let extra = usize::from(last.is_some_and(|output| output.name.starts_with(STATS_OUTPUT)));
    for (number, (variant, entry)) in variants.iter().zip(&network.allowed_shapes).enumerate() {
        let dims = variant.inputs.iter().chain(&variant.outputs);
        let allowed = entry.shapes.iter().map(|shape| shape.dims.iter().copied().map(i64::from));
        let same_count = dims.clone().count().checked_add(extra) == Some(entry.shapes.len());
        let same_dims = dims.zip(allowed).all(|(dims, allowed)| dims.iter().copied().eq(allowed));
        if variant.inputs.len() != network.inputs.len() || !same_count || !same_dims {
            let message =
                format!("specialization {number} of the plan is not entry {number} of allowed_shapes");
            report.wrong("qpc.cpu_plan_variants", NETWORK_ELF, message);
        }
    }
}

/// What the host says there must reach the device, and not be a tensor as well.
fn validate_control_buffer(number: u64, network: &NetworkDesc, report: &mut Report) {
    let buffer = usize::try_from(number).ok().and_then(|number| network.dma_buffers.get(number));
    let has_room = buffer.is_some_and(|buffer| buffer.dir == Direction::In && buffer.size >= CONTROL_BYTES);
    let mut copies = network.inputs.iter().flat_map(|input| &input.transformseq);
    let is_shared = copies
        .any(|step| step.copy_dma_buffer.as_ref().is_some_and(|copy| u64::from(copy.buffer_num) == number));
    if !has_room || is_shared {
        let message = format!(
            "DMA buffer {number} is no control buffer: one has {CONTROL_BYTES} bytes, goes in, and holds no tensor"
        );
        report.wrong("qpc.control_buffer", NETWORK_ELF, message);
    }
}
