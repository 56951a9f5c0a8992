//! The driver's system calls, each as a function that creates its [`Ioctl`].
//!
//! No function repeats a call. Functions that may block have a "Blocking" paragraph. Every function can fail with
//! `EINTR` while it blocks, with `ENODEV` if the card is offline or missing, and with `ENOMEM`.

use std::os::fd::BorrowedFd;

use crate::Errno;
use crate::abi::{
    AttachSliceEntry, CreateBo, DetachSlice, ExecuteEntry, GemClose, MmapBo, PartialExecuteEntry,
    PerfStatsEntry, Wait,
};
use crate::ioctl::{DriverInterface, Ioctl, VersionQuery};
use crate::kmd::AccelFile;
use crate::manage::ManageBuffer;

/// Name of the driver of the cards.
const DRIVER: &[u8] = b"qaic";

/// Sends a control message to the firmware and replaces it with the reply. If the device refuses an activation,
/// deactivation or status query, the error is `ECANCELED` and the reply is still available. After other errors the
/// message is unchanged. Fails with `EINVAL` for a message that is already a reply.
///
/// Blocking: until the firmware replies, at most a minute.
pub fn manage(file: &dyn AccelFile, message: &mut ManageBuffer<'_>) -> Result<(), Errno> {
    if message.is_reply() {
        return Err(Errno::INVAL);
    }
    file.ioctl(&mut Ioctl::Manage(message))
}

/// Creates a zeroed buffer object of `size` bytes, rounded up to pages, and returns its handle. Fails with `EINVAL`
/// for zero bytes.
pub fn create_bo(file: &dyn AccelFile, size: u64) -> Result<u32, Errno> {
    let mut arg = CreateBo { size, ..CreateBo::default() };
    file.ioctl(&mut Ioctl::CreateBo(&mut arg))?;
    Ok(arg.handle)
}

/// Returns the offset at which to map a buffer object. Fails with `ENOENT` for an unknown handle.
pub fn mmap_offset(file: &dyn AccelFile, handle: u32) -> Result<u64, Errno> {
    let mut arg = MmapBo { handle, ..MmapBo::default() };
    file.ioctl(&mut Ioctl::MmapBo(&mut arg))?;
    Ok(arg.offset)
}

/// Sets the transfers of a buffer object of `size` bytes; can be called once. Fails with `ENOSPC` for more elements
/// than a ring has, and with `EPIPE` if the channel is restarting.
pub fn attach_slices(
    file: &dyn AccelFile,
    dbc_id: u32,
    handle: u32,
    dir: u32,
    size: u64,
    entries: &[AttachSliceEntry],
) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::AttachSlices { dbc_id, handle, dir, size, entries })
}

/// Reverts [`attach_slices`]. Fails with `EBUSY` if the buffer object is queued, and with `EINVAL` if nothing is
/// attached.
pub fn detach_slices(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::DetachSlices(DetachSlice { handle, pad: 0 }))
}

/// Queues all buffer objects or none. Fails with `EAGAIN` if the ring is full, with `EPERM` if the channel does not
/// belong to this file, and with `EPIPE` if the channel is restarting.
pub fn execute(file: &dyn AccelFile, dbc_id: u32, entries: &[ExecuteEntry]) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::Execute { dbc_id, entries })
}

/// Queues buffer objects as [`execute`] does, but transfers only parts of them.
pub fn partial_execute(
    file: &dyn AccelFile,
    dbc_id: u32,
    entries: &[PartialExecuteEntry],
) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::PartialExecute { dbc_id, entries })
}

/// Waits until a buffer object is idle; a buffer object that was never executed is idle. Fails with `ETIMEDOUT` after
/// the timeout, with `EPERM` if a reset has ended the channel, and with `EPIPE` if a restart of its cores has.
///
/// Blocking: up to `timeout_ms`; 0 is the kernel's default.
pub fn wait(file: &dyn AccelFile, dbc_id: u32, handle: u32, timeout_ms: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::Wait(Wait { handle, timeout: timeout_ms, dbc_id, pad: 0 }))
}

/// Reads statistics of the last executions of the buffer objects in the entries.
pub fn perf_stats(file: &dyn AccelFile, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::PerfStats { dbc_id, entries })
}

/// Closes a handle. Objects that the channel still references stay until it is released, so detach first.
pub fn close_handle(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::CloseHandle(GemClose { handle, pad: 0 }))
}

/// Creates a handle for a dma-buf, whose descriptor may be closed afterwards.
pub fn import_dma_buf(file: &dyn AccelFile, memory: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut handle = 0;
    file.ioctl(&mut Ioctl::ImportDmaBuf { file: memory, handle: &mut handle })?;
    Ok(handle)
}

/// Returns the driver of the file and its interface. A name is truncated to
/// [`DRIVER_NAME_BYTES`](crate::ioctl::DRIVER_NAME_BYTES).
pub fn driver_interface(file: &dyn AccelFile) -> Result<DriverInterface, Errno> {
    let mut query = VersionQuery::default();
    file.ioctl(&mut Ioctl::Version(&mut query))?;
    Ok(match (query.name(), query.version.major, query.version.minor) {
        (DRIVER, 0, _) => DriverInterface::Mainline,
        (DRIVER, major, minor) => DriverInterface::Other { version: (major, minor) },
        (name, ..) => DriverInterface::OtherDriver(String::from_utf8_lossy(name).into_owned()),
    })
}
