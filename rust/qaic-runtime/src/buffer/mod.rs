//! Memory: views of memory owned by others, aligned storage of ours, and mapped files.
//!
//! Together with the engine calls and the vector kernels this is the only place of the crate with unsafe code.

mod device;
mod dma_buf;
mod large;
mod mapping;
mod slice;
mod storage;
mod transposed;

pub(crate) use device::DeviceMemory;
pub use dma_buf::DmaBuf;
pub use large::reserve_large;
pub use mapping::FileBytes;
pub use slice::{HostSlice, HostSliceMut, Plain};
pub(crate) use slice::{Sink, Source};
pub use storage::{Storage, StoragePool};
pub(crate) use transposed::copy_transposed;
