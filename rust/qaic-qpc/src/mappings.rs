//! Buffer mappings: the flat lists of user and DMA buffers for users of a program.

use serde::{Serialize, Serializer};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::network_desc::{Direction, IoBinding, IoDescriptor, NetworkDesc};
use crate::shape;

/// Name of an unnamed buffer.
pub(crate) const NO_NAME: &str = "noname";
/// Data type code of a buffer without a data type.
pub(crate) const NO_DATA_TYPE: i32 = 9;

/// Role of a buffer; the codes differ from those of `IoDesc` directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(into = "u32")]
pub enum BufferIoType {
    /// Read by the device (code 1).
    Input,
    /// Written by the device (code 2).
    Output,
}

impl From<BufferIoType> for u32 {
    fn from(value: BufferIoType) -> Self {
        match value {
            BufferIoType::Input => 1,
            BufferIoType::Output => 2,
        }
    }
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BufferMapping {
    /// Binding name, or `noname`.
    pub buffer_name: String,
    /// Index in the list.
    pub index: u32,
    /// Role.
    pub io_type: BufferIoType,
    /// Bytes.
    pub size: u32,
    /// True if fewer bytes may be passed.
    pub is_partial_buffer_allowed: bool,
    /// Element type, `None` for DMA buffers.
    #[serde(serialize_with = "data_type_code")]
    pub data_type: Option<ElementType>,
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // The signature that serde requires.
fn data_type_code<S: Serializer>(value: &Option<ElementType>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i32(value.map_or(NO_DATA_TYPE, ElementType::code))
}

/// Returns the user buffers: all inputs, then all outputs.
pub fn user_mappings(network: &NetworkDesc) -> Result<Vec<BufferMapping>, QpcError> {
    let inputs = network.inputs.iter().map(|binding| (BufferIoType::Input, binding, &binding.io_initial));
    let outputs =
        network.outputs.iter().map(|binding| (BufferIoType::Output, binding, &binding.io_transformed));
    (0..)
        .zip(inputs.chain(outputs))
        .map(|(index, (io, binding, sized))| user(index, io, binding, sized))
        .collect()
}

fn user(
    index: u32,
    io_type: BufferIoType,
    binding: &IoBinding,
    sized: &IoDescriptor,
) -> Result<BufferMapping, QpcError> {
    let name = binding.name.split('\0').next().filter(|name| !name.is_empty()).unwrap_or(NO_NAME);
    Ok(BufferMapping {
        buffer_name: name.to_owned(),
        index,
        io_type,
        size: shape::mapping_bytes(name, sized.dtype, &sized.dims)?,
        is_partial_buffer_allowed: binding.is_partial_allowed,
        // The reference code reports the initial type, also for outputs, and not the type that determines the size.
        data_type: Some(binding.io_initial.dtype),
    })
}

/// Returns the DMA buffers by number.
pub fn dma_mappings(network: &NetworkDesc) -> Vec<BufferMapping> {
    let mapping = |(index, buffer): (u32, &crate::network_desc::DmaBuffer)| BufferMapping {
        buffer_name: NO_NAME.to_owned(),
        index,
        io_type: if buffer.dir == Direction::In { BufferIoType::Input } else { BufferIoType::Output },
        size: buffer.size,
        is_partial_buffer_allowed: false,
        data_type: None,
    };
    (0..).zip(&network.dma_buffers).map(mapping).collect()
}
