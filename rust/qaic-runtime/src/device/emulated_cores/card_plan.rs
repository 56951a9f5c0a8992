//! The part of a program's plan that a card reads.

use std::sync::Arc;

use qaic_qpc::elf;
use qaic_qpc::plan::{OPERATIONS_SECTION, Plan};

use super::Refusal;
use crate::device::stats_records::{Levels, LoadedStats};

/// Returns the plan; `None` for a program without one, which is a program for silicon.
pub(super) fn of_elf(file: &[u8]) -> Result<Option<Plan>, Refusal> {
    Plan::of_elf(file).map_err(|error| Refusal::program(error.to_string()))
}

/// Returns the measurements; `None` if there are none.
pub(super) fn stats(plan: &Plan, file: &Arc<[u8]>) -> Option<LoadedStats> {
    let stats = plan.stats.as_ref()?;
    let level = |level: u64| u16::try_from(level).unwrap_or(u16::MAX);
    // Missing if operations are not measured.
    let operations = elf::section(file, OPERATIONS_SECTION).ok().flatten();
    Some(LoadedStats {
        levels: Levels {
            level: level(stats.level),
            op_level: level(stats.op_level),
            batch_size: stats.batch_size.max(1),
        },
        buffer: stats.buffer,
        fingerprint: stats.fingerprint(),
        counts_ddr: stats.ddr,
        counts_events: !stats.pmu_events.is_empty(),
        operations: operations.map(|range| (Arc::clone(file), range)),
    })
}
