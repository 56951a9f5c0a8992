//! The message interface of a card: registers, and rings of commands, events and transfers in the guest's memory.
//!
//! The card has started when the host finds it: it is in its mission mode, and can enter M0. It is in the same state after a reset of the
//! whole card, which it reports as its own error, because the host cannot send it a boot image.

use std::collections::{BTreeMap, VecDeque};

use super::config_space::place;
use super::guest_memory::GuestMemory;

const REGISTER_BYTES: usize = 0x1000;
const REGISTER_LENGTH: usize = 0x00;
const VERSION: usize = 0x08;
const CHANNEL_DOORBELL_OFFSET: usize = 0x18;
const EVENT_DOORBELL_OFFSET: usize = 0x20;
const BOOT_OFFSET: usize = 0x28;
const BOOT_VECTORS_OFFSET: usize = 0x2C;
const CONTROL: usize = 0x38;
const STATUS: usize = 0x48;
const CHANNEL_CONTEXTS: usize = 0x58;
const EVENT_CONTEXTS: usize = 0x60;
const COMMAND_CONTEXTS: usize = 0x68;
const COMMAND_DOORBELL: usize = 0x70;
const SOC_RESET: usize = 0xB0;

const BOOT: usize = 0x100;
const BOOT_VECTORS: usize = 0x200;
const EXECUTION_ENVIRONMENT: usize = BOOT + 0x28;
const CHANNEL_DOORBELLS: usize = 0x400;
const EVENT_DOORBELLS: usize = 0x800;
/// The clock from which a driver reads the time.
const CLOCK_REGISTERS: usize = 0xA20;

const CHANNELS: usize = 128;
const CONTEXT_BYTES: u64 = 44;
const ELEMENT_BYTES: u64 = 16;
/// Events that wait for space; if a host reads none, the oldest are lost.
const MAX_PENDING_EVENTS: usize = 4096;
/// Maximum bytes of a message to the card, with all its parts.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

const READY: u32 = 1;
const M0: u32 = 2;
const SYSTEM_ERROR: u32 = 0xFF;
const MISSION_MODE: u32 = 2;

const RESET_CHANNEL: u32 = 16;
const STOP_CHANNEL: u32 = 17;
const START_CHANNEL: u32 = 18;
const STATE_CHANGE: u32 = 0x20;
const COMMAND_COMPLETION: u32 = 0x21;
const TRANSFER: u32 = 0x22;
const ENVIRONMENT_CHANGE: u32 = 0x40;
const SUCCESS: u32 = 1;
const END_OF_TRANSFER: u32 = 2;
const OVERFLOW: u32 = 3;
const CHAINED: u32 = 1;

/// Channel of messages to the firmware; the replies use the next channel.
pub(super) const CONTROL_CHANNEL: usize = 10;
const LOOPBACK_CHANNEL: usize = 0;

/// Effects of the host's writes.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Vectors that interrupt.
    pub(super) interrupts: Vec<usize>,
    /// Messages to the firmware.
    pub(super) messages: Vec<Vec<u8>>,
    /// True if the whole card is reset.
    pub(super) is_reset: bool,
}

/// The interface.
#[derive(Debug)]
pub(super) struct Mhi {
    registers: Vec<u8>,
    channels: BTreeMap<usize, Channel>,
    /// Address of the next command.
    next_command: Option<u64>,
    /// Events for which each event ring has no space.
    pending_events: BTreeMap<u64, VecDeque<[u8; 16]>>,
    /// Messages for which there is no buffer, by channel.
    pending_replies: BTreeMap<usize, VecDeque<Vec<u8>>>,
}

/// A channel that was started.
#[derive(Debug)]
struct Channel {
    /// The next transfer.
    next: u64,
    /// Bytes of an incomplete message.
    message: Vec<u8>,
}

/// A ring, from its context.
#[derive(Clone, Copy, Debug)]
struct Ring {
    context: u64,
    base: u64,
    bytes: u64,
    write: u64,
}

impl Ring {
    fn read(memory: &GuestMemory, context: u64) -> Option<Self> {
        let base = memory.u64(context.checked_add(12)?)?;
        let bytes = memory.u64(context.checked_add(20)?)?;
        let write = memory.u64(context.checked_add(36)?)?;
        let is_ring = bytes >= ELEMENT_BYTES && bytes.is_multiple_of(ELEMENT_BYTES);
        let ring = Self { context, base, bytes, write };
        (is_ring && base.checked_add(bytes).is_some() && ring.has(write)).then_some(ring)
    }

    fn has(&self, at: u64) -> bool {
        at >= self.base && at < self.base + self.bytes && (at - self.base).is_multiple_of(ELEMENT_BYTES)
    }

    fn after(&self, at: u64) -> u64 {
        if at + ELEMENT_BYTES == self.base + self.bytes { self.base } else { at + ELEMENT_BYTES }
    }

    /// Publishes the progress of the card to the host.
    fn advance(&self, memory: &GuestMemory, read: u64) -> Option<()> {
        memory.write(self.context + 28, &read.to_le_bytes())
    }
}

/// An element of a ring of transfers or commands.
#[derive(Clone, Copy, Debug)]
struct Element {
    pointer: u64,
    words: [u32; 2],
}

impl Element {
    fn read(memory: &GuestMemory, at: u64) -> Option<Self> {
        let [p0, p1, p2, p3, p4, p5, p6, p7, a0, a1, a2, a3, b0, b1, b2, b3] = memory.array(at)?;
        let words = [u32::from_le_bytes([a0, a1, a2, a3]), u32::from_le_bytes([b0, b1, b2, b3])];
        Some(Self { pointer: u64::from_le_bytes([p0, p1, p2, p3, p4, p5, p6, p7]), words })
    }

    fn len(&self) -> usize {
        (self.words[0] & 0xFFFF) as usize
    }
}

impl Mhi {
    pub(super) fn new() -> Self {
        let mut mhi = Self {
            registers: vec![0; REGISTER_BYTES],
            channels: BTreeMap::new(),
            next_command: None,
            pending_events: BTreeMap::new(),
            pending_replies: BTreeMap::new(),
        };
        mhi.set(REGISTER_LENGTH, 0x1000);
        mhi.set(VERSION, 0x0100_0000);
        mhi.set(CHANNEL_DOORBELL_OFFSET, 0x400);
        mhi.set(EVENT_DOORBELL_OFFSET, 0x800);
        mhi.set(BOOT_OFFSET, 0x100);
        mhi.set(BOOT_VECTORS_OFFSET, 0x200);
        mhi.set(EXECUTION_ENVIRONMENT, MISSION_MODE);
        mhi.set(STATUS, READY << 8 | 1);
        mhi
    }

    fn word(&self, at: usize) -> u32 {
        self.registers[at..].first_chunk().copied().map_or(0, u32::from_le_bytes)
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    fn set(&mut self, at: usize, value: u32) {
        self.registers[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Bytes of the registers; reads beyond their end return zeros. `clock` is the card's time.
    pub(super) fn read(&mut self, at: u64, into: &mut [u8], clock: u64) {
        self.registers[CLOCK_REGISTERS..CLOCK_REGISTERS + 8].copy_from_slice(&clock.to_le_bytes());
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = place(at, index).and_then(|at| self.registers.get(at)).copied().unwrap_or(0xFF);
        }
    }

    /// Executes the write of a register. Only whole words are registers.
    pub(super) fn write(&mut self, at: u64, from: &[u8], memory: &GuestMemory) -> Effects {
        let mut effects = Effects::default();
        let (Ok(at), Some(word)) = (usize::try_from(at), from.first_chunk().copied()) else {
            return effects;
        };
        if at % 4 != 0 || at >= REGISTER_BYTES {
            return effects;
        }
        let word = u32::from_le_bytes(word);
        match at {
            CONTROL => self.control(word, memory, &mut effects),
            SOC_RESET => self.reset_all(&mut effects),
            COMMAND_DOORBELL => {
                self.set(at, word);
                // A host that sends invalid data gets no answer.
                let _ = self.take_commands(memory, &mut effects);
            }
            CHANNEL_CONTEXTS..SOC_RESET | BOOT..BOOT_VECTORS if at != EXECUTION_ENVIRONMENT => {
                self.set(at, word);
            }
            CHANNEL_DOORBELLS..EVENT_DOORBELLS => {
                self.set(at, word);
                if at % 8 == 0 {
                    let number = (at - CHANNEL_DOORBELLS) / 8;
                    let _ = self.take_transfers(number, memory, &mut effects);
                    self.deliver(number, memory, &mut effects);
                }
            }
            EVENT_DOORBELLS..CLOCK_REGISTERS if at % 8 == 0 => {
                self.flush(((at - EVENT_DOORBELLS) / 8) as u64, memory, &mut effects);
            }
            _ => {}
        }
        effects
    }

    fn control(&mut self, word: u32, memory: &GuestMemory, effects: &mut Effects) {
        if word & 2 != 0 {
            // Resets the interface: its rings start again, and it is ready immediately.
            self.forget();
            self.set(CONTROL, 0);
            self.set(STATUS, READY << 8 | 1);
            effects.interrupts.push(0);
            return;
        }
        self.set(CONTROL, word);
        if word >> 8 & 0xFF == M0 {
            self.set(STATUS, M0 << 8 | 1);
            self.send_event(0, [0, 0, M0 << 24, STATE_CHANGE << 16], memory, effects);
            let environment = self.word(EXECUTION_ENVIRONMENT);
            self.send_event(0, [0, 0, environment << 24, ENVIRONMENT_CHANGE << 16], memory, effects);
        }
    }

    fn forget(&mut self) {
        self.channels.clear();
        self.next_command = None;
        self.pending_events.clear();
        self.pending_replies.clear();
    }

    /// Starts the whole card again, and reports this as its own error.
    pub(super) fn reset_all(&mut self, effects: &mut Effects) {
        self.forget();
        self.set(CONTROL, 0);
        self.set(STATUS, SYSTEM_ERROR << 8 | 4);
        effects.is_reset = true;
        effects.interrupts.push(0);
    }

    fn take_commands(&mut self, memory: &GuestMemory, effects: &mut Effects) -> Option<()> {
        let ring = Ring::read(memory, self.long(COMMAND_CONTEXTS))?;
        let end = self.long(COMMAND_DOORBELL);
        let mut at = self.next_command.unwrap_or(ring.base);
        if !ring.has(at) || !ring.has(end) {
            return None;
        }
        while at != end {
            let command = Element::read(memory, at)?;
            let (kind, channel) = (command.words[1] >> 16 & 0xFF, (command.words[1] >> 24) as usize);
            self.change_channel(kind, channel, memory);
            let (low, high) = halves(at);
            at = ring.after(at);
            self.next_command = Some(at);
            ring.advance(memory, at)?;
            self.send_event(0, [low, high, SUCCESS << 24, COMMAND_COMPLETION << 16], memory, effects);
        }
        Some(())
    }

    fn change_channel(&mut self, kind: u32, channel: usize, memory: &GuestMemory) -> Option<()> {
        const STATES: [(u32, u8); 3] = [(RESET_CHANNEL, 0), (STOP_CHANNEL, 4), (START_CHANNEL, 2)];
        let (_, state) = STATES.into_iter().find(|(known, _)| *known == kind)?;
        let context = self.channel_context(channel)?;
        memory.write(context, &[state])?;
        self.pending_replies.remove(&channel);
        self.channels.remove(&channel);
        if kind == START_CHANNEL {
            let ring = Ring::read(memory, context)?;
            self.channels.insert(channel, Channel { next: ring.base, message: Vec::new() });
        }
        Some(())
    }

    fn channel_context(&self, channel: usize) -> Option<u64> {
        if channel >= CHANNELS {
            return None;
        }
        self.long(CHANNEL_CONTEXTS).checked_add(CONTEXT_BYTES * channel as u64)
    }

    /// Passes data that the host sends on a channel to the card.
    fn take_transfers(&mut self, number: usize, memory: &GuestMemory, effects: &mut Effects) -> Option<()> {
        if !number.is_multiple_of(2) {
            return None;
        }
        let context = self.channel_context(number)?;
        let (ring, end) = (Ring::read(memory, context)?, self.long(CHANNEL_DOORBELLS + 8 * number));
        let mut at = self.channels.get(&number)?.next;
        if !ring.has(at) || !ring.has(end) {
            return None;
        }
        while at != end {
            let element = Element::read(memory, at)?;
            let channel = self.channels.get_mut(&number)?;
            let begin = channel.message.len();
            if begin + element.len() <= MAX_MESSAGE_BYTES {
                channel.message.resize(begin + element.len(), 0);
                memory.read(element.pointer, &mut channel.message[begin..])?;
            }
            let (low, high) = halves(at);
            at = ring.after(at);
            channel.next = at;
            ring.advance(memory, at)?;
            if element.words[1] & CHAINED != 0 {
                continue;
            }
            let message = std::mem::take(&mut channel.message);
            let done = END_OF_TRANSFER << 24 | element.words[0] & 0xFFFF;
            self.send_transfer_event(number, [low, high, done], memory, effects)?;
            match number {
                CONTROL_CHANNEL => effects.messages.push(message),
                LOOPBACK_CHANNEL => self.send(LOOPBACK_CHANNEL + 1, message, memory, effects),
                // Other channels, such as that of the host's time, have no replies.
                _ => {}
            }
        }
        Some(())
    }

    fn send_transfer_event(
        &mut self,
        channel: usize,
        [low, high, done]: [u32; 3],
        memory: &GuestMemory,
        effects: &mut Effects,
    ) -> Option<()> {
        let ring = memory.array(self.channel_context(channel)?.checked_add(8)?).map(u32::from_le_bytes)?;
        let what = u32::try_from(channel).ok()? << 24 | TRANSFER << 16;
        self.send_event(ring.into(), [low, high, done, what], memory, effects);
        Some(())
    }

    /// Sends a message to the host if the host has provided a buffer.
    pub(super) fn send(
        &mut self,
        channel: usize,
        message: Vec<u8>,
        memory: &GuestMemory,
        effects: &mut Effects,
    ) {
        self.pending_replies.entry(channel).or_default().push_back(message);
        self.deliver(channel, memory, effects);
    }

    fn deliver(&mut self, channel: usize, memory: &GuestMemory, effects: &mut Effects) {
        while self.deliver_one(channel, memory, effects).is_some() {}
    }

    fn deliver_one(&mut self, number: usize, memory: &GuestMemory, effects: &mut Effects) -> Option<()> {
        self.pending_replies.get(&number)?.front()?;
        let ring = Ring::read(memory, self.channel_context(number)?)?;
        let end = self.long(CHANNEL_DOORBELLS + 8 * number);
        let channel = self.channels.get_mut(&number)?;
        let at = channel.next;
        if at == end || !ring.has(at) || !ring.has(end) {
            return None;
        }
        let message = self.pending_replies.get_mut(&number)?.pop_front()?;
        let element = Element::read(memory, at)?;
        let len = message.len().min(element.len());
        memory.write(element.pointer, &message[..len])?;
        channel.next = ring.after(at);
        ring.advance(memory, channel.next)?;
        let code = if len < message.len() { OVERFLOW } else { END_OF_TRANSFER };
        let (low, high) = halves(at);
        self.send_transfer_event(number, [low, high, code << 24 | u32::try_from(len).ok()?], memory, effects)
    }

    fn send_event(&mut self, ring: u64, words: [u32; 4], memory: &GuestMemory, effects: &mut Effects) {
        let mut bytes = [0; 16];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let pending = self.pending_events.entry(ring).or_default();
        if pending.len() == MAX_PENDING_EVENTS {
            pending.pop_front();
        }
        pending.push_back(bytes);
        self.flush(ring, memory, effects);
    }

    fn flush(&mut self, ring: u64, memory: &GuestMemory, effects: &mut Effects) {
        let before = effects.interrupts.len();
        while let Some(vector) = self.flush_one(ring, memory) {
            if effects.interrupts.len() == before {
                effects.interrupts.push(vector);
            }
        }
    }

    /// Writes the next event if there is space, and returns the vector that reports it.
    fn flush_one(&mut self, number: u64, memory: &GuestMemory) -> Option<usize> {
        let event = *self.pending_events.get(&number)?.front()?;
        let context = self.long(EVENT_CONTEXTS).checked_add(CONTEXT_BYTES.checked_mul(number)?)?;
        let ring = Ring::read(memory, context)?;
        let at = memory.u64(context.checked_add(28)?).filter(|at| ring.has(*at))?;
        let after = ring.after(at);
        if at == ring.write {
            return None;
        }
        memory.write(at, &event)?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        ring.advance(memory, after)?;
        self.pending_events.get_mut(&number)?.pop_front();
        memory.array(context.checked_add(8)?).map(|bytes| u32::from_le_bytes(bytes) as usize)
    }
}

fn halves(value: u64) -> (u32, u32) {
    // Both events fit: the first one by its mask.
    #[allow(clippy::cast_possible_truncation)]
    ((value & 0xFFFF_FFFF) as u32, (value >> 32) as u32)
}
