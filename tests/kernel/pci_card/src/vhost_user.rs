//! The socket through which a guest finds a card: messages of the vhost-user protocol.
//!
//! The module implements the part of the protocol that a guest with two queues and no features needs. An invalid message ends the
//! connection.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::guest_memory::{GuestMemory, RegionLayout};
use super::virtqueue::Virtqueue;

/// Queues for accesses and for interrupts.
pub(super) const QUEUES: usize = 2;
const HEADER_BYTES: usize = 12;
const MAX_PAYLOAD_BYTES: usize = 4096;
const MAX_DESCRIPTORS: usize = 8;
/// Version 1, an answer.
const ANSWER: u32 = 1 | 1 << 2;
const NEEDS_ANSWER: u32 = 1 << 3;
/// Protocol features exist, and the queues are those of version 1 of virtio.
const FEATURES: u64 = 1 << 30 | 1 << 32;
/// A channel for requests of the device, which guests of some kernels need, and answers on request.
const PROTOCOL_FEATURES: u64 = 1 << 5 | 1 << 3;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQUESTS: u32 = 21;
const NO_DESCRIPTOR: u64 = 1 << 8;

/// A message of the guest.
#[derive(Debug)]
pub(super) struct Message {
    request: u32,
    flags: u32,
    payload: Vec<u8>,
    files: Vec<OwnedFd>,
}

/// The guest's settings.
#[derive(Debug, Default)]
pub(super) struct Guest {
    pub(super) memory: GuestMemory,
    pub(super) queues: [Virtqueue; QUEUES],
    /// Event descriptors for the kicks of each queue.
    pub(super) kicks: [Option<OwnedFd>; QUEUES],
    /// The channel for requests of the device, which sends none. If the channel is closed, the guest removes the device.
    backend_requests: Vec<OwnedFd>,
}

/// Reads a message; `None` if the guest has disconnected.
///
/// Blocking: until the whole message has arrived.
pub(super) fn receive(socket: &UnixStream) -> io::Result<Option<Message>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0; HEADER_BYTES];
    let read = recvmsg(socket, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if read.bytes == 0 {
        return Ok(None);
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors);
        }
    }
    io::Read::read_exact(&mut &*socket, &mut header[read.bytes..])?;
    let word = |at: usize| header[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
    let len = usize::try_from(word(8)).ok().filter(|len| *len <= MAX_PAYLOAD_BYTES);
    let mut payload = vec![0; len.ok_or_else(|| invalid("a message is too long"))?];
    io::Read::read_exact(&mut &*socket, &mut payload)?;
    Ok(Some(Message { request: word(0), flags: word(4), payload, files }))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("vhost-user: {what}"))
}

impl Message {
    fn word(&self, at: usize) -> io::Result<u32> {
        let bytes = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().map(u32::from_le_bytes).ok_or_else(|| self.refused("is too short"))
    }

    fn long(&self, at: usize) -> io::Result<u64> {
        let bytes = self.payload.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().map(u64::from_le_bytes).ok_or_else(|| self.refused("is too short"))
    }

    fn refused(&self, why: &str) -> io::Error {
        invalid(&format!("request {} {why}", self.request))
    }
}

impl Guest {
    /// Executes a message; returns the answer to send.
    pub(super) fn handle(&mut self, mut message: Message) -> io::Result<Option<Vec<u8>>> {
        let answer = match message.request {
            GET_FEATURES => Some(FEATURES.to_le_bytes().to_vec()),
            GET_PROTOCOL_FEATURES => Some(PROTOCOL_FEATURES.to_le_bytes().to_vec()),
            GET_QUEUE_NUM => Some((QUEUES as u64).to_le_bytes().to_vec()),
            GET_VRING_BASE => {
                let index = message.word(0)?;
                let base = u32::from(self.queue(&message)?.next_available);
                Some([index.to_le_bytes(), base.to_le_bytes()].concat())
            }
            _ => {
                self.set_up(&mut message)?;
                None
            }
        };
        let done = (message.flags & NEEDS_ANSWER != 0).then(|| vec![0; 8]);
        Ok(answer.or(done).map(|payload| {
            let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let mut bytes = [message.request, ANSWER, len].map(u32::to_le_bytes).concat();
            bytes.extend(payload);
            bytes
        }))
    }

    fn queue(&mut self, message: &Message) -> io::Result<&mut Virtqueue> {
        let index = message.word(0)? as usize & 0xFF;
        self.queues.get_mut(index).ok_or_else(|| message.refused("names a queue that does not exist"))
    }

    fn set_up(&mut self, message: &mut Message) -> io::Result<()> {
        match message.request {
            SET_FEATURES
            | SET_OWNER
            | RESET_OWNER
            | SET_PROTOCOL_FEATURES
            | SET_VRING_ENABLE
            | SET_VRING_ERR => {}
            SET_MEM_TABLE => self.set_memory(message)?,
            SET_BACKEND_REQUESTS => {
                self.backend_requests.clear();
                self.backend_requests.extend(message.files.pop());
            }
            SET_VRING_NUM => {
                let size = u16::try_from(message.word(4)?).ok().filter(|size| size.is_power_of_two());
                self.queue(message)?.size =
                    size.ok_or_else(|| message.refused("is of no size of a queue"))?;
            }
            SET_VRING_BASE => {
                let base = u16::try_from(message.word(4)?).map_err(|_| message.refused("is of no index"))?;
                self.queue(message)?.next_available = base;
            }
            SET_VRING_ADDR => {
                // The addresses of this guest are physical ones.
                let (descriptors, used, available) = (message.long(8)?, message.long(16)?, message.long(24)?);
                let queue = self.queue(message)?;
                (queue.descriptors, queue.used, queue.available) = (descriptors, used, available);
            }
            SET_VRING_KICK => {
                let index = message.word(0)? as usize & 0xFF;
                self.queue(message)?;
                self.kicks[index] = descriptor(message)?;
            }
            SET_VRING_CALL => {
                let call = descriptor(message)?;
                if let Some(call) = &call {
                    // The card does not wait for the guest.
                    rustix::io::ioctl_fionbio(call, true)?;
                }
                self.queue(message)?.call = call;
            }
            _ => return Err(message.refused("is not known")),
        }
        Ok(())
    }

    fn set_memory(&mut self, message: &mut Message) -> io::Result<()> {
        let count = message.word(0)? as usize;
        let mut memory = GuestMemory::default();
        let files = std::mem::take(&mut message.files);
        if files.len() != count {
            return Err(message.refused("has not a descriptor for each region"));
        }
        for (index, file) in files.into_iter().enumerate() {
            let at = 8 + 32 * index;
            let layout = RegionLayout {
                address: message.long(at)?,
                bytes: message.long(at + 8)?,
                file_offset: message.long(at + 24)?,
            };
            memory.add(layout, file)?;
        }
        self.memory = memory;
        Ok(())
    }
}

fn descriptor(message: &mut Message) -> io::Result<Option<OwnedFd>> {
    if message.long(0)? & NO_DESCRIPTOR != 0 {
        return Ok(None);
    }
    message.files.pop().map(Some).ok_or_else(|| message.refused("has no descriptor"))
}
