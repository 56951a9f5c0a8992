//! Checks that the network descriptor is consistent.

use std::collections::HashSet;

use super::{Report, Severity};
use crate::bytes::to_u64;
use crate::container::names::NETWORK_DESC;
use crate::error::QpcError;
use crate::io_desc::IoDesc;
use crate::mappings;
use crate::network_desc::{Direction, IoBinding, MAJOR_VERSION, NetworkDesc};
use crate::transform::{TransferPlan, is_copy_only};

/// Maximum number of dims in the vendor's interfaces.
const MAX_DIMS: usize = 8;

pub(super) fn validate(network: &NetworkDesc, report: &mut Report) {
    validate_header(network, report);
    report.take(NETWORK_DESC, mappings::user_mappings(network).map(drop));
    report.take(NETWORK_DESC, IoDesc::from_network(network).map(drop));
    match TransferPlan::new(network) {
        Ok(plan) => {
            validate_overlaps(&plan, report);
            validate_transfers(TransferPlan::variants(network).err(), report);
        }
        Err(error) => {
            validate_transfers(Some(error), report);
            report.take(NETWORK_DESC, network.check_allowed_shapes());
        }
    }
    if !is_copy_only(network) {
        let message = "the open card runtime refuses transforms other than a single DMA copy".to_owned();
        report.add_warning("qpc.not_copy_only", NETWORK_DESC, message);
    }
    validate_bindings(network, report);
    validate_buffer_numbers(network, report);
}

fn validate_transfers(error: Option<QpcError>, report: &mut Report) {
    match error {
        None => {}
        // A card may be able to execute the step.
        Some(error @ QpcError::UnsupportedTransform { .. }) => {
            report.add_warning(error.code(), NETWORK_DESC, error.to_string());
        }
        Some(error) => report.error(Some(NETWORK_DESC), &error),
    }
}

fn validate_header(network: &NetworkDesc, report: &mut Report) {
    if network.major_version != MAJOR_VERSION || network.minor_version != 0 {
        let message = format!(
            "descriptor version {}.{} is unknown; {MAJOR_VERSION}.0 is expected",
            network.major_version, network.minor_version
        );
        report.add_warning("qpc.descriptor_version", NETWORK_DESC, message);
    }
    if network.num_cores == 0 {
        report.add_warning("qpc.no_cores", NETWORK_DESC, "the program occupies no cores".to_owned());
    }
    let groups = to_u64(network.thread_group_names.len());
    if let Some(group) = network.thread_groups.iter().find(|&&group| u64::from(group) >= groups) {
        let message = format!("a thread is in group {group}, but there are {groups} group names");
        report.add_warning("qpc.thread_group", NETWORK_DESC, message);
    }
    if network.dma_buffers.is_empty() || (network.inputs.is_empty() && network.outputs.is_empty()) {
        let message = "a program without DMA buffers or without bindings cannot be run".to_owned();
        report.add_warning("qpc.nothing_to_run", NETWORK_DESC, message);
    }
}

fn validate_bindings(network: &NetworkDesc, report: &mut Report) {
    let mut names = HashSet::new();
    for binding in network.inputs.iter().chain(&network.outputs) {
        if !names.insert(&binding.name) {
            let message = format!("two bindings have the name {:?}", binding.name);
            report.add_warning("qpc.duplicate_binding", NETWORK_DESC, message);
        }
        let ranks = [binding.io_initial.dims.len(), binding.io_transformed.dims.len()];
        if ranks.iter().any(|&rank| rank > MAX_DIMS) {
            let message = format!("binding {} has more than {MAX_DIMS} dims", binding.name);
            report.add_warning("qpc.too_many_dims", NETWORK_DESC, message);
        }
    }
    let ignored = |binding: &&IoBinding| binding.is_partial_allowed && binding.transformseq.is_empty();
    if let Some(binding) = network.inputs.iter().find(ignored) {
        let message = format!(
            "partial input {} is optimized away, which the open card runtime does not support",
            binding.name
        );
        report.add_warning("qpc.partial_input", NETWORK_DESC, message);
    }
}

/// Checks the numbers and directions of the DMA buffers that bindings do not reference.
fn validate_buffer_numbers(network: &NetworkDesc, report: &mut Report) {
    let count = to_u64(network.dma_buffers.len());
    for (index, buffer) in network.dma_buffers.iter().enumerate() {
        if let Direction::Unknown(code) = buffer.dir {
            let message = format!("DMA buffer {index} has the unknown direction {code}");
            report.add_error("qpc.dma_direction", NETWORK_DESC, message);
        }
    }
    let mut named: Vec<(&'static str, u32)> = Vec::new();
    named.extend(network.stats.iter().map(|stats| ("statistics", stats.buff_num)));
    if let Some(crc_info) = &network.crc_info {
        named.push(("CRC results", crc_info.buff_num));
        named.extend(crc_info.entries.iter().map(|entry| ("a CRC entry", entry.dma_buffer_num)));
    }
    for (what, number) in named {
        if u64::from(number) >= count {
            let message = format!("{what}: DMA buffer {number} does not exist; the program has {count}");
            report.add_error("qpc.dma_buffer_index", NETWORK_DESC, message);
        }
    }
}

/// Reports inputs that overlap in their DMA buffer.
fn validate_overlaps(plan: &TransferPlan, report: &mut Report) {
    let mut places: Vec<_> = plan
        .inputs
        .iter()
        .filter_map(|input| {
            let place = input.place?;
            let bytes = if input.partial_align.is_some() {
                crate::transform::partial::HEADER_BYTES
            } else {
                place.bytes
            };
            let start = u64::from(place.offset);
            Some((place.buffer, start, start.saturating_add(bytes), &*input.name))
        })
        .filter(|(_, start, end, _)| start < end)
        .collect();
    places.sort_unstable();
    for ((buffer, _, end, first), (next_buffer, start, _, second)) in places.iter().zip(places.iter().skip(1))
    {
        if buffer == next_buffer && start < end {
            let message =
                format!("inputs {first} and {second} overlap in DMA buffer {buffer} at byte {start}");
            report.push(Severity::Warning, "qpc.dma_overlap", Some(NETWORK_DESC), message);
        }
    }
}
