//! Data of a request that one thread at a time uses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use qaic_qpc::IoBinding as BindingDesc;
use qaic_sched::{Canceller, Finished, Job};
use qaic_sync::OwnerCount;

use super::Request;
use crate::binding::{
    Bindings, CancellationCheck, InputBinding, IoBinding, IoCheck, IoCrcs, OutputBinding, Retained, Shapes,
    StatsPlace,
};
use crate::error::{ErrorDetail, InputError, RuntimeError};
use crate::inference_set::{Completion, HandleId};
use crate::process::clock;
use crate::profiling::{ActiveSample, Arrival};
use crate::program::{Activated, Program};

/// Bindings, device data and current inference of a request.
#[derive(Debug)]
pub(crate) struct Body {
    io: IoBinding,
    pub(crate) bindings: Bindings,
    check: Option<IoCheck>,
    completed: OwnerCount,
    activated: Arc<Activated>,
    // Completion of the present inference.
    completion: Option<Arc<dyn Completion>>,
    arrival: Arrival,
    sample: Option<ActiveSample>,
    // True if the inference is not yet on the device, because the device still has the previous one.
    is_deferred: bool,
}

impl Body {
    pub(crate) fn new(program: &Program, activated: &Arc<Activated>) -> Result<Self, RuntimeError> {
        let network = &program.image.network;
        let io = IoBinding::new(&activated.activation, &program.variants, StatsPlace::of(network))?;
        Ok(Self {
            io,
            bindings: Bindings::new(network.inputs.len(), network.outputs.len()),
            check: program.io_options.io_crc.map(IoCheck::new),
            completed: OwnerCount::of(&program.completed),
            activated: Arc::clone(activated),
            completion: None,
            arrival: Arrival::default(),
            sample: None,
            is_deferred: false,
        })
    }

    /// Prepares the inference that has just begun. Fails early if an input has neither memory nor state.
    pub(crate) fn prepare(
        &mut self,
        program: &Program,
        arrival: Option<Arrival>,
        completion: Option<Arc<dyn Completion>>,
    ) -> Result<(), RuntimeError> {
        let transfers = program.variants.first().map(|transfers| &*transfers.inputs).unwrap_or_default();
        let unfed =
            self.bindings.inputs.iter().zip(transfers).enumerate().find(|(index, (input, transfer))| {
                !matches!(input, InputBinding::Memory(_) | InputBinding::DmaBuf { .. })
                    && transfer.place.is_some()
                    && !transfer.is_partial
                    && !self.activated.retains_input(*index)
            });
        if let Some((_, (_, transfer))) = unfed {
            return Err(InputError::StateRequired { binding: transfer.name.to_string() }.into());
        }
        if let Some(check) = &mut self.check {
            check.take_inputs(&self.bindings);
        }
        self.arrival = arrival.unwrap_or_default();
        self.completion = completion;
        self.sample = None;
        self.is_deferred = false;
        Ok(())
    }

    /// Submits a deferred inference to the device, and waits for its end.
    fn wait(
        &mut self,
        request: &Request,
        mut check: Option<CancellationCheck<'_>>,
    ) -> Result<(), RuntimeError> {
        let mut watch = self.sample.as_mut().map(|sample| &mut sample.watch);
        if self.is_deferred {
            // While the device has the previous inference, a cancellation would apply to that one.
            let mut check = || request.is_asked_to_end() || check.as_mut().is_some_and(|check| check());
            if check() {
                return Err(ErrorDetail::Interrupted.into());
            }
            self.io.submit(&mut self.bindings, None, watch.as_deref_mut(), Some(&mut check))?;
            self.is_deferred = false;
        }
        if request.is_asked_to_end() {
            // The request to end may have arrived before the device had the inference.
            request.cancel_on_device();
        }
        self.io.complete(&mut self.bindings, None, watch, check)
    }

    /// Runs the inference again until it ends, unless its caller or a cancelling thread ends it.
    fn run_again(
        &mut self,
        request: &Request,
        mut retained: Option<&mut Retained>,
        mut check: Option<CancellationCheck<'_>>,
    ) -> Result<(), RuntimeError> {
        loop {
            let watch = self.sample.as_mut().map(|sample| &mut sample.watch);
            let mut is_given_up = false;
            let outcome = match check.as_deref_mut() {
                Some(check) => {
                    let mut check = || {
                        is_given_up |= check();
                        is_given_up
                    };
                    self.io.run(&mut self.bindings, retained.as_deref_mut(), watch, Some(&mut check))
                }
                None => self.io.run(&mut self.bindings, retained.as_deref_mut(), watch, None),
            };
            if matches!(&outcome, Err(error) if error.is_interrupted()) {
                if is_given_up {
                    request.ask_to_end(request.state.generation(), qaic_sched::Reason::Cancelled);
                    self.io.discard();
                } else if !request.is_asked_to_end() && !request.is_called_away() {
                    // The request was meant for the previous inference, which had just ended.
                    continue;
                }
            }
            return outcome;
        }
    }

    fn begin_sample(&self) -> Option<ActiveSample> {
        self.activated.begin_sample(&self.bindings, self.arrival)
    }

    /// Checks that the inputs have not changed since the inference was submitted.
    fn inputs_checked(&self) -> Result<(), RuntimeError> {
        match &self.check {
            Some(check) => {
                let network = &self.activated.image.network;
                check.check_inputs(&self.bindings, |index| name_of(&network.inputs, index))
            }
            None => Ok(()),
        }
    }

    /// Finishes an inference that has ended, before its outcome is published.
    fn close(&mut self, outcome: &Result<(), RuntimeError>) {
        self.bindings.windows.clear();
        let has_check = self.check.is_some();
        if outcome.is_ok() {
            self.completed.add_one();
            if let Some(check) = &mut self.check {
                check.take_outputs(&self.bindings, self.io.output_bytes());
            }
            if let Some(mut sample) = self.sample.take() {
                let stages = &mut sample.watch.stages;
                // Only checks and statistics take time after the outputs are ready; without them, the times are equal.
                let is_over = !has_check && sample.watch.stats.is_none();
                stages.completed_ns = if is_over { stages.outputs_ready_ns } else { clock::now_ns() };
                sample.record();
            }
        }
        self.sample = None;
    }

    /// Calls `work`, unless the inference was cancelled before.
    fn guarded(
        &mut self,
        request: &Request,
        work: impl FnOnce(&mut Self) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        if request.is_asked_to_end() {
            return Err(ErrorDetail::Interrupted.into());
        }
        caught(|| work(self))
    }

    /// CRCs of the last inference of a program that checks its buffers.
    pub(crate) fn io_crcs(&self) -> Option<IoCrcs> {
        self.check.as_ref().map(|check| check.taken.clone())
    }

    /// Checks the CRCs of the outputs at the first query after a successful inference.
    pub(crate) fn check_outputs(&mut self) -> Result<(), RuntimeError> {
        let Some(check) = &mut self.check else { return Ok(()) };
        let network = &self.activated.image.network;
        check.check_outputs(&self.bindings, |index| name_of(&network.outputs, index))
    }
}

impl Job for Body {
    type Error = RuntimeError;
    type Completion = Arc<dyn Completion>;

    fn canceller(&self) -> Arc<dyn Canceller> {
        self.io.canceller()
    }

    /// Index of the bound combination of shapes; 0 if none fits, because that inference fails before anything runs.
    fn variant(&self) -> usize {
        match &self.bindings.shapes {
            Shapes::Variant(variant) => *variant,
            Shapes::Mismatch(_) => 0,
        }
    }

    fn begin_at_once(&mut self) {
        self.arrival.is_begin = true;
    }

    fn has_completion(&self) -> bool {
        self.completion.is_some()
    }

    fn take_completion(&mut self) -> Option<Arc<dyn Completion>> {
        self.completion.take()
    }

    fn completed(completion: Arc<dyn Completion>, number: u32) {
        completion.completed(HandleId(number));
    }

    fn is_interrupted(error: &RuntimeError) -> bool {
        error.is_interrupted()
    }

    fn run(&mut self, request: &Request, check: Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        self.guarded(request, |body| {
            body.sample = body.begin_sample();
            let outcome = body.inputs_checked().and_then(|()| {
                if !body.activated.is_ordered() {
                    return body.run_again(request, None, check);
                }
                let activated = Arc::clone(&body.activated);
                let mut state = activated.take_state()?;
                body.run_again(request, Some(&mut state), check)
            });
            body.close(&outcome);
            outcome
        })
    }

    fn submit(&mut self, request: &Request) -> Result<(), RuntimeError> {
        self.guarded(request, |body| {
            body.sample = body.begin_sample();
            body.is_deferred = body.io.needs_reclaim;
            let mut outcome = body.inputs_checked();
            // Inferences that must first wait for the device run on a thread that may wait.
            if outcome.is_ok() && !body.is_deferred {
                let watch = body.sample.as_mut().map(|sample| &mut sample.watch);
                outcome = body.io.submit(&mut body.bindings, None, watch, None);
            }
            if outcome.is_err() {
                body.close(&outcome);
            }
            outcome
        })
    }

    fn finish(&mut self, request: &Request, check: Option<CancellationCheck<'_>>) -> Finished<RuntimeError> {
        let mut is_left = false;
        let outcome = caught(|| {
            let mut is_given_up = false;
            let mut noted = check.map(|check| {
                || {
                    is_given_up |= check();
                    is_given_up
                }
            });
            let mut outcome = self.wait(request, noted.as_mut().map(|noted| noted as CancellationCheck<'_>));
            if matches!(&outcome, Err(error) if error.is_interrupted()) && !request.is_asked_to_end() {
                if is_given_up {
                    is_left = true;
                    return outcome;
                }
                // The request was meant for the previous inference, which had just ended; this one starts again.
                outcome = self.run_again(request, None, None);
            } else if is_given_up && outcome.is_err() {
                request.cancel_on_device();
                self.io.discard();
            }
            self.close(&outcome);
            outcome
        });
        if is_left { Finished::LeftToDevice } else { Finished::Ended(outcome) }
    }
}

/// Returns true if a user binds the stats buffer to memory of their own.
pub(crate) fn is_stats_bound(bindings: &Bindings, output: Option<usize>) -> bool {
    output.is_some_and(|output| {
        matches!(bindings.outputs.get(output), Some(OutputBinding::Memory(memory)) if !memory.as_slice().is_empty())
    })
}

/// Calls `work` and turns a panic into an error of the inference.
fn caught(work: impl FnOnce() -> Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|_| Err(RuntimeError::internal("an inference panicked")))
}

fn name_of(bindings: &[BindingDesc], index: usize) -> String {
    bindings.get(index).map(|binding| binding.name.clone()).unwrap_or_default()
}
