//! Execution of programs by the cores of emulated cards.
//!
//! An emulated card is given what a card of silicon is given: the ELF and the constants. From these a [`GraphWorkload`] makes
//! the graph that the virtual cards of the host run as well, so that the same program has the same results on both; for
//! programs of silicon, which no host can run, and on request for all, there is an [`EchoWorkload`].

mod card_plan;
mod echo;
mod graph;
mod prepared;
mod protocol;
mod shared;

pub use echo::EchoWorkload;
pub use graph::GraphWorkload;

use qaic_emu::workload::Requirements;
use qaic_kmd::protocol::NncStatus;
use qaic_qpc::limits::Limits;
use qaic_qpc::metadata::Metadata;

use crate::process::log;

/// Why images are refused: the status, which is all that the host gets, and the reason, which goes to the log.
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

    /// Logs the reason; a card would have a log of its own.
    fn log_refusal(self) -> NncStatus {
        let Self { status, reason } = self;
        log::global().error(|| format!("an emulated card refuses a program: {reason}"));
        status
    }
}

fn metadata_of(elf: &[u8]) -> Result<Metadata, Refusal> {
    Metadata::from_elf(elf, &Limits::default()).map_err(|error| Refusal::metadata(error.to_string()))
}

/// Returns the needs of a program: those that the accounts of virtual cards take from its metadata, and the
/// memory of its activations.
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
