//! A card from the guest's side; the tests implement the kernel and the mainline driver again.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::bytes_of;
use proptest::prelude::*;
use qaic_kmd::abi::Sem;
use qaic_kmd::protocol::message::ELF_TAG;
use qaic_kmd::protocol::{
    Activate, ActivateReply, ActivationState, Deactivate, LoadElf, LoadElfReply, WHOLE_DEVICE,
};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use qaic_emu::Loopback;

use super::*;
use crate::dma_bridge::semaphore;

const BASE: u64 = 0x10_0000;
const MEMORY_BYTES: u64 = 0x10_0000;
// Addresses in the guest's memory.
const QUEUE: [u64; 2] = [0x0000, 0x3000];
const ACCESS: u64 = 0x6000;
const ANSWER: u64 = 0x7000;
const INTERRUPTS: u64 = 0x8000;
const CHANNEL_CONTEXTS: u64 = 0x1_0000;
const EVENT_CONTEXT: u64 = 0x1_2000;
const COMMAND_CONTEXT: u64 = 0x1_3000;
const EVENTS: u64 = 0x1_4000;
const COMMANDS: u64 = 0x1_5000;
const TRANSFERS: [u64; 2] = [0x1_6000, 0x1_7000];
const MESSAGE: u64 = 0x1_8000;
const REPLY: u64 = 0x1_9000;
const REQUESTS: u64 = 0x2_0000;
const RESPONSES: u64 = 0x2_8000;
const DATA: u64 = 0x3_0000;
const QUEUE_SIZE: u16 = 16;
const RING_ELEMENTS: u64 = 32;
const MHI: u8 = 0;
const BRIDGE: u8 = 2;

struct TestGuest {
    socket: UnixStream,
    memory: OwnedFd,
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
    used: [u16; 2],
    available: [u16; 2],
    /// Next elements of the rings of events, of commands, and of transfers to and from the card.
    event: u64,
    command: u64,
    transfers: [u64; 2],
    sequence: u32,
}

fn socket_path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("openqaic-card-{}-{number}", std::process::id()))
}

/// A card and a guest that has booted; returns the remaining resources after the guest has ended.
fn with_guest(faults: &str, work: impl FnOnce(&mut TestGuest)) {
    let faults = FaultPlan::parse(faults, Target::Card).unwrap();
    serve(&PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), faults), work);
}

fn serve(card: &PciCard, work: impl FnOnce(&mut TestGuest)) {
    let fresh = card.resource_usage();
    let path = socket_path();
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        let served = scope.spawn(|| card.serve(&listener));
        let mut guest = TestGuest::connect(UnixStream::connect(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        guest.boot();
        work(&mut guest);
        drop(guest);
        served.join().unwrap().unwrap();
    });
    assert_eq!(card.resource_usage(), fresh);
}

impl TestGuest {
    fn connect(socket: UnixStream) -> Self {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, MEMORY_BYTES).unwrap();
        let kicks = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let pipes = [(); 2].map(|()| std::io::pipe().unwrap());
        let mut guest = Self {
            socket,
            memory: memory.try_clone().unwrap(),
            kicks,
            calls: pipes.each_ref().map(|(read, _)| read.as_fd().try_clone_to_owned().unwrap()),
            used: [0; 2],
            available: [0; 2],
            event: 0,
            command: 0,
            transfers: [0; 2],
            sequence: 0,
        };
        guest.send_message(3, &[], &[]);
        assert_eq!(guest.ask(1, &[])[..8], (1_u64 << 30 | 1 << 32).to_le_bytes());
        assert_eq!(guest.ask(15, &[])[0] & 1 << 5, 1 << 5);
        let (kept, given) = std::io::pipe().unwrap();
        guest.send_message(21, &[], &[given.as_fd()]);
        guest.ask(1, &[]);
        drop(given);
        // If this channel were closed, the guest would remove the device.
        let mut polled = [PollFd::new(&kept, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&Timespec::default())), Ok(0));
        let table = [&1_u32.to_le_bytes()[..], &[0; 4], &words([BASE, MEMORY_BYTES, BASE, 0])].concat();
        guest.send_message(5, &table, &[memory.as_fd()]);
        for (number, (_, write)) in (0_u32..).zip(&pipes) {
            let queue = BASE + QUEUE[number as usize];
            let state = |value: u32| [number.to_le_bytes(), value.to_le_bytes()].concat();
            guest.send_message(13, &u64::from(number).to_le_bytes(), &[write.as_fd()]);
            guest.send_message(8, &state(QUEUE_SIZE.into()), &[]);
            guest.send_message(10, &state(0), &[]);
            let addresses = words([queue, queue + 0x2000, queue + 0x1000, u64::MAX]);
            guest.send_message(9, &[&state(0)[..], &addresses].concat(), &[]);
            let kick = guest.kicks[number as usize].try_clone().unwrap();
            guest.send_message(12, &u64::from(number).to_le_bytes(), &[kick.as_fd()]);
        }
        // Earlier messages have been executed.
        guest.ask(1, &[]);
        for number in 0..QUEUE_SIZE {
            let address = INTERRUPTS + 32 * u64::from(number);
            guest.describe(1, number, address, 32, 2, 0);
            guest.make_available(1, number);
        }
        guest
    }

    fn send_message(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let len = u32::try_from(payload.len()).unwrap();
        let mut bytes = [request, 1, len].map(u32::to_le_bytes).concat();
        bytes.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send_message(request, payload, &[]);
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        assert_eq!((header[0], header[4]), (u8::try_from(request).unwrap(), 5));
        let mut answer = vec![0; usize::from(header[8])];
        self.socket.read_exact(&mut answer).unwrap();
        answer
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, at), Ok(len));
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, at), Ok(bytes.len()));
    }

    fn u32(&self, at: u64) -> u32 {
        u32::from_le_bytes(*self.read(at, 4).first_chunk().unwrap())
    }

    fn describe(&self, queue: usize, number: u16, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = (BASE + address).to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([flags.to_le_bytes(), next.to_le_bytes()].concat());
        self.write(QUEUE[queue] + 16 * u64::from(number), &bytes);
    }

    fn make_available(&mut self, queue: usize, head: u16) {
        let available = QUEUE[queue] + 0x1000;
        let at = u64::from(self.available[queue] % QUEUE_SIZE);
        self.write(available + 4 + 2 * at, &head.to_le_bytes());
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.write(available + 2, &self.available[queue].to_le_bytes());
        rustix::io::write(&self.kicks[queue], &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits for the next used buffer; returns its head and the number of written bytes.
    fn used(&mut self, queue: usize) -> (u16, u32) {
        let used = QUEUE[queue] + 0x2000;
        loop {
            let index = u16::from_le_bytes(*self.read(used + 2, 2).first_chunk().unwrap());
            if index != self.used[queue] {
                let at = used + 4 + 8 * u64::from(self.used[queue] % QUEUE_SIZE);
                self.used[queue] = self.used[queue].wrapping_add(1);
                return (u16::try_from(self.u32(at)).unwrap(), self.u32(at + 4));
            }
            if queue == 0 {
                // Like the guest's kernel, which is rarely notified of accesses.
                thread::yield_now();
            } else {
                rustix::io::read(&self.calls[queue], &mut [0; 8]).unwrap();
            }
        }
    }

    fn access(&mut self, operation: u8, window: u8, address: u64, data: &[u8], answer: u32) -> Vec<u8> {
        let size = if answer > 0 { answer } else { u32::try_from(data.len()).unwrap() };
        let mut bytes = vec![operation, window, 0, 0];
        bytes.extend(size.to_le_bytes());
        bytes.extend(address.to_le_bytes());
        bytes.extend(data);
        self.write(ACCESS, &bytes);
        let flags = u16::from(answer > 0);
        self.describe(0, 0, ACCESS, u32::try_from(bytes.len()).unwrap(), flags, 1);
        self.describe(0, 1, ANSWER, answer, 2, 0);
        self.make_available(0, 0);
        assert_eq!(self.used(0), (0, answer));
        self.read(ANSWER, answer as usize)
    }

    fn register(&mut self, window: u8, at: u64) -> u32 {
        u32::from_le_bytes(*self.access(WINDOW_READ, window, at, &[], 4).first_chunk().unwrap())
    }

    fn set(&mut self, window: u8, at: u64, value: u32) {
        self.access(WINDOW_WRITE, window, at, &value.to_le_bytes(), 0);
    }

    fn set_long(&mut self, at: u64, value: u64) {
        let bytes = value.to_le_bytes();
        self.access(WINDOW_WRITE, MHI, at + 4, &bytes[4..], 0);
        self.access(WINDOW_WRITE, MHI, at, &bytes[..4], 0);
    }

    /// Waits for an interrupt.
    fn interrupted(&mut self) {
        let (head, written) = self.used(1);
        let message = self.read(INTERRUPTS + 32 * u64::from(head), written as usize);
        let expected = [&[7, 0, 0, 0, 2, 0, 0, 0][..], &0xA_0000_u64.to_le_bytes(), &[0x41, 0]].concat();
        assert_eq!(message, expected);
        self.make_available(1, head);
    }

    fn context(&self, at: u64, ring: u64, len: u64, write: u64) {
        self.write(at + 12, &words([BASE + ring, len, BASE + ring, BASE + write]));
    }

    /// Waits for the next event and returns it.
    fn event(&mut self) -> [u32; 4] {
        let ring_bytes = 16 * RING_ELEMENTS;
        while self.read(EVENT_CONTEXT + 28, 8) == (BASE + EVENTS + self.event).to_le_bytes() {
            self.interrupted();
        }
        let at = EVENTS + self.event;
        let event = [0, 4, 8, 12].map(|word| self.u32(at + word));
        // The element can be reused.
        self.write(EVENT_CONTEXT + 36, &(BASE + at).to_le_bytes());
        self.event = (self.event + 16) % ring_bytes;
        self.set_long(0x800, BASE + at);
        event
    }

    fn boot(&mut self) {
        assert_eq!(self.access(CONFIG_READ, 0, 0, &[], 4), [0xCB, 0x17, 0x00, 0xA1]);
        let msi = [&[0, 0, 0x0A, 0, 0, 0, 0, 0][..], &[0x41, 0]].concat();
        self.access(CONFIG_WRITE, 0, 0x54, &msi, 0);
        self.access(CONFIG_WRITE, 0, 0x52, &[1, 0], 0);
        // The card is ready and in its mission mode.
        assert_eq!((self.register(MHI, 0x48), self.register(MHI, 0x128)), (0x101, 2));
        let ring = 16 * RING_ELEMENTS;
        self.context(EVENT_CONTEXT, EVENTS, ring, EVENTS + ring - 16);
        self.context(COMMAND_CONTEXT, COMMANDS, ring, COMMANDS);
        for (number, at) in [10, 11].into_iter().zip(TRANSFERS) {
            self.context(CHANNEL_CONTEXTS + 44 * number, at, ring, at);
        }
        self.set_long(0x58, BASE + CHANNEL_CONTEXTS);
        self.set_long(0x60, BASE + EVENT_CONTEXT);
        self.set_long(0x68, BASE + COMMAND_CONTEXT);
        self.set(MHI, 0x38, 2 << 8);
        assert_eq!(self.event(), [0, 0, 2 << 24, 0x20 << 16]);
        assert_eq!(self.event(), [0, 0, 2 << 24, 0x40 << 16]);
        for channel in [10_u32, 11] {
            let at = BASE + COMMANDS + self.command;
            self.write(COMMANDS + self.command + 8, &[0; 4]);
            self.write(COMMANDS + self.command + 12, &(channel << 24 | 18 << 16).to_le_bytes());
            self.command += 16;
            self.set_long(0x70, BASE + COMMANDS + self.command);
            let [low, high, code, kind] = self.event();
            assert_eq!(u64::from(low) | u64::from(high) << 32, at);
            assert_eq!((code, kind), (1 << 24, 0x21 << 16));
            assert_eq!(self.read(CHANNEL_CONTEXTS + 44 * u64::from(channel), 1), [2]);
        }
        // The driver queries the card before it allows files to be opened.
        self.send(0, &[transaction(15, &[])]);
    }

    /// Finds an error of the whole card and resets its interface, which makes the card ready.
    fn take_reset(&mut self) {
        assert_eq!((self.register(MHI, 0x48), self.register(MHI, 0x128)), (0xFF04, 2));
        self.set(MHI, 0x38, 2);
        assert_eq!((self.register(MHI, 0x48), self.register(MHI, 0x38)), (0x101, 0));
    }

    fn transfer(&mut self, way: usize, address: u64, len: u32, is_chained: bool) {
        let at = TRANSFERS[way] + self.transfers[way];
        self.write(at, &(BASE + address).to_le_bytes());
        self.write(at + 8, &len.to_le_bytes());
        self.write(at + 12, &(2 << 16 | u32::from(is_chained)).to_le_bytes());
        self.transfers[way] = (self.transfers[way] + 16) % (16 * RING_ELEMENTS);
    }

    fn ring(&mut self, way: usize) {
        let at = BASE + TRANSFERS[way] + self.transfers[way];
        self.set_long(0x400 + 8 * (10 + way as u64), at);
    }

    /// Sends transactions in two parts.
    fn post(&mut self, user: u32, transactions: &[Vec<u8>]) {
        self.sequence += 1;
        let body = transactions.concat();
        let len = u32::try_from(32 + body.len()).unwrap();
        let count = u32::try_from(transactions.len()).unwrap();
        let header = [0, 0x4349_4151, self.sequence, len, count, user, u32::MAX, 0];
        self.write(MESSAGE, &header.map(u32::to_le_bytes).concat());
        self.write(MESSAGE + 32, &body);
        self.transfer(1, REPLY, 4096, false);
        self.ring(1);
        self.transfer(0, MESSAGE, 32, true);
        self.transfer(0, MESSAGE + 32, len - 32, false);
        self.ring(0);
    }

    /// Sends transactions; returns the number of transactions in the reply, and their bytes.
    fn send(&mut self, user: u32, transactions: &[Vec<u8>]) -> (u32, Vec<u8>) {
        self.post(user, transactions);
        let [.., code, kind] = self.event();
        assert_eq!((code >> 24, kind), (2, 10 << 24 | 0x22 << 16));
        let [.., code, kind] = self.event();
        assert_eq!((code >> 24, kind), (2, 11 << 24 | 0x22 << 16));
        let reply = self.read(REPLY, (code & 0xFFFF) as usize);
        let word = |at: usize| u32::from_le_bytes(*reply[at..].first_chunk().unwrap());
        assert_eq!([word(4), word(8), word(12)], [0x4349_4151, self.sequence, code & 0xFFFF]);
        (word(16), reply[32..].to_vec())
    }

    /// Loads an image and activates it; returns its id.
    fn activate(&mut self, user: u32) -> u32 {
        let image = b"image";
        self.write(DATA, image);
        let elf = LoadElf { tag: ELF_TAG, data_length: 5, ..LoadElf::default() };
        // Five bytes in two places.
        let pairs = [words([BASE + DATA, 2]), words([BASE + DATA + 2, 3])].concat();
        let dma = [&[ELF_TAG, 2, 0, 0].map(u32::to_le_bytes).concat()[..], &pairs].concat();
        let (count, reply) = self.send(user, &[command(&elf), transaction(6, &dma)]);
        assert_eq!((count, &reply[..8]), (1, &[3, 0, 0, 0, reply[4], 0, 0, 0][..]));
        let loaded: LoadElfReply = qaic_kmd::wire::read(&reply[8..]).unwrap();
        assert!(loaded.status.is_success(), "{loaded:?}");
        let activate = Activate {
            elf_id: loaded.elf_id,
            resource_res_id: WHOLE_DEVICE,
            vc_res_id: WHOLE_DEVICE,
            opt_vc_setup: 1,
            initial_state: ActivationState::Ready as i32,
            ..Activate::default()
        };
        let rings =
            [words([BASE + REQUESTS, BASE + RESPONSES]), [8, 8, 0x9000, 0].map(u32::to_le_bytes).concat()];
        let (count, reply) = self.send(user, &[command(&activate), transaction(9, &rings.concat())]);
        assert_eq!(count, 2);
        // Its channel is the first one.
        let channel = transaction(8, &[0; 16]);
        assert_eq!(reply[reply.len() - channel.len()..], channel);
        qaic_kmd::wire::read::<ActivateReply>(&reply[8..]).unwrap().activation_id
    }

    fn request(&self, number: u64, way: u8, host: u64, device: u64, len: u32, semaphores: [u32; 4]) {
        let (from, to) = if way == 2 { (device, host) } else { (host, device) };
        let mut bytes = [0; 64];
        bytes[..2].copy_from_slice(&(0x100 + u16::try_from(number).unwrap()).to_le_bytes());
        bytes[3] = 1 << 4 | 1 << 3 | way;
        bytes[8..24].copy_from_slice(&words([from, to]));
        bytes[24..28].copy_from_slice(&len.to_le_bytes());
        bytes[48..].copy_from_slice(&semaphores.map(u32::to_le_bytes).concat());
        self.write(REQUESTS + 64 * number, &bytes);
    }

    fn channel_register(&mut self, register: u64) -> u32 {
        self.register(BRIDGE, CHANNEL_REGISTERS + register)
    }

    /// Waits until the ring of responses has reached this position.
    fn await_responses(&mut self, tail: u32) {
        while self.channel_register(12) != tail {
            self.interrupted();
        }
    }
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.map(u64::to_le_bytes).concat()
}

fn transaction(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(8 + body.len()).unwrap();
    [&kind.to_le_bytes(), &len.to_le_bytes(), body].concat()
}

fn command(command: &impl bytemuck::NoUninit) -> Vec<u8> {
    transaction(4, &[bytes_of(command), &[0; 8]].concat())
}

#[test]
fn guest_finds_firmware_of_this_version() {
    with_guest("", |guest| {
        let (count, reply) = guest.send(1, &[transaction(15, &[])]);
        // Transactions of version 5.0, no error, no checksums.
        assert_eq!((count, &reply[..16]), (1, &[14, 0, 0, 0, 24, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(reply[16] & 1, 0);
    });
}

#[test]
fn data_goes_to_the_card_and_back_until_its_user_ends() {
    with_guest("", |guest| {
        guest.activate(5);
        guest.write(DATA, b"abcdefgh");
        guest.request(0, 1, BASE + DATA, 0x8000_0000, 8, [0; 4]);
        guest.request(1, 2, BASE + DATA + 0x100, 0x8000_0002, 4, [0; 4]);
        // No data is transferred; then the test uses memory that the guest does not have.
        guest.request(2, 0, BASE + DATA, 0, 4096, [0; 4]);
        guest.request(3, 1, 0x66, 0x8000_0000, 8, [0; 4]);
        guest.set(BRIDGE, CHANNEL_REGISTERS + 4, 4);
        guest.await_responses(4);
        assert_eq!(guest.read(DATA + 0x100, 6), b"cdef\0\0");
        let responses: Vec<_> = (0..4).map(|at| guest.u32(RESPONSES + 4 * at)).collect();
        assert_eq!(responses, [0x100, 0x101, 0x102, 0x1_0103]);
        assert_eq!([0, 4, 8, 12].map(|register| guest.channel_register(register)), [4, 4, 0, 4]);
        // The ring wraps around, and responses wait for space.
        for number in [4, 5, 6, 7, 0] {
            guest.request(number, 0, 0, 0, 0, [0; 4]);
        }
        guest.set(BRIDGE, CHANNEL_REGISTERS + 4, 1);
        guest.await_responses(7);
        guest.set(BRIDGE, CHANNEL_REGISTERS + 8, 4);
        guest.await_responses(1);
        assert_eq!(guest.u32(RESPONSES), 0x100);
        let (count, reply) = guest.send(5, &[transaction(17, &[5, 0, 0, 0, 0, 0, 0, 0])]);
        assert_eq!((count, reply), (1, transaction(16, &[0; 8])));
        assert_eq!(guest.channel_register(12), 0);
    });
}

#[test]
fn deactivation_names_the_channel_of_the_activation() {
    with_guest("", |guest| {
        let activation_id = guest.activate(5);
        let deactivate = Deactivate { activation_id, opt_vc_teardown: 1, ..Deactivate::default() };
        let (count, reply) = guest.send(5, &[command(&deactivate)]);
        let channel = transaction(11, &[0; 8]);
        assert_eq!((count, &reply[reply.len() - channel.len()..]), (2, &channel[..]));
        guest.send(5, &[transaction(17, &[5, 0, 0, 0, 0, 0, 0, 0])]);
    });
}

#[test]
fn data_of_several_messages_is_one() {
    with_guest("", |guest| {
        guest.write(DATA, b"image");
        let elf = LoadElf { tag: ELF_TAG, data_length: 5, ..LoadElf::default() };
        let part = |chunk: u32, count: u32, at: u64, len: u64| {
            let head = [ELF_TAG, count, chunk, 0].map(u32::to_le_bytes).concat();
            transaction(6, &[head, words([BASE + DATA + at, len])].concat())
        };
        let goes_on = |chunk: u32, bytes: u64| {
            transaction(18, &[&chunk.to_le_bytes()[..], &[0; 4], &bytes.to_le_bytes()].concat())
        };
        assert_eq!(guest.send(5, &[command(&elf), part(9, 1, 0, 2)]), (1, goes_on(9, 2)));
        // Data of another user, and data that is given up.
        assert_eq!(guest.send(6, &[command(&elf), part(9, 1, 0, 3)]), (1, goes_on(9, 3)));
        assert_eq!(guest.send(6, &[part(9, 0, 0, 0)]), (0, Vec::new()));
        let (count, reply) = guest.send(5, &[part(9, 1, 2, 3)]);
        let loaded: LoadElfReply = qaic_kmd::wire::read(&reply[8..]).unwrap();
        assert!(count == 1 && loaded.status.is_success(), "{loaded:?}");
        guest.send(5, &[transaction(17, &[5, 0, 0, 0, 0, 0, 0, 0])]);
    });
}

#[test]
fn late_data_waits_for_its_fence() {
    with_guest("inference@1=late_dma", |guest| {
        guest.activate(5);
        guest.write(DATA, b"new");
        let increment = 1_u32 << 31 | 2 << 24 | 3 << 16;
        guest.request(0, 1, BASE + DATA, 0x8000_0000, 3, [increment | 1 << 30, 0, 0, 0]);
        guest.request(
            1,
            2,
            BASE + DATA + 0x100,
            0x8000_0000,
            3,
            [1 << 31 | 6 << 24 | 1 << 22 | 3 << 16, 0, 0, 0],
        );
        guest.set(BRIDGE, CHANNEL_REGISTERS + 4, 2);
        guest.await_responses(2);
        assert_eq!(guest.read(DATA + 0x100, 3), b"new");
        guest.send(5, &[transaction(17, &[5, 0, 0, 0, 0, 0, 0, 0])]);
    });
}

#[test]
fn faults_are_those_of_the_emulated_driver() {
    with_guest("command(13)@1=nack(-17);inference@1=dma_status(9);inference@2=lost_completion", |guest| {
        let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
        let (_, refused) = guest.send(1, std::slice::from_ref(&status));
        assert_eq!(refused[12..16], (-17_i32).to_le_bytes());
        let (_, answered) = guest.send(1, &[status]);
        assert_eq!(answered[12..16], [0; 4]);
        guest.activate(5);
        guest.request(0, 0, 0, 0, 0, [0; 4]);
        guest.set(BRIDGE, CHANNEL_REGISTERS + 4, 1);
        guest.await_responses(1);
        assert_eq!(guest.u32(RESPONSES), 0x9_0100);
        for (number, tail) in [(1, 2), (2, 3)] {
            guest.request(number, 0, 0, 0, 0, [0; 4]);
            guest.set(BRIDGE, CHANNEL_REGISTERS + 4, tail);
        }
        // The second one has no response.
        guest.await_responses(2);
        assert_eq!(guest.u32(RESPONSES + 4), 0x102);
        guest.send(5, &[transaction(17, &[5, 0, 0, 0, 0, 0, 0, 0])]);
    });
}

#[test]
fn reset_of_all_of_the_card_frees_everything() {
    with_guest("", |guest| {
        guest.activate(5);
        guest.set(MHI, 0xB0, 1);
        guest.take_reset();
    });
}

#[test]
fn card_resets_by_itself_when_the_plan_says_so() {
    for plan in ["command(13)@1=reset", "time@1us=reset", "features@1=reset"] {
        let card = PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), FaultPlan::default());
        let path = socket_path().with_extension("faults");
        card.read_faults_from(path.clone());
        serve(&card, |guest| {
            guest.activate(5);
            std::fs::write(&path, plan).unwrap();
            let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
            guest.post(1, &[status, transaction(15, &[])]);
            while guest.register(MHI, 0x48) != 0xFF04 {}
            guest.take_reset();
            std::fs::remove_file(&path).unwrap();
        });
    }
}

#[test]
fn card_that_is_dead_reads_as_ones_and_answers_nothing() {
    for plan in ["command(13)@1=dead", "inference@1=dead", "time@1us=dead"] {
        let card = PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), FaultPlan::default());
        let path = socket_path().with_extension("faults");
        card.read_faults_from(path.clone());
        serve(&card, |guest| {
            guest.activate(5);
            std::fs::write(&path, plan).unwrap();
            guest.request(0, 0, 0, 0, 0, [0; 4]);
            guest.set(BRIDGE, CHANNEL_REGISTERS + 4, 1);
            let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
            guest.post(1, &[status]);
            while guest.register(MHI, 0x48) != u32::MAX {}
            assert_eq!(
                (guest.register(BRIDGE, CHANNEL_REGISTERS), guest.register(MHI, 0)),
                (u32::MAX, u32::MAX)
            );
            std::fs::remove_file(&path).unwrap();
        });
    }
}

#[test]
fn reply_comes_so_much_later() {
    let plan = "command(13)@1=slow(300ms); command(13)@2=slow(3600s)";
    with_guest(plan, |guest| {
        let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
        let began = Instant::now();
        let (count, _) = guest.send(1, std::slice::from_ref(&status));
        assert!(count == 1 && began.elapsed() >= Duration::from_millis(300));
        // A reset ends the wait, and so does the end of the guest.
        guest.post(1, std::slice::from_ref(&status));
        guest.set(MHI, 0xB0, 1);
        guest.take_reset();
    });
}

#[test]
fn replies_are_broken_as_those_of_the_emulated_driver() {
    let plan = "manage@1=count(9); manage@2=wrong_type; manage@3=truncated";
    with_guest(plan, |guest| {
        let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
        let (count, whole) = guest.send(1, std::slice::from_ref(&status));
        assert_eq!((count, whole[8..12].to_vec()), (9, vec![14, 0, 0, 0]));
        let (_, other) = guest.send(1, std::slice::from_ref(&status));
        assert_eq!((other.len(), &other[8..12]), (whole.len(), &[50, 0, 0, 0][..]));
        assert_eq!(guest.send(1, &[status]).1.len(), 12);
    });
}

#[test]
fn faults_come_from_a_file_whenever_it_is_another_one() {
    let card = PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), FaultPlan::default());
    let path = socket_path().with_extension("faults");
    card.read_faults_from(path.clone());
    serve(&card, |guest| {
        let status = transaction(4, &[&13_u32.to_le_bytes()[..], &[0; 12]].concat());
        let mut answer = || guest.send(1, std::slice::from_ref(&status)).1[12..16].to_vec();
        assert_eq!(answer(), [0; 4]);
        for number in 0..2 {
            std::fs::write(&path, format!("command(status)@2=nack(-17)\n{number}")).unwrap();
            let found = [answer(), answer(), answer()];
            assert_eq!(found, [vec![0; 4], (-17_i32).to_le_bytes().to_vec(), vec![0; 4]], "{number}");
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!([answer(), answer()], [vec![0; 4], vec![0; 4]]);
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn semaphores_are_read_as_the_driver_writes_them() {
    let word = 1 << 31 | 3 << 29 | 5 << 24 | 1 << 22 | 17 << 16 | 0xABC;
    let sem = Sem { val: 0xABC, index: 17, presync: 1, cmd: 5, flags: 3, pad: 0 };
    assert_eq!(semaphore(word), sem);
    // A fence alone.
    assert_eq!(semaphore(1 << 30), Sem { flags: 2, ..Sem::default() });
}

#[test]
fn guest_that_says_nonsense_loses_its_card() {
    for bytes in [
        &[99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
        &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1],
        &[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let card = PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), FaultPlan::default());
        let path = socket_path();
        let listener = UnixListener::bind(&path).unwrap();
        let mut socket = UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        socket.write_all(bytes).unwrap();
        assert!(card.serve(&listener).is_err(), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The card answers every access of a guest, with the requested number of bytes.
    #[test]
    fn any_access_is_answered(accesses in prop::collection::vec(
        (0..9_u8, 0..6_u8, prop::sample::select(vec![0_u64, 0x38, 0x58, 0x5C, 0x60, 0x68, 0x70, 0xB0, 0x118, 0x450, 0x800, 0x2_0004, 0xF_FFFC, u64::MAX]),
         prop::collection::vec(any::<u8>(), 0..9), 0..9_u32), 0..40)) {
        let card = PciCard::new(FirmwareConfig::default(), Arc::new(Loopback), FaultPlan::default());
        let mut bus = card.bus();
        for (operation, window, address, data, size) in accesses {
            let mut access = vec![operation, window, 0, 0];
            access.extend(size.to_le_bytes());
            access.extend(address.to_le_bytes());
            access.extend(data);
            let (answer, _) = bus.access(&access, card.begin);
            let reads = matches!(operation, CONFIG_READ | WINDOW_READ);
            prop_assert_eq!(answer.len(), if reads { size as usize } else { 0 });
        }
    }
}
