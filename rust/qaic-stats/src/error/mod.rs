//! Errors of a stats buffer or its descriptor, as data: callers match on variants and codes, never on text.

mod catalogue;
mod report;

use qaic_qpc::error::QpcError;
use thiserror::Error;

use crate::decode::record::Kind;

/// Which meaning an error has; decides the exception class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are of no registered layout.
    UnknownLayout,
    /// The bytes break a rule of their layout.
    Malformed,
    /// The bytes follow a version of the layout that this library does not read.
    Version,
    /// The bytes are sound and belong to another program.
    Mismatch,
    /// The caller asked for something that the layout cannot express.
    Misuse,
}

/// Why statistics cannot be read or written.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// There is nothing but zeros.
    #[error(
        "a stats buffer of {bytes} bytes is all zeros: no device has written it; collect it from a program with statistics \
         (stats level 40 or more)"
    )]
    Empty {
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// The bytes are of no registered layout.
    #[error(
        "a stats buffer of {bytes} bytes has no known layout (the program: level {level}, {cores} cores, {threads} threads \
         a core, operations per core {ops:?}); the layout of real cards is not public, and a layout of your own can be \
         registered"
    )]
    UnknownLayout {
        /// Bytes of the buffer.
        bytes: u64,
        /// Stats level of the program; 0 where no program was given.
        level: u32,
        /// Its cores.
        cores: usize,
        /// Threads of a core.
        threads: usize,
        /// Operations of each core.
        ops: Vec<usize>,
    },
    /// A layout was asked for that is not registered.
    #[error("unknown layout {name:?}; known: {}", known.join(", "))]
    UnknownLayoutName {
        /// The requested name.
        name: String,
        /// The known names.
        known: Vec<String>,
    },
    /// A registered layout cannot read its buffer.
    #[error("layout {layout}: {what}")]
    Layout {
        /// Name of the layout.
        layout: String,
        /// Its words.
        what: String,
    },
    /// The bytes do not begin as this layout does.
    #[error("the buffer begins with {found:02x?}, expected \"OQSTATS1\"")]
    BadMagic {
        /// The first bytes.
        found: [u8; 8],
    },
    /// The producer's byte order is another one, or the bytes were damaged.
    #[error("the byte order mark is {found:#06x}, expected 0xfeff: only little-endian buffers exist")]
    ByteOrder {
        /// The value found.
        found: u16,
    },
    /// Another major version.
    #[error("the buffer has version {major}.{minor}; this library reads version 1")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// The buffer ends early.
    #[error("the buffer is truncated: {bytes} bytes of {needed}")]
    Truncated {
        /// Bytes there must be.
        needed: u64,
        /// Bytes there are.
        bytes: u64,
    },
    /// The header was damaged.
    #[error("the header is damaged: its CRC is {stored:#010x}, expected {computed:#010x}")]
    HeaderCrc {
        /// The value in the header.
        stored: u32,
        /// The value computed from the bytes.
        computed: u32,
    },
    /// The header says it is smaller than any header.
    #[error("the header has {found} bytes, expected at least 128")]
    HeaderSize {
        /// The value found.
        found: u16,
    },
    /// The entries of the directory are smaller than any entry.
    #[error("an entry of the section directory has {found} bytes, expected at least 32")]
    EntrySize {
        /// The value in the header.
        found: u32,
    },
    /// The directory lies outside the used bytes, or on the header.
    #[error(
        "the section directory ({count} entries of {entry_bytes} bytes at {offset}) does not lie between the header and the \
         end of the {used} used bytes"
    )]
    Directory {
        /// Offset of the first byte.
        offset: u64,
        /// Its entries.
        count: u32,
        /// Bytes of an entry.
        entry_bytes: u32,
        /// Used bytes of the buffer.
        used: u64,
    },
    /// More is used than there is.
    #[error("the header declares {used} used bytes, but the buffer has {capacity}")]
    UsedSize {
        /// Used bytes.
        used: u64,
        /// Bytes of the buffer.
        capacity: u64,
    },
    /// Ticks without a rate.
    #[error("the clock has a rate of 0 ticks per second")]
    ClockRate,
    /// A section begins where none may.
    #[error("section {} begins at {offset}, which is not a multiple of 64", name_of(*section))]
    SectionOffset {
        /// Kind of the section.
        section: u32,
        /// Offset of the first byte.
        offset: u64,
    },
    /// The records are smaller than those of version 1.
    #[error("records of section {} have {found} bytes, expected at least {expected}", name_of(*section))]
    RecordSize {
        /// Kind of the section.
        section: u32,
        /// Bytes of a record.
        found: u32,
        /// Bytes it has in version 1.
        expected: usize,
    },
    /// More records than room.
    #[error("section {} declares {count} records, but has room for {capacity}", name_of(*section))]
    SectionCount {
        /// Kind of the section.
        section: u32,
        /// Records.
        count: u32,
        /// Room.
        capacity: u32,
    },
    /// Two sections share bytes, or one lies on the header or the directory.
    #[error("section {} at {at} overlaps {}", name_of(*section), other.map_or_else(|| "the header or the directory".to_owned(), |other| format!("section {}", name_of(other))))]
    SectionOverlap {
        /// Kind of the section.
        section: u32,
        /// Offset of the first byte.
        at: u64,
        /// Kind of the other one; `None` for header and directory.
        other: Option<u32>,
    },
    /// A section ends behind the used bytes.
    #[error("section {} ends at {end}, after the {used} used bytes", name_of(*section))]
    SectionEnd {
        /// Kind of the section.
        section: u32,
        /// Offset behind the last byte.
        end: u64,
        /// Used bytes of the buffer.
        used: u64,
    },
    /// Two sections of one kind.
    #[error("section {} occurs twice", name_of(*section))]
    DuplicateSection {
        /// Kind of both.
        section: u32,
    },
    /// The records were damaged.
    #[error(
        "section {} is damaged: its CRC is {stored:#010x}, expected {computed:#010x}",
        name_of(*section)
    )]
    SectionCrc {
        /// Kind of the section.
        section: u32,
        /// The value in the directory.
        stored: u32,
        /// The value computed from the bytes.
        computed: u32,
    },
    /// The buffer is of another program.
    #[error(
        "the buffer is from another program: its descriptor has the hash {}, this program has {}",
        hex(found),
        hex(expected)
    )]
    OtherProgram {
        /// Fingerprint of the program that wrote the buffer.
        found: [u8; 16],
        /// Fingerprint of the given program.
        expected: [u8; 16],
    },
    /// Not one record a core.
    #[error("found {found} CORE records, expected {expected}")]
    CoreCount {
        /// Records.
        found: usize,
        /// Cores.
        expected: usize,
    },
    /// Not one record a thread.
    #[error("found {found} THREAD records for {cores} cores with {threads} threads each")]
    ThreadCount {
        /// Records.
        found: usize,
        /// Cores.
        cores: u16,
        /// Threads of a core.
        threads: u16,
    },
    /// A record names a core or thread that the run has not, or that another record has already.
    #[error(
        "record {index} of section {} is of core {core} thread {thread}, which the run has not or another record has",
        name_of(*section)
    )]
    CoreNumber {
        /// Kind of the section.
        section: u32,
        /// Which record.
        index: usize,
        /// The core it names.
        core: u16,
        /// The thread it names; 0 in a section without threads.
        thread: u8,
    },
    /// The threads do not share out the operations.
    #[error(
        "the OP records of core {core} thread {thread} begin at {first} and are {count}, but the next that no thread has is \
         {expected} of {ops}"
    )]
    OpRanges {
        /// Core of the thread.
        core: u16,
        /// The thread.
        thread: u8,
        /// Its first record.
        first: u32,
        /// Its records.
        count: u32,
        /// The first record that no thread before it has.
        expected: u64,
        /// All records.
        ops: usize,
    },
    /// Operations of no thread.
    #[error("OP records {first} to {ops} belong to no thread")]
    OpsUnclaimed {
        /// The first of them.
        first: u64,
        /// All records.
        ops: usize,
    },
    /// An operation lies among those of another thread.
    #[error("OP record {index} of core {core} thread {thread} is among the records of another thread")]
    OpThread {
        /// Which record.
        index: usize,
        /// Its core.
        core: u16,
        /// Its thread.
        thread: u8,
    },
    /// The descriptor has no such operation.
    #[error("OP record {index} is operation {oc} of core {core}, which has {ops} operations")]
    UnknownOp {
        /// Which record.
        index: usize,
        /// Number of the operation.
        oc: u32,
        /// Its core.
        core: u16,
        /// Operations of the core.
        ops: usize,
    },
    /// A thread executed an operation of another group.
    #[error(
        "OP record {index} is operation {oc} of core {core}, which is of thread group {group}, but ran on thread {thread} of \
         another group"
    )]
    OpGroup {
        /// Which record.
        index: usize,
        /// Number of the operation.
        oc: u32,
        /// Its core.
        core: u16,
        /// Its group.
        group: u32,
        /// The thread it ran on.
        thread: u8,
    },
    /// PMU values of an operation that there is none of.
    #[error("OP_PMU record {index} refers to OP record {op} of {ops}")]
    OpIndex {
        /// Which record.
        index: usize,
        /// The operation it names.
        op: u32,
        /// All operations.
        ops: usize,
    },
    /// An interval that ends before it begins.
    #[error(
        "record {index} of section {} has counters that run backwards: from {start} to {end}",
        name_of(*section)
    )]
    CounterOrder {
        /// Kind of the section.
        section: u32,
        /// Which record.
        index: usize,
        /// First tick.
        start: u64,
        /// Tick after the last, as far as it is known.
        end: u64,
    },
    /// More PMU values than there are counters.
    #[error("PMU record {index} has {found} values, expected at most 8")]
    PmuCount {
        /// Which record.
        index: usize,
        /// Values it claims.
        found: u8,
    },
    /// The memory cannot hold even an inference without operations.
    #[error("the stats buffer has {bytes} bytes, expected at least {needed}")]
    BufferTooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        bytes: u64,
    },
    /// More records than the layout can count.
    #[error("{count} records of section {} exceed the limit of the layout", name_of(*section))]
    TooManyRecords {
        /// Kind of the section.
        section: u32,
        /// Records.
        count: usize,
    },
    /// The descriptor of the operations is not one.
    #[error("{what}")]
    Descriptor {
        /// Description of the defect.
        what: String,
    },
    /// A trace of the host that is to be shown beside the devices is not one.
    #[error("{what}")]
    HostTrace {
        /// Description of the defect.
        what: String,
    },
    /// The container cannot be read.
    #[error(transparent)]
    Container(#[from] QpcError),
}

/// Name of the sections of a kind.
fn name_of(section: u32) -> String {
    Kind::from_code(section).map_or_else(|| format!("of kind {section}"), |kind| kind.name().to_owned())
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

impl StatsError {
    /// A stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty { .. } => "stats.empty",
            Self::UnknownLayout { .. } => "stats.unknown_layout",
            Self::UnknownLayoutName { .. } => "stats.unknown_layout_name",
            Self::Layout { .. } => "stats.layout",
            Self::BadMagic { .. } => "stats.bad_magic",
            Self::ByteOrder { .. } => "stats.byte_order",
            Self::Version { .. } => "stats.version",
            Self::Truncated { .. } => "stats.truncated",
            Self::HeaderCrc { .. } => "stats.header_crc",
            Self::HeaderSize { .. } => "stats.header_size",
            Self::EntrySize { .. } => "stats.entry_size",
            Self::Directory { .. } => "stats.directory",
            Self::UsedSize { .. } => "stats.used_size",
            Self::ClockRate => "stats.clock_rate",
            Self::SectionOffset { .. } => "stats.section_offset",
            Self::RecordSize { .. } => "stats.record_size",
            Self::SectionCount { .. } => "stats.section_count",
            Self::SectionOverlap { .. } => "stats.section_overlap",
            Self::SectionEnd { .. } => "stats.section_end",
            Self::DuplicateSection { .. } => "stats.duplicate_section",
            Self::SectionCrc { .. } => "stats.section_crc",
            Self::OtherProgram { .. } => "stats.other_program",
            Self::CoreCount { .. } => "stats.core_count",
            Self::ThreadCount { .. } => "stats.thread_count",
            Self::CoreNumber { .. } => "stats.core_number",
            Self::OpRanges { .. } => "stats.op_ranges",
            Self::OpsUnclaimed { .. } => "stats.ops_unclaimed",
            Self::OpThread { .. } => "stats.op_thread",
            Self::UnknownOp { .. } => "stats.unknown_op",
            Self::OpGroup { .. } => "stats.op_group",
            Self::OpIndex { .. } => "stats.op_index",
            Self::CounterOrder { .. } => "stats.counter_order",
            Self::PmuCount { .. } => "stats.pmu_count",
            Self::BufferTooSmall { .. } => "stats.buffer_too_small",
            Self::TooManyRecords { .. } => "stats.too_many_records",
            Self::Descriptor { .. } => "stats.descriptor",
            Self::HostTrace { .. } => "stats.host_trace",
            Self::Container(error) => error.code(),
        }
    }

    /// Which meaning the error has.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownLayout { .. } => ErrorKind::UnknownLayout,
            Self::Version { .. } => ErrorKind::Version,
            Self::OtherProgram { .. } => ErrorKind::Mismatch,
            Self::UnknownLayoutName { .. } | Self::BufferTooSmall { .. } | Self::TooManyRecords { .. } => {
                ErrorKind::Misuse
            }
            _ => ErrorKind::Malformed,
        }
    }
}
