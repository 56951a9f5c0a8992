//! Buffer mappings: the flat lists of user and DMA buffers that a program shows its users.

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::network_desc::{Direction, IoBinding, IoDescriptor, NetworkDesc};
use crate::shape;

/// Name of a buffer that has none.
pub(crate) const NO_NAME: &str = "noname";
/// Data type code of a buffer that has none.
pub(crate) const NO_DATA_TYPE: i32 = 9;

/// Role of a buffer; the codes are not those of `IoDesc` directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u32")]
#[serde(try_from = "u32")]
pub enum BufferIoType {
    /// Read by the device (code 1).
    Input,
    /// Written by the device (code 2).
    Output,
}

impl BufferIoType {
    /// The code users see.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Input => 1,
            Self::Output => 2,
        }
    }
}

impl From<BufferIoType> for u32 {
    fn from(value: BufferIoType) -> Self {
        value.code()
    }
}

impl TryFrom<u32> for BufferIoType {
    type Error = String;

    fn try_from(code: u32) -> Result<Self, String> {
        match code {
            1 => Ok(Self::Input),
            2 => Ok(Self::Output),
            other => Err(format!("buffer IO type {other} does not exist")),
        }
    }
}

/// One buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BufferMapping {
    /// Binding name, or [`NO_NAME`].
    pub buffer_name: String,
    /// Position in its list.
    pub index: u32,
    /// Role.
    pub io_type: BufferIoType,
    /// Bytes.
    pub size: u32,
    /// True if fewer bytes may be passed.
    pub is_partial_buffer_allowed: bool,
    /// Element type, `None` for DMA buffers.
    #[serde(with = "data_type_code")]
    pub data_type: Option<ElementType>,
}

mod data_type_code {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{ElementType, NO_DATA_TYPE};

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // The signature serde asks for.
    pub(super) fn serialize<S: Serializer>(
        value: &Option<ElementType>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(value.map_or(NO_DATA_TYPE, ElementType::code))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ElementType>, D::Error> {
        let code = i32::deserialize(deserializer)?;
        Ok((code != NO_DATA_TYPE).then_some(ElementType::from(code)))
    }
}

/// The buffers users pass: all inputs, then all outputs.
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
        // Not the type that gives the size: users of the reference see the initial type for outputs too.
        data_type: Some(binding.io_initial.dtype),
    })
}

/// The DMA buffers by number.
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
