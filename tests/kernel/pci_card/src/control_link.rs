//! Control messages between driver and firmware.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytemuck::bytes_of;
use qaic_emu::fault::{Action, Trigger, corrupt};
use qaic_emu::{Firmware, Transaction, TransactionReply, data_wanted};
use qaic_kmd::protocol::{Header, NncStatus, TransactionKind};

use super::guest_memory::GuestMemory;

const MAGIC: u32 = 0x4349_4151;
const MESSAGE_HEADER_BYTES: usize = 32;
const PASSTHROUGH_TO_DEVICE: u32 = 4;
const DMA_TO_DEVICE: u32 = 6;
const ACTIVATE_TO_DEVICE: u32 = 9;
const DEACTIVATE_FROM_DEVICE: u32 = 11;
const STATUS_TO_DEVICE: u32 = 15;
const TERMINATE_FROM_DEVICE: u32 = 16;
const TERMINATE_TO_DEVICE: u32 = 17;
const DMA_CONTINUE: u32 = 18;
const VALIDATE_PARTITION_FROM_DEVICE: u32 = 19;
const VALIDATE_PARTITION_TO_DEVICE: u32 = 20;
/// Bit of the status flags: messages have checksums.
const HAS_CHECKSUMS: u64 = 1;
/// Maximum size of the data of a message, and of all unfinished messages.
const MAX_DATA_BYTES: usize = 1 << 31;

/// Reads data from the guest's memory.
pub(super) type Gather<'a> = dyn Fn(&GuestMemory) -> Option<Vec<u8>> + 'a;
/// Collects data from the guest's memory.
pub(super) type Fetch<'a> = dyn Fn(&Gather<'_>) -> Option<Vec<u8>> + 'a;
/// Counts a trigger; returns the fault that it causes.
pub(super) type NextFault<'a> = dyn Fn(Trigger) -> Option<Action> + 'a;

/// Addresses of a channel's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPlaces {
    pub(super) requests: u64,
    pub(super) responses: u64,
    pub(super) request_count: u32,
    pub(super) response_count: u32,
}

/// The outcome of a message.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The reply; `None` if there is none.
    pub(super) reply: Option<Vec<u8>>,
    /// Channels that were activated, with their rings.
    pub(super) activated: Vec<(u32, RingPlaces)>,
    /// Another fault of the card.
    pub(super) fault: Option<Action>,
}

/// The firmware at the end of the message channel.
#[derive(Debug)]
pub(super) struct ControlLink {
    /// Messages whose data comes in several messages, by user and number of the data.
    unfinished: BTreeMap<(u32, u32), Unfinished>,
    kept_bytes: usize,
    has_checksums: bool,
    /// True after the driver has queried the versions, which it does before any user.
    has_begun: bool,
}

#[derive(Debug)]
struct Unfinished {
    transactions: Vec<Transaction>,
    rings: Vec<RingPlaces>,
    tag: u32,
    data: Vec<u8>,
    wanted: u64,
}

#[derive(Debug, Default)]
struct Parsed {
    transactions: Vec<Transaction>,
    /// Rings of each activation, in order.
    rings: Vec<RingPlaces>,
    terminated: Vec<u32>,
    partitions: usize,
    /// Data that is part of more data, with its number.
    part: Option<(u32, u32, Vec<u8>)>,
    abandoned: Option<u32>,
}

impl ControlLink {
    pub(super) fn new(status_flags: u64) -> Self {
        Self {
            unfinished: BTreeMap::new(),
            kept_bytes: 0,
            has_checksums: status_flags & HAS_CHECKSUMS != 0,
            has_begun: false,
        }
    }

    /// Discards unfinished messages.
    pub(super) fn reset(&mut self) {
        self.unfinished.clear();
        self.kept_bytes = 0;
        self.has_begun = false;
    }

    /// Answers a message. `fetch` reads the data that it names.
    ///
    /// Blocking: while an activation prepares its cores.
    pub(super) fn answer(
        &mut self,
        bytes: &[u8],
        firmware: &Firmware,
        fetch: &Fetch<'_>,
        next_fault: &NextFault<'_>,
    ) -> Answer {
        let Some((sequence, user)) = header_of(bytes) else { return Answer::default() };
        let Some(parsed) = parse(bytes, fetch) else { return Answer::default() };
        let mut replies = Vec::new();
        for terminated in &parsed.terminated {
            let gone: Vec<_> = self
                .unfinished
                .range((*terminated, 0)..=(*terminated, u32::MAX))
                .map(|(key, _)| *key)
                .collect();
            for key in gone {
                self.drop_unfinished(key);
            }
            firmware.terminate(*terminated);
            replies.push(transaction(TERMINATE_FROM_DEVICE, &[0; 8]));
        }
        for _ in 0..parsed.partitions {
            replies.push(transaction(VALIDATE_PARTITION_FROM_DEVICE, &[0; 8]));
        }
        if let Some(chunk) = parsed.abandoned {
            self.drop_unfinished((user, chunk));
        }
        let (transactions, rings) = match parsed.part {
            None => (parsed.transactions, parsed.rings),
            Some((chunk, tag, data)) => {
                let kept = (parsed.transactions, parsed.rings);
                match self.continue_data((user, chunk), tag, &data, kept) {
                    Ok(whole) => whole,
                    Err(Some(so_far)) => {
                        let mut body = chunk.to_le_bytes().to_vec();
                        body.extend([0; 4]);
                        body.extend(so_far.to_le_bytes());
                        let reply =
                            message(&[transaction(DMA_CONTINUE, &body)], sequence, user, self.has_checksums);
                        return Answer { reply: Some(reply), ..Answer::default() };
                    }
                    Err(None) => Default::default(),
                }
            }
        };
        let fault = self.fault_of(&transactions, next_fault);
        let mut answers = match fault {
            Some(Action::Hang) => return Answer::default(),
            Some(Action::Reset | Action::Dead) => return Answer { fault, ..Answer::default() },
            Some(Action::Nack { status, both }) => {
                firmware.refuse(user, transactions, NncStatus(status), both)
            }
            _ => firmware.handle(user, transactions),
        };
        let mut rings = rings.into_iter();
        let mut activated = Vec::new();
        for answer in &answers {
            if let TransactionReply::Activate(channel) = answer
                && let Some(rings) = rings.next()
                && channel.status == 0
            {
                activated.push((channel.dbc_id, rings));
            }
        }
        corrupt(&mut answers, fault);
        replies.extend(answers.iter().map(encode));
        let mut reply = message(&replies, sequence, user, self.has_checksums);
        match fault {
            Some(Action::Crc) => reply[0] ^= 1,
            Some(Action::Count(count)) => reply[16..20].copy_from_slice(&count.to_le_bytes()),
            _ => {}
        }
        Answer { reply: Some(reply), activated, fault }
    }

    /// Adds data to a message whose data is incomplete. `Err` contains the size so far, or states that the message is given up.
    fn continue_data(
        &mut self,
        key: (u32, u32),
        tag: u32,
        data: &[u8],
        (transactions, rings): (Vec<Transaction>, Vec<RingPlaces>),
    ) -> Result<(Vec<Transaction>, Vec<RingPlaces>), Option<u64>> {
        self.unfinished.entry(key).or_insert_with(|| {
            let wanted = transactions.iter().find_map(|transaction| match transaction {
                Transaction::Passthrough(command) => {
                    data_wanted(command).and_then(|(of, bytes)| (of == tag).then_some(bytes))
                }
                _ => None,
            });
            Unfinished { transactions, rings, tag, data: Vec::new(), wanted: wanted.unwrap_or(0) }
        });
        let has_room = self.kept_bytes + data.len() <= MAX_DATA_BYTES;
        let Some(unfinished) = self.unfinished.get_mut(&key).filter(|_| has_room) else {
            self.drop_unfinished(key);
            return Err(None);
        };
        unfinished.data.extend(data);
        self.kept_bytes += data.len();
        if (unfinished.data.len() as u64) < unfinished.wanted {
            return Err(Some(unfinished.data.len() as u64));
        }
        let mut whole = self.unfinished.remove(&key).ok_or(None)?;
        self.kept_bytes -= whole.data.len();
        whole.transactions.push(Transaction::Dma { tag: whole.tag, data: whole.data.into() });
        Ok((whole.transactions, whole.rings))
    }

    fn drop_unfinished(&mut self, key: (u32, u32)) {
        if let Some(dropped) = self.unfinished.remove(&key) {
            self.kept_bytes -= dropped.data.len();
        }
    }

    /// Returns the fault of a user's message; counts all triggers.
    fn fault_of(&mut self, transactions: &[Transaction], next_fault: &NextFault<'_>) -> Option<Action> {
        if transactions.is_empty() || !std::mem::replace(&mut self.has_begun, true) {
            return None;
        }
        let triggers = transactions.iter().filter_map(|transaction| match transaction {
            Transaction::Passthrough(command) => {
                Some(Trigger::Command(command.first_chunk().copied().map(u32::from_le_bytes)?))
            }
            Transaction::Status => Some(Trigger::Features),
            _ => None,
        });
        let faults: Vec<_> = [Trigger::Manage].into_iter().chain(triggers).map(next_fault).collect();
        faults.into_iter().flatten().next()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// Sequence number and user of a message.
fn header_of(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_whole = word(bytes, 4)? == MAGIC && usize::try_from(word(bytes, 12)?).ok()? == bytes.len();
    is_whole.then_some(())?;
    Some((word(bytes, 8)?, word(bytes, 20)?))
}

fn parse(bytes: &[u8], fetch: &Fetch<'_>) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    let mut rest = bytes.get(MESSAGE_HEADER_BYTES..)?;
    for _ in 0..word(bytes, 16)? {
        let (kind, len) = (word(rest, 0)?, usize::try_from(word(rest, 4)?).ok()?);
        let body = rest.get(size_of::<Header>()..len)?;
        rest = &rest[len..];
        match kind {
            PASSTHROUGH_TO_DEVICE => parsed.transactions.push(Transaction::Passthrough(body.to_vec())),
            STATUS_TO_DEVICE => parsed.transactions.push(Transaction::Status),
            TERMINATE_TO_DEVICE => parsed.terminated.push(word(body, 0)?),
            VALIDATE_PARTITION_TO_DEVICE => parsed.partitions += 1,
            ACTIVATE_TO_DEVICE => {
                let rings = RingPlaces {
                    requests: long(body, 0)?,
                    responses: long(body, 8)?,
                    request_count: word(body, 16)?,
                    response_count: word(body, 20)?,
                };
                parsed.rings.push(rings);
                let (queue_size, options) = (rings.request_count, word(body, 28)?);
                parsed.transactions.push(Transaction::Activate { queue_size, options });
            }
            DMA_TO_DEVICE => {
                let (tag, count, chunk) = (word(body, 0)?, word(body, 4)?, word(body, 8)?);
                let pairs = body.get(16..)?;
                let gather = |memory: &GuestMemory| {
                    let mut data = Vec::new();
                    for pair in pairs.chunks_exact(16).take(count as usize) {
                        let (address, len) = (long(pair, 0)?, usize::try_from(long(pair, 8)?).ok()?);
                        // Only data that the guest has.
                        memory.find(address, len as u64)?;
                        let begin = data.len();
                        if begin + len > MAX_DATA_BYTES {
                            return None;
                        }
                        data.resize(begin + len, 0);
                        memory.read(address, &mut data[begin..])?;
                    }
                    Some(data)
                };
                if chunk != 0 && count == 0 {
                    parsed.abandoned = Some(chunk);
                } else if chunk != 0 {
                    parsed.part = Some((chunk, tag, fetch(&gather)?));
                } else {
                    let data: Arc<[u8]> = fetch(&gather)?.into();
                    parsed.transactions.push(Transaction::Dma { tag, data });
                }
            }
            _ => return None,
        }
    }
    rest.is_empty().then_some(parsed)
}

fn transaction(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(size_of::<Header>() + body.len()).unwrap_or(u32::MAX);
    [&kind.to_le_bytes(), &len.to_le_bytes(), body].concat()
}

fn encode(reply: &TransactionReply) -> Vec<u8> {
    match reply {
        TransactionReply::Passthrough(body) => TransactionKind::PassthroughFromDevice.transaction(body),
        TransactionReply::Activate(channel) => {
            TransactionKind::ActivateFromDevice.transaction(bytes_of(channel))
        }
        TransactionReply::Deactivate { status, dbc_id } => {
            transaction(DEACTIVATE_FROM_DEVICE, &[status.to_le_bytes(), dbc_id.to_le_bytes()].concat())
        }
        TransactionReply::Status(features) => {
            TransactionKind::StatusFromDevice.transaction(bytes_of(features))
        }
    }
}

fn message(transactions: &[Vec<u8>], sequence: u32, user: u32, has_checksums: bool) -> Vec<u8> {
    let body = transactions.concat();
    let len = u32::try_from(MESSAGE_HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let count = u32::try_from(transactions.len()).unwrap_or(u32::MAX);
    let words = [0, MAGIC, sequence, len, count, user, u32::MAX, 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(body);
    if has_checksums {
        let checksum = crc32fast::hash(&bytes);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}
