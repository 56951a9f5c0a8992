//! Memory that is shared between components: arrays of the caller, buffers of devices, mapped files.
//!
//! * [`HostSlice`] and [`HostSliceMut`] are views of such memory. Views borrow from the memory's owner, copy
//!   contents, and never return a reference into the memory.
//! * [`ForeignMemory`] and [`ForeignMemoryMut`] contain memory with its owner, as values without a lifetime. A call
//!   that borrows memory creates them with a [`Lender`]. Memory that is shared with other owners is [`SharedMemory`].
//! * [`Storage`] is memory of this library, which a [`StoragePool`] reuses. [`FileBytes`] contains a file, a
//!   [`FilePart`] reads a part of one, a [`Mapping`] contains pages that a device also accesses, and a [`DmaBuf`] is
//!   memory that only devices access.
//! * [`convert`] contains the kernels that convert element types and change the order of dimensions.
//!
//! This crate, the calls of the engine and the system calls contain all unsafe code of the project. Safe code cannot
//! access released memory through this crate:
//!
//! ```compile_fail,E0505
//! let mut storage = qaic_mem::Storage::new(8)?;
//! let mut view = storage.memory_mut();
//! drop(storage);
//! view.fill(1); // the view borrows from the storage
//! # Ok::<(), qaic_mem::MemoryError>(())
//! ```
//!
//! ```compile_fail,E0499
//! let mut storage = qaic_mem::Storage::new(8)?;
//! let (mut one, mut other) = (storage.memory_mut(), storage.memory_mut()); // one writer at a time
//! one.copy_from(other.as_const());
//! # Ok::<(), qaic_mem::MemoryError>(())
//! ```
//!
//! ```compile_fail,E0505
//! let mut memory = qaic_mem::ForeignMemoryMut::from(qaic_mem::Storage::new(8)?);
//! let mut view = memory.as_mut();
//! drop(memory);
//! view.fill(1); // the view borrows from the memory
//! # Ok::<(), qaic_mem::MemoryError>(())
//! ```
//!
//! ```compile_fail,E0505
//! let mut memory = qaic_mem::ForeignMemoryMut::from(qaic_mem::Storage::new(8)?);
//! let mut view = memory.as_mut();
//! let storage = memory.into_storage(); // the view still borrows the memory
//! view.fill(1);
//! # Ok::<(), qaic_mem::MemoryError>(())
//! ```
//!
//! ```compile_fail,E0382
//! let memory = qaic_mem::ForeignMemoryMut::from(qaic_mem::Storage::new(8)?);
//! let (mut one, mut other) = (memory, memory); // it is not copied
//! # Ok::<(), qaic_mem::MemoryError>(())
//! ```
//!
//! ```compile_fail,E0133
//! let mut byte = 0_u8;
//! let owner = std::sync::Arc::new(());
//! // Safe code cannot create views of arbitrary addresses.
//! let memory = qaic_mem::ForeignMemoryMut::new(&raw mut byte, 1, owner);
//! let view = qaic_mem::HostSliceMut::new(&raw mut byte, 1);
//! ```
//!
//! ```compile_fail,E0597
//! qaic_mem::Lender::default().scope(|loan| {
//!     let bytes = [1_u8; 4];
//!     let lent = loan.lend(qaic_mem::HostSlice::of(&bytes)); // the lent memory outlives the call
//! });
//! ```
//!
//! ```compile_fail,E0505
//! let mut bytes = vec![1_u8; 4];
//! qaic_mem::Lender::default().scope(|loan| {
//!     let lent = loan.lend(qaic_mem::HostSlice::of(&bytes));
//!     drop(bytes); // it is borrowed until the call returns
//! });
//! ```
//!
//! ```compile_fail,E0521
//! fn leak<'a>(lender: &mut qaic_mem::Lender, out: &mut Option<&mut qaic_mem::Loan<'_, 'a>>) {
//!     lender.scope(|loan| *out = Some(loan)); // a loan ends with its call
//! }
//! ```
#![deny(unsafe_code)]

pub mod convert;
mod dma_buf;
#[allow(unsafe_code)] // a chain of allocations
mod drop_list;
mod error;
#[allow(unsafe_code)] // maps files
mod file_bytes;
#[allow(unsafe_code)] // duplicates descriptors
mod file_part;
#[allow(unsafe_code)] // views of memory that the same value keeps
mod foreign;
#[allow(unsafe_code)] // advice on reserved memory
mod large_pages;
#[allow(unsafe_code)] // marks that outlive the lent memory
mod loan;
#[allow(unsafe_code)] // maps pages
mod mapping;
#[allow(unsafe_code)] // memory that the same value keeps
mod shared;
#[allow(unsafe_code)] // allocates
mod storage;
#[allow(unsafe_code)] // keeps allocations as addresses
mod storage_pool;
pub mod stored;
#[allow(unsafe_code)] // copies non-contiguous arrays
mod transposed;
#[allow(unsafe_code)] // copies between addresses
mod view;

pub use bytemuck::Pod;
pub use dma_buf::DmaBuf;
pub use drop_list::{Deferred, DropList};
pub use error::MemoryError;
pub use file_bytes::{FileBytes, open_regular};
pub use file_part::FilePart;
pub use foreign::{ForeignMemory, ForeignMemoryMut, Owner};
pub use large_pages::reserve_large;
pub use loan::{Lender, Loan};
pub use mapping::Mapping;
pub use shared::{Kept, SharedMemory};
pub use storage::Storage;
pub use storage_pool::StoragePool;
pub(crate) use transposed::copy_transposed;
pub use view::{HostSlice, HostSliceMut};
