//! The text summary of one inference. For each core, the summary contains a table of operation kinds and lines about
//! its threads, followed by lines about the whole network.
//!
//! Scripts of users parse this text; widths, order and words are fixed. A value that was not measured is `N/A`. Lines
//! that only this library writes (PMU, DDR, multicast, facts of the producer) begin like the surrounding lines and
//! match none of the known patterns.

mod lines;
mod rows;

use std::io::{self, Write};

use crate::decode::descriptor::OpsDescriptor;
use crate::decode::record::Core;
use crate::model::StatsModel;
use crate::walk::{CoreRecords, ProgressObserver, by_core};

/// Options of a summary.
#[derive(Clone, Debug, Default)]
pub struct SummaryOptions<'a> {
    /// Cores to include; `None` includes all. The lines about the whole network always cover all cores.
    pub cores: Option<Vec<u16>>,
    /// Observer of the reading progress.
    pub observer: Option<&'a dyn ProgressObserver>,
}

/// Writes the summary. Memory use does not depend on the number of executions.
pub fn write_summary(
    out: &mut impl Write,
    model: &StatsModel<'_>,
    descriptor: &OpsDescriptor,
    options: &SummaryOptions<'_>,
) -> io::Result<()> {
    lines::write_producer(out, model)?;
    let chosen = |core: u16| options.cores.as_ref().is_none_or(|cores| cores.contains(&core));
    let (records, nothing) = (by_core(model), CoreRecords::default());
    let mut first = true;
    for core in model.records::<Core>().iter().filter(|core| chosen(core.core)) {
        if !first {
            writeln!(out)?;
        }
        first = false;
        let records = records.get(&core.core).unwrap_or(&nothing);
        let table = rows::Table::of_core(model, descriptor, core.core, &records.threads, options.observer)?;
        table.write(out, &core, lines::CoreTotals::of(&records.threads))?;
        lines::write_core(out, model, descriptor, &core, records, &table)?;
    }
    lines::write_network(out, model, descriptor)
}

#[cfg(test)]
mod tests;
