//! A registered layout, as a third party would write it: 8-byte lines `oc, duration`, one thread.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use qaic_stats::decode::layout::{DecodeOptions, Match, Program, Registry, StatsLayout};
use qaic_stats::decode::record::{Core, Op, Thread};
use qaic_stats::error::StatsError;
use qaic_stats::model::{DeviceKind, Run, StatsModel};

#[derive(Debug)]
struct Lines {
    magic: Option<&'static [u8]>,
}

impl StatsLayout for Lines {
    fn id(&self) -> u32 {
        1000
    }

    fn name(&self) -> &str {
        if self.magic.is_some() { "marked" } else { "bare" }
    }

    fn probe(&self, bytes: &[u8], _program: Option<Program<'_>>) -> Match {
        match self.magic {
            Some(magic) if bytes.starts_with(magic) => Match::Yes,
            None if bytes.len().is_multiple_of(8) => Match::Maybe,
            Some(_) | None => Match::No,
        }
    }

    fn decode<'a>(
        &self,
        bytes: &'a [u8],
        _program: Option<Program<'_>>,
        _options: DecodeOptions,
    ) -> Result<StatsModel<'a>, StatsError> {
        let body = bytes.strip_prefix(self.magic.unwrap_or_default()).unwrap_or(bytes);
        if !body.len().is_multiple_of(8) {
            let what = format!("{} bytes are no whole lines", body.len());
            return Err(StatsError::Layout { layout: self.name().to_owned(), what });
        }
        let word = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap());
        let mut start_u = 1_u64 << 40;
        let first = start_u;
        let ops: Vec<Op> = body
            .chunks_exact(8)
            .map(|line| {
                let (oc, dur_u) = (word(line), word(&line[4..]));
                let op = Op { oc, start_u, dur_u, kflags: 1, ..Op::default() };
                start_u += u64::from(dur_u);
                op
            })
            .collect();
        let mut model = StatsModel::new(Run {
            cores: 1,
            threads_per_core: 1,
            batch_size: 1,
            ucycle_hz: 19_200_000,
            device: DeviceKind::Ai100,
            ..Run::default()
        });
        model.set_records([Core { start_u: first, end_u: start_u, ..Core::default() }]);
        let op_count = u32::try_from(ops.len()).unwrap();
        model.set_records([Thread { start_u: first, end_u: start_u, op_count, ..Thread::default() }]);
        model.set_records(ops);
        Ok(model)
    }
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register(Box::new(Lines { magic: Some(b"MARKED! ") }));
    registry.register(Box::new(Lines { magic: None }));
    registry
}

fn lines() -> Vec<u8> {
    [(7_u32, 10_u32), (8, 20)]
        .iter()
        .flat_map(|(oc, dur)| [oc.to_le_bytes(), dur.to_le_bytes()].concat())
        .collect()
}

#[test]
fn layout_that_matches_surely_is_chosen() {
    let bytes = [b"MARKED! ".as_slice(), &lines()].concat();
    let model = registry().decode(&bytes, None, None, DecodeOptions::default()).unwrap();
    assert_eq!(model.ops().column(|op| (op.oc, op.dur_u)), [(7, 10), (8, 20)]);
    assert_eq!(model.run.device, DeviceKind::Ai100);
    assert!(model.warnings.is_empty());
}

#[test]
fn layout_that_matches_maybe_is_chosen_by_name_only() {
    let error = registry().decode(&lines(), None, None, DecodeOptions::default()).unwrap_err();
    assert_eq!(error.report().class, "UnknownStatsLayoutError");
    let bytes = lines();
    let model = registry().decode(&bytes, None, Some("bare"), DecodeOptions::default()).unwrap();
    assert_eq!(model.ops().len(), 2);
}

#[test]
fn unknown_layout_name_is_refused_with_the_known_names() {
    let error = registry().decode(&lines(), None, Some("card"), DecodeOptions::default()).unwrap_err();
    assert_eq!(error.code(), "stats.unknown_layout_name");
    assert!(error.to_string().ends_with("oqstats, marked, bare"), "{error}");
}

#[test]
fn its_records_follow_the_rules_of_all() {
    let mut bytes = lines();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let model = registry().decode(&bytes, None, Some("bare"), DecodeOptions::default()).unwrap();
    assert_eq!(model.warnings.len(), 1);
    let error = registry().decode(&bytes[..9], None, Some("bare"), DecodeOptions::default()).unwrap_err();
    assert_eq!(error.code(), "stats.layout");
}

#[test]
fn layout_of_a_known_name_replaces_it() {
    let mut registry = registry();
    registry.register(Box::new(Lines { magic: Some(b"OTHER...") }));
    assert_eq!(registry.names().collect::<Vec<_>>(), ["oqstats", "bare", "marked"]);
    let bytes = [b"OTHER...".as_slice(), &lines()].concat();
    assert!(registry.decode(&bytes, None, None, DecodeOptions::default()).is_ok());
}
