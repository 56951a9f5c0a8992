//! Execution of programs by the cores of emulated cards.
//!
//! An emulated card receives the same data as a real card: the ELF and the constants. From these, a [`GraphWorkload`]
//! builds the graph that the virtual cards of the host also run, so that a program has the same results on both. An
//! [`EchoWorkload`] serves programs for silicon, which no host can run, and on request all programs.

mod card_plan;
mod echo;
mod graph;
mod prepared;
mod protocol;
mod shared;

pub use echo::EchoWorkload;
pub use graph::GraphWorkload;

use qaic_emu::Requirements;
use qaic_kmd::protocol::NncStatus;
use qaic_qpc::Limits;
use qaic_qpc::metadata::{LocatedMetadata, Metadata};

use crate::process::log;

/// Refusal of images: the status for the host, and the reason for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    status: NncStatus,
    reason: String,
}

impl Refusal {
    fn metadata(reason: impl Into<String>) -> Self {
        Self { status: NncStatus::METADATA, reason: reason.into() }
    }

    fn program(reason: impl Into<String>) -> Self {
        Self { status: NncStatus::PROGRAM_ELF, reason: reason.into() }
    }

    /// Logs the reason, which a real card would write to its own log.
    fn log_refusal(self) -> NncStatus {
        let Self { status, reason } = self;
        log::global().error(|| format!("an emulated card refuses a program: {reason}"));
        status
    }
}

fn metadata_of(elf: &[u8]) -> Result<Metadata, Refusal> {
    let located = LocatedMetadata::from_elf(elf, &Limits::default());
    located.map(|located| located.metadata).map_err(|error| Refusal::metadata(error.to_string()))
}

/// Returns the needs of a program: its metadata's resources, as for virtual cards, and the memory of its activations.
fn requirements(elf: &[u8]) -> Result<Requirements, NncStatus> {
    let metadata = metadata_of(elf).map_err(Refusal::log_refusal)?;
    let heaps = metadata.network_heap_size.saturating_mul(metadata.num_nsps.into());
    Ok(Requirements {
        cores: u32::from(metadata.num_nsps).max(1),
        multicast_ids: u32::try_from(metadata.num_mc_id()).unwrap_or(u32::MAX),
        semaphores: metadata.num_semaphores.into(),
        ddr_bytes: metadata
            .static_shared_ddr_size
            .saturating_add(metadata.dynamic_shared_ddr_size)
            .saturating_add(heaps),
        image_bytes: 0,
    })
}
