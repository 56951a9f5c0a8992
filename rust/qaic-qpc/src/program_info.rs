//! Facts of a container about its program and constants, in the form of the vendor's interface.

use serde::Serialize;

use crate::container::{Container, Segment, names};
use crate::error::QpcError;
use crate::limits::Limits;
use crate::mappings::{self, BufferMapping};
use crate::metadata::Metadata;
use crate::network_desc::NetworkDesc;

/// Programs and constants of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QpcInfo {
    /// Always one.
    pub programs: Vec<ProgramInfo>,
    /// The constants segments.
    pub constants: Vec<ConstantsInfo>,
}

/// Facts about a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramInfo {
    /// Program name.
    pub name: String,
    /// NSP cores one activation occupies.
    pub num_cores: u32,
    /// Always 0.
    pub program_index: u32,
    /// Bytes of the program's ELF file, which has no constants in it; 0 without one.
    pub size: u64,
    /// Batch the program was compiled for.
    pub batch_size: i32,
    /// Semaphores, 0 if the metadata cannot be read.
    pub num_semaphores: u32,
    /// Multicast ids, 0 if the metadata cannot be read.
    pub num_mc_id: u32,
    /// Device memory of one activation, 0 if the metadata cannot be read.
    pub total_required_memory: u64,
    /// True if the program was compiled with statistics.
    pub stats_available: bool,
    /// User buffers.
    pub buffer_mappings: Vec<BufferMapping>,
    /// DMA buffers.
    pub buffer_mappings_dma: Vec<BufferMapping>,
}

/// A constants segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConstantsInfo {
    /// Segment name.
    pub name: String,
    /// 0 for the constants, 1 for their descriptor, even if it is alone.
    pub index: u32,
    /// Bytes.
    pub size: u64,
}

impl QpcInfo {
    /// Derives the facts. Metadata is optional here: a container with an unreadable ELF can still be shown.
    pub fn new(container: &Container, bytes: &[u8], network: &NetworkDesc) -> Result<Self, QpcError> {
        let segment = container.segment(names::NETWORK_ELF);
        let file = segment.map(|segment| segment.payload(bytes));
        let metadata = file.and_then(|file| Metadata::from_elf(file, &Limits::default()).ok());
        let metadata = metadata.as_ref();
        let program = ProgramInfo {
            name: network.network_name.clone(),
            num_cores: network.num_cores,
            program_index: 0,
            size: segment.map_or(0, Segment::size),
            batch_size: network.batch_size,
            num_semaphores: metadata.map_or(0, |metadata| metadata.num_semaphores.into()),
            num_mc_id: metadata.map_or(0, |metadata| u32::try_from(metadata.num_mc_id()).unwrap_or(u32::MAX)),
            total_required_memory: metadata.map_or(0, required_memory),
            stats_available: network.stats.is_some(),
            buffer_mappings: mappings::user_mappings(network)?,
            buffer_mappings_dma: mappings::dma_mappings(network),
        };
        Ok(Self { programs: vec![program], constants: constants_info(container)? })
    }
}

/// Shared memory, constants, and a heap per core.
fn required_memory(metadata: &Metadata) -> u64 {
    [
        metadata.static_shared_ddr_size,
        metadata.dynamic_shared_ddr_size,
        metadata.static_constants_size,
        metadata.dynamic_constants_size,
        metadata.network_heap_size.saturating_mul(metadata.num_nsps.into()),
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

/// The constants segments. Sizes are 64-bit and right: the reference wraps them at 4 GiB, and counts constants that
/// are all dynamic twice.
pub(crate) fn constants_info(container: &Container) -> Result<Vec<ConstantsInfo>, QpcError> {
    let constants = container.segment(names::CONSTANTS).filter(|segment| segment.size() != 0);
    let descriptor = container.required(names::CONSTANTS_DESC)?;
    let info =
        |index, segment: &Segment| ConstantsInfo { name: segment.name.clone(), index, size: segment.size() };
    Ok(constants.map(|segment| info(0, segment)).into_iter().chain([info(1, descriptor)]).collect())
}
