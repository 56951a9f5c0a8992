//! What threads do with the inference of an exec object: all of it at once, or, where the device works by itself, its
//! begin and its end, with others in between.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use qaic_qpc::network_desc::IoBinding;

use crate::carrier::{Carrier, Look, StatsPlace};
use crate::clock;
use crate::error::RuntimeError;
use crate::io_crc::IoCheck;
use crate::profiling::Watched;
use crate::program::{Activated, Program};
use crate::progress::{Observer, Progress, Reason};
use crate::sync::Mutex;
use crate::wiring::Wiring;

/// What an executor needs to run the inference of an exec object.
pub(crate) struct Inference {
    core: Mutex<Core>,
    // Whether the core has a check; known without its lock.
    is_checked: bool,
    activated: Arc<Activated>,
    progress: Arc<Progress>,
    observer: OnceLock<(Weak<dyn Observer>, u32)>,
}

/// What one thread at a time works with.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) carrier: Carrier,
    pub(crate) wiring: Wiring,
    pub(crate) check: Option<IoCheck>,
    // Of the inference that is on the device.
    flight: Flight,
}

/// What is known of an inference from its begin to its end.
#[derive(Debug, Default)]
struct Flight {
    watched: Option<Watched>,
    // What its begin took, where that is sampled.
    took: Option<Duration>,
    // Whether it has yet to begin: its exec object is not free of its last inference.
    is_deferred: bool,
}

/// What came of the begin of an inference.
pub(crate) enum Begun {
    /// It has ended.
    Over,
    /// The device has it.
    OnDevice(Arc<Progress>),
}

/// What came of waiting for an inference on the device.
pub(crate) enum Landed {
    /// It has ended; with the time that threads spent on it, where that is sampled.
    Ended(Option<Duration>),
    /// The wait was interrupted, and the device still has it.
    LeftToDevice,
}

impl Inference {
    pub(crate) fn new(program: &Program, activated: &Arc<Activated>) -> Result<Self, RuntimeError> {
        let network = program.image().network();
        let stats = StatsPlace::of(network);
        let carrier = Carrier::new(activated.activation(), program.shared_variants(), stats)?;
        let wiring = Wiring::new(network.inputs.len(), network.outputs.len());
        let check = program.duties().io_crc.map(IoCheck::new);
        let progress = Progress::new(carrier.canceller(), program.time_limit());
        Ok(Self {
            is_checked: check.is_some(),
            core: Mutex::new(Core { carrier, wiring, check, flight: Flight::default() }),
            activated: Arc::clone(activated),
            progress: Arc::new(progress),
            observer: OnceLock::new(),
        })
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether its buffers are checked.
    pub(crate) fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// What the inference works with; no thread has it while none is under way.
    pub(crate) fn core(&self) -> &Mutex<Core> {
        &self.core
    }

    /// Names who is told of inferences that he starts; once.
    pub(crate) fn observe(&self, observer: Weak<dyn Observer>, number: u32) {
        let _ = self.observer.set((observer, number));
    }

    pub(crate) fn observer(&self) -> Option<(Arc<dyn Observer>, u32)> {
        if !self.progress.is_observed() {
            return None;
        }
        let (observer, number) = self.observer.get()?;
        Some((observer.upgrade()?, *number))
    }

    /// Runs it, which was claimed, on the calling thread, and tells everybody. Takes the reference, and gives it up before
    /// it tells.
    pub(crate) fn execute(inference: Arc<Self>) {
        let outcome = inference.run(false, None);
        Self::tell(inference, outcome);
    }

    /// Hands it over to the device; in other respects as [`Self::execute`]. `is_sampled`: its time is wanted.
    pub(crate) fn begin(inference: Arc<Self>, is_sampled: bool) -> Begun {
        match inference.depart(is_sampled) {
            Ok(()) => {
                let progress = Arc::clone(&inference.progress);
                match Self::leave(inference) {
                    None => Begun::OnDevice(progress),
                    Some(inference) => {
                        Self::land(inference, None);
                        Begun::Over
                    }
                }
            }
            Err(error) => {
                Self::tell(inference, Err(error));
                Begun::Over
            }
        }
    }

    /// Waits for it on the device, which it was taken from, and tells everybody. Takes the reference, and gives it up
    /// before it tells. Where `look` says so, the device keeps it, and nobody is told.
    ///
    /// Blocking: as long as the device takes; not after [`Progress::ask_to_end`].
    pub(crate) fn land(mut inference: Arc<Self>, mut look: Option<Look<'_>>) -> Landed {
        loop {
            if let Some((outcome, took)) = inference.arrive(look.take()) {
                Self::tell(inference, outcome);
                return Landed::Ended(took);
            }
            match Self::leave(inference) {
                None => return Landed::LeftToDevice,
                Some(same) => inference = same,
            }
        }
    }

    /// Leaves it to the device, and gives up the reference first, as before telling: from then on another thread may end
    /// it. Gives it back where somebody asked for its end meanwhile, and found it neither there nor done.
    fn leave(inference: Arc<Self>) -> Option<Arc<Self>> {
        let (progress, handle) = (Arc::clone(&inference.progress), Arc::downgrade(&inference));
        let which = progress.under_way();
        drop(inference);
        progress.leave_to_device();
        // Who is taken stays: its exec object waits for the end of what is under way.
        if progress.is_asked_to_end() && progress.take_from_device(which) { handle.upgrade() } else { None }
    }

    fn tell(inference: Arc<Self>, outcome: Result<(), RuntimeError>) {
        let progress = Arc::clone(&inference.progress);
        let observer = inference.observer();
        let outcome = progress.explained(outcome);
        drop(inference);
        progress.conclude(outcome, observer);
    }

    /// `at_once`: it was not queued. Cancelled where `look` says so.
    pub(crate) fn run(&self, at_once: bool, look: Option<Look<'_>>) -> Result<(), RuntimeError> {
        let run = || {
            let mut core = self.core.lock();
            let mut flight = Flight { watched: self.watch(&core.wiring, at_once), ..Flight::default() };
            let outcome = self.checked(&core).and_then(|()| self.run_again(&mut core, &mut flight, look));
            self.close(&mut core, flight, &outcome);
            outcome
        };
        self.guarded(run)
    }

    /// Runs it until nobody but its caller, or who asked for its end, ended it.
    fn run_again(
        &self,
        core: &mut Core,
        flight: &mut Flight,
        mut look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        loop {
            let watch = flight.watched.as_mut().map(|watched| &mut watched.watch);
            let Core { carrier, wiring, .. } = &mut *core;
            let mut is_given_up = false;
            let outcome = match look.as_deref_mut() {
                Some(look) => {
                    let mut look = || {
                        is_given_up |= look();
                        is_given_up
                    };
                    self.activated.run(carrier, wiring, watch, Some(&mut look))
                }
                None => self.activated.run(carrier, wiring, watch, None),
            };
            if matches!(outcome, Err(RuntimeError::Interrupted)) {
                if is_given_up {
                    self.give_up(carrier);
                } else if !self.progress.is_asked_to_end() {
                    // Nobody asked for the end of this one: it was meant for the one before, which had just ended.
                    continue;
                }
            }
            return outcome;
        }
    }

    /// Ends the inference that the calling thread waits for no longer.
    fn give_up(&self, carrier: &mut Carrier) {
        if let Some(which) = self.progress.under_way() {
            self.progress.ask_to_end(which, Reason::Cancelled);
        }
        carrier.discard();
    }

    /// The first half of [`Self::run`], for an inference that was queued.
    fn depart(&self, is_sampled: bool) -> Result<(), RuntimeError> {
        let depart = || {
            let started = is_sampled.then(Instant::now);
            let mut core = self.core.lock();
            let mut flight = Flight { watched: self.watch(&core.wiring, false), ..Flight::default() };
            flight.is_deferred = core.carrier.needs_reclaim();
            let mut outcome = self.checked(&core);
            // What has to wait for the device first does so where others may wait for it too.
            if outcome.is_ok() && !flight.is_deferred {
                let watch = flight.watched.as_mut().map(|watched| &mut watched.watch);
                let Core { carrier, wiring, .. } = &mut *core;
                outcome = carrier.start(wiring, None, watch, None);
            }
            flight.took = started.map(|started| started.elapsed());
            match &outcome {
                Ok(()) => core.flight = flight,
                Err(_) => self.close(&mut core, flight, &outcome),
            }
            outcome
        };
        self.guarded(depart)
    }

    /// The second half: how it ended, and what both halves took. `None` when `look` said to wait no longer.
    fn arrive(&self, look: Option<Look<'_>>) -> Option<(Result<(), RuntimeError>, Option<Duration>)> {
        let mut took = None;
        let mut is_left = false;
        let arrive = || {
            let mut core = self.core.lock();
            let mut flight = std::mem::take(&mut core.flight);
            let begin = flight.took.map(|took| (took, Instant::now()));
            let mut is_given_up = false;
            let mut look = look.map(|look| {
                || {
                    is_given_up |= look();
                    is_given_up
                }
            });
            let mut outcome = self.end(&mut core, &mut flight, look.as_mut().map(|look| look as Look<'_>));
            if matches!(outcome, Err(RuntimeError::Interrupted)) && !self.progress.is_asked_to_end() {
                if is_given_up {
                    is_left = true;
                    core.flight = flight;
                    return outcome;
                }
                // As in `run_again`; it is begun anew.
                outcome = self.run_again(&mut core, &mut flight, None);
            } else if is_given_up && outcome.is_err() {
                self.progress.cancel_on_device();
                core.carrier.discard();
            }
            self.close(&mut core, flight, &outcome);
            took = begin.map(|(took, since)| took.saturating_add(since.elapsed()));
            outcome
        };
        let outcome = Self::caught(arrive);
        (!is_left).then_some((outcome, took))
    }

    /// Begins what was deferred, and waits for the end.
    fn end(
        &self,
        core: &mut Core,
        flight: &mut Flight,
        mut look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        let Core { carrier, wiring, .. } = core;
        let mut watch = flight.watched.as_mut().map(|watched| &mut watched.watch);
        if flight.is_deferred {
            // The device cannot tell who means this inference while it has the one before.
            let mut look = || self.progress.is_asked_to_end() || look.as_mut().is_some_and(|look| look());
            if look() {
                return Err(RuntimeError::Interrupted);
            }
            carrier.start(wiring, None, watch.as_deref_mut(), Some(&mut look))?;
            flight.is_deferred = false;
        }
        if self.progress.is_asked_to_end() {
            // Whoever asked may have come before the device could be told.
            self.progress.cancel_on_device();
        }
        self.activated.finish(carrier, wiring, watch, look)
    }

    fn watch(&self, wiring: &Wiring, at_once: bool) -> Option<Watched> {
        self.activated.watch(wiring, || self.progress.arrival(at_once))
    }

    /// Whether the inputs are what they were when it was submitted.
    fn checked(&self, core: &Core) -> Result<(), RuntimeError> {
        match &core.check {
            Some(check) => {
                let network = self.activated.image().network();
                check.check_inputs(&core.wiring, |index| name_of(&network.inputs, index))
            }
            None => Ok(()),
        }
    }

    /// What remains to be done for an inference that has ended, before anybody is told.
    fn close(&self, core: &mut Core, flight: Flight, outcome: &Result<(), RuntimeError>) {
        let Core { carrier, wiring, check, .. } = core;
        wiring.windows.clear();
        if let (Some(check), Ok(())) = (check, outcome) {
            check.take_outputs(wiring, carrier.output_bytes());
        }
        if let (Some(mut watched), Ok(())) = (flight.watched, outcome) {
            let stages = &mut watched.watch.stages;
            // Where nothing was done since, another look at the clock would only cost.
            let is_over = !self.is_checked && watched.watch.stats.is_none();
            stages.completed_ns = if is_over { stages.outputs_ready_ns } else { clock::now_ns() };
            watched.record();
        }
    }

    /// Does `work` unless the inference was cancelled before.
    fn guarded(&self, work: impl FnOnce() -> Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        if self.progress.is_asked_to_end() {
            return Err(RuntimeError::Interrupted);
        }
        Self::caught(work)
    }

    /// A panic in `work` is an error of the inference.
    fn caught(work: impl FnOnce() -> Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        let caught = catch_unwind(AssertUnwindSafe(work));
        caught.unwrap_or_else(|_| Err(RuntimeError::Internal { what: "an inference panicked".to_owned() }))
    }
}

pub(crate) fn name_of(bindings: &[IoBinding], index: usize) -> String {
    bindings.get(index).map(|binding| binding.name.clone()).unwrap_or_default()
}

impl fmt::Debug for Inference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inference").field("progress", &self.progress).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::path::Path;

    use super::*;
    use crate::buffer::Storage;
    use crate::context::Context;
    use crate::device::{DeviceId, Placement, RegistryOptions};
    use crate::image::Image;
    use crate::program::ProgramOptions;
    use crate::progress::Phase;
    use crate::wiring::InputWire;

    #[test]
    fn who_leaves_one_that_is_asked_to_end_gets_it_back() {
        let options = RegistryOptions {
            kind: Some("noop".to_owned()),
            engine_candidates: vec!["left-and-asked".into()],
            ..RegistryOptions::default()
        };
        let context = Context::new(&options).unwrap();
        let gate = context.noop_control(DeviceId(0)).unwrap();
        gate.queue();
        gate.hold().unwrap();
        let file = "../../tests/data/qpc/s01_simple_f32_file.qpc";
        let image = Image::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), true).unwrap();
        let place = Placement::one(DeviceId(0));
        let program = Program::new(&context, &image, &place, &ProgramOptions::default()).unwrap();
        let activated = program.enter(true).unwrap();
        let inference = Arc::new(Inference::new(&program, &activated).unwrap());
        let input = Storage::new(768).unwrap();
        inference.core().lock().wiring.inputs[0] =
            InputWire::Memory { memory: input.memory().as_const(), owner: None };
        let progress = Arc::clone(inference.progress());
        let which = progress.begin_queued().unwrap();
        assert!(progress.claim(which));
        assert!(matches!(Inference::begin(Arc::clone(&inference), false), Begun::OnDevice(_)));

        assert!(progress.take_from_device(Some(which)));
        assert!(Inference::leave(Arc::clone(&inference)).is_none());
        assert_eq!(progress.phase(), Phase::OnDevice);

        // Between the last look of the thread that has it and the moment it lets go.
        assert!(progress.take_from_device(Some(which)));
        progress.ask_to_end(which, Reason::Cancelled);
        assert!(!progress.take_from_device(Some(which)), "a thread works on it");
        let same = Inference::leave(Arc::clone(&inference)).unwrap();
        assert!(matches!(Inference::land(same, None), Landed::Ended(_)));
        assert_eq!(progress.outcome().unwrap_err().code(), "inference.cancelled");
        drop(inference);
        activated.leave();
    }
}
