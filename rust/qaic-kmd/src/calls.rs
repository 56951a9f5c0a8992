//! The driver's system calls, each as a function that puts its [`Ioctl`] together.
//!
//! None of them tries again. Those that may block say so; all of them can answer `EINTR` where they block, `ENODEV` when
//! the card is offline or gone, and `ENOMEM`.

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

/// Sends a control message to the firmware and replaces it with the reply. When the device refused an activation,
/// deactivation or status, the error is `ECANCELED` and the reply is there all the same; after other errors the message is
/// as it was. `EINVAL` also for a message that is a reply already.
///
/// Blocking: until the firmware replies, a minute at most.
pub fn manage(file: &dyn AccelFile, message: &mut ManageBuffer<'_>) -> Result<(), Errno> {
    if message.is_reply() {
        return Err(Errno::INVAL);
    }
    file.ioctl(&mut Ioctl::Manage(message))
}

/// A buffer object of `size` bytes, rounded up to pages, zeroed. Answers its handle. `EINVAL`: no bytes.
pub fn create_bo(file: &dyn AccelFile, size: u64) -> Result<u32, Errno> {
    let mut arg = CreateBo { size, ..CreateBo::default() };
    file.ioctl(&mut Ioctl::CreateBo(&mut arg))?;
    Ok(arg.handle)
}

/// Returns the offset at which to map a buffer object. `ENOENT`: no such handle.
pub fn mmap_offset(file: &dyn AccelFile, handle: u32) -> Result<u64, Errno> {
    let mut arg = MmapBo { handle, ..MmapBo::default() };
    file.ioctl(&mut Ioctl::MmapBo(&mut arg))?;
    Ok(arg.offset)
}

/// Sets, once, the transfers of executing a buffer object of `size` bytes. `ENOSPC`: more elements than a
/// ring has; `EPIPE`: the channel is restarting.
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

/// Undoes [`attach_slices`]. `EBUSY`: it is queued; `EINVAL`: nothing is attached.
pub fn detach_slices(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::DetachSlices(DetachSlice { handle, pad: 0 }))
}

/// Queues all buffer objects or none. `EAGAIN`: the ring is full; `EPERM`: the channel is not, or no longer, ours;
/// `EPIPE`: it is restarting.
pub fn execute(file: &dyn AccelFile, dbc_id: u32, entries: &[ExecuteEntry]) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::Execute { dbc_id, entries })
}

/// [`execute`] that moves parts of the buffer objects.
pub fn partial_execute(
    file: &dyn AccelFile,
    dbc_id: u32,
    entries: &[PartialExecuteEntry],
) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::PartialExecute { dbc_id, entries })
}

/// Waits until a buffer object is idle, which one that was never executed is. `ETIMEDOUT`; `EPERM`: the channel was lost
/// to a reset; `EPIPE`: to a restart of its cores.
///
/// Blocking: up to `timeout_ms`; 0 is the kernel's default.
pub fn wait(file: &dyn AccelFile, dbc_id: u32, handle: u32, timeout_ms: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::Wait(Wait { handle, timeout: timeout_ms, dbc_id, pad: 0 }))
}

/// Figures of the last executions of the buffer objects that the entries name.
pub fn perf_stats(file: &dyn AccelFile, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::PerfStats { dbc_id, entries })
}

/// Drops a handle. What the channel still refers to stays until it is released, so detach first.
pub fn close_handle(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    file.ioctl(&mut Ioctl::CloseHandle(GemClose { handle, pad: 0 }))
}

/// A handle for a dma-buf, whose descriptor may be closed afterwards.
pub fn import_dma_buf(file: &dyn AccelFile, memory: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut handle = 0;
    file.ioctl(&mut Ioctl::ImportDmaBuf { file: memory, handle: &mut handle })?;
    Ok(handle)
}

/// The driver behind the file and its interface. A name is cut after
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
