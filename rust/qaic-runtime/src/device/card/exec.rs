//! One inference at a time through buffer objects: two system calls, no allocation, no lock.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use qaic_kmd::Errno;
use qaic_kmd::abi::PerfStatsEntry;
use qaic_mem::{DmaBuf, HostSlice, HostSliceMut};
use qaic_qpc::plan::Control;

use super::activation::ActivationShared;
use super::buffer_object::BufferObject;
use super::channel::Channel;
use super::errno::{DataPath, uninterrupted};
use super::slices::RING_ELEMENTS;
use super::stats;
use super::submit_queue::{Scratch, Submission};
use super::wait_limits::{self, RING_ATTEMPTS};
use crate::device::{Canceller, Exec, HostTensors};
use crate::error::{CardError, ErrorDetail, InputError, RuntimeError, StateError};
use crate::process::{CancellationCheck, log};
use crate::profiling::{Identity, Stages};
use crate::sync::{AtomicU32, Ordering};

// Phases of an inference, for the canceller.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const CANCELLED: u32 = 2;

/// Buffer objects of one inference, and their list for the kernel.
#[derive(Debug)]
pub(super) struct CardExec {
    activation: Arc<ActivationShared>,
    canceller: Arc<CardCanceller>,
    // In the order of the layout.
    objects: Vec<BufferObject>,
    // Index of the buffer object of each DMA buffer.
    positions: Vec<Option<usize>>,
    // Foreign memory that replaces a buffer object.
    bound: Vec<Option<Bound>>,
    submission: Arc<Submission>,
    scratch: Scratch,
    // Number of bytes that the next inference moves per DMA buffer; 0 for all.
    transfer_bytes: Vec<u32>,
    variant: usize,
    state: ExecState,
    // The message to the cores, if they read one.
    control: Control,
}

#[derive(Debug)]
struct Bound {
    memory: Arc<DmaBuf>,
    object: BufferObject,
}

/// Reason why the card did not accept an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubmitError {
    /// The execute call failed.
    Execute(Errno),
    /// The ring still contains requests of the previous inference.
    Wait(Errno),
}

/// Progress of the current inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecState {
    /// There is no inference.
    Idle,
    /// Another thread makes the call that submits the inference.
    Submitting,
    /// The ring had no room for the inference.
    Deferred,
    /// The card has the inference.
    Queued,
}

impl CardExec {
    /// Creates the buffer objects. If one fails, the others are destroyed.
    pub(super) fn new(activation: &Arc<ActivationShared>) -> Result<Self, RuntimeError> {
        let program = &activation.program;
        let layouts = &program.layout.buffers;
        let mut objects = Vec::with_capacity(layouts.len());
        let mut positions = vec![None; program.image.network.dma_buffers.len()];
        for (position, layout) in layouts.iter().enumerate() {
            objects.push(BufferObject::new(activation, layout)?);
            if let Some(slot) = layout.dma.and_then(|dma| positions.get_mut(dma)) {
                *slot = Some(position);
            }
        }
        let handles = objects.iter().map(|object| object.handle);
        let mut exec = Self {
            canceller: Arc::new(CardCanceller {
                channel: Arc::clone(&activation.channel),
                phase: AtomicU32::new(IDLE),
            }),
            bound: objects.iter().map(|_| None).collect(),
            submission: Submission::new(handles.zip(layouts), program.layout.is_partial),
            scratch: Scratch::with_capacity(layouts.len()),
            transfer_bytes: vec![0; positions.len()],
            activation: Arc::clone(activation),
            objects,
            positions,
            variant: 0,
            state: ExecState::Idle,
            control: Control::default(),
        };
        exec.write_control();
        Ok(exec)
    }

    /// Writes the shapes of the next inference to the memory from which the cores read them.
    fn write_control(&mut self) {
        let encoded = self.control.encode();
        if let Some(control) = self.activation.program.control
            && let Some(mut memory) = self.own_memory(control)
        {
            // The load has checked that the message fits.
            let _ = memory.write_from(0, &encoded);
        }
    }

    fn own_memory(&mut self, dma: usize) -> Option<HostSliceMut<'_>> {
        let position = (*self.positions.get(dma)?)?;
        self.objects.get_mut(position).map(BufferObject::memory_mut)
    }

    /// Updates the kernel's list of buffer objects, from the next inference on.
    fn rebuild_submission(&mut self) {
        let handles = self.objects.iter().zip(&self.bound);
        let handles =
            handles.map(|(own, bound)| bound.as_ref().map_or(own.handle, |bound| bound.object.handle));
        let layout = &self.activation.program.layout;
        self.submission = Submission::new(handles.zip(&layout.buffers), layout.is_partial);
    }

    /// Binds another part of the memory that a buffer is bound to. If this fails, the buffer stays bound as before.
    fn import_again(&mut self, position: usize, memory: &DmaBuf) -> Result<BufferObject, RuntimeError> {
        let layout = &self.activation.program.layout.buffers[position];
        let before = self.bound[position].take().map(|bound| bound.memory);
        let import = |memory: &DmaBuf| {
            let object = BufferObject::import(&self.activation, layout, memory, None)?;
            object.ok_or_else(|| RuntimeError::internal("memory has a handle twice"))
        };
        let outcome = import(memory);
        if let (Err(_), Some(before)) = (&outcome, before) {
            // A card refuses memory that it accepted before only after it is lost; then the exec's own buffer object
            // is sufficient.
            self.bound[position] = import(&before).ok().map(|object| Bound { memory: before, object });
            self.rebuild_submission();
        }
        outcome
    }

    /// Makes the execute call once; `None` if another thread is going to make it.
    fn try_submit(&mut self) -> Option<Result<(), SubmitError>> {
        let ActivationShared { program, submit_queue, .. } = &*self.activation;
        submit_queue.submit(&self.submission, program.session.file(), &mut self.scratch);
        let outcome = self.submission.outcome()?;
        Some(self.retry_behind_dataless(outcome))
    }

    /// Waits for requests without data that follow the last output, because the card may still have those of the
    /// previous inference, and repeats the call.
    fn retry_behind_dataless(&mut self, outcome: Result<(), Errno>) -> Result<(), SubmitError> {
        let ActivationShared { program, channel, submit_queue, .. } = &*self.activation;
        let last = program.layout.buffers.len() - 1;
        let is_refused = outcome.is_err_and(|errno| DataPath::of(errno) == DataPath::Invalid);
        if !is_refused || program.layout.awaited == last {
            return outcome.map_err(SubmitError::Execute);
        }
        let (file, handle) = (program.session.file(), self.submission.handle(last));
        uninterrupted(|| file.wait(channel.dbc_id, handle, 0)).map_err(SubmitError::Wait)?;
        submit_queue.submit(&self.submission, file, &mut self.scratch);
        submit_queue.wait(&self.submission).map_err(SubmitError::Execute)
    }

    /// Sets the transfer size of every buffer object. The sizes of the last inference must not apply, and 0 has
    /// different meanings in different kernels.
    fn set_sizes(&mut self) {
        let layout = &self.activation.program.layout;
        if !layout.is_partial {
            return;
        }
        for (position, buffer) in layout.buffers.iter().enumerate() {
            let used = buffer.dma.and_then(|dma| self.transfer_bytes.get(dma));
            let used = used.map_or(0, |&bytes| u64::from(bytes));
            let bytes = if used == 0 { buffer.bytes } else { used.min(buffer.bytes) };
            self.submission.set_resize(position, bytes);
        }
        self.transfer_bytes.fill(0);
    }

    fn begin(&mut self) -> Result<(), RuntimeError> {
        self.activation.check()?;
        let program = &self.activation.program;
        let entries = &program.image.network.allowed_shapes;
        if entries.len() > 1 && program.control.is_none() && program.only_shapes != Some(self.variant) {
            return Err(InputError::NoMatchingShape {
                what: format!(
                    "entry {} of the {} permitted combinations was picked; cards run this program only with the shapes \
                     of its bindings, because the selection of other shapes is not public",
                    self.variant,
                    entries.len()
                )
                .into(),
            }.into());
        }
        self.set_sizes();
        // Publishes no data: the canceller of this exec cancels only its own inference.
        self.canceller.phase.store(RUNNING, Ordering::Release);
        Ok(())
    }

    /// Records the result of a submission. Returns true if the card has the inference.
    fn note_submission(&mut self, outcome: Result<(), SubmitError>) -> Result<bool, RuntimeError> {
        let Err(error) = outcome else {
            self.state = ExecState::Queued;
            return Ok(true);
        };
        let error = match error {
            SubmitError::Execute(errno) if DataPath::of(errno) == DataPath::RingFull => {
                self.state = ExecState::Deferred;
                return Ok(false);
            }
            SubmitError::Execute(errno) => self.activation.failed("EXECUTE_BO", errno, 0),
            SubmitError::Wait(errno) if DataPath::of(errno) == DataPath::TimedOut => ErrorDetail::Timeout {
                what: "requests without data of the inference before",
                timeout_ms: wait_limits::DEVICE_DEFAULT_MS.into(),
            }
            .into(),
            SubmitError::Wait(errno) => self.activation.failed("WAIT_BO", errno, 0),
        };
        self.end();
        Err(error)
    }

    /// Records the result of a submission by another thread, after that thread has made the call.
    fn resolve_submission(&mut self) -> Result<(), RuntimeError> {
        let outcome = self.activation.submit_queue.wait(&self.submission);
        let outcome = self.retry_behind_dataless(outcome);
        self.note_submission(outcome).map(drop)
    }

    /// Submits the inference repeatedly until the ring has room.
    fn submit_with_backoff(&mut self, check: &mut Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        // The submission made the first attempt.
        if let Err(error) = self.check_room() {
            self.end();
            return Err(error);
        }
        let activation = Arc::clone(&self.activation);
        let clock = &activation.program.session.clock;
        let mut listener = activation.channel.ended.listen();
        for attempt in 1..=RING_ATTEMPTS {
            // Room may have become free before the listener was registered or renewed.
            listener.renew();
            self.check_interrupts(check)?;
            if let Some(lost) = activation.channel.lost() {
                let lost = lost.clone();
                self.end();
                return Err(lost);
            }
            let outcome = self.try_submit().unwrap_or_else(|| {
                let outcome = activation.submit_queue.wait(&self.submission);
                self.retry_behind_dataless(outcome)
            });
            if self.note_submission(outcome)? {
                return Ok(());
            }
            if attempt == RING_ATTEMPTS {
                break;
            }
            let mut left = wait_limits::pause_after(attempt);
            while !left.is_zero() {
                let nap = if check.is_some() { left.min(wait_limits::CHECK_PERIOD) } else { left };
                if clock.wait(nap, &listener) {
                    break;
                }
                self.check_interrupts(check)?;
                left = left.saturating_sub(nap);
            }
        }
        self.end();
        Err(self.ring_full(RING_ATTEMPTS, self.activation.program.layout.elements))
    }

    /// Queries the kernel for the number of ring elements of an inference. An inference with more elements
    /// than the ring never finds room.
    fn check_room(&self) -> Result<(), RuntimeError> {
        let entry = |position| PerfStatsEntry {
            handle: self.submission.handle(position),
            ..PerfStatsEntry::default()
        };
        let mut entries: Vec<_> = (0..self.objects.len()).map(entry).collect();
        let (file, dbc_id) = (self.activation.program.session.file(), self.activation.channel.dbc_id);
        // The kernel does not support this query, so no further queries are made.
        if uninterrupted(|| file.perf_stats(dbc_id, &mut entries)).is_err() {
            return Ok(());
        }
        let elements = entries.iter().fold(0_u32, |sum, entry| sum.saturating_add(entry.num_queue_element));
        if elements < RING_ELEMENTS { Ok(()) } else { Err(self.ring_full(1, elements)) }
    }

    fn ring_full(&self, attempts: u32, elements: u32) -> RuntimeError {
        let (device, channel) = (self.activation.channel.device, self.activation.channel.dbc_id);
        CardError::RingFull { device, channel, attempts, elements }.into()
    }

    /// Waits for the end of the submitted inference.
    fn wait(&mut self, check: &mut Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        let limits = self.activation.program.wait;
        let handle = self.submission.handle(self.activation.program.layout.awaited);
        for _ in 0..=limits.retries {
            for limit_ms in wait_limits::calls(limits) {
                if self.wait_once(handle, limit_ms, check)? {
                    return Ok(());
                }
            }
        }
        // The card still has the inference.
        self.canceller.phase.store(IDLE, Ordering::Release);
        Err(ErrorDetail::Timeout { what: "an inference", timeout_ms: wait_limits::total_ms(limits) }.into())
    }

    /// Waits once; returns true if the inference has ended. After a signal, the wait restarts with the remaining
    /// time, so it ends regardless of the number of signals.
    fn wait_once(
        &mut self,
        handle: u32,
        limit_ms: u32,
        check: &mut Option<CancellationCheck<'_>>,
    ) -> Result<bool, RuntimeError> {
        let mut remaining: Option<wait_limits::RemainingTime> = None;
        loop {
            self.check_interrupts(check)?;
            let ActivationShared { program, channel, .. } = &*self.activation;
            let left_ms = remaining.as_mut().map_or(Some(limit_ms), wait_limits::RemainingTime::left_ms);
            let Some(left_ms) = left_ms else { return Ok(false) };
            let outcome = program.session.file().wait(channel.dbc_id, handle, left_ms);
            let Err(errno) = outcome else {
                self.end();
                return Ok(true);
            };
            match DataPath::of(errno) {
                DataPath::Interrupted if remaining.is_some() => {}
                DataPath::Interrupted => {
                    let clock = Arc::clone(&program.session.clock);
                    remaining = Some(wait_limits::RemainingTime::new(clock, limit_ms));
                }
                DataPath::TimedOut => return Ok(false),
                _ => {
                    let error = self.activation.failed("WAIT_BO", errno, 0);
                    self.end();
                    return Err(error);
                }
            }
        }
    }

    /// Ends the call early, if that was requested. The card keeps its inference.
    fn check_interrupts(&mut self, check: &mut Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        let is_cancelled = self.canceller.phase.load(Ordering::Acquire) == CANCELLED;
        if !is_cancelled && !check.as_mut().is_some_and(|check| check()) {
            return Ok(());
        }
        if is_cancelled {
            self.canceller.phase.store(IDLE, Ordering::Release);
            if self.state == ExecState::Deferred {
                self.state = ExecState::Idle;
            }
        }
        Err(ErrorDetail::Interrupted.into())
    }

    /// Ends the inference; the ring may have room for another one.
    fn end(&mut self) {
        self.state = ExecState::Idle;
        self.canceller.phase.store(IDLE, Ordering::Release);
        self.activation.channel.ended.notify();
        if mem::take(&mut self.control.is_measured) {
            self.write_control();
        }
    }

    fn finish(&mut self, mut check: Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        self.activation.program.session.fork_guard.check()?;
        if self.state == ExecState::Idle {
            self.submit()?;
        }
        if self.state == ExecState::Submitting {
            self.resolve_submission()?;
        }
        if self.state == ExecState::Deferred {
            self.submit_with_backoff(&mut check)?;
        }
        self.wait(&mut check)
    }
}

impl Exec for CardExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        match self.positions.get(index) {
            // A buffer object without bytes, which no request moves.
            Some(None) => Ok(HostSliceMut::empty()),
            Some(Some(_)) => Ok(self.own_memory(index).unwrap_or(HostSliceMut::empty())),
            None => Err(RuntimeError::internal(format!("DMA buffer {index} of {}", self.positions.len()))),
        }
    }

    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        self.variant = variant;
        self.control.variant = u32::try_from(variant).unwrap_or(u32::MAX);
        self.write_control();
        Ok(())
    }

    fn bind_dma_buf(&mut self, index: usize, memory: Option<&Arc<DmaBuf>>) -> Result<(), RuntimeError> {
        let Some(position) = self.positions.get(index).copied().flatten() else {
            return match memory {
                None => Ok(()),
                Some(_) => Err(RuntimeError::argument(format!(
                    "DMA buffer {index} has no bytes that other memory could replace"
                ))),
            };
        };
        let slot = self.bound.get(position).and_then(Option::as_ref);
        if slot.is_some_and(|bound| memory.is_some_and(|memory| Arc::ptr_eq(&bound.memory, memory)))
            || (slot.is_none() && memory.is_none())
        {
            return Ok(());
        }
        self.activation.check()?;
        if matches!(self.state, ExecState::Submitting | ExecState::Queued) {
            return Err(StateError::InFlight.into());
        }
        let bound = match memory {
            None => None,
            Some(memory) => {
                let layout = &self.activation.program.layout.buffers[position];
                if memory.len != layout.bytes {
                    return Err(InputError::BufferSize {
                        buffer: format!("DMA buffer {index}"),
                        expected: layout.bytes,
                        found: memory.len,
                    }
                    .into());
                }
                let before = self.bound[position].as_ref().map(|bound| bound.object.handle);
                let object = match BufferObject::import(&self.activation, layout, memory, before)? {
                    Some(object) => object,
                    // Another part of the bound memory: the kernel returned the handle that is already in use.
                    None => self.import_again(position, memory)?,
                };
                Some(Bound { memory: Arc::clone(memory), object })
            }
        };
        self.bound[position] = bound;
        self.rebuild_submission();
        Ok(())
    }

    fn identify(&mut self, identity: Identity) {
        let Identity { program, activation, inference } = identity;
        self.control = Control { program, activation, inference, ..self.control };
        self.write_control();
    }

    fn measure(&mut self, _: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        self.control.is_measured = true;
        self.write_control();
        Ok(())
    }

    fn write_stats(&mut self, stages: &Stages, _: Identity) -> Result<HostSlice<'_>, RuntimeError> {
        let stats = self.activation.program.image.network.stats.as_ref().map(|stats| stats.buff_num as usize);
        let missing = || RuntimeError::internal("the program has no buffer of statistics");
        let mut memory = self.dma_buffer(stats.ok_or_else(missing)?)?;
        if let Err(error) = stats::add_host_waits(memory.reborrow(), stages) {
            log::global().warn(|| format!("the waits of a measured inference are unknown: {error}"));
        }
        Ok(memory.into_const())
    }

    fn reclaim(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        self.activation.program.session.fork_guard.check()?;
        if self.state == ExecState::Submitting {
            // The result does not matter: if the submission failed, there is nothing to wait for.
            let _ = self.resolve_submission();
        }
        match self.state {
            ExecState::Idle | ExecState::Submitting => Ok(()),
            ExecState::Deferred => {
                self.end();
                Ok(())
            }
            // The channel is lost, so the result does not matter.
            ExecState::Queued if self.activation.channel.lost().is_some() => {
                self.end();
                Ok(())
            }
            ExecState::Queued => {
                self.canceller.phase.store(RUNNING, Ordering::Release);
                self.wait(&mut Some(check))
            }
        }
    }

    fn set_transfer_bytes(&mut self, bytes: &[u32]) {
        for (used, &bytes) in self.transfer_bytes.iter_mut().zip(bytes) {
            *used = bytes;
        }
    }

    fn submit(&mut self) -> Result<(), RuntimeError> {
        if self.state != ExecState::Idle {
            return Err(StateError::InFlight.into());
        }
        if let Err(error) = self.begin() {
            self.end();
            return Err(error);
        }
        match self.try_submit() {
            None => self.state = ExecState::Submitting,
            Some(outcome) => {
                self.note_submission(outcome)?;
            }
        }
        Ok(())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.finish(None)
    }

    fn execute_interruptibly(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        self.finish(Some(check))
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::clone(&self.canceller) as Arc<dyn Canceller>
    }
}

/// Time limit for a card to release the buffers of a dropped exec; 0 would select the kernel's default.
const LAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for CardExec {
    fn drop(&mut self) {
        let session = &self.activation.program.session;
        if !session.fork_guard.is_current() {
            return;
        }
        if self.state == ExecState::Submitting {
            // The other thread uses the handles of these buffer objects.
            let is_taken = self.activation.submit_queue.wait(&self.submission).is_ok();
            self.state = if is_taken { ExecState::Queued } else { ExecState::Idle };
        }
        if self.state == ExecState::Queued && self.activation.channel.lost().is_none() {
            let handle = self.submission.handle(self.activation.program.layout.awaited);
            let limit_ms = u32::try_from(LAST_WAIT.as_millis()).unwrap_or(1);
            // The resources of the card are released with the activation.
            let _ = session.file().wait(self.activation.channel.dbc_id, handle, limit_ms);
        }
        // First removes all mappings, then closes the handles in the order of their creation.
        for object in &mut self.objects {
            object.unmap();
        }
    }
}

#[derive(Debug)]
struct CardCanceller {
    // Refers to the channel instead of the activation, so that a canceller does not keep cores.
    channel: Arc<Channel>,
    phase: AtomicU32,
}

impl Canceller for CardCanceller {
    fn cancel(&self) {
        let asked = self.phase.compare_exchange(RUNNING, CANCELLED, Ordering::AcqRel, Ordering::Acquire);
        if asked.is_ok() {
            // The exec may wait for room.
            self.channel.ended.notify();
        }
    }
}
