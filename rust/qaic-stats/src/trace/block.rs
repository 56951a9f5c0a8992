//! Bytes on their way to a writer: everything is put together in one block of memory that is used again and again.

use std::io::{self, Write};

/// Large enough that a call of the system is cheap beside it, small enough to stay in a cache.
const BLOCK_BYTES: usize = 256 << 10;

/// A writer with a block of bytes before it.
#[derive(Debug)]
pub(super) struct Block<W> {
    pub(super) bytes: Vec<u8>,
    out: W,
}

impl<W: Write> Block<W> {
    pub(super) fn new(out: W) -> Self {
        Self { bytes: Vec::with_capacity(BLOCK_BYTES.saturating_add(BLOCK_BYTES / 4)), out }
    }

    /// Writes the block if it is full.
    #[inline]
    pub(super) fn relieve(&mut self) -> io::Result<()> {
        if self.bytes.len() < BLOCK_BYTES { Ok(()) } else { self.empty() }
    }

    /// Writes what there is.
    pub(super) fn empty(&mut self) -> io::Result<()> {
        self.out.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}
