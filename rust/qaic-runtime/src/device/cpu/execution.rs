//! A program that is ready to run, and one carrier of its inferences: what virtual cards and emulated ones have in common.
//!
//! Neither knows DMA buffers. Whoever has them binds the tensors in them.

use std::path::PathBuf;
use std::sync::Arc;

use super::blocks::{BlockBindings, BlockEdges};
use super::build::{Built, Parts, build_graph, session_threads, usable_cpus};
use super::calibration;
use super::engine::{Bindings, Graph, GraphOptions, Purpose, Stop};
use super::stats::{Description, ExecStats, ProgramStats};
use crate::buffer::{HostSlice, HostSliceMut};
use crate::clock;
use crate::device::LoadToken;
use crate::error::RuntimeError;
use crate::profiling::{Identity, Stages};

/// How a program is made ready.
#[derive(Debug)]
pub(in crate::device) struct Setting<'a> {
    /// Cores of one activation.
    pub(in crate::device) cores: u32,
    /// Activations that share it.
    pub(in crate::device) activations: u32,
    /// Hardware family that the program must be for; `None` when it makes no difference.
    pub(in crate::device) family: Option<&'static str>,
    /// Ends it early.
    pub(in crate::device) token: &'a LoadToken,
}

/// A program that is ready to run, any number of times at once.
#[derive(Clone, Debug)]
pub(in crate::device) struct Executable {
    graph: Arc<Graph>,
    blocks: Option<Arc<BlockEdges>>,
    stats: Option<Arc<ProgramStats>>,
}

impl Executable {
    /// Makes a program ready. `description` tells of what it measures.
    ///
    /// Blocking: reads the weights and prepares them for the kernels.
    pub(in crate::device) fn new(
        parts: &Parts<'_>,
        description: Option<Description>,
        engine_candidates: &[PathBuf],
        setting: &Setting<'_>,
    ) -> Result<Self, RuntimeError> {
        let begun_ns = clock::now_ns();
        let options = GraphOptions {
            intra_op_threads: session_threads(setting.cores, setting.activations, usable_cpus()),
            purpose: Purpose::Run,
            family: setting.family,
            save: None,
            token: setting.token,
        };
        let Built { graph, blocks, is_repeatable } = build_graph(parts, engine_candidates, options)?;
        let stats = description
            .map(|description| ProgramStats::new(description, graph.engine(), is_repeatable, begun_ns));
        Ok(Self { graph: Arc::new(graph), blocks, stats })
    }
}

/// Carries one inference at a time.
#[derive(Debug)]
pub(in crate::device) struct Execution {
    bindings: Bindings,
    blocks: Option<BlockBindings>,
    stats: Option<ExecStats>,
    // Whether the next execution is to be measured.
    is_announced: bool,
}

impl Execution {
    /// Nothing is bound.
    pub(in crate::device) fn new(program: &Executable) -> Result<Self, RuntimeError> {
        let mut bindings = Bindings::new(&program.graph)?;
        bindings.set_timed(program.stats.as_ref().is_some_and(|stats| stats.measures_ops()));
        Ok(Self {
            bindings,
            blocks: program.blocks.as_ref().map(BlockBindings::new),
            stats: program.stats.as_ref().map(ExecStats::new),
            is_announced: false,
        })
    }

    /// DMA buffer of the statistics.
    pub(in crate::device) fn stats_buffer(&self) -> Option<usize> {
        self.stats.as_ref().map(|stats| stats.program.buffer())
    }

    /// Ends an execution from another thread.
    pub(in crate::device) fn stop(&self) -> Arc<Stop> {
        self.bindings.stop()
    }

    /// As [`crate::device::Exec::select_shapes`].
    pub(in crate::device) fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        if let Some(blocks) = &mut self.blocks {
            blocks.select_shapes(variant);
        }
        self.bindings.select_shapes(variant)
    }

    /// As [`crate::device::Exec::bind_input`].
    pub(in crate::device) fn bind_input(
        &mut self,
        index: usize,
        memory: HostSlice,
    ) -> Result<(), RuntimeError> {
        if let Some(blocks) = &mut self.blocks
            && blocks.bind_input(index, memory)?
        {
            return Ok(());
        }
        self.bindings.bind_input(index, memory)
    }

    /// As [`crate::device::Exec::bind_output`].
    pub(in crate::device) fn bind_output(
        &mut self,
        index: usize,
        memory: HostSliceMut,
    ) -> Result<(), RuntimeError> {
        if let Some(blocks) = &mut self.blocks
            && blocks.bind_output(index, memory)?
        {
            return Ok(());
        }
        self.bindings.bind_output(index, memory)
    }

    /// As [`crate::device::Exec::measure`].
    pub(in crate::device) fn measure(&mut self) -> Result<(), RuntimeError> {
        let Some(stats) = &self.stats else { return Ok(()) };
        let repeats = stats.program.claim_repeats(self.bindings.variant());
        self.bindings.set_timed(true);
        if repeats {
            self.repeat()?;
        }
        if let Some(stats) = &mut self.stats {
            stats.begin(&mut self.bindings);
            self.is_announced = true;
        }
        Ok(())
    }

    /// Writes what was measured of the last execution to `memory`, which is as large as the DMA buffer of the statistics.
    pub(in crate::device) fn write_stats(
        &mut self,
        stages: &Stages,
        identity: Identity,
        memory: HostSliceMut,
    ) {
        if let Some(stats) = &mut self.stats {
            stats.write(&self.bindings, stages, identity, memory);
        }
    }

    /// As [`crate::device::Exec::execute`].
    pub(in crate::device) fn execute(&mut self) -> Result<(), RuntimeError> {
        let outcome = self.run();
        if self.bindings.is_timed() {
            self.execution_ended(outcome.is_ok());
        }
        outcome
    }

    fn run(&mut self) -> Result<(), RuntimeError> {
        match &mut self.blocks {
            None => self.bindings.execute(),
            Some(blocks) => blocks.execute(&mut self.bindings),
        }
    }

    /// Runs the inference that is going to be measured without measuring it, where there is no other way to know what
    /// measuring costs. Whatever it computes is computed again.
    fn repeat(&mut self) -> Result<(), RuntimeError> {
        let mut total_ns = 0;
        for _ in 0..calibration::REPEATS {
            match self.run() {
                Ok(()) => total_ns += self.note_plain(),
                Err(RuntimeError::Interrupted) => return Err(RuntimeError::Interrupted),
                // The inference itself is going to say so.
                Err(_) => break,
            }
            if total_ns > calibration::REPEATING_NS {
                break;
            }
        }
        Ok(())
    }

    /// Notes how long an execution took that was not measured, and tells it.
    fn note_plain(&self) -> u64 {
        let (begin_ns, end_ns) = self.bindings.ran_ns();
        let duration_ns = end_ns.saturating_sub(begin_ns);
        if let Some(stats) = &self.stats {
            stats.program.add_plain(self.bindings.variant(), duration_ns);
        }
        duration_ns
    }

    #[cold]
    fn execution_ended(&mut self, succeeded: bool) {
        let Some(stats) = &mut self.stats else { return };
        if self.is_announced {
            self.is_announced = false;
            stats.end(&mut self.bindings, succeeded);
            self.bindings.set_timed(stats.program.measures_ops());
        } else if succeeded {
            self.note_plain();
        }
    }
}
