//! The buffer of a control message, which the reply replaces.

use bytemuck::bytes_of;

use crate::abi::{MANAGE_MAX_BYTES, ManageMsg};
use crate::protocol::{Dma, Header, TransactionKind};
use crate::wire::{self, Volatile};

/// A control message, and the reply that replaces it. Borrows the data that the card fetches during the call.
#[derive(Debug)]
pub struct ManageBuffer<'data> {
    bytes: Box<[u8; MANAGE_MAX_BYTES]>,
    len: usize,
    count: u32,
    // A reply may contain any addresses, so it is never sent.
    is_reply: bool,
    // The data that the DMA transactions reference, in their order.
    data: Vec<&'data [u8]>,
}

impl Default for ManageBuffer<'_> {
    fn default() -> Self {
        Self { bytes: Box::new([0; MANAGE_MAX_BYTES]), len: 0, count: 0, is_reply: false, data: Vec::new() }
    }
}

impl<'data> ManageBuffer<'data> {
    /// Adds a transaction, including its header. Returns `None` if the buffer is full, if the transaction has the
    /// type that references memory, or if its header contains another length: bytes after that length would be an
    /// unchecked transaction.
    pub fn push(&mut self, transaction: &[u8]) -> Option<()> {
        let Header { kind, len } = wire::read(transaction)?;
        if kind == TransactionKind::DmaFromUser as u32 || len as usize != transaction.len() {
            return None;
        }
        self.append(transaction)
    }

    /// Adds a dma transaction: the card fetches `data` for the command with this tag. Returns `None` if the buffer is
    /// full.
    pub fn push_dma(&mut self, tag: u32, data: &'data [u8]) -> Option<()> {
        let addr = Volatile(data.as_ptr().expose_provenance() as u64);
        let body = Dma { tag, pad: 1, addr, size: data.len() as u64 };
        self.append(&TransactionKind::DmaFromUser.transaction(bytes_of(&body)))?;
        self.data.push(data);
        Some(())
    }

    fn append(&mut self, transaction: &[u8]) -> Option<()> {
        if self.is_reply {
            return None;
        }
        let end = self.len.checked_add(transaction.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(transaction);
        self.len = end;
        self.count += 1;
        Some(())
    }

    /// Bytes of the transactions.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Number of transactions. The number in a reply may be larger than the actual one, because the kernel keeps some
    /// transactions to itself.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the data of the dma transactions, in order.
    pub fn data(&self) -> &[&'data [u8]] {
        &self.data
    }

    /// Returns true if the message was answered. A reply cannot be sent.
    pub fn is_reply(&self) -> bool {
        self.is_reply
    }

    /// Replaces the message with a reply, truncated to [`MANAGE_MAX_BYTES`]. `count` is the number of transactions
    /// that the reply declares.
    pub fn set_reply(&mut self, bytes: &[u8], count: u32) {
        let len = bytes.len().min(MANAGE_MAX_BYTES);
        self.bytes[..len].copy_from_slice(&bytes[..len]);
        self.replied(len, count);
    }

    /// Marks the buffer as a reply, which the kernel has written into it.
    pub(crate) fn replied(&mut self, len: usize, count: u32) {
        self.len = len.min(MANAGE_MAX_BYTES);
        self.count = count;
        self.is_reply = true;
        self.data.clear();
    }

    /// Returns the argument of the system call that sends the message.
    pub(crate) fn argument(&mut self) -> ManageMsg {
        let data = Volatile(self.bytes.as_mut_ptr().expose_provenance() as u64);
        ManageMsg { len: u32::try_from(self.len).unwrap_or(u32::MAX), count: self.count, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(len: usize) -> Vec<u8> {
        let mut bytes = vec![1; len];
        bytes[4..8].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        bytes
    }

    #[test]
    fn message_of_any_transactions_takes_what_fits_and_no_addresses() {
        let mut message = ManageBuffer::default();
        assert_eq!(message.push(&[5, 0, 0, 0, 32, 0, 0, 0]), None);
        assert_eq!(message.push(&[5]), None);
        assert_eq!(message.push(&transaction(MANAGE_MAX_BYTES - 40)), Some(()));
        assert_eq!(message.push_dma(100, b"abc"), Some(()));
        assert_eq!(message.push(&transaction(9)), None);
        assert_eq!(message.push_dma(100, b"abcd"), None);
        assert_eq!(message.push(&transaction(8)), Some(()));
        assert_eq!((message.bytes().len(), message.count()), (MANAGE_MAX_BYTES, 3));
        assert_eq!(message.data(), [b"abc"]);
        let dma = &message.bytes()[MANAGE_MAX_BYTES - 40..][..32];
        assert_eq!(dma[..16], [5, 0, 0, 0, 32, 0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(dma[24..], [3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn transaction_with_another_behind_it_is_not_taken() {
        let mut hiding = [0; 40];
        hiding[..16].copy_from_slice(&[12, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 32, 0, 0, 0]);
        for len in [8_u8, 39, 41] {
            hiding[4] = len;
            assert_eq!(ManageBuffer::default().push(&hiding), None, "{len}");
        }
        hiding[4] = 40;
        assert_eq!(ManageBuffer::default().push(&hiding), Some(()));
    }

    #[test]
    fn message_that_was_answered_takes_nothing_more() {
        let mut message = ManageBuffer::default();
        message.push(&transaction(8)).unwrap();
        message.push_dma(1, b"data").unwrap();
        message.set_reply(&[7; 2 * MANAGE_MAX_BYTES], 9);
        assert_eq!((message.bytes(), message.count()), (&[7; MANAGE_MAX_BYTES][..], 9));
        assert!(message.is_reply() && message.data().is_empty());
        assert_eq!((message.push(&transaction(8)), message.push_dma(1, &[])), (None, None));
    }
}
