//! Element types of tensors as the network descriptor and `IoDesc` number them.

use serde::{Deserialize, Serialize};

/// Element type of a tensor at the program's edge.
///
/// The codes are open: a descriptor may carry a value this library does not know. Such a type is kept as
/// [`ElementType::Unknown`], has no size, and is refused where a buffer has to be sized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "i32", into = "i32")]
pub enum ElementType {
    /// 32-bit IEEE float (code 0).
    #[default]
    Float32,
    /// 16-bit IEEE float (code 1).
    Float16,
    /// Quantized signed 8-bit integer (code 2).
    Int8Q,
    /// Quantized unsigned 8-bit integer (code 3); its offset refers to the value minus 128.
    UInt8Q,
    /// Quantized signed 16-bit integer (code 4).
    Int16Q,
    /// Quantized signed 32-bit integer (code 5).
    Int32Q,
    /// Signed 32-bit index (code 6).
    Int32Index,
    /// Signed 64-bit index (code 7).
    Int64Index,
    /// Plain signed 8-bit integer, also used for booleans (code 8).
    Int8,
    /// Brain float (code 11 of newer SDKs).
    BFloat16,
    /// Any other code.
    Unknown(i32),
}

impl ElementType {
    /// The code on the wire.
    pub const fn code(self) -> i32 {
        match self {
            Self::Float32 => 0,
            Self::Float16 => 1,
            Self::Int8Q => 2,
            Self::UInt8Q => 3,
            Self::Int16Q => 4,
            Self::Int32Q => 5,
            Self::Int32Index => 6,
            Self::Int64Index => 7,
            Self::Int8 => 8,
            Self::BFloat16 => 11,
            Self::Unknown(code) => code,
        }
    }

    /// The type for a code on the wire; total, see [`ElementType::Unknown`].
    pub(crate) const fn from_code(code: i32) -> Self {
        match code {
            0 => Self::Float32,
            1 => Self::Float16,
            2 => Self::Int8Q,
            3 => Self::UInt8Q,
            4 => Self::Int16Q,
            5 => Self::Int32Q,
            6 => Self::Int32Index,
            7 => Self::Int64Index,
            8 => Self::Int8,
            11 => Self::BFloat16,
            other => Self::Unknown(other),
        }
    }

    /// Bytes of one element, `None` for an unknown type.
    pub const fn size_bytes(self) -> Option<u64> {
        match self {
            Self::Int8Q | Self::UInt8Q | Self::Int8 => Some(1),
            Self::Float16 | Self::Int16Q | Self::BFloat16 => Some(2),
            Self::Float32 | Self::Int32Q | Self::Int32Index => Some(4),
            Self::Int64Index => Some(8),
            Self::Unknown(_) => None,
        }
    }
}

impl From<i32> for ElementType {
    fn from(code: i32) -> Self {
        Self::from_code(code)
    }
}

impl From<ElementType> for i32 {
    fn from(value: ElementType) -> Self {
        value.code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in -2..300 {
            assert_eq!(ElementType::from_code(code).code(), code);
        }
    }
}
