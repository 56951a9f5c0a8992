//! The latency report: four lines about the program, then a table with a row for each sample.

use std::fmt;
use std::io;

use crate::number::Us;
use crate::report::kpi::DeviceKpi;
use crate::sample::HostSample;

/// Columns in order.
const COLUMNS: &str = "Sample, devInfPerSec, devExecUs, devInWaitTimeUs, devOutWaitTimeUs, hostRoundTripUs, \
                       enqTimeUs, preProcTimeUs, submitTimeUs, execTotalUs, exectoVcUs, execToCompleteUs, \
                       postProcUs, totalRoundtripTimeUs, queueDepth, numInfInQueue";

/// Placeholder for a value that was not measured.
const ABSENT: &str = "N/A";

/// Contents of the head of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramFacts {
    /// Number of the program among those that were profiled together.
    pub number: u32,
    /// Name of its network.
    pub network: String,
    /// Activations.
    pub activations: u32,
    /// Number of exec objects of an activation; `None` if the number varies.
    pub set_size: Option<u32>,
    /// Cores of an activation.
    pub cores: u32,
    /// Samples of an inference.
    pub batch: u32,
    /// Number of samples that were dropped for lack of room.
    pub dropped: u64,
}

/// A value measured by the device.
struct Figure(Option<f64>);

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(formatter, "{value:.3}"),
            None => formatter.write_str(ABSENT),
        }
    }
}

/// Writes the report of one program. The rows have the order of `samples`, and include the device's measurements.
///
/// The submission time and the kernel's values require a kernel, and are shown as not available.
pub fn write_latency_report(
    out: &mut impl io::Write,
    facts: &ProgramFacts,
    samples: impl IntoIterator<Item = (HostSample, Option<DeviceKpi>)>,
) -> io::Result<()> {
    write!(out, "Inference latency")?;
    if facts.dropped > 0 {
        write!(out, "; dropped samples: {}", facts.dropped)?;
    }
    writeln!(out, "\nProgram {}: {}", facts.number, facts.network)?;
    write!(out, "Activations {}, Set size ", facts.activations)?;
    match facts.set_size {
        Some(size) => write!(out, "{size}")?,
        None => write!(out, "{ABSENT}")?,
    }
    writeln!(out, ", Cores {}, Batch size {}\n\n{COLUMNS}", facts.cores, facts.batch)?;
    for (sample, kpi) in samples {
        let of_device = |value: fn(&DeviceKpi) -> Option<f64>| Figure(kpi.as_ref().and_then(value));
        writeln!(
            out,
            "{}, {}, {}, {}, {}, {ABSENT}, {}, {}, {ABSENT}, {}, {ABSENT}, {ABSENT}, {}, {}, {}, {}",
            sample.inference,
            of_device(|kpi| kpi.inf_per_s),
            of_device(|kpi| Some(kpi.exec_us)),
            of_device(|kpi| kpi.input_wait_us),
            of_device(|kpi| kpi.output_wait_us),
            Us(sample.enqueue_ns()),
            Us(sample.pre_process_ns()),
            Us(sample.execute_ns()),
            Us(sample.post_process_ns()),
            Us(sample.total_ns()),
            sample.queue_depth,
            sample.in_queue,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(facts: &ProgramFacts, samples: &[(HostSample, Option<DeviceKpi>)]) -> String {
        let mut text = Vec::new();
        let written = write_latency_report(&mut text, facts, samples.iter().copied());
        assert!(written.is_ok());
        String::from_utf8(text).unwrap_or_default()
    }

    #[test]
    fn latency_report_has_four_lines_before_the_table() {
        let facts = ProgramFacts {
            network: "net".to_owned(),
            activations: 2,
            cores: 4,
            batch: 8,
            ..ProgramFacts::default()
        };
        let sample = HostSample {
            inference: 7,
            enqueued_ns: 1_000,
            begun_ns: 2_500,
            inputs_ready_ns: 3_001,
            executed_ns: 1_003_002,
            outputs_ready_ns: 1_003_002,
            completed_ns: 1_004_000,
            queue_depth: 3,
            in_queue: 4,
            ..HostSample::default()
        };
        let kpi = DeviceKpi { exec_us: 12.5, inf_per_s: Some(640_000.0), ..DeviceKpi::default() };
        assert_eq!(
            report(&facts, &[(sample, None), (sample, Some(kpi))]),
            "Inference latency\nProgram 0: net\nActivations 2, Set size N/A, Cores 4, Batch size 8\n\n\
             Sample, devInfPerSec, devExecUs, devInWaitTimeUs, devOutWaitTimeUs, hostRoundTripUs, enqTimeUs, \
             preProcTimeUs, submitTimeUs, execTotalUs, exectoVcUs, execToCompleteUs, postProcUs, \
             totalRoundtripTimeUs, queueDepth, numInfInQueue\n\
             7, N/A, N/A, N/A, N/A, N/A, 1.500, 0.501, N/A, 1000.001, N/A, N/A, 0.000, 1003.000, 3, 4\n\
             7, 640000.000, 12.500, N/A, N/A, N/A, 1.500, 0.501, N/A, 1000.001, N/A, N/A, 0.000, 1003.000, 3, 4\n"
        );
        let full = ProgramFacts { set_size: Some(3), dropped: 5, ..facts };
        assert!(report(&full, &[]).starts_with("Inference latency; dropped samples: 5\n"));
        assert!(report(&full, &[]).contains(", Set size 3, "));
    }

    proptest! {
        /// The parts of a sample and its total, read back from the text.
        #[test]
        fn latency_report_has_the_total_in_the_third_column_from_the_end(times in proptest::collection::vec(0_u64..1 << 50, 6)) {
            let mut times = times;
            times.sort_unstable();
            let sample = HostSample {
                enqueued_ns: times[0],
                begun_ns: times[1],
                inputs_ready_ns: times[2],
                executed_ns: times[3],
                outputs_ready_ns: times[4],
                completed_ns: times[5],
                ..HostSample::default()
            };
            let text = report(&ProgramFacts::default(), &[(sample, None)]);
            let lines: Vec<&str> = text.lines().collect();
            let cells: Vec<&str> = lines[5].split(", ").collect();
            prop_assert_eq!(cells.len(), lines[4].split(", ").count());
            let ns = |cell: usize| cells[cell].replace('.', "").parse::<u64>().unwrap_or(u64::MAX);
            prop_assert_eq!(ns(cells.len() - 3), times[5] - times[0]);
            prop_assert_eq!(ns(6) + ns(7) + ns(9) + ns(12), times[4] - times[0]);
        }
    }
}
