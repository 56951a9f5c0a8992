//! Checks that `network.elf` can be read and agrees with the network descriptor.

use super::{Image, Report, cpu_plan};
use crate::bytes::{to_u64, u32_at};
use crate::container::names::NETWORK_ELF;
use crate::elf;
use crate::error::{QpcError, counted};
use crate::limits::Limits;
use crate::metadata::{DmaRequest, Encoding, LocatedMetadata, Metadata};
use crate::network_desc::NetworkDesc;

/// ELF section that repeats the CRC of the loadable segments.
const IMAGE_CRC_SECTION: &str = "image_crc32";

pub(super) fn validate(image: Image<'_>, network: Option<&NetworkDesc>, report: &mut Report) {
    let Some(file) = image.payload(NETWORK_ELF) else { return };
    match LocatedMetadata::from_elf(file, &Limits::default()) {
        Ok(located) => {
            if located.encoding == Encoding::Legacy {
                let message =
                    "the metadata is a legacy struct, which the open card runtime cannot load".to_owned();
                report.add_warning("qpc.legacy_encoding", NETWORK_ELF, message);
            }
            validate_metadata(&located.metadata, report);
            if let Some(network) = network {
                validate_agreement(&located.metadata, network, report);
            }
        }
        // The checks below need a readable ELF.
        Err(error @ QpcError::Elf { .. }) => return report.error(Some(NETWORK_ELF), &error),
        Err(error) => report.error(Some(NETWORK_ELF), &error),
    }
    validate_image_crc(file, report);
    cpu_plan::validate(image, network, file, report);
}

fn validate_metadata(metadata: &Metadata, report: &mut Report) {
    if metadata.network_name.is_empty() {
        report.add_error("qpc.metadata_name", NETWORK_ELF, "the metadata has no network name".to_owned());
    }
    let sizes = [
        ("numNSPs", u64::from(metadata.num_nsps)),
        ("VTCMSize", metadata.vtcm_size.into()),
        ("L2TCMSize", metadata.l2tcm_size.into()),
    ];
    for (field, value) in sizes {
        if value == 0 {
            report.add_warning(
                "qpc.metadata_zero",
                NETWORK_ELF,
                format!("metadata field {field} must not be zero"),
            );
        }
    }
    let counts = [
        ("semaphoreInitState", metadata.semaphore_init_state.len(), metadata.num_semaphores),
        ("nspMulticastTables", metadata.nsp_multicast_tables.len(), metadata.num_nsps),
    ];
    for (field, found, expected) in counts {
        // A missing list is allowed; a CPU program has none.
        if found != 0 && found != usize::from(expected) {
            let message = format!("metadata list {field} has {found} entries, {expected} expected");
            report.add_warning("qpc.metadata_count", NETWORK_ELF, message);
        }
    }
}

fn validate_agreement(metadata: &Metadata, network: &NetworkDesc, report: &mut Report) {
    if u32::from(metadata.num_nsps) != network.num_cores {
        let cores = counted(metadata.num_nsps, "core");
        let message = format!("the metadata has {cores}, but the descriptor {}", network.num_cores);
        report.add_warning("qpc.core_count", NETWORK_ELF, message);
    }
    let Some(highest) = metadata.dma_requests.iter().map(|request| request.num).max() else { return };
    let count = to_u64(network.dma_buffers.len());
    if u64::from(highest).saturating_add(1) != count {
        let message = format!("DMA requests use buffers up to {highest}, but the descriptor has {count}");
        report.add_error("qpc.dma_buffer_count", NETWORK_ELF, message);
    }
    for request in &metadata.dma_requests {
        validate_request(request, network, report);
    }
}

fn validate_request(request: &DmaRequest, network: &NetworkDesc, report: &mut Report) {
    // Size 0 means synchronization without data.
    let Some(buffer) = network.dma_buffers.get(usize::from(request.num)).filter(|_| request.size != 0) else {
        return;
    };
    let end = request.host_offset.checked_add(request.size.into());
    if end.is_none_or(|end| end > u64::from(buffer.size)) {
        let message = format!(
            "a DMA request for {} bytes at {} does not fit buffer {} of {} bytes",
            request.size, request.host_offset, request.num, buffer.size
        );
        report.add_error("qpc.dma_request", NETWORK_ELF, message);
    }
    if i32::from(request.in_out) != i32::from(buffer.dir) {
        let message = format!("a DMA request moves buffer {} in the opposite direction", request.num);
        report.add_error("qpc.dma_direction", NETWORK_ELF, message);
    }
}

fn validate_image_crc(file: &[u8], report: &mut Report) {
    let Some(Some(range)) = report.take(NETWORK_ELF, elf::section(file, IMAGE_CRC_SECTION)) else { return };
    let stored = file.get(range).and_then(|section| u32_at(section, 0));
    let Some(computed) = report.take(NETWORK_ELF, elf::load_image_crc(file)) else { return };
    if stored != Some(computed) {
        let message =
            format!("section {IMAGE_CRC_SECTION} does not contain the CRC of the image, {computed:#010x}");
        report.add_error("qpc.crc_mismatch", NETWORK_ELF, message);
    }
}
