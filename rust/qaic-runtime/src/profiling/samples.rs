//! Samples, and the reports that are created from them.

use std::sync::Arc;

use qaic_stats::decode::{DecodeOptions, ProgramOperations, decode};
use qaic_stats::report::{DeviceKpi, ProgramFacts, write_latency_report};
use qaic_stats::{HostSample, StatsError, write_host_trace};

use super::{Collected, ProfiledProgram};
use crate::image::Image;
use crate::process::clock;

/// Samples in the order in which their inferences ended, with the facts about their programs.
#[derive(Clone, Debug)]
pub struct ProgramSamples {
    /// The samples.
    pub collected: Collected,
    /// The programs, by their numbers.
    pub programs: Vec<ProfiledProgram>,
}

impl ProgramSamples {
    /// Returns the samples of one program, which keeps its number.
    #[must_use]
    pub fn of_program(&self, program: u32) -> Self {
        Self { collected: self.collected.of_program(program), programs: self.programs.clone() }
    }

    /// Returns the host's times of each inference.
    pub fn host(&self) -> Vec<HostSample> {
        self.collected.samples.iter().map(|sample| sample.host).collect()
    }

    /// Returns a Chrome trace of the host with the stages of each inference.
    pub fn host_trace(&self) -> Vec<u8> {
        let mut json = Vec::new();
        // Writing to memory cannot fail.
        let _ = write_host_trace(&mut json, &self.host(), clock::epoch_utc_ns());
        json
    }

    fn image_of(&self, program: u32) -> Option<&Arc<Image>> {
        self.programs.get(program as usize)?.image.as_ref()
    }

    /// Returns the samples of a program, with the device's measurements for those that have a stats buffer.
    pub fn device_kpis(&self, program: u32) -> Result<Vec<(HostSample, Option<DeviceKpi>)>, StatsError> {
        let samples = || self.collected.samples.iter().filter(|sample| sample.host.program == program);
        let mut operations = None;
        if let Some(image) = self.image_of(program).filter(|_| samples().any(|sample| sample.stats.is_some()))
        {
            operations = ProgramOperations::of_container(&image.container, image.bytes())?;
        }
        samples()
            .map(|sample| {
                let Some(stats) = &sample.stats else { return Ok((sample.host, None)) };
                // Reads only the few records of threads and ports.
                let options = DecodeOptions { any_program: false, records: false };
                let model = decode(stats, operations.as_ref(), None, options)?;
                Ok((sample.host, DeviceKpi::of_model(&model)))
            })
            .collect()
    }

    /// Returns the latency report of one program. For a program without samples, returns `None`, or only the head
    /// with `always`.
    pub fn latency_report(&self, program: u32, always: bool) -> Result<Option<String>, StatsError> {
        let rows = self.device_kpis(program)?;
        let Some(known) = self.programs.get(program as usize).filter(|_| always || !rows.is_empty()) else {
            return Ok(None);
        };
        let dropped = self.collected.dropped.get(&program).copied().unwrap_or(0);
        let facts = ProgramFacts { dropped, ..known.facts.clone() };
        let mut text = Vec::new();
        // Writing strings to memory cannot fail.
        let _ = write_latency_report(&mut text, &facts, rows);
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}
