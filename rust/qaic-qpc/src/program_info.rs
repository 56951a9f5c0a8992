//! Facts about the program and the constants of a container, in the format of the vendor's interface.

use serde::Serialize;

use crate::container::{Container, Segment, names};
use crate::error::QpcError;
use crate::limits::Limits;
use crate::mappings::{self, BufferMapping};
use crate::metadata::{LocatedMetadata, Metadata};
use crate::network_desc::NetworkDesc;

/// Programs and constants of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QpcInfo {
    /// The program; always one element.
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
    /// Number of NSP cores of one activation.
    pub num_cores: u32,
    /// Always 0.
    pub program_index: u32,
    /// Size of the program's ELF file, which contains no constants; 0 if there is none.
    pub size: u64,
    /// Batch size that the program was compiled for.
    pub batch_size: i32,
    /// Number of semaphores; 0 if the metadata cannot be read.
    pub num_semaphores: u32,
    /// Number of multicast ids; 0 if the metadata cannot be read.
    pub num_mc_id: u32,
    /// Device memory of one activation; 0 if the metadata cannot be read.
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
    /// Index of the segment: 0 for the constants, 1 for their descriptor, even without constants.
    pub index: u32,
    /// Number of bytes.
    pub size: u64,
}

impl QpcInfo {
    /// Collects the facts. Metadata is optional, so that tools can show a container with an unreadable ELF.
    pub fn new(container: &Container, bytes: &[u8], network: &NetworkDesc) -> Result<Self, QpcError> {
        let segment = container.segment(names::NETWORK_ELF);
        let file = segment.map(|segment| segment.payload(bytes));
        let metadata = file.and_then(|file| LocatedMetadata::from_elf(file, &Limits::default()).ok());
        let metadata = metadata.as_ref().map(|located| &located.metadata);
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

/// Total of shared memory, constants, and a heap per core.
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

/// Returns the constants segments. Sizes have 64 bits and are correct. The reference wraps sizes at 4 GiB, and counts
/// constants twice if all are dynamic.
pub(crate) fn constants_info(container: &Container) -> Result<Vec<ConstantsInfo>, QpcError> {
    let constants = container.segment(names::CONSTANTS).filter(|segment| segment.size() != 0);
    let descriptor = container.required(names::CONSTANTS_DESC)?;
    let info =
        |index, segment: &Segment| ConstantsInfo { name: segment.name.clone(), index, size: segment.size() };
    Ok(constants.map(|segment| info(0, segment)).into_iter().chain([info(1, descriptor)]).collect())
}
