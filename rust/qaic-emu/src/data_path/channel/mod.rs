//! The cores' side of a DMA-bridge channel: takes elements from the ring in order, and advances the cores between
//! them.
//!
//! No function waits. A [`Channel::step`] does the next possible operation and returns its result; the driver selects
//! the thread and the clock for steps.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::data_path::device_memory::{Budget, DeviceMemory, MemoryFull};
use crate::data_path::pages::Pages;
use crate::data_path::semaphores::Semaphores;
use crate::workload::{CoreView, Doorbell, Progress, Running};
use qaic_kmd::abi::{SEM_IN_SYNC_FENCE, SEM_OUT_SYNC_FENCE, Sem};

/// Status of an element whose data was transferred.
pub(crate) const DMA_OK: u16 = 0;
/// Status of an element that exceeds the host's memory.
pub(crate) const DMA_BAD_HOST_RANGE: u16 = 1;
/// Status of an element for which the device had no memory.
pub(crate) const DMA_NO_MEMORY: u16 = 2;

/// Maximum number of doorbells that are kept for cores that do not read them.
const MAX_DOORBELLS: usize = 4096;

/// An element of the ring.
#[derive(Clone, Debug)]
pub struct Element {
    /// Memory of the host.
    pub pages: Arc<Pages>,
    /// Offset in the host's memory.
    pub host_offset: u64,
    /// Address in the device.
    pub dev_addr: u64,
    /// Number of bytes; 0 transfers nothing.
    pub len: u32,
    /// Direction.
    pub to_device: bool,
    /// Semaphore operations in order: those before the transfer, then those after it.
    pub sems: [Sem; 4],
    /// Doorbell that rings after all other operations.
    pub doorbell: Option<Doorbell>,
    /// Number of the element in the driver.
    pub id: u64,
    /// True if the data is transferred as late as fences permit, and after the data of later elements. Only if
    /// semaphores are used.
    pub is_late: bool,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An element is complete.
    Completed {
        /// The driver's number of the element.
        element_id: u64,
        /// Status; 0 if the data of the element was transferred.
        dma_status: u16,
    },
    /// The cores made progress.
    Worked,
    /// The next element waits for a semaphore that no operation will increment.
    Blocked,
    /// There is nothing to do.
    Idle,
    /// The cores have failed and stopped.
    Crashed,
}

/// A channel and its cores, for the lifetime of an activation.
pub struct Channel {
    queue: Mutex<VecDeque<Element>>,
    /// Number of elements that were pushed and are not complete.
    occupancy: AtomicUsize,
    is_stopped: AtomicBool,
    stop_cores: Arc<dyn Fn() + Send + Sync>,
    cores: Mutex<Cores>,
}

impl Channel {
    pub(crate) fn new(mut running: Box<dyn Running>, budget: Budget) -> Self {
        let (mut semaphores, mut memory) = (Semaphores::default(), DeviceMemory::new(budget));
        let mut doorbells = VecDeque::new();
        running.begin(&mut CoreView {
            semaphores: &mut semaphores,
            memory: &mut memory,
            doorbells: &mut doorbells,
        });
        let is_strict = running.honors_semaphores();
        Self {
            queue: Mutex::default(),
            occupancy: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
            stop_cores: running.stopper(),
            cores: Mutex::new(Cores {
                running,
                semaphores,
                memory,
                doorbells,
                current: None,
                late: Vec::new(),
                completions: VecDeque::new(),
                may_advance: is_strict,
                // Without inputs, the cores must produce the first output.
                sync_mode: if is_strict { SyncMode::Semaphores } else { SyncMode::Ring { has_inputs: true } },
                has_crashed: false,
            }),
        }
    }

    /// Adds an element at the end of the ring. A stopped channel drops it.
    pub fn push(&self, element: Element) {
        let mut queue = lock(&self.queue);
        if !self.is_stopped() {
            self.occupancy.fetch_add(1, Ordering::Relaxed);
            queue.push_back(element);
        }
    }

    /// Does the next operation. Steps of several threads are serialized.
    ///
    /// Blocking: while the cores compute.
    pub fn step(&self) -> Step {
        let mut cores = lock(&self.cores);
        let step = self.step_of(&mut cores);
        // Steps that ended while the channel was stopped do not count.
        if self.is_stopped() { Step::Idle } else { step }
    }

    fn step_of(&self, cores: &mut Cores) -> Step {
        loop {
            if self.is_stopped() {
                return Step::Idle;
            }
            if cores.has_crashed {
                return Step::Crashed;
            }
            if let Some(step) = cores.next_completion() {
                self.count_completed();
                return step;
            }
            if cores.current.is_none() {
                cores.current = lock(&self.queue).pop_front().map(|element| (element, 0));
            }
            cores.start_for_output();
            if cores.may_advance {
                match cores.advance() {
                    Progress::Idle => cores.may_advance = false,
                    Progress::Worked => {
                        // If only the ring sets the order, the cores advance once for all arrived elements.
                        cores.may_advance = cores.sync_mode == SyncMode::Semaphores;
                        return Step::Worked;
                    }
                    Progress::Crashed => cores.has_crashed = true,
                }
                continue;
            }
            match cores.process() {
                Some(ElementOutcome::Ended) => {}
                // The cores may wait for the effect of this element.
                Some(ElementOutcome::Blocked { has_moved: true }) => cores.may_advance = true,
                // Late data arrives when no other step is possible.
                None | Some(ElementOutcome::Blocked { .. }) if cores.transfer_late(&[true, false]) => {
                    cores.may_advance = true;
                }
                None => return Step::Idle,
                Some(ElementOutcome::Blocked { has_moved: false }) => return Step::Blocked,
            }
        }
    }

    fn count_completed(&self) {
        // Not after a stop, which sets the count to 0.
        let _queue = lock(&self.queue);
        if !self.is_stopped() {
            self.occupancy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Number of elements in the ring, including the current one.
    pub(crate) fn occupancy(&self) -> usize {
        self.occupancy.load(Ordering::Relaxed)
    }

    /// Stops the channel: queued elements are dropped, and running cores are asked to stop. Does not wait for them.
    pub fn stop(&self) {
        let mut queue = lock(&self.queue);
        self.is_stopped.store(true, Ordering::Release);
        queue.clear();
        self.occupancy.store(0, Ordering::Relaxed);
        drop(queue);
        (self.stop_cores)();
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
}

impl Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the cores, which may be computing.
        f.debug_struct("Channel")
            .field("occupancy", &self.occupancy())
            .field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

struct Cores {
    running: Box<dyn Running>,
    semaphores: Semaphores,
    memory: DeviceMemory,
    doorbells: VecDeque<Doorbell>,
    sync_mode: SyncMode,
    /// The element at the head of the ring, and its next stage: four operations before the transfer, the transfer,
    /// four operations after it, the doorbell.
    current: Option<(Element, usize)>,
    /// Elements whose data was not transferred.
    late: Vec<Element>,
    /// Elements to report, in the order of the ring.
    completions: VecDeque<Completion>,
    /// True if an operation was done since the cores were last found idle.
    may_advance: bool,
    has_crashed: bool,
}

/// The mechanism that orders transfers and the work of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncMode {
    /// The semaphores.
    Semaphores,
    /// The ring only. The cores work when an output is due and an unread input has arrived.
    Ring { has_inputs: bool },
}

/// An element that is reported after all its operations.
#[derive(Clone, Copy, Debug)]
struct Completion {
    element_id: u64,
    /// Status of the transfer, once the transfer is over.
    dma_status: Option<u16>,
    /// True if all other operations are complete.
    is_ended: bool,
}

const TRANSFER: usize = 4;
const DOORBELL: usize = 9;

enum ElementOutcome {
    Ended,
    Blocked { has_moved: bool },
}

impl Cores {
    /// Starts the cores without semaphores, when the first output is due.
    fn start_for_output(&mut self) {
        let wants_output = self.current.as_ref().is_some_and(|(element, _)| !element.to_device);
        if wants_output && self.sync_mode == (SyncMode::Ring { has_inputs: true }) {
            self.sync_mode = SyncMode::Ring { has_inputs: false };
            self.may_advance = true;
        }
    }

    fn advance(&mut self) -> Progress {
        self.running.advance(&mut CoreView {
            semaphores: &mut self.semaphores,
            memory: &mut self.memory,
            doorbells: &mut self.doorbells,
        })
    }

    /// Processes the element at the head; `None` if there is none.
    fn process(&mut self) -> Option<ElementOutcome> {
        let (element, begin) = self.current.take()?;
        for next in begin..DOORBELL {
            if next == TRANSFER {
                let is_late = element.is_late && self.sync_mode == SyncMode::Semaphores;
                // An element whose transfer failed also completes when its semaphores allow it.
                let dma_status = (!is_late).then(|| self.transfer(&element).err().unwrap_or(DMA_OK));
                self.completions.push_back(Completion {
                    element_id: element.id,
                    dma_status,
                    is_ended: false,
                });
                if is_late {
                    self.late.push(element.clone());
                }
            } else if !self.synchronize(&element, next) {
                self.current = Some((element, next));
                return Some(ElementOutcome::Blocked { has_moved: next > begin });
            }
        }
        if let Some(doorbell) = element.doorbell {
            if self.doorbells.len() >= MAX_DOORBELLS {
                self.doorbells.pop_front();
            }
            self.doorbells.push_back(doorbell);
        }
        match &mut self.sync_mode {
            SyncMode::Semaphores => self.may_advance = true,
            SyncMode::Ring { has_inputs } => *has_inputs |= element.to_device,
        }
        if let Some(completion) = self.completions.back_mut() {
            completion.is_ended = true;
        }
        Some(ElementOutcome::Ended)
    }

    /// Returns the next complete element; elements are reported in the order of the ring.
    fn next_completion(&mut self) -> Option<Step> {
        let Completion { element_id, dma_status, is_ended } = *self.completions.front()?;
        let dma_status = dma_status.filter(|_| is_ended)?;
        self.completions.pop_front();
        Some(Step::Completed { element_id, dma_status })
    }

    /// Transfers the late data of these directions, the latest first. Returns true if there was any.
    fn transfer_late(&mut self, to_device: &[bool]) -> bool {
        let late = std::mem::take(&mut self.late);
        let (due, later): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|element| to_device.contains(&element.to_device));
        self.late = later;
        for element in due.iter().rev() {
            let dma_status = self.transfer(element).err().unwrap_or(DMA_OK);
            let of_it = self.completions.iter_mut().find(|completion| completion.element_id == element.id);
            if let Some(completion) = of_it {
                completion.dma_status = Some(dma_status);
            }
        }
        !due.is_empty()
    }

    /// Executes the semaphore operation of a stage, if there is one. Returns true if the element can continue.
    fn synchronize(&mut self, element: &Element, stage: usize) -> bool {
        let is_before = stage < TRANSFER;
        let operation = element.sems[if is_before { stage } else { stage - TRANSFER - 1 }];
        let is_here = self.sync_mode == SyncMode::Semaphores && is_before == (operation.presync != 0);
        if !is_here {
            return true;
        }
        if operation.flags & SEM_IN_SYNC_FENCE != 0 {
            self.transfer_late(&[true]);
        }
        if operation.flags & SEM_OUT_SYNC_FENCE != 0 {
            self.transfer_late(&[false]);
        }
        self.semaphores.apply(operation)
    }

    fn transfer(&mut self, element: &Element) -> Result<(), u16> {
        let Element { pages, host_offset, dev_addr, len, to_device, .. } = element;
        let len = *len as usize;
        let at = |done: usize| host_offset.checked_add(done as u64).ok_or(TransferError(DMA_BAD_HOST_RANGE));
        let outside = || TransferError(DMA_BAD_HOST_RANGE);
        let moved = if *to_device {
            self.memory
                .write_pieces(*dev_addr, len, |done, piece| pages.read(at(done)?, piece).ok_or_else(outside))
        } else {
            self.memory
                .read_pieces(*dev_addr, len, |done, piece| pages.write(at(done)?, piece).ok_or_else(outside))
        };
        moved.map_err(|TransferError(status)| status)
    }
}

/// Reason why data was not transferred.
struct TransferError(u16);

impl From<MemoryFull> for TransferError {
    fn from(_: MemoryFull) -> Self {
        Self(DMA_NO_MEMORY)
    }
}

/// Locks a mutex and ignores poisoning: a panic of a workload ends its thread, not the emulator.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
