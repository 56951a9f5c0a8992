//! One example of every error, for the reference page that lists codes and exceptions.

use super::{ElfDefect, FlatDefect, NameDefect, QpcError, ShapeDefect, StepDefect, WireDefect};

impl QpcError {
    /// One example of each variant, in the order of the variants.
    pub fn examples() -> Vec<Self> {
        let binding = || "image".to_owned();
        let segment = || "network.elf".to_owned();
        vec![
            Self::TooShort { needed: 64, found: 10 },
            Self::BadMagic { found: 0x0403_4b50 },
            Self::SizeMismatch { declared: 4096, actual: 1024 },
            Self::CompressionType { found: 2 },
            Self::TableOutOfBounds { pointer: 0x2000, base: 0, count: 4, size: 4096 },
            Self::SegmentName { index: 2, defect: NameDefect::Unterminated },
            Self::PayloadOutOfBounds { segment: segment(), pointer: 0x800, base: 0, len: 8192, size: 4096 },
            Self::ConstantsOffset { offset: 8192, size: 4096 },
            Self::SegmentOverlap { first: segment(), second: "constants.bin".to_owned(), at: 512 },
            Self::DuplicateSegment { name: segment() },
            Self::MissingSegment { name: segment() },
            Self::SegmentTooShort { segment: "constantsdesc.bin".to_owned(), needed: 16, found: 3 },
            Self::CrcMismatch {
                segment: "constants.bin".to_owned(),
                stored: 0x1a2b_3c4d,
                computed: 0x5e6f_7a8b,
            },
            Self::Wire { message: "network descriptor", offset: 17, defect: WireDefect::VarintTruncated },
            Self::UnknownElementType { binding: binding(), code: 99 },
            Self::NegativeDim { binding: binding(), dim: -1 },
            Self::TensorTooLarge { binding: binding() },
            Self::StageWithoutPredecessor { binding: binding(), kind: 1 },
            Self::UnsupportedTransform { binding: binding(), step: 0, kind: 9 },
            Self::TransformMismatch { binding: binding(), step: 1, defect: StepDefect::Dims },
            Self::DmaBufferIndex { binding: binding(), buffer: 3, count: 2 },
            Self::DmaOutOfBounds { binding: binding(), buffer: 0, offset: 64, len: 64, size: 100 },
            Self::DmaDirection { binding: binding(), buffer: 0 },
            Self::PartialInput { binding: binding() },
            Self::AllowedShapes { entry: 1, found: 2, expected: 3 },
            Self::AllowedShape { entry: 1, binding: binding(), defect: ShapeDefect::Size },
            Self::InitializerAlignment { name: "w".to_owned(), offset: 65, needed: 64 },
            Self::ConstantsAlignment { name: "w".to_owned(), start: 1025, needed: 4 },
            Self::Elf { defect: ElfDefect::Header },
            Self::MetadataMissing,
            Self::FlatBuffer { table: "metadata", offset: 40, defect: FlatDefect::OutOfBounds },
            Self::LegacyMetadata { field: "dma requests", size: 128 },
            Self::MetadataVersion { found: 9, supported: 0 },
            Self::UnknownRequiredField { field: "newField".to_owned() },
            Self::LimitExceeded { what: "segments", max: 64 },
            Self::InvalidName { name: String::new(), defect: NameDefect::Empty },
            Self::EmptyContainer,
            Self::InvalidAlignment { found: 3 },
            Self::TooLarge { what: "the container" },
            Self::BufferSize { binding: binding(), found: 128, max: 64 },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_an_example() {
        let text = include_str!("mod.rs");
        let in_text: BTreeSet<&str> =
            text.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let examples: BTreeSet<&str> = QpcError::examples().iter().map(QpcError::code).collect();
        assert_eq!(examples, in_text);
    }
}
