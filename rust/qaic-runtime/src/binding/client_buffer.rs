//! Buffers of clients of `qaicrt`: memory, and its declared type.

use std::sync::Arc;

use qaic_mem::SharedMemory;

use crate::sync::{AtomicU32, Ordering};

/// Type code of heap memory.
const HEAP: u32 = 0;
/// Type code of memory behind a descriptor.
const DMA_BUF: u32 = 1;

/// Memory for one binding, with a declared type that clients may change at any time. Memory is bound only if the
/// declared type is correct.
#[derive(Debug)]
pub struct ClientBuffer {
    /// The memory, independent of the declared type.
    pub memory: Arc<SharedMemory>,
    /// Code of the declared type.
    pub kind: AtomicU32,
}

impl ClientBuffer {
    /// Creates a buffer whose declared type is the type of the memory.
    pub fn new(memory: Arc<SharedMemory>) -> Self {
        let kind = AtomicU32::new(kind_of(&memory));
        Self { memory, kind }
    }

    /// Returns true if the declared type is the type of the memory.
    pub fn is_declared_right(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == kind_of(&self.memory)
    }
}

fn kind_of(memory: &SharedMemory) -> u32 {
    if memory.dma_buf().is_some() { DMA_BUF } else { HEAP }
}

#[cfg(test)]
mod tests {
    use qaic_mem::DmaBuf;

    use super::*;

    #[test]
    fn buffer_is_right_while_it_is_declared_as_what_it_is() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let behind = SharedMemory::behind(DmaBuf { descriptor: file.into(), offset: 0, len: 8 });
        for (memory, kind) in [(SharedMemory::empty(), HEAP), (behind, DMA_BUF)] {
            let buffer = ClientBuffer::new(memory);
            assert_eq!((buffer.kind.load(Ordering::Relaxed), buffer.is_declared_right()), (kind, true));
            buffer.kind.store(1 - kind, Ordering::Relaxed);
            assert_eq!((buffer.kind.load(Ordering::Relaxed), buffer.is_declared_right()), (1 - kind, false));
            buffer.kind.store(kind, Ordering::Relaxed);
            assert!(buffer.is_declared_right());
        }
    }
}
