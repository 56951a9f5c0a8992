//! The measurements of one inference on a device, independent of the buffer layout.

use std::borrow::Cow;

use bitflags::bitflags;

use crate::decode::record::{Kind, PmuEvents, Record, Records};
use crate::number::codes;

bitflags! {
    /// Flags of [`Run::flags`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RunFlags: u32 {
        /// Everything was recorded.
        const COMPLETE = 1;
        /// Operations are missing because there was no room for them.
        const OPS_TRUNCATED = 2;
        /// `PCycles` are missing.
        const PCYCLES_ABSENT = 8;
        /// The clock has a resolution of a microsecond or coarser.
        const COARSE_CLOCK = 16;
        /// Times include the cost of measuring.
        const INSTRUMENTED_TIMES = 64;
    }
}

codes! {
    /// Kind of the measuring device, with the numbers in the buffer's header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum DeviceKind: u32, "unknown" {
        #[default]
        Cpu = 1 "CPU",
        Ai100 = 2 "AI 100",
        Test = 0xFFFF "test",
    }
}

/// Facts about the whole inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Stats level of the program.
    pub stats_level: u16,
    /// Level of the statistics of operations.
    pub op_stats_level: u16,
    /// Number of cores.
    pub cores: u16,
    /// Threads of each core.
    pub threads_per_core: u16,
    /// Number of samples of an inference, which rates refer to.
    pub batch_size: u32,
    /// Ticks per second.
    pub ucycle_hz: u64,
    /// UTC nanoseconds at tick 0; 0 if unknown.
    pub epoch_utc_ns: u64,
    /// Number of the inference in its program.
    pub inference: u64,
    /// Number of the program.
    pub program: u32,
    /// Number of the activation.
    pub activation: u32,
    /// Flags of the inference.
    pub flags: RunFlags,
    /// The device that measured.
    pub device: DeviceKind,
    /// Index of the combination of shapes that ran.
    pub specialization: u32,
}

impl Run {
    #[allow(clippy::as_conversions, clippy::cast_precision_loss)] // float64 has 53 bits: 15 years of ticks
    pub(crate) fn microseconds(&self, ticks: u64) -> f64 {
        ticks as f64 * 1e6 / self.ucycle_hz.max(1) as f64
    }
}

/// Records of one kind.
#[derive(Clone, Debug, Default)]
struct Section<'a> {
    bytes: Cow<'a, [u8]>,
    stride: usize,
}

/// One inference: facts, and the records of every kind that the device wrote. The model is a view of the buffer's
/// bytes if their layout has the same records; otherwise it owns the records.
#[derive(Clone, Debug, Default)]
pub struct StatsModel<'a> {
    /// Facts about the whole inference.
    pub run: Run,
    // Indexed by the number of the kind minus one.
    sections: [Option<Section<'a>>; Kind::ALL.len()],
    /// Oddities of the bytes that are no reason to refuse them.
    pub warnings: Vec<String>,
}

impl<'a> StatsModel<'a> {
    /// An inference without records.
    pub fn new(run: Run) -> Self {
        Self { run, ..Self::default() }
    }

    /// Sets the records of a kind, each at the start of `stride` bytes.
    pub fn set(&mut self, kind: Kind, bytes: impl Into<Cow<'a, [u8]>>, stride: usize) {
        if let Some(slot) = self.sections.get_mut(place(kind)) {
            *slot = Some(Section { bytes: bytes.into(), stride });
        }
    }

    /// Sets the records of a kind from an iterator.
    pub fn set_records<R: Record>(&mut self, records: impl IntoIterator<Item = R>) {
        let mut bytes = Vec::new();
        for record in records {
            let start = bytes.len();
            bytes.resize(start.saturating_add(R::SIZE), 0);
            record.write(bytes.get_mut(start..).unwrap_or_default());
        }
        self.set(R::KIND, bytes, R::SIZE);
    }

    /// Bytes of a kind's records, and the distance between two records; `None` if the device wrote no such section.
    pub fn section(&self, kind: Kind) -> Option<(&[u8], usize)> {
        let section = self.sections.get(place(kind))?.as_ref()?;
        Some((section.bytes.as_ref(), section.stride))
    }

    /// The records of a kind.
    pub fn records<R: Record>(&self) -> Records<'_, R> {
        let (bytes, stride) = self.section(R::KIND).unwrap_or((&[], R::SIZE));
        Records::new(bytes, stride)
    }

    /// Events of the PMU values, without unused entries.
    pub fn pmu_events(&self) -> Vec<u32> {
        let events: Records<'_, PmuEvents> = self.records();
        events.get(0).map_or_else(Vec::new, |record| record.event.into_iter().filter(|id| *id != 0).collect())
    }

    /// Returns the producer's facts about itself, as JSON; `None` if there are none or they are not text.
    pub fn meta(&self) -> Option<&str> {
        let (bytes, _) = self.section(Kind::Meta)?;
        std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }
}

/// Index of a kind in the list of sections.
fn place(kind: Kind) -> usize {
    usize::try_from(kind.code().saturating_sub(1)).unwrap_or(usize::MAX)
}
