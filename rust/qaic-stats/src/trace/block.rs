//! Buffered output of a trace.
//!
//! Output to a writer is collected in one block of memory, which is reused. Output to memory is appended directly.

use std::io::{self, Write};
use std::mem;

/// Size of a block: large enough that a system call costs little in comparison, and small enough to stay in a cache.
const BLOCK_BYTES: usize = 256 << 10;

/// The target of a trace.
pub(super) enum Target<'a> {
    Writer(&'a mut dyn Write),
    /// Memory that the trace is appended to.
    Memory(&'a mut Vec<u8>),
}

/// Collected bytes, and the target for full blocks.
pub(super) struct Block<'a> {
    pub(super) bytes: Vec<u8>,
    target: Target<'a>,
    full_bytes: usize,
}

impl<'a> Block<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        match target {
            Target::Writer(_) => {
                let bytes = Vec::with_capacity(BLOCK_BYTES.saturating_add(BLOCK_BYTES / 4));
                Self { bytes, target, full_bytes: BLOCK_BYTES }
            }
            Target::Memory(memory) => {
                let bytes = mem::take(memory);
                Self { bytes, target: Target::Memory(memory), full_bytes: usize::MAX }
            }
        }
    }

    /// Writes the block if it is full.
    #[inline]
    pub(super) fn flush_if_full(&mut self) -> io::Result<()> {
        if self.bytes.len() < self.full_bytes { Ok(()) } else { self.flush() }
    }

    /// Writes the collected bytes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Writer(out) => {
                out.write_all(&self.bytes)?;
                self.bytes.clear();
            }
            Target::Memory(memory) => **memory = mem::take(&mut self.bytes),
        }
        Ok(())
    }
}
