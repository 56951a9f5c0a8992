//! The data path of a channel as its driver sees it: registers, and rings of requests and responses in the guest's memory.

use std::collections::VecDeque;
use std::sync::Arc;

use qaic_emu::fault::Action;
use qaic_emu::{Channel, Doorbell, Element, Pages};
use qaic_kmd::abi::Sem;

use super::control_link::RingPlaces;
use super::guest_memory::GuestMemory;

const REQUEST_BYTES: u64 = 64;
const RESPONSE_BYTES: u64 = 4;
const REQUEST_HEAD: u64 = 0;
const REQUEST_TAIL: u64 = 4;
const RESPONSE_HEAD: u64 = 8;
const RESPONSE_TAIL: u64 = 12;
const COMPLETES: u8 = 1 << 4;
const TO_DEVICE: u8 = 1;
const FROM_DEVICE: u8 = 2;
const RINGS: u8 = 1 << 7;

/// An activated channel.
#[derive(Debug)]
pub(super) struct DmaChannel {
    pub(super) channel: Arc<Channel>,
    places: RingPlaces,
    request_head: u32,
    request_tail: u32,
    response_head: u32,
    response_tail: u32,
    /// Unfinished requests, the oldest first.
    queued: VecDeque<Queued>,
    next_element: u64,
    /// Responses for which the ring has no space.
    unsent: VecDeque<[u8; 4]>,
    /// Counts the work of its thread.
    pub(super) pushes: u64,
    is_hung: bool,
    /// Replaces memory that the guest does not have.
    nowhere: Arc<Pages>,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    element: u64,
    request: u16,
    completes: bool,
    status: Option<u16>,
}

impl DmaChannel {
    /// A new channel; `None` for rings without an element.
    pub(super) fn new(channel: Arc<Channel>, places: RingPlaces) -> Option<Self> {
        let nowhere = Pages::new(1).ok()?;
        (places.request_count > 0 && places.response_count > 0).then(|| Self {
            channel,
            places,
            request_head: 0,
            request_tail: 0,
            response_head: 0,
            response_tail: 0,
            queued: VecDeque::new(),
            next_element: 0,
            unsent: VecDeque::new(),
            pushes: 0,
            is_hung: false,
            nowhere,
        })
    }

    /// A register.
    pub(super) fn register(&self, at: u64) -> u32 {
        match at {
            REQUEST_HEAD => self.request_head,
            REQUEST_TAIL => self.request_tail,
            RESPONSE_HEAD => self.response_head,
            RESPONSE_TAIL => self.response_tail,
            _ => 0,
        }
    }

    /// Returns true if the thread has work.
    pub(super) fn is_moving(&self) -> bool {
        !self.is_hung
    }

    /// The cores make no further progress.
    pub(super) fn hang(&mut self) {
        self.is_hung = true;
    }

    /// Executes the write of a register; returns true if the host is interrupted. `fault` is called once for each batch of requests that
    /// one call of a host queues.
    pub(super) fn write(
        &mut self,
        at: u64,
        value: u32,
        memory: &GuestMemory,
        fault: &mut dyn FnMut() -> Option<Action>,
    ) -> bool {
        match at {
            REQUEST_TAIL if value < self.places.request_count => {
                let fault = fault();
                // A host whose memory does not exist has no requests.
                let _ = self.take_requests(value, memory, fault);
                self.is_hung |= fault == Some(Action::Hang);
                self.pushes += 1;
                false
            }
            RESPONSE_HEAD if value < self.places.response_count => {
                self.response_head = value;
                self.flush(memory)
            }
            _ => false,
        }
    }

    fn take_requests(&mut self, tail: u32, memory: &GuestMemory, fault: Option<Action>) -> Option<()> {
        let mut batch = Vec::new();
        while self.request_tail != tail {
            let at = REQUEST_BYTES.checked_mul(self.request_tail.into())?;
            let bytes: [u8; 64] = memory.array(self.places.requests.checked_add(at)?)?;
            self.request_tail = (self.request_tail + 1) % self.places.request_count;
            batch.push(bytes);
        }
        let completes = |bytes: &[u8; 64]| bytes[3] & COMPLETES != 0;
        let lost = match fault {
            Some(Action::LostCompletion) => batch.iter().rposition(completes),
            Some(Action::ShortCompletion) => batch.iter().position(completes),
            _ => None,
        };
        let status = match fault {
            Some(Action::DmaStatus(status)) => Some(status),
            _ => None,
        };
        for (index, bytes) in batch.iter().enumerate() {
            let element = self.next_element;
            self.next_element += 1;
            self.queued.push_back(Queued {
                element,
                request: u16::from_le_bytes([bytes[0], bytes[1]]),
                completes: completes(bytes) && lost != Some(index),
                status,
            });
            let is_late = fault == Some(Action::LateDma);
            self.channel.push(self.decode(bytes, element, is_late, memory));
        }
        Some(())
    }

    /// Records that an element is done; returns true if the host is interrupted.
    pub(super) fn complete(&mut self, element: u64, status: u16, memory: &GuestMemory) -> bool {
        while let Some(queued) = self.queued.front().copied().filter(|queued| queued.element <= element) {
            self.queued.pop_front();
            self.request_head = (self.request_head + 1) % self.places.request_count;
            if queued.completes && queued.element == element {
                let [a, b] = queued.request.to_le_bytes();
                let [c, d] = queued.status.unwrap_or(status).to_le_bytes();
                self.unsent.push_back([a, b, c, d]);
            }
        }
        self.flush(memory)
    }

    /// Writes responses while there is space; returns true if there were any.
    fn flush(&mut self, memory: &GuestMemory) -> bool {
        let mut has_any = false;
        while let Some(response) = self.unsent.front() {
            let after = (self.response_tail + 1) % self.places.response_count;
            if after == self.response_head {
                break;
            }
            let at = RESPONSE_BYTES * u64::from(self.response_tail);
            let at = self.places.responses.checked_add(at);
            if at.and_then(|at| memory.write(at, response)).is_none() {
                break;
            }
            self.unsent.pop_front();
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            self.response_tail = after;
            has_any = true;
        }
        has_any
    }

    /// An element of the ring, from its bytes. Memory that the guest does not have causes an error only at the transfer.
    fn decode(&self, bytes: &[u8; 64], id: u64, is_late: bool, memory: &GuestMemory) -> Element {
        let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        let long = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let moves = bytes[3] & (TO_DEVICE | FROM_DEVICE);
        // An element without a transfer does not wait for data of the cores.
        let to_device = moves != FROM_DEVICE;
        let (host, dev_addr) = if to_device { (long(8), long(16)) } else { (long(16), long(8)) };
        let len = if moves == 0 { 0 } else { word(24) };
        let found = memory.find(host, len.into()).map(|(pages, offset)| (Arc::clone(pages), offset));
        let (pages, host_offset) = found.unwrap_or_else(|| (Arc::clone(&self.nowhere), self.nowhere.bytes()));
        let bits = [32, 16, 8, 0][usize::from(bytes[40] & 3)];
        let doorbell = Doorbell { address: long(32), data: word(44), bits };
        Element {
            pages,
            host_offset,
            dev_addr,
            len,
            to_device,
            sems: [48, 52, 56, 60].map(|at| semaphore(word(at))),
            doorbell: (bytes[40] & RINGS != 0 && bits != 0).then_some(doorbell),
            id,
            is_late,
        }
    }
}

pub(super) fn semaphore(word: u32) -> Sem {
    let [low, high, index, flags] = word.to_le_bytes();
    Sem {
        val: u16::from_le_bytes([low, high & 0xF]),
        index: index & 0x1F,
        presync: index >> 6 & 1,
        // Fences also apply without an operation.
        cmd: if flags & 0x80 == 0 { 0 } else { flags & 7 },
        flags: flags >> 5 & 3,
        pad: 0,
    }
}
