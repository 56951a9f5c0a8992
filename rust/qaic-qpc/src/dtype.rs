//! Element types of tensors, with the codes of the network descriptor and `IoDesc`.

use crate::wire::open_enum::open_enum;

open_enum! {
    /// Element type of an input or output of a program.
    ///
    /// The set of codes is open: a descriptor may contain a code that this library does not know. The result is
    /// [`ElementType::Unknown`], which has no size, and which functions that need a size refuse.
    pub enum ElementType {
        /// 32-bit IEEE float.
        #[default]
        Float32 = 0,
        /// 16-bit IEEE float.
        Float16 = 1,
        /// Quantized signed 8-bit integer.
        Int8Q = 2,
        /// Quantized unsigned 8-bit integer; its offset refers to the value minus 128.
        UInt8Q = 3,
        /// Quantized signed 16-bit integer.
        Int16Q = 4,
        /// Quantized signed 32-bit integer.
        Int32Q = 5,
        /// Signed 32-bit index.
        Int32Index = 6,
        /// Signed 64-bit index.
        Int64Index = 7,
        /// Signed 8-bit integer without quantization, also used for booleans.
        Int8 = 8,
        /// bfloat16, used by newer SDKs.
        BFloat16 = 11,
    }
}

impl ElementType {
    /// Bytes of one element; `None` for an unknown type.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in -2..300 {
            assert_eq!(ElementType::from(code).code(), code);
        }
    }
}
