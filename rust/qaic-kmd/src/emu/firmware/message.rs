//! A control message, sorted: what belongs to a command is found when the command is answered.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PARAMETER;
use super::wire::Wire;

/// A message's transactions by kind.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) commands: VecDeque<Vec<u8>>,
    pub(super) data: Vec<(u32, Arc<[u8]>)>,
    pub(super) setups: VecDeque<Setup>,
    pub(super) teardowns: VecDeque<u32>,
    pub(super) status_requests: Vec<()>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) queue_size: u32,
    pub(super) options: u32,
}

impl Message {
    pub(super) fn new(transactions: Vec<Wire>) -> Self {
        let mut message = Self::default();
        for transaction in transactions {
            match transaction {
                Wire::Passthrough(command) => message.commands.push_back(command),
                Wire::Dma { tag, data } => message.data.push((tag, data)),
                Wire::Activate { queue_size, options } => {
                    message.setups.push_back(Setup { queue_size, options });
                }
                Wire::Deactivate { dbc_id } => message.teardowns.push_back(dbc_id),
                Wire::Status => message.status_requests.push(()),
            }
        }
        message
    }

    /// The data that a command names, which must be as long as the command says.
    pub(super) fn data(&mut self, tag: u32, data_length: u64) -> Result<Arc<[u8]>, i32> {
        let place = self.data.iter().position(|data| data.0 == tag).ok_or(PARAMETER)?;
        let (_, data) = self.data.remove(place);
        if data.len() as u64 == data_length { Ok(data) } else { Err(PARAMETER) }
    }
}
