//! One example of every error, for the reference page that lists codes and exceptions.

use super::StatsError;

impl StatsError {
    /// One example of each variant, in the order of the variants; errors of containers have a list of their own.
    pub fn examples() -> Vec<Self> {
        vec![
            Self::Empty { bytes: 4096 },
            Self::UnknownLayout { bytes: 885_384, level: 70, cores: 2, threads: 6, ops: vec![2634, 2627] },
            Self::UnknownLayoutName { name: "card".to_owned(), known: vec!["oqstats".to_owned()] },
            Self::Layout { layout: "card".to_owned(), what: "17 bytes are not a whole record".to_owned() },
            Self::BadMagic { found: *b"\x00\x01\x02\x03\x04\x05\x06\x07" },
            Self::ByteOrder { found: 0xFFFE },
            Self::Version { major: 2, minor: 0 },
            Self::Truncated { needed: 4096, bytes: 1000 },
            Self::HeaderCrc { stored: 0x1a2b_3c4d, computed: 0x5e6f_7a8b },
            Self::HeaderSize { found: 64 },
            Self::EntrySize { found: 16 },
            Self::Directory { offset: 128, count: 4, entry_bytes: 32, used: 200 },
            Self::UsedSize { used: 8192, capacity: 4096 },
            Self::ClockRate,
            Self::SectionOffset { section: 7, offset: 520 },
            Self::RecordSize { section: 7, found: 40, expected: 48 },
            Self::SectionCount { section: 7, count: 11, capacity: 10 },
            Self::SectionOverlap { section: 7, at: 512, other: Some(2) },
            Self::SectionEnd { section: 7, end: 4160, used: 4096 },
            Self::DuplicateSection { section: 7 },
            Self::SectionCrc { section: 7, stored: 0x1a2b_3c4d, computed: 0x5e6f_7a8b },
            Self::OtherProgram { found: [0x17; 16], expected: [0x2a; 16] },
            Self::CoreCount { found: 1, expected: 2 },
            Self::ThreadCount { found: 11, cores: 2, threads: 6 },
            Self::CoreNumber { section: 3, index: 4, core: 9, thread: 0 },
            Self::OpRanges { core: 0, thread: 1, first: 10, count: 5, expected: 12, ops: 40 },
            Self::OpsUnclaimed { first: 38, ops: 40 },
            Self::OpThread { index: 3, core: 0, thread: 4 },
            Self::UnknownOp { index: 3, oc: 77, core: 0, ops: 20 },
            Self::OpGroup { index: 3, oc: 7, core: 0, group: 1, thread: 0 },
            Self::OpIndex { index: 0, op: 41, ops: 40 },
            Self::CounterOrder { section: 2, index: 0, start: 1000, end: 900 },
            Self::PmuCount { index: 0, found: 9 },
            Self::BufferTooSmall { needed: 384, bytes: 256 },
            Self::TooManyRecords { section: 9, count: 5_000_000_000 },
            Self::Descriptor {
                what: "segment opstatsdesc.open has version 2, this library reads version 1".to_owned(),
            },
            Self::HostTrace {
                what: "a host trace is a Chrome trace in JSON, but the object has no `traceEvents`"
                    .to_owned(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::StatsError;

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
}
