//! What the plan of a program tells a card: where tensors lie in DMA buffers, and what is measured. On the host the network
//! descriptor tells that, which no card is given.

use std::ops::Range;
use std::sync::Arc;

use qaic_qpc::elf;
use qaic_stats::descriptor::Fingerprint;
use serde::Deserialize;

use super::Refusal;
use crate::device::cpu::LoadedStats;
use crate::device::cpu::plan::PLAN_SECTION;
use crate::device::stats_records::Levels;

/// ELF section with the description of the operations, as in the container (stats-profiling §8.6).
const OPERATIONS_SECTION: &str = "openqaic_ops";

/// The part of a plan that only cards read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CardPlan {
    /// Where tensors lie.
    #[serde(default)]
    pub(super) places: Places,
    /// DMA buffer by which the host tells about an inference.
    #[serde(default)]
    pub(super) control_buffer: Option<usize>,
    #[serde(default)]
    stats: Option<Stats>,
}

/// DMA buffer and byte offset of each tensor.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Places {
    pub(super) inputs: Vec<(usize, u64)>,
    pub(super) outputs: Vec<(usize, u64)>,
}

#[derive(Debug, Deserialize)]
struct Stats {
    #[serde(default)]
    level: u64,
    #[serde(default)]
    op_level: u64,
    #[serde(default)]
    batch_size: u32,
    #[serde(default)]
    buffer: usize,
    #[serde(default)]
    fingerprint: String,
    #[serde(default)]
    ddr: bool,
    #[serde(default)]
    pmu_events: Vec<u32>,
}

impl CardPlan {
    /// `None` of a program without a plan: one for silicon.
    pub(super) fn of_elf(file: &[u8]) -> Result<Option<Self>, Refusal> {
        let section =
            elf::section(file, PLAN_SECTION).map_err(|error| Refusal::program(error.to_string()))?;
        let Some(json) = section.and_then(|range| file.get(range)) else { return Ok(None) };
        serde_json::from_slice(json)
            .map(Some)
            .map_err(|error| Refusal::program(format!("section {PLAN_SECTION} is not a plan: {error}")))
    }

    /// What is to be measured; `None` where that is nothing.
    pub(super) fn stats(&self, file: &Arc<[u8]>) -> Option<LoadedStats> {
        let stats = self.stats.as_ref()?;
        let level = |level: u64| u16::try_from(level).unwrap_or(u16::MAX);
        // Not there where operations are not measured.
        let operations = elf::section(file, OPERATIONS_SECTION).ok().flatten();
        Some(LoadedStats {
            levels: Levels {
                level: level(stats.level),
                op_level: level(stats.op_level),
                batch_size: stats.batch_size.max(1),
            },
            buffer: stats.buffer,
            fingerprint: fingerprint(&stats.fingerprint),
            counts_ddr: stats.ddr,
            counts_events: !stats.pmu_events.is_empty(),
            operations: operations.map(|range: Range<usize>| (Arc::clone(file), range)),
        })
    }
}

/// Zeros where the text is none, which no program has.
fn fingerprint(text: &str) -> Fingerprint {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 2 * size_of::<Fingerprint>());
    number.unwrap_or_default().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let text = "000102030405060708090a0b0c0d0eff";
        assert_eq!(fingerprint(text), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        for wrong in ["", "00", "+00102030405060708090a0b0c0d0eff0", "zz0102030405060708090a0b0c0d0eff"] {
            assert_eq!(fingerprint(wrong), [0; 16], "{wrong}");
        }
    }
}
