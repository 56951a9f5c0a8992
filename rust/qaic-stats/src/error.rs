//! Errors of a stats buffer or its descriptor as data. Callers compare variants and codes, never texts.

use qaic_qpc::{QpcError, counted};
use thiserror::Error;

use crate::decode::record::Kind;

qaic_qpc::errors! {
    /// Reason why statistics cannot be read or written.
    #[derive(Clone, Debug, PartialEq, Error)]
    pub enum StatsError: "StatsFormatError" {
        /// The buffer contains only zeros.
        #[error(
            "a stats buffer of {bytes} bytes is all zeros: no device has written it; collect it from a program with statistics \
             (stats level 40 or more)"
        )]
        Empty { bytes: u64 = 4096 } => "stats.empty",
        /// The bytes have no registered layout.
        #[error(
            "a stats buffer of {bytes} bytes has no known layout (the program: level {level}, {}, {} per core, operations \
             per core {ops:?}); the layout of real cards is not public, but you can register a layout",
            counted(cores, "core"),
            counted(threads, "thread")
        )]
        UnknownLayout {
            bytes: u64 = 885_384, level: u32 = 70, cores: usize = 2, threads: usize = 6,
            ops: Vec<usize> = vec![2634, 2627],
        } => "stats.unknown_layout" "UnknownStatsLayoutError" [bytes, level, cores, threads, ops]
            hint "qaic.stats.register_layout adds a layout",
        /// The requested layout is not registered.
        #[error("unknown layout {name:?}; known: {}", known.join(", "))]
        UnknownLayoutName {
            name: String = "card".into(), known: Vec<String> = vec!["oqstats".into()],
        } => "stats.unknown_layout_name" "StatsError",
        /// The bytes do not start with the magic number of this layout.
        #[error("the buffer begins with {found:02x?}, expected \"OQSTATS1\"")]
        BadMagic { found: [u8; 8] = *b"\x00\x01\x02\x03\x04\x05\x06\x07" } => "stats.bad_magic",
        /// The producer has another byte order, or the bytes are damaged.
        #[error("the byte order mark is {found:#06x}, expected 0xfeff: only little-endian buffers exist")]
        ByteOrder { found: u16 = 0xFFFE } => "stats.byte_order",
        /// The buffer has another major version.
        #[error("the buffer has version {major}.{minor}; this library reads version 1")]
        Version { major: u16 = 2, minor: u16 = 0 } => "stats.version" "StatsVersionError"
            hint "a newer version of openqaic may read it",
        /// The buffer ends early.
        #[error("the buffer is truncated: {bytes} bytes of {needed}")]
        Truncated { needed: u64 = 4096, bytes: u64 = 1000 } => "stats.truncated",
        /// The header is damaged.
        #[error("the header is damaged: its CRC is {stored:#010x}, expected {computed:#010x}")]
        HeaderCrc { stored: u32 = 0x1a2b_3c4d, computed: u32 = 0x5e6f_7a8b } => "stats.header_crc",
        /// The header declares a size below the minimum.
        #[error("the header has {found} bytes, expected at least 128")]
        HeaderSize { found: u16 = 64 } => "stats.header_size",
        /// The directory declares an entry size below the minimum.
        #[error("an entry of the section directory has {found} bytes, expected at least 32")]
        EntrySize { found: u32 = 16 } => "stats.entry_size",
        /// The directory is outside of the used bytes, or overlaps the header.
        #[error(
            "the section directory ({count} entries of {entry_bytes} bytes at {offset}) is not between the header and \
             the end of the {used} used bytes"
        )]
        Directory {
            offset: u64 = 128, count: u32 = 4, entry_bytes: u32 = 32, used: u64 = 200,
        } => "stats.directory",
        /// The header declares more used bytes than the buffer has.
        #[error("the header declares {used} used bytes, but the buffer has {capacity}")]
        UsedSize { used: u64 = 8192, capacity: u64 = 4096 } => "stats.used_size",
        /// The clock has no rate.
        #[error("the clock has a rate of 0 ticks per second")]
        ClockRate => "stats.clock_rate",
        /// The start of a section is not aligned.
        #[error("section {} begins at {offset}, which is not a multiple of 64", name_of(*section))]
        SectionOffset { section: u32 = 7, offset: u64 = 520 } => "stats.section_offset",
        /// The records are smaller than in version 1.
        #[error("records of section {} have {found} bytes, expected at least {expected}", name_of(*section))]
        RecordSize { section: u32 = 7, found: u32 = 40, expected: usize = 48 } => "stats.record_size",
        /// A section declares more records than it has room for.
        #[error("section {} declares {count} records, but has room for {capacity}", name_of(*section))]
        SectionCount { section: u32 = 7, count: u32 = 11, capacity: u32 = 10 } => "stats.section_count",
        /// Two sections overlap, or a section overlaps the header or the directory.
        #[error("section {} at {at} overlaps {}", name_of(*section), other.map_or_else(
            || "the header or the directory".to_owned(),
            |other| format!("section {}", name_of(other)),
        ))]
        SectionOverlap {
            section: u32 = 7, at: u64 = 512, other: Option<u32> = Some(2),
        } => "stats.section_overlap",
        /// A section ends after the used bytes.
        #[error("section {} ends at {end}, after the {used} used bytes", name_of(*section))]
        SectionEnd { section: u32 = 7, end: u64 = 4160, used: u64 = 4096 } => "stats.section_end",
        /// Two sections have the same kind.
        #[error("section {} occurs twice", name_of(*section))]
        DuplicateSection { section: u32 = 7 } => "stats.duplicate_section",
        /// The records are damaged.
        #[error(
            "section {} is damaged: its CRC is {stored:#010x}, expected {computed:#010x}",
            name_of(*section)
        )]
        SectionCrc {
            section: u32 = 7, stored: u32 = 0x1a2b_3c4d, computed: u32 = 0x5e6f_7a8b,
        } => "stats.section_crc",
        /// The buffer belongs to another program.
        #[error(
            "the buffer is from another program: its descriptor has the hash {}, this program has {}",
            hex(found),
            hex(expected)
        )]
        OtherProgram { found: [u8; 16] = [0x17; 16], expected: [u8; 16] = [0x2a; 16] }
            => "stats.other_program" "StatsMismatchError"
            hint "give the container of the buffer, or force=True to read the buffer anyway",
        /// The number of CORE records is not the number of cores.
        #[error("found {found} CORE records, expected {expected}")]
        CoreCount { found: usize = 1, expected: usize = 2 } => "stats.core_count",
        /// The number of THREAD records is not the number of threads.
        #[error(
            "found {found} THREAD records for {} with {} each",
            counted(cores, "core"),
            counted(threads, "thread")
        )]
        ThreadCount { found: usize = 11, cores: u16 = 2, threads: u16 = 6 } => "stats.thread_count",
        /// A record refers to a core or thread that does not exist, or that another record describes.
        #[error(
            "record {index} of section {}: core {core} thread {thread} does not exist or already has a record",
            name_of(*section)
        )]
        CoreNumber { section: u32 = 3, index: usize = 4, core: u16 = 9, thread: u8 = 0 }
            => "stats.core_number",
        /// The threads do not partition the operations.
        #[error(
            "the {count} OP records of core {core} thread {thread} begin at {first}, expected {expected} (of {ops})"
        )]
        OpRanges {
            core: u16 = 0, thread: u8 = 1, first: u32 = 10, count: u32 = 5, expected: u64 = 12, ops: usize = 40,
        } => "stats.op_ranges",
        /// Some operations belong to no thread.
        #[error("the OP records from index {first} to the end ({ops}) belong to no thread")]
        OpsUnclaimed { first: u64 = 38, ops: usize = 40 } => "stats.ops_unclaimed",
        /// An operation is among those of another thread.
        #[error("OP record {index} of core {core} thread {thread} is in the range of another thread")]
        OpThread { index: usize = 3, core: u16 = 0, thread: u8 = 4 } => "stats.op_thread",
        /// The descriptor has no such operation.
        #[error("OP record {index} is operation {oc} of core {core}, which has {ops} operations")]
        UnknownOp { index: usize = 3, oc: u32 = 77, core: u16 = 0, ops: usize = 20 } => "stats.unknown_op",
        /// A thread executed an operation of another group.
        #[error(
            "OP record {index}: operation {oc} of core {core} belongs to thread group {group}, but ran on thread \
             {thread} of another group"
        )]
        OpGroup {
            index: usize = 3, oc: u32 = 7, core: u16 = 0, group: u32 = 1, thread: u8 = 0,
        } => "stats.op_group",
        /// PMU values refer to an operation that does not exist.
        #[error("OP_PMU record {index} refers to OP record {op} of {ops}")]
        OpIndex { index: usize = 0, op: u32 = 41, ops: usize = 40 } => "stats.op_index",
        /// An interval ends before it begins.
        #[error(
            "record {index} of section {} has counters that decrease, from {start} to {end}",
            name_of(*section)
        )]
        CounterOrder {
            section: u32 = 2, index: usize = 0, start: u64 = 1000, end: u64 = 900,
        } => "stats.counter_order",
        /// A record has more PMU values than counters exist.
        #[error("PMU record {index} has {found} values, expected at most 8")]
        PmuCount { index: usize = 0, found: u8 = 9 } => "stats.pmu_count",
        /// The buffer is too small even for an inference without operations.
        #[error("the stats buffer has {bytes} bytes, expected at least {needed}")]
        BufferTooSmall { needed: u64 = 384, bytes: u64 = 256 } => "stats.buffer_too_small" "StatsError",
        /// A section has more records than the layout can represent.
        #[error("{count} records of section {} exceed the limit of the layout", name_of(*section))]
        TooManyRecords { section: u32 = 9, count: usize = 5_000_000_000 }
            => "stats.too_many_records" "StatsError",
        /// The descriptor of the operations is invalid.
        #[error("{what}")]
        Descriptor {
            what: String = "segment opstatsdesc.open has version 2, this library reads version 1".into(),
        } => "stats.descriptor",
        /// The trace of the host is invalid.
        #[error("{what}")]
        HostTrace {
            what: String = "a host trace is a Chrome trace in JSON, but the object has no `traceEvents`".into(),
        } => "stats.host_trace",
    }
    sources {
        /// The container cannot be read.
        #[error(transparent)]
        Container(QpcError),
    }
}

/// Name of a section's kind.
fn name_of(section: u32) -> String {
    Kind::from_code(section).map_or_else(|| format!("of kind {section}"), |kind| kind.name().to_owned())
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use qaic_qpc::QpcError;

    use super::*;

    #[test]
    fn codes_are_unique_slugs() {
        let examples = StatsError::examples();
        let codes: BTreeSet<_> = examples.iter().map(StatsError::code).collect();
        assert_eq!(codes.len(), examples.len());
        assert!(codes.iter().all(|code| code.starts_with("stats.") && !code.contains(' ')));
    }

    #[test]
    fn messages_stand_alone() {
        for error in StatsError::examples() {
            let message = error.to_string();
            assert!(message.len() > 20 && !message.contains('\n') && !message.ends_with('.'), "{message}");
        }
    }

    #[test]
    fn report_of_an_unknown_layout_has_its_figures() {
        let report =
            StatsError::UnknownLayout { bytes: 64, level: 70, cores: 2, threads: 6, ops: vec![3, 4] }
                .report();
        let names: Vec<_> = report.figures.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            (report.class, names),
            ("UnknownStatsLayoutError", vec!["bytes", "level", "cores", "threads", "ops"])
        );
        assert!(report.hint.is_some_and(|hint| hint.contains("register_layout")));
    }

    #[test]
    fn report_of_a_container_is_the_container_error_s() {
        let container = QpcError::MetadataMissing;
        assert_eq!(StatsError::Container(container.clone()).report(), container.report());
    }

    #[test]
    fn classes_follow_the_kind() {
        for (error, class) in [
            (StatsError::Version { major: 2, minor: 0 }, "StatsVersionError"),
            (StatsError::OtherProgram { found: [1; 16], expected: [2; 16] }, "StatsMismatchError"),
            (StatsError::Truncated { needed: 2, bytes: 1 }, "StatsFormatError"),
            (StatsError::BufferTooSmall { needed: 2, bytes: 1 }, "StatsError"),
        ] {
            assert_eq!(error.report().class, class, "{error}");
        }
    }
}
