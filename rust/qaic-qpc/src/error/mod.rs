//! Errors of containers as data. Callers compare variants and codes, never texts.

mod count;
mod report;
mod table;

use thiserror::Error;

pub use count::counted;
pub use report::{ErrorReport, Figure};

/// A defect of a protobuf message on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum WireDefect {
    /// The message ends inside a varint.
    #[error("a varint is truncated")]
    VarintTruncated,
    /// A varint does not fit 64 bits.
    #[error("a varint is longer than 64 bits")]
    VarintOverflow,
    /// A fixed-size value is cut off.
    #[error("a fixed-size value is truncated")]
    FixedTruncated,
    /// A length-delimited value reaches past the message.
    #[error("a value reaches past the end of its message")]
    LengthPastEnd,
    /// Field number 0 or above 2^29 - 1.
    #[error("a field number is out of range")]
    FieldNumber,
    /// A wire type that does not exist.
    #[error("wire type {0} does not exist")]
    WireType(u8),
    /// A group is not closed, or closed by another number.
    #[error("a group is not closed")]
    Group,
    /// A string is not UTF-8.
    #[error("field {0} is not UTF-8")]
    NotUtf8(u32),
}

/// A defect of a `FlatBuffer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum FlatDefect {
    /// A position is outside the buffer.
    #[error("a position is outside the buffer")]
    OutOfBounds,
    /// A position is not aligned for its data.
    #[error("a position is not aligned")]
    Misaligned,
    /// The table of field positions has an odd size.
    #[error("the field table is invalid")]
    FieldTable,
    /// A string is not UTF-8 or not NUL-terminated.
    #[error("a string is invalid")]
    Text,
}

/// Reason why an ELF file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ElfDefect {
    /// The identification or the file header is invalid.
    #[error("the file header is invalid")]
    Header,
    /// The section table or the section name table is invalid.
    #[error("the section table is invalid")]
    SectionTable,
    /// The program header table is invalid.
    #[error("the program header table is invalid")]
    ProgramHeaders,
    /// A section's bytes are outside the file.
    #[error("a section is outside the file")]
    SectionData,
    /// A loadable segment's bytes are outside the file, or it is smaller in memory than in the file.
    #[error("a loadable segment is out of range")]
    LoadSegment,
}

/// Reason why a segment name cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum NameDefect {
    /// The name is outside the container.
    #[error("is outside the container")]
    OutOfBounds,
    /// No NUL ends the name inside the container.
    #[error("is not terminated")]
    Unterminated,
    /// The name is empty.
    #[error("is empty")]
    Empty,
    /// The name is longer than [`crate::limits::Limits::max_name_bytes`].
    #[error("is too long")]
    TooLong,
    /// The name is not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// The name contains a NUL, which can occur only in a writer's input.
    #[error("contains a NUL")]
    EmbeddedNul,
}

/// A disagreement between two neighboring stages of a transform sequence, or between a stage and its DMA
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum StepDefect {
    /// The element type differs from what the stage receives or must deliver.
    #[error("element types do not fit")]
    Type,
    /// The dims differ from what the stage receives or must deliver.
    #[error("dims do not fit")]
    Dims,
    /// Scale or offset differ from those of the tensor.
    #[error("scale or offset is invalid")]
    Quantization,
    /// The permutation is invalid, or has another rank than the tensor.
    #[error("shuffle is not a permutation of the dims")]
    Shuffle,
    /// The DMA copy is missing or duplicated, or is not at the DMA end of the sequence.
    #[error("the DMA copy must be the last step of an input and the first of an output")]
    CopyPlace,
    /// A DMA copy without its parameters.
    #[error("the DMA copy has no parameters")]
    CopyParameters,
}

/// Reason why a binding cannot have a permitted shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum ShapeDefect {
    /// The element type is not that of the binding.
    #[error("the element type differs from the binding")]
    Type,
    /// The tensor has more bytes than the binding has room for.
    #[error("the tensor is larger than the binding")]
    Size,
}

crate::errors! {
    /// An error of this crate.
    #[derive(Clone, Debug, PartialEq, Error)]
    pub enum QpcError: "QpcFormatError" {
        // Container.
        /// Fewer bytes than a header.
        #[error("a container has at least {needed} bytes, found {found}")]
        TooShort { needed: u64 = 64, found: u64 = 10 } => "qpc.too_short",
        /// The bytes are not a container.
        #[error("not a QPC: it starts with {found:#010x}, expected 0x00a1cd7c")]
        BadMagic { found: u32 = 0x0403_4b50 } => "qpc.bad_magic",
        /// The size in the header differs from the actual size.
        #[error("the header declares {declared} bytes, the file has {actual}")]
        SizeMismatch { declared: u64 = 4096, actual: u64 = 1024 } => "qpc.size_mismatch",
        /// Only self-contained containers can be stored.
        #[error("compression type {found} is not supported; expected a self-contained container")]
        CompressionType { found: u16 = 2 } => "qpc.compression_type",
        /// The segment table is outside the container, or inside its header.
        #[error("the table of {count} segments at {pointer:#x} (base {base:#x}) is outside the {size} bytes")]
        TableOutOfBounds {
            pointer: u64 = 0x2000, base: u64 = 0, count: u64 = 4, size: u64 = 4096,
        } => "qpc.table_out_of_bounds",
        /// A segment's name cannot be read.
        #[error("the name of segment {index} {defect}")]
        SegmentName { index: u64 = 2, defect: NameDefect = NameDefect::Unterminated } => "qpc.segment_name",
        /// A payload is outside the container.
        #[error("segment {segment}: {len} bytes at {pointer:#x} (base {base:#x}) are outside the {size} bytes")]
        PayloadOutOfBounds {
            segment: String = "network.elf".into(), pointer: u64 = 0x800, base: u64 = 0, len: u64 = 8192,
            size: u64 = 4096,
        } => "qpc.payload_out_of_bounds",
        /// The static part of the constants is larger than the constants.
        #[error("constants.bin has {size} bytes, but its static part has {offset}")]
        ConstantsOffset { offset: u64 = 8192, size: u64 = 4096 } => "qpc.constants_offset",
        /// Two regions overlap; `first` and `second` are segment names or `header`, `segment table`, `segment names`.
        #[error("{first} and {second} overlap at byte {at}")]
        SegmentOverlap {
            first: String = "network.elf".into(), second: String = "constants.bin".into(), at: u64 = 512,
        } => "qpc.segment_overlap",
        /// Two segments have one name.
        #[error("segment {name} occurs twice")]
        DuplicateSegment { name: String = "network.elf".into() } => "qpc.duplicate_segment",
        /// A segment that every program requires is missing.
        #[error("segment {name} is missing")]
        MissingSegment { name: String = "network.elf".into() } => "qpc.missing_segment",
        /// A segment of fixed layout is too short.
        #[error("segment {segment} has {found} bytes, expected at least {needed}")]
        SegmentTooShort {
            segment: String = "constantsdesc.bin".into(), needed: u64 = 16, found: u64 = 3,
        } => "qpc.segment_too_short",
        /// A payload has changed since the container was written.
        #[error(
            "segment {segment} of {container} is damaged: the CRC of its data is {computed:#010x}, expected {stored:#010x}"
        )]
        CrcMismatch {
            segment: String = "constants.bin".into(), container: String = "programqpc.bin".into(),
            stored: u32 = 0x1a2b_3c4d, computed: u32 = 0x5e6f_7a8b,
        } => "qpc.crc_mismatch" hint "copy the container again, or compile the model again",
        // Messages.
        /// A protobuf message cannot be decoded.
        #[error("{message} at byte {offset}: {defect}")]
        Wire {
            message: &'static str = "network descriptor", offset: u64 = 17,
            defect: WireDefect = WireDefect::VarintTruncated,
        } => "qpc.wire",
        // Network descriptor.
        /// The element type has no known size.
        #[error("binding {binding}: unknown element type {code}")]
        UnknownElementType { binding: String = "image".into(), code: i32 = 99 } => "qpc.unknown_element_type",
        /// A negative dim.
        #[error("binding {binding}: dim {dim} is negative")]
        NegativeDim { binding: String = "image".into(), dim: i32 = -1 } => "qpc.negative_dim",
        /// A tensor has more bytes than the format can represent (32 bits).
        #[error("binding {binding}: a tensor must have fewer than 2^32 bytes")]
        TensorTooLarge { binding: String = "image".into() } => "qpc.tensor_too_large",
        /// The first stage of an output requires a stage before it.
        #[error("output {binding} begins with transform kind {kind}, which has no input")]
        StageWithoutPredecessor {
            binding: String = "image".into(), kind: i32 = 1,
        } => "qpc.stage_without_predecessor",
        /// No open implementation can execute the stage.
        #[error("binding {binding}, step {step}: transform kind {kind} cannot be executed for these types")]
        UnsupportedTransform {
            binding: String = "image".into(), step: u64 = 0, kind: i32 = 9,
        } => "qpc.unsupported_transform",
        /// A stage does not match its neighbors.
        #[error("binding {binding}, step {step}: {defect}")]
        TransformMismatch {
            binding: String = "image".into(), step: u64 = 1, defect: StepDefect = StepDefect::Dims,
        } => "qpc.transform_mismatch",
        /// A DMA buffer number without a DMA buffer.
        #[error("binding {binding}: DMA buffer {buffer} does not exist; the program has {count}")]
        DmaBufferIndex {
            binding: String = "image".into(), buffer: u32 = 3, count: u64 = 2,
        } => "qpc.dma_buffer_index",
        /// A tensor does not fit its DMA buffer.
        #[error("binding {binding}: {len} bytes at {offset} do not fit DMA buffer {buffer} of {size} bytes")]
        DmaOutOfBounds {
            binding: String = "image".into(), buffer: u32 = 0, offset: u64 = 64, len: u64 = 64, size: u64 = 100,
        } => "qpc.dma_out_of_bounds",
        /// The direction of a copy differs from that of its buffer or its binding.
        #[error("binding {binding}: DMA buffer {buffer} transfers in the opposite direction")]
        DmaDirection { binding: String = "image".into(), buffer: u32 = 0 } => "qpc.dma_direction",
        /// A partial input is not a one-dimensional copy without conversion.
        #[error("binding {binding}: a partial input must be one-dimensional and not converted")]
        PartialInput { binding: String = "image".into() } => "qpc.partial_input",
        /// An entry of `allowed_shapes` does not list every binding.
        #[error("allowed_shapes entry {entry} has {found} tensors, {expected} expected")]
        AllowedShapes { entry: u64 = 1, found: u64 = 2, expected: u64 = 3 } => "qpc.allowed_shapes",
        /// An entry of `allowed_shapes` does not match its binding.
        #[error("allowed_shapes entry {entry}, binding {binding}: {defect}")]
        AllowedShape {
            entry: u64 = 1, binding: String = "image".into(), defect: ShapeDefect = ShapeDefect::Size,
        } => "qpc.allowed_shape",
        // Constants.
        /// An initializer is not aligned for kernels.
        #[error(
            "initializer `{name}` begins at byte {offset} of constants.bin, which is not a multiple of {needed}, so \
             the engine cannot use it in the mapped file; compile the model again"
        )]
        InitializerAlignment {
            name: String = "w".into(), offset: u64 = 65, needed: u64 = 64,
        } => "qpc.initializer_alignment",
        /// The constants are not aligned for kernels.
        #[error(
            "initializer `{name}` has elements of {needed} bytes, but constants.bin begins at byte {start}, so the \
             engine cannot use it in the mapped file; write the container with aligned segments"
        )]
        ConstantsAlignment {
            name: String = "w".into(), start: u64 = 1025, needed: u64 = 4,
        } => "qpc.constants_alignment",
        // ELF and metadata.
        /// The file `network.elf` cannot be read.
        #[error("network.elf: {defect}")]
        Elf { defect: ElfDefect = ElfDefect::Header } => "qpc.elf",
        /// The file `network.elf` has neither `metadata_fb` nor `metadata`.
        #[error("network.elf has no metadata section")]
        MetadataMissing => "qpc.metadata_missing",
        /// The metadata is not a valid `FlatBuffer`.
        #[error("metadata, {table} at byte {offset}: {defect}")]
        FlatBuffer {
            table: &'static str = "metadata", offset: u64 = 40, defect: FlatDefect = FlatDefect::OutOfBounds,
        } => "qpc.flatbuffer",
        /// A field of the legacy metadata struct is outside its section, or is text without UTF-8 or NUL.
        #[error("legacy metadata: field {field} is outside the {size} bytes, or is not UTF-8 text with a NUL")]
        LegacyMetadata { field: &'static str = "dmaRequests", size: u64 = 128 } => "qpc.legacy_metadata",
        /// The metadata has another major version.
        #[error("metadata version {found} is not supported; expected {supported}")]
        MetadataVersion { found: u16 = 9, supported: u16 = 0 } => "qpc.metadata_version" "QpcVersionError",
        /// The metadata requires a feature that this library does not support.
        #[error("the metadata requires the unknown field {field}")]
        UnknownRequiredField { field: String = "newField".into() }
            => "qpc.unknown_required_field" "QpcVersionError",
        // Limits.
        /// Decoding needs more than the caller's limit.
        #[error("the limit on {what} ({max}) is exceeded")]
        LimitExceeded { what: &'static str = "segments", max: u64 = 64 }
            => "qpc.limit_exceeded" "QpcLimitError",
        // Misuse.
        /// The name is invalid for a container.
        #[error("segment name {name:?} {defect}")]
        InvalidName {
            name: String = String::new(), defect: NameDefect = NameDefect::Empty,
        } => "qpc.invalid_name" "QpcError",
        /// The file layout cannot be written without segments.
        #[error("a container needs at least one segment")]
        EmptyContainer => "qpc.empty_container" "QpcError",
        /// The alignment is not a power of two of at least 8.
        #[error("alignment {found} is not a power of two of at least 8")]
        InvalidAlignment { found: u64 = 3 } => "qpc.invalid_alignment" "QpcError",
        /// The data exceed the address range of the format.
        #[error("{what} would be too large")]
        TooLarge { what: &'static str = "the container" } => "qpc.too_large" "QpcError",
        /// A user buffer is larger than its tensor, or a list does not have one element per binding.
        #[error("{binding}: found {found}, expected at most {max}")]
        BufferSize { binding: String = "image".into(), found: u64 = 128, max: u64 = 64 }
            => "qpc.buffer_size" "QpcError",
    }
}
