//! Element types of tensors as the network descriptor and `IoDesc` number them.

use crate::wire::open_enum::open_enum;

open_enum! {
    /// Element type of a tensor at the program's edge.
    ///
    /// The codes are open: a descriptor may carry a value this library does not know. Such a type is kept as
    /// [`ElementType::Unknown`], has no size, and is refused where a buffer has to be sized.
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
        /// Plain signed 8-bit integer, also used for booleans.
        Int8 = 8,
        /// Brain float, of newer SDKs.
        BFloat16 = 11,
    }
}

impl ElementType {
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
