//! A profiler together with the facts about its programs for reports, which outlive the programs.

use std::sync::{Arc, Weak};

use qaic_stats::report::ProgramFacts;

use super::observer::{self, ProgramObserver};
use super::{Profiler, ProgramSamples, SubscriptionRegistry};
use serde_json::{Value, json};

use crate::error::RuntimeError;
use crate::image::Image;
use crate::sync::Mutex;

/// Filter by name that returns true if a new program is profiled. Called without holding a lock.
pub type NameFilter = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Facts about a program for its reports.
#[derive(Clone, Debug)]
pub struct ProfiledProgram {
    /// Facts for the head of a report.
    pub facts: ProgramFacts,
    /// True if the device measures the program's operations.
    pub has_stats: bool,
    /// The program's container, if samples may need it. The collector drops the container with the last stats buffer
    /// of a deleted program, because the container keeps a file mapped.
    pub image: Option<Arc<Image>>,
    // Dead if the program was deleted or removed.
    registry: Weak<SubscriptionRegistry>,
}

impl ProfiledProgram {
    fn new(number: u32, registry: &Arc<SubscriptionRegistry>) -> Self {
        let network = &registry.image.network;
        let facts = ProgramFacts {
            number,
            network: network.network_name.clone(),
            activations: registry.activations(),
            set_size: registry.set_size,
            cores: network.num_cores,
            batch: u32::try_from(network.batch_size).unwrap_or(0).max(1),
            dropped: 0,
        };
        let image = Some(Arc::clone(&registry.image));
        Self { facts, has_stats: registry.has_stats(), image, registry: Arc::downgrade(registry) }
    }

    /// Returns the facts by name, for tools.
    pub fn record(&self) -> Value {
        let ProgramFacts { network, activations, set_size, cores, batch, .. } = &self.facts;
        json!({
            "network": network,
            "activations": activations,
            "set_size": set_size,
            "cores": cores,
            "batch": batch,
            "has_stats": self.has_stats,
            "is_profiled": self.is_profiled(),
        })
    }

    /// Returns true if the program can still produce samples.
    pub(crate) fn is_profiled(&self) -> bool {
        self.registry.strong_count() > 0
    }
}

/// Samples programs. A collector does not keep the programs alive.
pub struct Collector {
    /// Takes the samples.
    pub profiler: Arc<Profiler>,
    // Indexed by program number. The list only grows, one entry at a time.
    programs: Mutex<Vec<ProfiledProgram>>,
    filter: Option<NameFilter>,
}

impl Collector {
    /// Creates a collector without programs. Programs that `filter` accepts are added when they are created.
    pub fn new(profiler: Arc<Profiler>, filter: Option<NameFilter>) -> Arc<Self> {
        let collector = Arc::new(Self { profiler, programs: Mutex::default(), filter });
        if collector.filter.is_some() {
            let observer: Arc<dyn ProgramObserver> = Arc::clone(&collector) as Arc<dyn ProgramObserver>;
            observer::register(Arc::downgrade(&observer));
        }
        collector
    }

    /// Adds a program: see [`Profiler::add`].
    pub fn add(&self, registry: &Arc<SubscriptionRegistry>) -> Result<u32, RuntimeError> {
        let mut programs = self.programs.lock();
        let number = self.profiler.add(registry)?;
        if number as usize == programs.len() {
            programs.push(ProfiledProgram::new(number, registry));
        }
        Ok(number)
    }

    /// Stops sampling a program and keeps its samples. Returns false for an unknown program.
    pub fn remove(&self, registry: &Arc<SubscriptionRegistry>) -> Result<bool, RuntimeError> {
        let was_there = self.profiler.remove(registry)?;
        let is_it =
            |program: &&mut ProfiledProgram| std::ptr::eq(program.registry.as_ptr(), Arc::as_ptr(registry));
        for program in self.programs.lock().iter_mut().filter(is_it) {
            program.registry = Weak::new();
        }
        Ok(was_there)
    }

    /// The programs, by their numbers.
    pub fn programs(&self) -> Vec<ProfiledProgram> {
        self.programs.lock().clone()
    }

    /// Returns the samples since the last call.
    pub fn drain(&self) -> Result<ProgramSamples, RuntimeError> {
        // Read first: a program that is already deleted produces no more samples.
        let gone: Vec<bool> = self.programs.lock().iter().map(|program| !program.is_profiled()).collect();
        let collected = self.profiler.drain()?;
        let mut all = self.programs.lock();
        let programs = all.clone();
        for (program, _) in all.iter_mut().zip(gone).filter(|(_, is_gone)| *is_gone) {
            program.image = None;
        }
        drop(all);
        Ok(ProgramSamples { collected, programs })
    }
}

impl ProgramObserver for Collector {
    fn created(&self, program: &Arc<SubscriptionRegistry>) {
        if self.filter.as_ref().is_some_and(|filter| filter(program.name())) {
            // A forked process has no profiler.
            let _ = self.add(program);
        }
    }
}

qaic_sync::debug_fields!(Collector, |collector| profiler: collector.profiler);
