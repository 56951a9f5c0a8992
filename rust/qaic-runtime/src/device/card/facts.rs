//! What a card says of itself, for the tools that list devices.

use qaic_kmd::kmd::{MemoryErrors, NodeInfo, Telemetry};
use qaic_kmd::protocol::CardStatus;

use crate::device::Resources;
use crate::error::RuntimeError;

/// A card as the system and its firmware know it at one moment.
#[derive(Clone, Debug)]
pub struct CardFacts {
    /// Number, node, place on the bus, names and link.
    pub node: NodeInfo,
    /// Temperature and power.
    pub telemetry: Telemetry,
    /// Memory errors that it has reported.
    pub memory_errors: MemoryErrors,
    /// What its firmware says; why it could not be asked, which makes the card's state "Error".
    pub firmware: Result<FirmwareFacts, RuntimeError>,
}

/// What the firmware answers to questions for its status and its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareFacts {
    /// Everything that the status says, with resources and performance of this moment.
    pub status: CardStatus,
    /// Bits of the firmware's features, 0 when they could not be had. Bit 0: CRC required.
    pub features: u64,
}

impl FirmwareFacts {
    /// In the words of all devices.
    pub(super) fn as_resources(&self) -> Resources {
        let (status, info) = (&self.status, &self.status.resources);
        Resources {
            dram_total_mb: info.dram_total_mb.into(),
            dram_free_mb: info.dram_free_mb.into(),
            nsp_total: info.nsp_total.into(),
            nsp_free: info.nsp_free.into(),
            vc_total: info.vc_total.into(),
            vc_free: info.vc_free.into(),
            mcid_total: info.mcid_total,
            mcid_free: info.mcid_free,
            semaphore_total: info.sem_total,
            semaphore_free: info.sem_free,
            programs_loaded: status.num_loaded_nws.into(),
            programs_active: status.num_active_nws.into(),
            constants_loaded: status.num_loaded_consts,
            constants_in_use: status.num_consts_in_use,
        }
    }
}
