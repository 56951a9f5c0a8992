//! One inference at a time through buffer objects: two system calls, no allocation.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use qaic_kmd::abi::{ExecuteEntry, PartialExecuteEntry, PerfStatsEntry};
use qaic_kmd::{Errno, calls};

use super::activation::Active;
use super::bo::BufferObject;
use super::health::Channel;
use super::host_waits;
use super::slices::RING_ELEMENTS;
use super::status::{DataPath, uninterrupted};
use super::wait::{self, RING_ATTEMPTS};
use crate::buffer::{DmaBuf, HostSlice, HostSliceMut, Plain};
use crate::device::{Canceller, Exec};
use crate::error::RuntimeError;
use crate::log;
use crate::profiling::{Identity, Stages};
use crate::sync::{AtomicU32, Ordering};

/// Bytes of the control buffer of a program for emulated cards.
pub(super) const CONTROL_BYTES: usize = 64;
const CONTROL_MAGIC: u32 = 0x5143_4F43;
const CONTROL_VARIANT: usize = 4;
const CONTROL_FLAGS: usize = 8;
const CONTROL_PROGRAM: usize = 12;
const CONTROL_ACTIVATION: usize = 16;
const CONTROL_INFERENCE: usize = 24;
const MEASURE: u32 = 1;

// What the canceller may end.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const CANCELLED: u32 = 2;

/// Buffer objects of one inference, and the lists of them that the kernel is given.
#[derive(Debug)]
pub(super) struct KmdExec {
    active: Arc<Active>,
    stop: Arc<KmdStop>,
    // In the order of the layout.
    objects: Vec<BufferObject>,
    // Of each DMA buffer, the buffer object that it is.
    places: Vec<Option<usize>>,
    // Memory of others that a buffer object stands back for.
    bound: Vec<Option<Bound>>,
    list: List,
    // Per DMA buffer, the bytes of the next inference that move, 0 for all.
    packed: Vec<u32>,
    variant: usize,
    progress: Progress,
    // Ends of inferences of the activation before the present one was offered.
    heard: u64,
    is_measured: bool,
}

#[derive(Debug)]
struct Bound {
    memory: Arc<DmaBuf>,
    object: BufferObject,
}

/// Entries of the execute call, one per buffer object.
#[derive(Debug)]
enum List {
    Whole(Vec<ExecuteEntry>),
    Partial(Vec<PartialExecuteEntry>),
}

/// Why the card did not take an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unoffered {
    /// The call that offers it failed.
    Execute(Errno),
    /// What the inference before left in the ring did not end.
    Wait(Errno),
}

/// How far the present inference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There is none.
    None,
    /// The ring had no room for it.
    Offered,
    /// The card has it.
    Queued,
}

impl KmdExec {
    /// Makes the buffer objects. What was made of one that fails is taken apart.
    pub(super) fn new(active: &Arc<Active>) -> Result<Self, RuntimeError> {
        let program = &active.program;
        let layouts = &program.layout.buffers;
        let mut objects = Vec::with_capacity(layouts.len());
        let mut places = vec![None; program.image.network().dma_buffers.len()];
        for (position, layout) in layouts.iter().enumerate() {
            objects.push(BufferObject::new(active, layout)?);
            if let Some(place) = layout.dma.and_then(|dma| places.get_mut(dma)) {
                *place = Some(position);
            }
        }
        let both = objects.iter().zip(layouts);
        let list = if program.layout.is_partial {
            let entry = |(object, layout): (&BufferObject, &super::slices::BufferLayout)| {
                PartialExecuteEntry { handle: object.handle, dir: layout.dir, resize: layout.bytes }
            };
            List::Partial(both.map(entry).collect())
        } else {
            let entry = |(object, layout): (&BufferObject, &super::slices::BufferLayout)| ExecuteEntry {
                handle: object.handle,
                dir: layout.dir,
            };
            List::Whole(both.map(entry).collect())
        };
        let exec = Self {
            stop: Arc::new(KmdStop { channel: Arc::clone(&active.channel), phase: AtomicU32::new(IDLE) }),
            bound: objects.iter().map(|_| None).collect(),
            packed: vec![0; places.len()],
            active: Arc::clone(active),
            objects,
            places,
            list,
            variant: 0,
            progress: Progress::None,
            heard: 0,
            is_measured: false,
        };
        exec.control(0, CONTROL_MAGIC);
        Ok(exec)
    }

    /// Tells the cores something, where they can be told.
    fn control<T: Plain>(&self, offset: usize, word: T) {
        if let Some(memory) = self.active.program.control.and_then(|control| self.own_memory(control)) {
            // Checked when the program was loaded: it has room.
            let _ = memory.write_from(offset, &[word]);
        }
    }

    fn own_memory(&self, dma: usize) -> Option<HostSliceMut> {
        let place = (*self.places.get(dma)?)?;
        self.objects.get(place).map(BufferObject::memory)
    }

    fn handle(&self, position: usize) -> u32 {
        match &self.list {
            List::Whole(entries) => entries.get(position).map_or(0, |entry| entry.handle),
            List::Partial(entries) => entries.get(position).map_or(0, |entry| entry.handle),
        }
    }

    fn set_handle(&mut self, position: usize, handle: u32) {
        match &mut self.list {
            List::Whole(entries) => {
                if let Some(entry) = entries.get_mut(position) {
                    entry.handle = handle;
                }
            }
            List::Partial(entries) => {
                if let Some(entry) = entries.get_mut(position) {
                    entry.handle = handle;
                }
            }
        }
    }

    /// Binds another part of the memory that a buffer is bound to, or leaves it bound as it was.
    fn import_again(&mut self, position: usize, memory: &DmaBuf) -> Result<BufferObject, RuntimeError> {
        let layout = &self.active.program.layout.buffers[position];
        let before = self.bound[position].take().map(|bound| bound.memory);
        let import = |memory: &DmaBuf| {
            let object = BufferObject::import(&self.active, layout, memory, None)?;
            object.ok_or_else(|| RuntimeError::Internal { what: "memory has a handle twice".to_owned() })
        };
        let outcome = import(memory);
        if let (Err(_), Some(before)) = (&outcome, before) {
            match import(&before) {
                Ok(object) => {
                    let handle = object.handle;
                    self.bound[position] = Some(Bound { memory: before, object });
                    self.set_handle(position, handle);
                }
                // Only a card that is lost refuses what it took before.
                Err(_) => self.set_handle(position, self.objects[position].handle),
            }
        }
        outcome
    }

    /// Offers the inference to the ring once. Where requests without data follow the last output, the card may have them
    /// of the inference before still.
    fn offer(&mut self) -> Result<(), Unoffered> {
        // Before the attempt: what ends during it makes room after it.
        self.heard = self.active.channel.ended.rung();
        let outcome = self.offer_once();
        let layout = &self.active.program.layout;
        let last = layout.buffers.len() - 1;
        let is_refused = outcome.is_err_and(|errno| DataPath::of(errno) == DataPath::Invalid);
        if !is_refused || layout.awaited == last {
            return outcome.map_err(Unoffered::Execute);
        }
        let (file, dbc_id) = (self.active.program.line.file(), self.active.channel.dbc_id);
        uninterrupted(|| calls::wait(file, dbc_id, self.handle(last), 0)).map_err(Unoffered::Wait)?;
        self.offer_once().map_err(Unoffered::Execute)
    }

    fn offer_once(&mut self) -> Result<(), Errno> {
        let (file, dbc_id) = (self.active.program.line.file(), self.active.channel.dbc_id);
        uninterrupted(|| {
            let _turn = self.active.execute.lock();
            match &mut self.list {
                List::Whole(entries) => calls::execute(file, dbc_id, entries),
                List::Partial(entries) => calls::partial_execute(file, dbc_id, entries),
            }
        })
    }

    /// Says of every buffer object how much of it moves: what the last inference left must not count (device-kmd T15), and
    /// 0 does not mean the same to all kernels (T3).
    fn say_sizes(&mut self) {
        let List::Partial(entries) = &mut self.list else { return };
        for (entry, layout) in entries.iter_mut().zip(&self.active.program.layout.buffers) {
            let packed = layout.dma.and_then(|dma| self.packed.get(dma)).map_or(0, |&bytes| u64::from(bytes));
            entry.resize = if packed == 0 { layout.bytes } else { packed.min(layout.bytes) };
        }
        self.packed.fill(0);
    }

    fn begin(&mut self) -> Result<(), RuntimeError> {
        self.active.check()?;
        let program = &self.active.program;
        let entries = &program.image.network().allowed_shapes;
        if entries.len() > 1 && program.control.is_none() && program.only_shapes != Some(self.variant) {
            return Err(RuntimeError::NoMatchingShape {
                what: format!(
                    "entry {} of the {} permitted combinations was picked; this program runs on cards with the shapes \
                     of its bindings only, because how a card is told of others is not public",
                    self.variant,
                    entries.len()
                )
                .into(),
            });
        }
        self.say_sizes();
        self.stop.phase.store(RUNNING, Ordering::Release);
        Ok(())
    }

    /// Takes note of what became of an offer; `true`: the card has it.
    fn offered(&mut self, outcome: Result<(), Unoffered>) -> Result<bool, RuntimeError> {
        let Err(unoffered) = outcome else {
            self.progress = Progress::Queued;
            return Ok(true);
        };
        let error = match unoffered {
            Unoffered::Execute(errno) if DataPath::of(errno) == DataPath::RingFull => {
                self.progress = Progress::Offered;
                return Ok(false);
            }
            Unoffered::Execute(errno) => self.active.failed("EXECUTE_BO", errno, 0),
            Unoffered::Wait(errno) if DataPath::of(errno) == DataPath::TimedOut => RuntimeError::Timeout {
                what: "requests without data of the inference before",
                timeout_ms: wait::DEVICE_DEFAULT_MS.into(),
            },
            Unoffered::Wait(errno) => self.active.failed("WAIT_BO", errno, 0),
        };
        self.end();
        Err(error)
    }

    /// Offers the inference until there is room.
    fn insist(&mut self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<(), RuntimeError> {
        let clock = Arc::clone(&self.active.program.line.clock);
        // The first attempt was the submission's.
        if let Err(error) = self.check_room() {
            self.end();
            return Err(error);
        }
        for attempt in 1..RING_ATTEMPTS {
            let mut left = wait::pause_after(attempt);
            while !left.is_zero() {
                let nap = if interrupted.is_some() { left.min(wait::LOOK) } else { left };
                if clock.wait(nap, &self.active.channel.ended, self.heard) {
                    break;
                }
                self.check_interrupts(interrupted)?;
                left = left.saturating_sub(nap);
            }
            self.check_interrupts(interrupted)?;
            if let Some(lost) = self.active.channel.lost() {
                let lost = lost.clone();
                self.end();
                return Err(lost);
            }
            let outcome = self.offer();
            if self.offered(outcome)? {
                return Ok(());
            }
        }
        self.end();
        Err(self.ring_full(RING_ATTEMPTS, self.active.program.layout.elements))
    }

    /// Asks the kernel how many elements an inference takes: more than the ring holds never find room.
    fn check_room(&self) -> Result<(), RuntimeError> {
        let entry = |position| PerfStatsEntry { handle: self.handle(position), ..PerfStatsEntry::default() };
        let mut entries: Vec<_> = (0..self.objects.len()).map(entry).collect();
        let (file, dbc_id) = (self.active.program.line.file(), self.active.channel.dbc_id);
        // A kernel that does not tell is asked for nothing else.
        if uninterrupted(|| calls::perf_stats(file, dbc_id, &mut entries)).is_err() {
            return Ok(());
        }
        let elements = entries.iter().fold(0_u32, |sum, entry| sum.saturating_add(entry.num_queue_element));
        if elements < RING_ELEMENTS { Ok(()) } else { Err(self.ring_full(1, elements)) }
    }

    fn ring_full(&self, attempts: u32, elements: u32) -> RuntimeError {
        let (device, channel) = (self.active.channel.device, self.active.channel.dbc_id);
        RuntimeError::RingFull { device, channel, attempts, elements }
    }

    /// Waits for the end of the queued inference.
    fn wait(&mut self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<(), RuntimeError> {
        let limits = self.active.program.wait;
        let handle = self.handle(self.active.program.layout.awaited);
        for _ in 0..=limits.retries {
            for limit_ms in wait::calls(limits) {
                if self.wait_once(handle, limit_ms, interrupted)? {
                    return Ok(());
                }
            }
        }
        // The card has it still.
        self.stop.phase.store(IDLE, Ordering::Release);
        Err(RuntimeError::Timeout { what: "an inference", timeout_ms: wait::total_ms(limits) })
    }

    /// One wait; whether the inference has ended. Signals make it begin anew, with what is left of its time since the first
    /// of them: however often they come, it ends.
    fn wait_once(
        &mut self,
        handle: u32,
        limit_ms: u32,
        interrupted: &mut Option<&mut dyn FnMut() -> bool>,
    ) -> Result<bool, RuntimeError> {
        let mut resumed: Option<wait::Resumed> = None;
        loop {
            self.check_interrupts(interrupted)?;
            let active = &self.active;
            let Some(left_ms) = resumed.as_mut().map_or(Some(limit_ms), wait::Resumed::left_ms) else {
                return Ok(false);
            };
            let outcome = calls::wait(active.program.line.file(), active.channel.dbc_id, handle, left_ms);
            let Err(errno) = outcome else {
                self.end();
                return Ok(true);
            };
            match DataPath::of(errno) {
                DataPath::Interrupted if resumed.is_some() => {}
                DataPath::Interrupted => {
                    resumed = Some(wait::Resumed::new(Arc::clone(&active.program.line.clock), limit_ms));
                }
                DataPath::TimedOut => return Ok(false),
                _ => {
                    let error = active.failed("WAIT_BO", errno, 0);
                    self.end();
                    return Err(error);
                }
            }
        }
    }

    /// Ends the call early, if anybody asked for that. What the card has, it keeps.
    fn check_interrupts(
        &mut self,
        interrupted: &mut Option<&mut dyn FnMut() -> bool>,
    ) -> Result<(), RuntimeError> {
        let is_cancelled = self.stop.phase.load(Ordering::Acquire) == CANCELLED;
        if !is_cancelled && !interrupted.as_mut().is_some_and(|interrupted| interrupted()) {
            return Ok(());
        }
        if is_cancelled {
            self.stop.phase.store(IDLE, Ordering::Release);
            if self.progress == Progress::Offered {
                self.progress = Progress::None;
            }
        }
        Err(RuntimeError::Interrupted)
    }

    /// The inference is over, and the ring may have room for another.
    fn end(&mut self) {
        self.progress = Progress::None;
        self.stop.phase.store(IDLE, Ordering::Release);
        self.active.channel.ended.ring();
        if mem::take(&mut self.is_measured) {
            self.control(CONTROL_FLAGS, 0_u32);
        }
    }

    fn finish(&mut self, mut interrupted: Option<&mut dyn FnMut() -> bool>) -> Result<(), RuntimeError> {
        self.active.program.line.origin.check()?;
        if self.progress == Progress::None {
            self.submit()?;
        }
        if self.progress == Progress::Offered {
            self.insist(&mut interrupted)?;
        }
        self.wait(&mut interrupted)
    }
}

impl Exec for KmdExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut, RuntimeError> {
        match self.places.get(index) {
            // One without bytes, which no request moves.
            Some(None) => Ok(HostSliceMut::empty()),
            Some(Some(_)) => Ok(self.own_memory(index).unwrap_or(HostSliceMut::empty())),
            None => {
                Err(RuntimeError::Internal { what: format!("DMA buffer {index} of {}", self.places.len()) })
            }
        }
    }

    fn binds_in_place(&self) -> bool {
        false
    }

    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        self.variant = variant;
        self.control(CONTROL_VARIANT, u32::try_from(variant).unwrap_or(u32::MAX));
        Ok(())
    }

    fn bind_input(&mut self, index: usize, _: HostSlice) -> Result<(), RuntimeError> {
        Err(RuntimeError::Internal { what: format!("input {index} of a card bound in place") })
    }

    fn bind_output(&mut self, index: usize, _: HostSliceMut) -> Result<(), RuntimeError> {
        Err(RuntimeError::Internal { what: format!("output {index} of a card bound in place") })
    }

    fn bind_dma_buf(&mut self, index: usize, memory: Option<&Arc<DmaBuf>>) -> Result<(), RuntimeError> {
        let Some(position) = self.places.get(index).copied().flatten() else {
            return match memory {
                None => Ok(()),
                Some(_) => Err(RuntimeError::Argument {
                    what: format!("DMA buffer {index} has no bytes that memory of others could stand for"),
                }),
            };
        };
        let slot = self.bound.get(position).and_then(Option::as_ref);
        if slot.is_some_and(|bound| memory.is_some_and(|memory| Arc::ptr_eq(&bound.memory, memory)))
            || (slot.is_none() && memory.is_none())
        {
            return Ok(());
        }
        self.active.check()?;
        if self.progress == Progress::Queued {
            return Err(RuntimeError::InFlight);
        }
        let bound = match memory {
            None => None,
            Some(memory) => {
                let layout = &self.active.program.layout.buffers[position];
                if memory.len() != layout.bytes {
                    return Err(RuntimeError::BufferSize {
                        buffer: format!("DMA buffer {index}"),
                        expected: layout.bytes,
                        found: memory.len(),
                    });
                }
                let before = self.bound[position].as_ref().map(|bound| bound.object.handle);
                let object = match BufferObject::import(&self.active, layout, memory, before) {
                    Ok(Some(object)) => object,
                    // Another part of the same memory: the kernel knows it by the handle that is in use here.
                    Ok(None) => self.import_again(position, memory)?,
                    Err(error) => return Err(error),
                };
                Some(Bound { memory: Arc::clone(memory), object })
            }
        };
        let handle = bound.as_ref().map_or(self.objects[position].handle, |bound| bound.object.handle);
        self.set_handle(position, handle);
        self.bound[position] = bound;
        Ok(())
    }

    fn identify(&mut self, identity: Identity) {
        let Identity { program, activation, inference } = identity;
        self.control(CONTROL_PROGRAM, program);
        self.control(CONTROL_ACTIVATION, activation);
        self.control(CONTROL_INFERENCE, inference);
    }

    fn measure(&mut self) -> Result<(), RuntimeError> {
        self.is_measured = true;
        self.control(CONTROL_FLAGS, MEASURE);
        Ok(())
    }

    fn write_stats(&mut self, stages: &Stages, _: Identity) -> Result<(), RuntimeError> {
        let stats = self.active.program.image.network().stats.as_ref().map(|stats| stats.buff_num as usize);
        let Some(memory) = stats.and_then(|stats| self.own_memory(stats)) else { return Ok(()) };
        if let Err(error) = host_waits::add(memory, stages) {
            log::global().warn(|| format!("waits of a measured inference are not known: {error}"));
        }
        Ok(())
    }

    fn reclaim(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), RuntimeError> {
        self.active.program.line.origin.check()?;
        match self.progress {
            Progress::None => Ok(()),
            Progress::Offered => {
                self.end();
                Ok(())
            }
            // What has become of it is the business of nobody any more.
            Progress::Queued if self.active.channel.lost().is_some() => {
                self.end();
                Ok(())
            }
            Progress::Queued => {
                self.stop.phase.store(RUNNING, Ordering::Release);
                self.wait(&mut Some(interrupted))
            }
        }
    }

    fn set_transfer_bytes(&mut self, bytes: &[u32]) {
        for (packed, &bytes) in self.packed.iter_mut().zip(bytes) {
            *packed = bytes;
        }
    }

    fn submit(&mut self) -> Result<(), RuntimeError> {
        if self.progress != Progress::None {
            return Err(RuntimeError::InFlight);
        }
        if let Err(error) = self.begin() {
            self.end();
            return Err(error);
        }
        let outcome = self.offer();
        self.offered(outcome).map(drop)
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.finish(None)
    }

    fn execute_interruptibly(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), RuntimeError> {
        self.finish(Some(interrupted))
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::clone(&self.stop) as Arc<dyn Canceller>
    }
}

/// How long a card is asked to let go of the buffers of an exec that is dropped; 0 would be the kernel's default.
const LAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for KmdExec {
    fn drop(&mut self) {
        let line = &self.active.program.line;
        if line.origin.is_here() && self.progress == Progress::Queued && self.active.channel.lost().is_none()
        {
            let handle = self.handle(self.active.program.layout.awaited);
            let limit_ms = u32::try_from(LAST_WAIT.as_millis()).unwrap_or(1);
            // What the card keeps is given back with the activation.
            let _ = calls::wait(line.file(), self.active.channel.dbc_id, handle, limit_ms);
        }
        // All mappings first, then the handles in the order in which they were made (device-kmd §3).
        for object in &mut self.objects {
            if line.origin.is_here() {
                object.unmap();
            }
        }
    }
}

#[derive(Debug)]
struct KmdStop {
    // Not the activation: who can end inferences does not keep cores.
    channel: Arc<Channel>,
    phase: AtomicU32,
}

impl Canceller for KmdStop {
    fn cancel(&self) {
        let asked = self.phase.compare_exchange(RUNNING, CANCELLED, Ordering::AcqRel, Ordering::Acquire);
        if asked.is_ok() {
            // It may wait for room.
            self.channel.ended.ring();
        }
    }
}
