//! Runs the inferences of one exec, for virtual cards and for emulated ones.
//!
//! This module does not use DMA buffers: tensors are lent for the duration of an execution.

use std::sync::Arc;

use qaic_mem::HostSliceMut;

use super::blocks::BlockBindings;
use super::calibration;
use super::engine::{Bindings, Terminator};
use super::executable::Executable;
use super::state_rows::RowBindings;
use super::stats::ExecStats;
use super::turns::{Turn, Turns};
use crate::device::HostTensors;
use crate::error::{ErrorDetail, RuntimeError};
use crate::profiling::{Identity, Stages};

/// Carries one inference at a time.
#[derive(Debug)]
pub(in crate::device) struct Execution {
    bindings: Bindings,
    state_rows: Option<RowBindings>,
    blocks: Option<BlockBindings>,
    stats: Option<ExecStats>,
    // True if the next execution is measured.
    is_announced: bool,
    turns: Option<Arc<Turns>>,
    // Turn of the next execution, if it must run alone.
    turn: Option<Turn>,
}

impl Execution {
    pub(in crate::device) fn new(program: &Executable) -> Result<Self, RuntimeError> {
        let mut bindings = Bindings::new(&program.graph)?;
        bindings.set_timed(program.stats.as_ref().is_some_and(|stats| stats.measures_ops()));
        Ok(Self {
            bindings,
            state_rows: program.state_rows.as_ref().map(RowBindings::new).transpose()?,
            blocks: program.blocks.as_ref().map(BlockBindings::new),
            stats: program.stats.as_ref().map(ExecStats::new),
            is_announced: false,
            turns: program.turns.clone(),
            turn: None,
        })
    }

    /// Returns the handle that ends an execution from another thread.
    pub(in crate::device) fn terminator(&self) -> Arc<Terminator> {
        self.bindings.terminator()
    }

    /// As [`crate::device::Exec::select_shapes`].
    pub(in crate::device) fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        if let Some(state_rows) = &mut self.state_rows {
            state_rows.select_shapes(variant);
        }
        if let Some(blocks) = &mut self.blocks {
            blocks.select_shapes(variant);
        }
        self.bindings.select_shapes(variant)
    }

    /// As [`crate::device::Exec::measure`].
    pub(in crate::device) fn measure(
        &mut self,
        tensors: &mut HostTensors<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let Some(stats) = &self.stats else { return Ok(()) };
        let repeats = stats.program.claim_repeats(self.bindings.variant());
        self.bindings.set_timed(true);
        if repeats {
            self.repeat(tensors)?;
        }
        self.turn = self.wait_for_turn(Turns::alone)?;
        if let Some(stats) = &mut self.stats {
            stats.begin(&mut self.bindings);
            self.is_announced = true;
        }
        Ok(())
    }

    /// Writes the measurements of the last execution to `memory`, which has the size of the statistics' DMA buffer.
    pub(in crate::device) fn write_stats(
        &mut self,
        stages: &Stages,
        identity: Identity,
        memory: HostSliceMut<'_>,
    ) {
        if let Some(stats) = &mut self.stats {
            stats.write(&self.bindings, stages, identity, memory);
        }
    }

    /// As [`crate::device::Exec::execute_in_place`].
    pub(in crate::device) fn execute(
        &mut self,
        tensors: &mut HostTensors<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let outcome = self.run(tensors);
        if self.bindings.is_timed() {
            self.execution_ended(outcome.is_ok());
        }
        outcome
    }

    /// As [`crate::device::Exec::write_state`].
    pub(super) fn write_state(&mut self, output: usize, state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        match &self.state_rows {
            Some(state_rows) => state_rows.write(output, state),
            None => Err(RuntimeError::internal(format!("output {output} is not written row by row"))),
        }
    }

    fn run(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let _turn = match self.turn.take() {
            None => self.wait_for_turn(Turns::with_others)?,
            turn => turn,
        };
        let Self { bindings, state_rows, blocks, .. } = self;
        let mut compute = |tensors: &mut HostTensors<'_, '_>| match blocks {
            None => bindings.execute(tensors),
            Some(blocks) => blocks.execute(bindings, tensors),
        };
        match state_rows {
            None => compute(tensors),
            Some(state_rows) => state_rows.execute(tensors, compute),
        }
    }

    /// Waits for the turn of the next execution; `None` if the program needs no turns. Ends early with
    /// [`ErrorDetail::Interrupted`] after [`Terminator::terminate`].
    fn wait_for_turn(
        &self,
        wait: impl FnOnce(&Arc<Turns>, &mut dyn FnMut() -> bool) -> Option<Turn>,
    ) -> Result<Option<Turn>, RuntimeError> {
        let Some(turns) = &self.turns else { return Ok(None) };
        let terminator = self.bindings.terminator();
        if terminator.clear() {
            return Err(ErrorDetail::Interrupted.into());
        }
        let turn = wait(turns, &mut || terminator.take()).ok_or(ErrorDetail::Interrupted)?;
        Ok(Some(turn))
    }

    /// Runs the inference once without a measurement, if the cost of the measurement is not known otherwise. The
    /// measured run computes all results again.
    fn repeat(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let mut total_ns = 0;
        for _ in 0..calibration::REPEATS {
            match self.run(tensors) {
                Ok(()) => total_ns += self.note_plain(),
                Err(error) if error.is_interrupted() => return Err(error),
                // The inference reports the error.
                Err(_) => break,
            }
            if total_ns > calibration::REPEATING_NS {
                break;
            }
        }
        Ok(())
    }

    /// Records the duration of an execution without a measurement, and returns the duration.
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
