//! System calls of the driver as values that borrow the memory which the driver accesses.
//!
//! Because the memory is borrowed, an emulated driver needs no addresses. For a kernel, this module creates the bytes
//! of the argument, with the addresses of exactly that memory.

use std::os::fd::{AsRawFd, BorrowedFd};

use bytemuck::{Pod, bytes_of, cast_slice};

use crate::Errno;
use crate::abi::{
    AttachSlice, AttachSliceEntry, AttachSliceHdr, CreateBo, DetachSlice, DrmVersion, Execute, ExecuteEntry,
    GemClose, MmapBo, PartialExecuteEntry, PerfStats, PerfStatsEntry, Prime, Request, Wait,
};
use crate::manage::ManageBuffer;
use crate::wire::Volatile;

/// Maximum number of requested bytes of a driver's name.
pub(crate) const DRIVER_NAME_BYTES: usize = 64;

/// One call to an open card ([`crate::kmd::AccelFile::ioctl`]). The methods of that trait create these values.
#[derive(Debug)]
pub enum Ioctl<'call, 'data> {
    /// A control message to the firmware, which the reply replaces.
    Manage(&'call mut ManageBuffer<'data>),
    /// Creates a buffer object.
    CreateBo(&'call mut CreateBo),
    /// Returns the offset at which to map a buffer object.
    MmapBo(&'call mut MmapBo),
    /// Sets the card's transfers of a buffer object.
    AttachSlices {
        /// Channel.
        dbc_id: u32,
        /// Handle of the buffer object.
        handle: u32,
        /// [`crate::abi::DIR_TO_DEVICE`] or [`crate::abi::DIR_FROM_DEVICE`].
        dir: u32,
        /// Bytes of the buffer object.
        size: u64,
        /// The slices.
        entries: &'call [AttachSliceEntry],
    },
    /// Undoes [`Self::AttachSlices`].
    DetachSlices(DetachSlice),
    /// Queues buffer objects.
    Execute {
        /// Channel.
        dbc_id: u32,
        /// The buffer objects.
        entries: &'call [ExecuteEntry],
    },
    /// Queues buffer objects, and transfers only parts of them.
    PartialExecute {
        /// Channel.
        dbc_id: u32,
        /// The buffer objects.
        entries: &'call [PartialExecuteEntry],
    },
    /// Waits for a buffer object.
    Wait(Wait),
    /// Reads statistics of the last executions.
    PerfStats {
        /// Channel.
        dbc_id: u32,
        /// The buffer objects, with their statistics after the call.
        entries: &'call mut [PerfStatsEntry],
    },
    /// Closes a handle.
    CloseHandle(GemClose),
    /// Reads version and name of the driver.
    Version(&'call mut VersionQuery),
    /// Creates a handle for a dma-buf.
    ImportDmaBuf {
        /// The memory.
        file: BorrowedFd<'call>,
        /// The handle, written by the call.
        handle: &'call mut u32,
    },
}

/// Name and version of a driver.
#[derive(Clone, Copy, Debug)]
pub struct VersionQuery {
    /// Version, and lengths of the texts. Its addresses have no meaning.
    pub version: DrmVersion,
    /// Name, truncated to 64 bytes.
    pub name: [u8; DRIVER_NAME_BYTES],
}

impl Default for VersionQuery {
    fn default() -> Self {
        let version = DrmVersion { name_len: DRIVER_NAME_BYTES as u64, ..DrmVersion::default() };
        Self { version, name: [0; DRIVER_NAME_BYTES] }
    }
}

impl VersionQuery {
    /// Name, truncated to the size of its buffer.
    pub(crate) fn name(&self) -> &[u8] {
        let len = usize::try_from(self.version.name_len).unwrap_or(usize::MAX);
        &self.name[..len.min(DRIVER_NAME_BYTES)]
    }

    /// Sets the driver's name.
    pub fn set_name(&mut self, name: &str) {
        let kept = name.len().min(DRIVER_NAME_BYTES);
        self.name[..kept].copy_from_slice(&name.as_bytes()[..kept]);
        self.version.name_len = name.len() as u64;
    }
}

/// The driver interface of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverInterface {
    /// The cards' driver with the interface of the mainline kernel, which has no version number.
    Mainline,
    /// The cards' driver with another interface. The driver before the mainline kernel reports 1.0. It interprets the
    /// fences of semaphores in the opposite way, and its request 8 has another meaning.
    Other {
        /// Version of the interface.
        version: (i32, i32),
    },
    /// Another driver with this name.
    OtherDriver(String),
}

/// Size of the largest argument in bytes.
const ARGUMENT_MAX_BYTES: usize = size_of::<DrmVersion>();

/// The bytes of a call's argument, with the size of the request.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(crate) struct Argument {
    bytes: [u8; ARGUMENT_MAX_BYTES],
    len: usize,
}

impl Argument {
    fn of<T: Pod>(request: Request, value: &T) -> Self {
        const { assert!(size_of::<T>() <= ARGUMENT_MAX_BYTES) };
        debug_assert_eq!(request.argument_bytes(), size_of::<T>());
        let mut bytes = [0; ARGUMENT_MAX_BYTES];
        bytes[..size_of::<T>()].copy_from_slice(bytes_of(value));
        Self { bytes, len: size_of::<T>() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[cfg(any(feature = "sys", test))]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    #[cfg(any(feature = "sys", test))]
    fn read<T: Pod>(&self) -> T {
        bytemuck::pod_read_unaligned(&self.bytes[..size_of::<T>()])
    }
}

impl Ioctl<'_, '_> {
    /// Request of the call.
    pub fn request(&self) -> Request {
        match self {
            Self::Manage(_) => Request::Manage,
            Self::CreateBo(_) => Request::CreateBo,
            Self::MmapBo(_) => Request::MmapBo,
            Self::AttachSlices { .. } => Request::AttachSliceBo,
            Self::DetachSlices(_) => Request::DetachSliceBo,
            Self::Execute { .. } => Request::ExecuteBo,
            Self::PartialExecute { .. } => Request::PartialExecuteBo,
            Self::Wait(_) => Request::WaitBo,
            Self::PerfStats { .. } => Request::PerfStatsBo,
            Self::CloseHandle(_) => Request::GemClose,
            Self::Version(_) => Request::Version,
            Self::ImportDmaBuf { .. } => Request::PrimeFdToHandle,
        }
    }

    /// Creates the argument. Every address in it belongs to memory that `self` borrows, with the size in the
    /// argument, and is writable if the request writes. Fails with `EINVAL` for more entries than the argument can
    /// count, or for a reply instead of a message.
    pub(crate) fn argument(&mut self) -> Result<Argument, Errno> {
        let request = self.request();
        Ok(match self {
            Self::Manage(message) => Argument::of(request, &message.argument()),
            Self::CreateBo(arg) => Argument::of(request, *arg),
            Self::MmapBo(arg) => Argument::of(request, *arg),
            Self::AttachSlices { dbc_id, handle, dir, size, entries } => {
                let (count, data) = (count(entries)?, address(entries));
                let hdr = AttachSliceHdr { count, dbc_id: *dbc_id, handle: *handle, dir: *dir, size: *size };
                Argument::of(request, &AttachSlice { hdr, data })
            }
            Self::DetachSlices(arg) => Argument::of(request, arg),
            Self::Execute { dbc_id, entries } => {
                let (count, data) = (count(entries)?, address(entries));
                Argument::of(request, &Execute { count, dbc_id: *dbc_id, data })
            }
            Self::PartialExecute { dbc_id, entries } => {
                let (count, data) = (count(entries)?, address(entries));
                Argument::of(request, &Execute { count, dbc_id: *dbc_id, data })
            }
            Self::Wait(arg) => Argument::of(request, arg),
            Self::PerfStats { dbc_id, entries } => {
                let count = u16::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
                let data = Volatile(entries.as_mut_ptr().expose_provenance() as u64);
                Argument::of(request, &PerfStats { count, pad: 0, dbc_id: *dbc_id, data })
            }
            Self::CloseHandle(arg) => Argument::of(request, arg),
            Self::Version(query) => {
                let name = Volatile(query.name.as_mut_ptr().expose_provenance() as u64);
                let name_len = query.version.name_len.min(DRIVER_NAME_BYTES as u64);
                // Without an address, the kernel only reports the length of the texts.
                let nowhere = Volatile::default();
                let arg = DrmVersion { name_len, name, date: nowhere, desc: nowhere, ..query.version };
                Argument::of(request, &arg)
            }
            Self::ImportDmaBuf { file, handle } => {
                Argument::of(request, &Prime { handle: **handle, flags: 0, fd: Volatile(file.as_raw_fd()) })
            }
        })
    }

    /// Copies results from the argument of a completed kernel call. Memory that the argument points to already
    /// contains its results.
    #[cfg(any(feature = "sys", test))]
    pub(crate) fn complete(&mut self, argument: &Argument, result: Result<(), Errno>) {
        match self {
            // A reply may arrive even with an error.
            Self::Manage(message) if is_replied(result) => {
                let crate::abi::ManageMsg { len, count, .. } = argument.read();
                message.replied(len as usize, count);
            }
            Self::CreateBo(arg) => **arg = argument.read(),
            Self::MmapBo(arg) => **arg = argument.read(),
            Self::Version(query) => {
                query.version = DrmVersion { name: Volatile::default(), ..argument.read() };
            }
            Self::ImportDmaBuf { handle, .. } => **handle = argument.read::<Prime>().handle,
            _ => {}
        }
    }

    /// Bytes that the argument points to before the call: entries or transactions.
    pub(crate) fn pointed(&self) -> Option<&[u8]> {
        match self {
            Self::Manage(message) => Some(message.bytes()),
            Self::AttachSlices { entries, .. } => Some(cast_slice(entries)),
            Self::Execute { entries, .. } => Some(cast_slice(entries)),
            Self::PartialExecute { entries, .. } => Some(cast_slice(entries)),
            Self::PerfStats { entries, .. } => Some(cast_slice(entries)),
            _ => None,
        }
    }

    /// Bytes that the call has written to the memory of the argument's pointer; `None` if it writes none there.
    pub(crate) fn answered(&self, result: Result<(), Errno>) -> Option<&[u8]> {
        match self {
            Self::Manage(message) if is_replied(result) => Some(message.bytes()),
            Self::PerfStats { entries, .. } if result.is_ok() => Some(cast_slice(entries)),
            Self::Version(query) if result.is_ok() => Some(query.name()),
            _ => None,
        }
    }
}

/// Returns true if a control message was answered.
fn is_replied(result: Result<(), Errno>) -> bool {
    matches!(result, Ok(()) | Err(Errno::CANCELED))
}

fn count<T>(entries: &[T]) -> Result<u32, Errno> {
    u32::try_from(entries.len()).map_err(|_| Errno::INVAL)
}

/// Address of entries that the kernel only reads.
fn address<T>(entries: &[T]) -> Volatile<u64> {
    Volatile(entries.as_ptr().expose_provenance() as u64)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::abi::Sem;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn long(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Request and argument of a call, as the kernel gets them.
    fn given(mut call: Ioctl<'_, '_>) -> (u32, Vec<u8>) {
        let argument = call.argument().unwrap();
        (call.request().code(), argument.bytes().to_vec())
    }

    #[test]
    fn arguments_of_plain_calls_have_each_field_in_its_place() {
        let (handle, pad) = (0x0102_0304, 0);
        let cases: [(Ioctl<'_, '_>, u32, &[u8]); 5] = [
            (
                Ioctl::CreateBo(&mut CreateBo { size: 0x1122_3344_5566_7788, handle, pad }),
                0xC010_6441,
                &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1, 0, 0, 0, 0],
            ),
            (
                Ioctl::MmapBo(&mut MmapBo { handle, pad, offset: 0x0A }),
                0xC010_6442,
                &[4, 3, 2, 1, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0],
            ),
            (
                Ioctl::Wait(Wait { handle, timeout: 5, dbc_id: 6, pad: 7 }),
                0x4010_6446,
                &[4, 3, 2, 1, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0],
            ),
            (Ioctl::DetachSlices(DetachSlice { handle, pad: 8 }), 0x4008_6448, &[4, 3, 2, 1, 8, 0, 0, 0]),
            (Ioctl::CloseHandle(GemClose { handle, pad: 9 }), 0x4008_6409, &[4, 3, 2, 1, 9, 0, 0, 0]),
        ];
        for (call, request, bytes) in cases {
            assert_eq!(given(call), (request, bytes.to_vec()));
        }
    }

    #[test]
    fn arguments_of_calls_with_entries_count_them_and_say_where_they_are() {
        let sems = [Sem { val: 0x0102, index: 3, presync: 1, cmd: 4, flags: 2, pad: 0 }; 4];
        let slices = [AttachSliceEntry { size: 7, sems, ..AttachSliceEntry::default() }; 3];
        let address = |of: *const u8| of.addr() as u64;
        let attach = Ioctl::AttachSlices { dbc_id: 4, handle: 5, dir: 2, size: 6, entries: &slices };
        assert_eq!(attach.pointed().map(|bytes| (bytes.len(), &bytes[..14])).unwrap().1, {
            [7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 3, 1, 4, 2]
        });
        let (request, bytes) = given(attach);
        assert_eq!((request, bytes.len()), (0x4020_6443, 32));
        assert_eq!([0, 4, 8, 12].map(|at| word(&bytes, at)), [3, 4, 5, 2]);
        assert_eq!([16, 24].map(|at| long(&bytes, at)), [6, address(slices.as_ptr().cast())]);

        let entries = [ExecuteEntry { handle: 1, dir: 2 }; 2];
        let (request, bytes) = given(Ioctl::Execute { dbc_id: 9, entries: &entries });
        assert_eq!((request, word(&bytes, 0), word(&bytes, 4)), (0x4010_6444, 2, 9));
        assert_eq!(long(&bytes, 8), address(entries.as_ptr().cast()));

        let entries = [PartialExecuteEntry { handle: 1, dir: 2, resize: 3 }];
        let (request, bytes) = given(Ioctl::PartialExecute { dbc_id: 9, entries: &entries });
        assert_eq!((request, word(&bytes, 0), word(&bytes, 4)), (0x4010_6445, 1, 9));
        assert_eq!(long(&bytes, 8), address(entries.as_ptr().cast()));

        let mut entries = [PerfStatsEntry::default(); 3];
        let place = address(entries.as_ptr().cast());
        let (request, bytes) = given(Ioctl::PerfStats { dbc_id: 9, entries: &mut entries });
        assert_eq!((request, word(&bytes, 0), word(&bytes, 4)), (0xC010_6447, 3, 9));
        assert_eq!(long(&bytes, 8), place);
        let mut many = vec![PerfStatsEntry::default(); 0x1_0000];
        let refused = Ioctl::PerfStats { dbc_id: 0, entries: &mut many }.argument().map(|_| ());
        assert_eq!(refused, Err(Errno::INVAL));
    }

    #[test]
    fn arguments_of_calls_with_memory_name_that_memory_alone() {
        let mut query = VersionQuery::default();
        let bad = |address| Volatile(address);
        (query.version.date, query.version.desc, query.version.name) = (bad(1), bad(2), bad(3));
        query.version.name_len = u64::MAX;
        let place = query.name.as_ptr().addr() as u64;
        let (request, bytes) = given(Ioctl::Version(&mut query));
        assert_eq!(request, 0xC040_6400);
        assert_eq!([16, 24, 32, 40, 48, 56].map(|at| long(&bytes, at)), [64, place, 0, 0, 0, 0]);

        let (file, _) = std::io::pipe().unwrap();
        let mut handle = 5;
        let (request, bytes) = given(Ioctl::ImportDmaBuf { file: file.as_fd(), handle: &mut handle });
        assert_eq!((request, word(&bytes, 0), word(&bytes, 4)), (0xC00C_642E, 5, 0));
        assert_eq!(word(&bytes, 8).cast_signed(), file.as_raw_fd());

        let mut message = ManageBuffer::default();
        message.push(&[12, 0, 0, 0, 8, 0, 0, 0]).unwrap();
        let place = message.bytes().as_ptr().addr() as u64;
        let (request, bytes) = given(Ioctl::Manage(&mut message));
        assert_eq!((request, word(&bytes, 0), word(&bytes, 4)), (0xC010_6440, 8, 1));
        assert_eq!(long(&bytes, 8), place);
    }

    #[test]
    fn answers_of_a_kernel_are_taken_from_the_argument() {
        let mut created = CreateBo::default();
        let mut call = Ioctl::CreateBo(&mut created);
        let mut argument = call.argument().unwrap();
        argument.bytes_mut()[8] = 7;
        call.complete(&argument, Ok(()));
        assert_eq!(created.handle, 7);

        let mut message = ManageBuffer::default();
        for result in [Err(Errno::TIMEDOUT), Err(Errno::CANCELED)] {
            message.push(&[12, 0, 0, 0, 8, 0, 0, 0]).unwrap();
            let mut call = Ioctl::Manage(&mut message);
            let mut argument = call.argument().unwrap();
            argument.bytes_mut()[..8].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 3, 0, 0, 0]);
            call.complete(&argument, result);
            assert_eq!(message.is_reply(), result == Err(Errno::CANCELED));
        }
        // A length beyond the buffer is not trusted.
        assert_eq!((message.bytes().len(), message.count()), (4096, 3));
    }
}
