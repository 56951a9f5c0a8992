//! The main metrics of a stats buffer, which are shown next to a rate.

use crate::decode::record::{Core, CoreFlags, Port, Thread};
use crate::model::StatsModel;

/// Times of one device for one inference. `None` for times that the device did not measure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceKpi {
    /// Microseconds from the first thread's start to the last one's end.
    pub exec_us: f64,
    /// Longest wait for an input.
    pub input_wait_us: Option<f64>,
    /// Longest wait for an output.
    pub output_wait_us: Option<f64>,
    /// Processor cycles of the core with the most cycles.
    pub pcycles: Option<u64>,
    /// Processor cycles divided by the time.
    pub frequency_mhz: Option<f64>,
    /// Executions per second; `None` if the execution time is zero.
    pub batch_per_s: Option<f64>,
    /// Samples per second.
    pub inf_per_s: Option<f64>,
    /// Bytes from and to DDR, in millions.
    pub ddr_traffic_mb: Option<f64>,
    /// DDR traffic per second, in billions of bytes.
    pub ddr_gb_per_s: Option<f64>,
}

/// A value in the table; `None` if it was not measured.
type Value = fn(&DeviceKpi) -> Option<f64>;

impl DeviceKpi {
    /// Names of the metrics in the order of the runner's table, and their values.
    pub const METRICS: &'static [(&'static str, Value)] = &[
        ("ExecTimeUs", |kpi| Some(kpi.exec_us)),
        ("BatchInfPerSec", |kpi| kpi.batch_per_s),
        ("InfPerSec", |kpi| kpi.inf_per_s),
        ("InfPCycles", |kpi| kpi.pcycles.map(real)),
        ("EffectiveFrequencyMHz", |kpi| kpi.frequency_mhz),
        ("InputWaitTimeUs", |kpi| kpi.input_wait_us),
        ("OutputWaitTimeUs", |kpi| kpi.output_wait_us),
        ("DDRTrafficMB", |kpi| kpi.ddr_traffic_mb),
        ("DDRBandwidthGBPerSec", |kpi| kpi.ddr_gb_per_s),
    ];

    /// Returns the times of one inference; `None` if it has no cores and no threads.
    pub fn of_model(model: &StatsModel<'_>) -> Option<Self> {
        let threads = model.records::<Thread>();
        let cores = model.records::<Core>();
        let mut spans = threads.iter().map(|thread| (thread.start_u, thread.end_u)).collect::<Vec<_>>();
        if spans.is_empty() {
            spans.extend(cores.iter().map(|core| (core.start_u, core.end_u)));
        }
        let start = spans.iter().map(|span| span.0).min()?;
        let end = spans.iter().map(|span| span.1).max()?;
        let us = |ticks| model.run.microseconds(ticks);
        let exec_us = us(end.saturating_sub(start));
        let wait_us = |direction| {
            let waits = model.records::<Port>();
            let waits = waits.iter().filter(|port| port.direction == direction);
            waits.map(|port| port.wait_u).max().map(us)
        };
        let counted = cores.iter().filter(|core| core.flags.contains(CoreFlags::PCYCLES));
        let pcycles = counted.map(|core| core.pcycles).max();
        let traffic = cores.iter().filter(|core| core.flags.contains(CoreFlags::DDR));
        let ddr_bytes = traffic
            .map(|core| real(core.ddr_read_bytes.saturating_add(core.ddr_write_bytes)))
            .reduce(|sum, bytes| sum + bytes);
        // Without a measurable time, there is no rate.
        let per_us = |amount: f64| (exec_us > 0.0).then(|| amount / exec_us);
        let batch_per_s = per_us(1e6);
        Some(Self {
            exec_us,
            input_wait_us: wait_us(Port::IN),
            output_wait_us: wait_us(Port::OUT),
            pcycles,
            frequency_mhz: pcycles.and_then(|cycles| per_us(real(cycles))),
            batch_per_s,
            inf_per_s: batch_per_s.map(|rate| rate * f64::from(model.run.batch_size.max(1))),
            ddr_traffic_mb: ddr_bytes.map(|bytes| bytes / 1e6),
            // Bytes per microsecond are MB per second.
            ddr_gb_per_s: ddr_bytes.and_then(per_us).map(|rate| rate / 1e3),
        })
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss)] // for people to read
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Run;

    fn close(found: Option<f64>, expected: f64) {
        let found = found.unwrap_or(f64::NAN);
        assert!((found - expected).abs() <= expected.abs() * 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn kpi_of_the_published_sample_has_its_figures() {
        // Two cores, batch 8, 444 677 ticks from the first start to the last end.
        let run = Run { ucycle_hz: 19_200_000, batch_size: 8, ..Run::default() };
        let mut model = StatsModel::new(run);
        let begin = 9_803_252_406_782;
        model.set_records([0, 1].map(|core| Core {
            core,
            flags: CoreFlags::PCYCLES,
            start_u: begin,
            end_u: begin + 444_673,
            pcycles: 28_559_169,
            ..Core::default()
        }));
        model.set_records([(begin, 444_673), (begin + 263, 444_414)].map(|(start_u, ticks)| Thread {
            start_u,
            end_u: start_u + ticks,
            ..Thread::default()
        }));
        model.set_records([(0, 40), (0, 192), (1, 7)].map(|(direction, wait_u)| Port {
            direction,
            wait_u,
            ..Port::default()
        }));
        let kpi = DeviceKpi::of_model(&model).unwrap_or_default();
        close(Some(kpi.exec_us), 23_160.260);
        close(kpi.batch_per_s, 43.177_4);
        close(kpi.inf_per_s, 345.419);
        close(kpi.input_wait_us, 10.0);
        close(kpi.output_wait_us, 7.0 / 19.2);
        close(kpi.frequency_mhz, 28_559_169.0 / 23_160.260);
        assert_eq!((kpi.pcycles, kpi.ddr_traffic_mb), (Some(28_559_169), None));
    }

    #[test]
    fn kpi_without_a_measurement_has_no_figure() {
        assert_eq!(DeviceKpi::of_model(&StatsModel::default()), None);
        let mut model = StatsModel::new(Run { ucycle_hz: 1_000_000, ..Run::default() });
        model.set_records([Core { start_u: 5, end_u: 5, pcycles: 9, ddr_read_bytes: 9, ..Core::default() }]);
        assert_eq!(DeviceKpi::of_model(&model), Some(DeviceKpi::default()));
        model.set_records([Core {
            end_u: 500,
            flags: CoreFlags::DDR,
            ddr_read_bytes: 2_000_000,
            ddr_write_bytes: 1_000_000,
            ..Core::default()
        }]);
        let kpi = DeviceKpi::of_model(&model).unwrap_or_default();
        close(kpi.ddr_traffic_mb, 3.0);
        close(kpi.ddr_gb_per_s, 6.0);
        assert_eq!(kpi.frequency_mhz, None);
    }
}
