//! The driver's system calls, each as a function that puts its argument together (device-kmd §2.8).
//!
//! None of them tries again. Those that may block say so; all of them can answer `EINTR` where they block, `ENODEV` when
//! the card is offline or gone, and `ENOMEM`.

use std::marker::PhantomData;

use bytemuck::{Pod, bytes_of_mut};

use crate::Errno;
use crate::abi::{
    self, AttachSlice, AttachSliceEntry, AttachSliceHdr, CreateBo, DetachSlice, DrmVersion, Execute,
    ExecuteEntry, GemClose, MANAGE_MAX_BYTES, ManageMsg, MmapBo, PartialExecuteEntry, PerfStats,
    PerfStatsEntry, Prime, Wait, request,
};
use crate::kmd::AccelFile;

/// Type of a transaction that names memory of the caller (device-kmd §2.4).
const DMA_FROM_USER: u32 = 5;

/// Bytes of a transaction's type and length, with which it begins.
const HEADER_BYTES: usize = 8;

/// A control message, and the reply that comes in its place. Borrows the data that the card fetches during the call.
#[derive(Debug)]
pub struct ManageBuffer<'data> {
    bytes: Box<[u8; MANAGE_MAX_BYTES]>,
    len: usize,
    count: u32,
    // A reply may hold any addresses, so it is never sent.
    is_reply: bool,
    data: PhantomData<&'data [u8]>,
}

impl Default for ManageBuffer<'_> {
    fn default() -> Self {
        Self { bytes: Box::new([0; MANAGE_MAX_BYTES]), len: 0, count: 0, is_reply: false, data: PhantomData }
    }
}

impl<'data> ManageBuffer<'data> {
    /// Adds a transaction, header and all. `None` when there is no room for it, when it is of the type that names memory, or
    /// when its header says another length than it has: what lies behind that would be a transaction that nobody has looked
    /// at.
    pub fn push(&mut self, transaction: &[u8]) -> Option<()> {
        let header = transaction.first_chunk::<HEADER_BYTES>()?;
        let len = u32::try_from(transaction.len()).ok()?;
        if header[..4] == DMA_FROM_USER.to_le_bytes() || header[4..] != len.to_le_bytes() {
            return None;
        }
        self.append(transaction)
    }

    /// Adds a dma transaction: the card fetches `data` for the command with this tag. `None` when there is no room for it.
    pub fn push_dma(&mut self, tag: u32, data: &'data [u8]) -> Option<()> {
        let mut transaction = [0_u8; 32];
        transaction[0..4].copy_from_slice(&DMA_FROM_USER.to_le_bytes());
        transaction[4..8].copy_from_slice(&32_u32.to_le_bytes());
        transaction[8..12].copy_from_slice(&tag.to_le_bytes());
        // Padding that the kernel does not read; the open runtime counts in it (device-kmd T5).
        transaction[12..16].copy_from_slice(&1_u32.to_le_bytes());
        transaction[16..24].copy_from_slice(&(data.as_ptr().expose_provenance() as u64).to_le_bytes());
        transaction[24..32].copy_from_slice(&(data.len() as u64).to_le_bytes());
        self.append(&transaction)
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

    /// The transactions.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// How many there are. A reply may say more than came, because the kernel keeps some to itself.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Sends a control message to the firmware and replaces it with the reply. When the device refused an activation,
/// deactivation or status, the error is `ECANCELED` and the reply is there all the same; after other errors the message is
/// as it was. `EINVAL` also for a message that is a reply already.
///
/// Blocking: until the firmware replies, a minute at most.
pub fn manage(file: &dyn AccelFile, message: &mut ManageBuffer<'_>) -> Result<(), Errno> {
    if message.is_reply {
        return Err(Errno::INVAL);
    }
    let len = u32::try_from(message.len).map_err(|_| Errno::INVAL)?;
    let mut arg = ManageMsg { len, count: message.count, data: address(&mut message.bytes[..]) };
    // A reply may come even with an error.
    let result = call(file, request::MANAGE, &mut arg);
    if matches!(result, Ok(()) | Err(Errno::CANCELED)) {
        message.len = (arg.len as usize).min(MANAGE_MAX_BYTES);
        message.count = arg.count;
        message.is_reply = true;
    }
    result
}

/// A buffer object of `size` bytes, rounded up to pages, zeroed. Answers its handle. `EINVAL`: no bytes.
pub fn create_bo(file: &dyn AccelFile, size: u64) -> Result<u32, Errno> {
    let mut arg = CreateBo { size, ..CreateBo::default() };
    call(file, request::CREATE_BO, &mut arg)?;
    Ok(arg.handle)
}

/// Where to map a buffer object. `ENOENT`: no such handle.
pub fn mmap_offset(file: &dyn AccelFile, handle: u32) -> Result<u64, Errno> {
    let mut arg = MmapBo { handle, ..MmapBo::default() };
    call(file, request::MMAP_BO, &mut arg)?;
    Ok(arg.offset)
}

/// Says once what executing a buffer object of `size` bytes does. `ENOSPC`: more elements than a ring has; `EPIPE`: the
/// channel is restarting.
pub fn attach_slices(
    file: &dyn AccelFile,
    dbc_id: u32,
    handle: u32,
    dir: u32,
    size: u64,
    entries: &mut [AttachSliceEntry],
) -> Result<(), Errno> {
    let count = u32::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
    let hdr = AttachSliceHdr { count, dbc_id, handle, dir, size };
    let mut arg = AttachSlice { hdr, data: address(entries) };
    call(file, request::ATTACH_SLICE_BO, &mut arg)
}

/// Undoes [`attach_slices`]. `EBUSY`: it is queued; `EINVAL`: nothing is attached.
pub fn detach_slices(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    call(file, request::DETACH_SLICE_BO, &mut DetachSlice { handle, pad: 0 })
}

/// Queues all buffer objects or none. `EAGAIN`: the ring is full; `EPERM`: the channel is not, or no longer, ours;
/// `EPIPE`: it is restarting.
pub fn execute(file: &dyn AccelFile, dbc_id: u32, entries: &mut [ExecuteEntry]) -> Result<(), Errno> {
    let count = u32::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
    call(file, request::EXECUTE_BO, &mut Execute { count, dbc_id, data: address(entries) })
}

/// [`execute`] that moves parts of the buffer objects.
pub fn partial_execute(
    file: &dyn AccelFile,
    dbc_id: u32,
    entries: &mut [PartialExecuteEntry],
) -> Result<(), Errno> {
    let count = u32::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
    call(file, request::PARTIAL_EXECUTE_BO, &mut Execute { count, dbc_id, data: address(entries) })
}

/// Waits until a buffer object is idle, which one that was never executed is. `ETIMEDOUT`; `EPERM`: the channel was lost
/// to a reset; `EPIPE`: to a restart of its cores.
///
/// Blocking: up to `timeout_ms`; 0 is the kernel's default.
pub fn wait(file: &dyn AccelFile, dbc_id: u32, handle: u32, timeout_ms: u32) -> Result<(), Errno> {
    call(file, request::WAIT_BO, &mut Wait { handle, timeout: timeout_ms, dbc_id, pad: 0 })
}

/// Figures of the last executions of the buffer objects that the entries name.
pub fn perf_stats(file: &dyn AccelFile, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
    let count = u16::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
    call(file, request::PERF_STATS_BO, &mut PerfStats { count, pad: 0, dbc_id, data: address(entries) })
}

/// Drops a handle. What the channel still refers to stays until it is released, so detach first.
pub fn close_handle(file: &dyn AccelFile, handle: u32) -> Result<(), Errno> {
    call(file, request::GEM_CLOSE, &mut GemClose { handle, pad: 0 })
}

/// A handle for a dma-buf, whose file may be closed afterwards.
pub fn import_dma_buf(file: &dyn AccelFile, fd: i32) -> Result<u32, Errno> {
    let mut arg = Prime { handle: 0, flags: 0, fd };
    call(file, request::PRIME_FD_TO_HANDLE, &mut arg)?;
    Ok(arg.handle)
}

/// Name of the driver behind the file, cut after 64 bytes.
pub fn driver_name(file: &dyn AccelFile) -> Result<Vec<u8>, Errno> {
    let mut name = [0_u8; 64];
    let mut arg =
        DrmVersion { name_len: name.len() as u64, name: address(&mut name), ..DrmVersion::default() };
    call(file, request::VERSION, &mut arg)?;
    let len = usize::try_from(arg.name_len).unwrap_or(usize::MAX).min(name.len());
    Ok(name[..len].to_vec())
}

/// Address of the entries of a call, which the kernel reads and may write.
fn address<T: Pod>(entries: &mut [T]) -> u64 {
    entries.as_mut_ptr().expose_provenance() as u64
}

fn call<T: Pod>(file: &dyn AccelFile, request: u32, arg: &mut T) -> Result<(), Errno> {
    debug_assert_eq!(abi::argument_bytes(request), size_of::<T>());
    // SAFETY: the functions above put addresses into arguments only of memory that they borrow for the call, with its size;
    // a control message holds no other addresses than those of data that it borrows, because `push` takes whole transactions
    // of other types only and a reply is not sent.
    unsafe { file.ioctl(request, bytes_of_mut(arg)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::user_memory::copy_out;

    /// Answers every control message with a transaction that names memory, as no kernel would.
    #[derive(Debug)]
    struct Answering;

    impl AccelFile for Answering {
        unsafe fn ioctl(&self, _: u32, arg: &mut [u8]) -> Result<(), Errno> {
            let address = u64::from_le_bytes(arg[8..16].try_into().unwrap());
            let reply = [DMA_FROM_USER.to_le_bytes(), 32_u32.to_le_bytes()].concat();
            copy_out(address, &reply)?;
            arg[..8].copy_from_slice(&[32, 0, 0, 0, 1, 0, 0, 0]);
            Ok(())
        }

        fn map(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::NOSYS)
        }
    }

    fn transaction(len: usize) -> Vec<u8> {
        let mut bytes = vec![1; len];
        bytes[4..8].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        bytes
    }

    #[test]
    fn messages_take_what_fits_and_no_addresses() {
        let mut message = ManageBuffer::default();
        assert_eq!(message.push(&[5, 0, 0, 0, 32, 0, 0, 0]), None);
        assert_eq!(message.push(&[5]), None);
        assert_eq!(message.push(&transaction(MANAGE_MAX_BYTES - 40)), Some(()));
        assert_eq!(message.push_dma(100, b"abc"), Some(()));
        assert_eq!(message.push(&transaction(9)), None);
        assert_eq!(message.push(&transaction(8)), Some(()));
        assert_eq!((message.bytes().len(), message.count()), (MANAGE_MAX_BYTES, 3));
        let dma = &message.bytes()[MANAGE_MAX_BYTES - 40..][..32];
        assert_eq!(dma[..16], [5, 0, 0, 0, 32, 0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(dma[24..], [3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn no_transaction_hides_behind_another() {
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
    fn replies_are_not_sent() {
        let mut message = ManageBuffer::default();
        message.push(&transaction(8)).unwrap();
        assert_eq!(manage(&Answering, &mut message), Ok(()));
        assert_eq!(message.bytes()[..4], [5, 0, 0, 0]);
        assert_eq!(manage(&Answering, &mut message), Err(Errno::INVAL));
        assert_eq!((message.push(&transaction(8)), message.push_dma(1, &[])), (None, None));
    }
}
