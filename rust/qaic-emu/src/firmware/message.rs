//! A control message with transactions sorted by kind, which commands look up when they are answered.

use std::collections::VecDeque;
use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;

use super::transaction::Transaction;

/// A message's transactions by kind.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) commands: VecDeque<Vec<u8>>,
    pub(super) data: Vec<(u32, Arc<[u8]>)>,
    pub(super) set_ups: VecDeque<SetUp>,
    pub(super) status_requests: Vec<()>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SetUp {
    pub(super) queue_size: u32,
    pub(super) options: u32,
}

impl Message {
    pub(super) fn new(transactions: Vec<Transaction>) -> Self {
        let mut message = Self::default();
        for transaction in transactions {
            match transaction {
                Transaction::Passthrough(command) => message.commands.push_back(command),
                Transaction::Dma { tag, data } => message.data.push((tag, data)),
                Transaction::Activate { queue_size, options } => {
                    message.set_ups.push_back(SetUp { queue_size, options });
                }
                Transaction::Status => message.status_requests.push(()),
            }
        }
        message
    }

    /// Returns the data that a command references. Its length must equal the length in the command.
    pub(super) fn data(&mut self, tag: u32, data_length: u64) -> Result<Arc<[u8]>, NncStatus> {
        let place = self.data.iter().position(|data| data.0 == tag).ok_or(NncStatus::PARAMETER)?;
        let (_, data) = self.data.remove(place);
        if data.len() as u64 == data_length { Ok(data) } else { Err(NncStatus::PARAMETER) }
    }
}
