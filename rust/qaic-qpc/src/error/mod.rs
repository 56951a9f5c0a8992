//! Errors of containers, as data: callers match on variants and codes, never on text.

mod catalogue;
mod report;

use thiserror::Error;

pub use report::{ErrorReport, Figure};

/// Which of the four meanings an error has; decides the exception class and whether user or author of a container has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes break a rule of the format.
    Malformed,
    /// The bytes follow a version of the format that this library does not read.
    Version,
    /// The bytes ask for more than [`crate::limits::Limits`] allows.
    Limit,
    /// The caller asked for something that the format cannot express.
    Misuse,
}

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
    /// A position lies outside the buffer.
    #[error("a position lies outside the buffer")]
    OutOfBounds,
    /// A position is not a multiple of the alignment of what lies there.
    #[error("a position is not aligned")]
    Misaligned,
    /// The table of field positions has an odd size.
    #[error("the field table is invalid")]
    FieldTable,
    /// A string is not UTF-8 or not NUL-terminated.
    #[error("a string is invalid")]
    Text,
}

/// Why an ELF file cannot be read.
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
    /// A section's bytes lie outside the file.
    #[error("a section lies outside the file")]
    SectionData,
    /// A loadable segment's bytes lie outside the file, or it is smaller in memory than in the file.
    #[error("a loadable segment is out of range")]
    LoadSegment,
}

/// Why a segment name cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum NameDefect {
    /// The name lies outside the container.
    #[error("lies outside the container")]
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
    /// The name has a NUL inside (only a writer can be asked for that).
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
    /// Scale or offset differ from what the tensor says.
    #[error("scale or offset is invalid")]
    Quantization,
    /// The permutation is none, or has another rank than the tensor.
    #[error("shuffle is not a permutation of the dims")]
    Shuffle,
    /// The DMA copy is missing, or not at the DMA end of the sequence, or there are two.
    #[error("the DMA copy must be the last step of an input and the first of an output")]
    CopyPlace,
    /// A DMA copy without its parameters.
    #[error("the DMA copy has no parameters")]
    CopyParameters,
}

/// Why a binding cannot have a permitted shape.
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

/// Everything the crate reports.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum QpcError {
    // Container.
    /// Fewer bytes than a header.
    #[error("a container has at least {needed} bytes, found {found}")]
    #[allow(missing_docs)]
    TooShort { needed: u64, found: u64 },
    /// Not a container.
    #[error("not a QPC: it starts with {found:#010x}, expected 0x00a1cd7c")]
    #[allow(missing_docs)]
    BadMagic { found: u32 },
    /// The header's size is not the size given.
    #[error("the header declares {declared} bytes, the file has {actual}")]
    #[allow(missing_docs)]
    SizeMismatch { declared: u64, actual: u64 },
    /// Only self-contained containers can be stored.
    #[error("compression type {found} is not supported; only self-contained containers are")]
    #[allow(missing_docs)]
    CompressionType { found: u16 },
    /// The segment table lies outside the container, or inside its header.
    #[error("the table of {count} segments at {pointer:#x} (base {base:#x}) lies outside the {size} bytes")]
    #[allow(missing_docs)]
    TableOutOfBounds { pointer: u64, base: u64, count: u64, size: u64 },
    /// A segment's name cannot be read.
    #[error("the name of segment {index} {defect}")]
    #[allow(missing_docs)]
    SegmentName { index: u64, defect: NameDefect },
    /// A payload lies outside the container.
    #[error("segment {segment}: {len} bytes at {pointer:#x} (base {base:#x}) lie outside the {size} bytes")]
    #[allow(missing_docs)]
    PayloadOutOfBounds { segment: String, pointer: u64, base: u64, len: u64, size: u64 },
    /// The static part of the constants is larger than the constants.
    #[error("constants.bin has {size} bytes, but its static part has {offset}")]
    #[allow(missing_docs)]
    ConstantsOffset { offset: u64, size: u64 },
    /// Two regions overlap; `first` and `second` are segment names or `header`, `segment table`, `segment names`.
    #[error("{first} and {second} overlap at byte {at}")]
    #[allow(missing_docs)]
    SegmentOverlap { first: String, second: String, at: u64 },
    /// Two segments have one name.
    #[error("segment {name} occurs twice")]
    #[allow(missing_docs)]
    DuplicateSegment { name: String },
    /// A segment every program has is not there.
    #[error("segment {name} is missing")]
    #[allow(missing_docs)]
    MissingSegment { name: String },
    /// A segment of fixed layout is too short.
    #[error("segment {segment} has {found} bytes, expected at least {needed}")]
    #[allow(missing_docs)]
    SegmentTooShort { segment: String, needed: u64, found: u64 },
    /// A payload is not what it was when the container was written.
    #[error(
        "segment {segment}: the stored CRC is {stored:#010x}, that of the data is {computed:#010x}; the file is damaged"
    )]
    #[allow(missing_docs)]
    CrcMismatch { segment: String, stored: u32, computed: u32 },

    // Messages.
    /// A protobuf message cannot be decoded.
    #[error("{message} at byte {offset}: {defect}")]
    #[allow(missing_docs)]
    Wire { message: &'static str, offset: u64, defect: WireDefect },

    // Network descriptor.
    /// An element type without a size where a size is needed.
    #[error("binding {binding}: unknown element type {code}")]
    #[allow(missing_docs)]
    UnknownElementType { binding: String, code: i32 },
    /// A negative dim.
    #[error("binding {binding}: dim {dim} is negative")]
    #[allow(missing_docs)]
    NegativeDim { binding: String, dim: i32 },
    /// A tensor of more bytes than the format can say (32 bits).
    #[error("binding {binding}: a tensor must have fewer than 2^32 bytes")]
    #[allow(missing_docs)]
    TensorTooLarge { binding: String },
    /// An output's first stage is one that needs a stage before it.
    #[error("output {binding} begins with transform kind {kind}, which has no input")]
    #[allow(missing_docs)]
    StageWithoutPredecessor { binding: String, kind: i32 },
    /// A stage that no open implementation can execute.
    #[error("binding {binding}, step {step}: transform kind {kind} cannot be executed for these types")]
    #[allow(missing_docs)]
    UnsupportedTransform { binding: String, step: u64, kind: i32 },
    /// A stage that does not fit its neighbors.
    #[error("binding {binding}, step {step}: {defect}")]
    #[allow(missing_docs)]
    TransformMismatch { binding: String, step: u64, defect: StepDefect },
    /// A DMA buffer number without a DMA buffer.
    #[error("binding {binding}: DMA buffer {buffer} does not exist; the program has {count}")]
    #[allow(missing_docs)]
    DmaBufferIndex { binding: String, buffer: u32, count: u64 },
    /// A tensor that does not fit its DMA buffer.
    #[error("binding {binding}: {len} bytes at {offset} do not fit DMA buffer {buffer} of {size} bytes")]
    #[allow(missing_docs)]
    DmaOutOfBounds { binding: String, buffer: u32, offset: u64, len: u64, size: u64 },
    /// A copy against the direction of its buffer or of its binding.
    #[error("binding {binding}: DMA buffer {buffer} has the other direction")]
    #[allow(missing_docs)]
    DmaDirection { binding: String, buffer: u32 },
    /// A partial input that is not a one-dimensional plain copy.
    #[error("binding {binding}: a partial input must be one-dimensional and not converted")]
    #[allow(missing_docs)]
    PartialInput { binding: String },
    /// `allowed_shapes` has an entry that does not list every binding.
    #[error("allowed_shapes entry {entry} has {found} tensors, {expected} expected")]
    #[allow(missing_docs)]
    AllowedShapes { entry: u64, found: u64, expected: u64 },
    /// `allowed_shapes` has an entry that the binding cannot carry.
    #[error("allowed_shapes entry {entry}, binding {binding}: {defect}")]
    #[allow(missing_docs)]
    AllowedShape { entry: u64, binding: String, defect: ShapeDefect },

    // Constants.
    /// An initializer begins where kernels may not use it.
    #[error(
        "initializer `{name}` begins at byte {offset} of constants.bin, which is no multiple of {needed}; the engine \
         uses it where it lies: compile the model again"
    )]
    #[allow(missing_docs)]
    InitializerAlignment { name: String, offset: u64, needed: u64 },
    /// The constants begin where kernels may not use them.
    #[error(
        "initializer `{name}` has elements of {needed} bytes, and constants.bin begins at byte {start}; the engine uses \
         it where it lies: write the container with aligned segments"
    )]
    #[allow(missing_docs)]
    ConstantsAlignment { name: String, start: u64, needed: u64 },

    // ELF and metadata.
    /// `network.elf` cannot be read.
    #[error("network.elf: {defect}")]
    #[allow(missing_docs)]
    Elf { defect: ElfDefect },
    /// `network.elf` has neither `metadata_fb` nor `metadata`.
    #[error("network.elf has no metadata section")]
    MetadataMissing,
    /// The metadata is no valid `FlatBuffer`.
    #[error("metadata, {table} at byte {offset}: {defect}")]
    #[allow(missing_docs)]
    FlatBuffer { table: &'static str, offset: u64, defect: FlatDefect },
    /// The legacy metadata struct points outside its section.
    #[error("legacy metadata: {field} lies outside the {size} bytes")]
    #[allow(missing_docs)]
    LegacyMetadata { field: &'static str, size: u64 },
    /// The metadata has another major version.
    #[error("metadata version {found} is not supported; expected {supported}")]
    #[allow(missing_docs)]
    MetadataVersion { found: u16, supported: u16 },
    /// The metadata demands a feature this library does not know.
    #[error("the metadata requires the unknown field {field}")]
    #[allow(missing_docs)]
    UnknownRequiredField { field: String },

    // Limits.
    /// Decoding needs more than the caller allows.
    #[error("the limit on {what} ({max}) is exceeded")]
    #[allow(missing_docs)]
    LimitExceeded { what: &'static str, max: u64 },

    // Misuse.
    /// A name that a container cannot have.
    #[error("segment name {name:?} {defect}")]
    #[allow(missing_docs)]
    InvalidName { name: String, defect: NameDefect },
    /// The file layout cannot be written without segments.
    #[error("a container needs at least one segment")]
    EmptyContainer,
    /// An alignment that is no power of two of at least 8.
    #[error("alignment {found} is not a power of two of at least 8")]
    #[allow(missing_docs)]
    InvalidAlignment { found: u64 },
    /// More bytes than the format can address.
    #[error("{what} would be too large")]
    #[allow(missing_docs)]
    TooLarge { what: &'static str },
    /// A user buffer larger than its tensor, or a list of another length than the bindings.
    #[error("{binding}: {found} given, at most {max} possible")]
    #[allow(missing_docs)]
    BufferSize { binding: String, found: u64, max: u64 },
}

impl QpcError {
    /// A stable name for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "qpc.too_short",
            Self::BadMagic { .. } => "qpc.bad_magic",
            Self::SizeMismatch { .. } => "qpc.size_mismatch",
            Self::CompressionType { .. } => "qpc.compression_type",
            Self::TableOutOfBounds { .. } => "qpc.table_out_of_bounds",
            Self::SegmentName { .. } => "qpc.segment_name",
            Self::PayloadOutOfBounds { .. } => "qpc.payload_out_of_bounds",
            Self::ConstantsOffset { .. } => "qpc.constants_offset",
            Self::SegmentOverlap { .. } => "qpc.segment_overlap",
            Self::DuplicateSegment { .. } => "qpc.duplicate_segment",
            Self::MissingSegment { .. } => "qpc.missing_segment",
            Self::SegmentTooShort { .. } => "qpc.segment_too_short",
            Self::CrcMismatch { .. } => "qpc.crc_mismatch",
            Self::Wire { .. } => "qpc.wire",
            Self::UnknownElementType { .. } => "qpc.unknown_element_type",
            Self::NegativeDim { .. } => "qpc.negative_dim",
            Self::TensorTooLarge { .. } => "qpc.tensor_too_large",
            Self::StageWithoutPredecessor { .. } => "qpc.stage_without_predecessor",
            Self::UnsupportedTransform { .. } => "qpc.unsupported_transform",
            Self::TransformMismatch { .. } => "qpc.transform_mismatch",
            Self::DmaBufferIndex { .. } => "qpc.dma_buffer_index",
            Self::DmaOutOfBounds { .. } => "qpc.dma_out_of_bounds",
            Self::DmaDirection { .. } => "qpc.dma_direction",
            Self::PartialInput { .. } => "qpc.partial_input",
            Self::AllowedShapes { .. } => "qpc.allowed_shapes",
            Self::AllowedShape { .. } => "qpc.allowed_shape",
            Self::InitializerAlignment { .. } => "qpc.initializer_alignment",
            Self::ConstantsAlignment { .. } => "qpc.constants_alignment",
            Self::Elf { .. } => "qpc.elf",
            Self::MetadataMissing => "qpc.metadata_missing",
            Self::FlatBuffer { .. } => "qpc.flatbuffer",
            Self::LegacyMetadata { .. } => "qpc.legacy_metadata",
            Self::MetadataVersion { .. } => "qpc.metadata_version",
            Self::UnknownRequiredField { .. } => "qpc.unknown_required_field",
            Self::LimitExceeded { .. } => "qpc.limit_exceeded",
            Self::InvalidName { .. } => "qpc.invalid_name",
            Self::EmptyContainer => "qpc.empty_container",
            Self::InvalidAlignment { .. } => "qpc.invalid_alignment",
            Self::TooLarge { .. } => "qpc.too_large",
            Self::BufferSize { .. } => "qpc.buffer_size",
        }
    }

    /// Which of the four meanings the error has.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::MetadataVersion { .. } | Self::UnknownRequiredField { .. } => ErrorKind::Version,
            Self::LimitExceeded { .. } => ErrorKind::Limit,
            Self::InvalidName { .. }
            | Self::EmptyContainer
            | Self::InvalidAlignment { .. }
            | Self::TooLarge { .. }
            | Self::BufferSize { .. } => ErrorKind::Misuse,
            _ => ErrorKind::Malformed,
        }
    }
}
