//! Structures and numbers of the driver's system calls.
//!
//! Offsets and sizes are those of x86-64 and AArch64, and are checked at compile time. No structure has hidden
//! padding, so that each can be sent as its bytes. Fields named `pad` are zero.

use std::mem::{offset_of, size_of};

use crate::wire::{Kind, Layout, Value, Volatile, wire};

/// Request codes of the system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Request {
    /// Control messages to the card's firmware.
    Manage = 0xC010_6440,
    /// Creates a buffer object.
    CreateBo = 0xC010_6441,
    /// Returns the offset at which to map a buffer object.
    MmapBo = 0xC010_6442,
    /// Sets the card's transfers of a buffer object.
    AttachSliceBo = 0x4020_6443,
    /// Queues buffer objects.
    ExecuteBo = 0x4010_6444,
    /// Queues buffer objects, and transfers only parts of them.
    PartialExecuteBo = 0x4010_6445,
    /// Waits for a buffer object.
    WaitBo = 0x4010_6446,
    /// Reads statistics of the last execution.
    PerfStatsBo = 0xC010_6447,
    /// Reverts [`Request::AttachSliceBo`].
    DetachSliceBo = 0x4008_6448,
    /// Closes a handle; a call of the DRM core.
    GemClose = 0x4008_6409,
    /// Returns name and version of the driver; a call of the DRM core.
    Version = 0xC040_6400,
    /// Creates a file for a buffer object; a call of the DRM core.
    PrimeHandleToFd = 0xC00C_642D,
    /// Creates a handle for such a file; a call of the DRM core.
    PrimeFdToHandle = 0xC00C_642E,
}

impl Request {
    /// Number of the request.
    #[allow(clippy::as_conversions)] // of a fieldless enum
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the argument size in bytes that the number contains.
    pub(crate) const fn argument_bytes(self) -> usize {
        ((self.code() >> 16) & 0x3FFF) as usize
    }
}

/// Number of DMA-bridge channels of every card; ids are below this number.
pub const DBC_COUNT: u32 = 16;
/// Maximum size of a control message and of its reply. Replies are written to the buffer of the message, so buffers
/// have this size.
pub const MANAGE_MAX_BYTES: usize = 4096;
/// Maximum number of transactions in a control message.
pub const MANAGE_MAX_COUNT: u32 = 512;

/// Direction of a buffer object: to the device.
pub const DIR_TO_DEVICE: u32 = 1;
/// Direction of a buffer object: from the device.
pub const DIR_FROM_DEVICE: u32 = 2;

/// Bit of [`Sem::flags`]: the device waits for transfers from it (bit 29 of the hardware's word). This is the
/// upstream kernel's meaning, which is opposite to that of the open runtime.
pub const SEM_OUT_SYNC_FENCE: u8 = 1;
/// Bit of [`Sem::flags`]: the device waits for transfers to it (bit 30).
pub const SEM_IN_SYNC_FENCE: u8 = 2;

wire! {
    /// Argument of [`Request::Manage`].
    pub(crate) struct ManageMsg: 16 {
        /// Bytes of all transactions; after the call, bytes of the reply.
        len: u32,
        /// Number of transactions; after the call, the number in the device's reply, which may exceed the actual one.
        count: u32,
        /// Address of the transactions.
        data: Volatile<u64>,
    }

    /// Argument of [`Request::CreateBo`].
    pub struct CreateBo: 16 {
        /// Bytes, rounded up to pages by the kernel.
        size: u64,
        /// Handle, written by the call.
        handle: u32,
        pad: u32,
    }

    /// Argument of [`Request::MmapBo`].
    pub struct MmapBo: 16 {
        handle: u32,
        pad: u32,
        /// Offset for mmap, written by the call.
        offset: u64,
    }

    /// One semaphore operation of a slice.
    pub struct Sem: 8 {
        /// Value, 12 bits.
        val: u16,
        /// Semaphore, 5 bits.
        index: u8,
        /// 1: before the transfer, 0: after it.
        presync: u8,
        /// 0 none, 1 init, 2 increment, 3 decrement, 4 wait equal, 5 wait greater or equal, 6 wait above 0 and decrement.
        cmd: u8,
        /// [`SEM_OUT_SYNC_FENCE`], [`SEM_IN_SYNC_FENCE`].
        flags: u8,
        pad: u16,
    }
}

impl Value for [Sem; 4] {
    const KIND: Kind = Kind::Numbered { name: "sem", fields: Sem::FIELDS, bytes: size_of::<Sem>(), count: 4 };
}

wire! {
    /// One slice of a buffer object.
    pub struct AttachSliceEntry: 72 {
        /// Number of bytes; 0 transfers no data, but still executes the semaphore operations and the doorbell.
        size: u64,
        sems: [Sem; 4],
        dev_addr: u64,
        db_addr: u64,
        /// Value to write to the doorbell.
        db_data: u32,
        /// Size of the value in bits: 0 (no doorbell), 8, 16 or 32.
        db_len: u32,
        offset: u64,
    }

    /// First part of [`AttachSlice`].
    pub(crate) struct AttachSliceHdr: 24 {
        count: u32,
        dbc_id: u32,
        handle: u32,
        /// [`DIR_TO_DEVICE`] or [`DIR_FROM_DEVICE`].
        dir: u32,
        size: u64,
    }

    /// Argument of [`Request::AttachSliceBo`].
    pub(crate) struct AttachSlice: 32 {
        /// Direction and size of the entries, and the channel.
        hdr: AttachSliceHdr,
        /// Address of the entries.
        data: Volatile<u64>,
    }

    /// One buffer object of [`Request::ExecuteBo`].
    pub struct ExecuteEntry: 8 {
        handle: u32,
        /// Direction; the kernel does not read it.
        dir: u32,
    }

    /// One buffer object of [`Request::PartialExecuteBo`].
    pub struct PartialExecuteEntry: 16 {
        handle: u32,
        /// Direction; the kernel does not read it.
        dir: u32,
        /// Number of bytes to transfer. For a full transfer, this must be the full size, because the meaning of 0
        /// differs between old and new kernels.
        resize: u64,
    }

    /// Argument of both execute calls.
    pub(crate) struct Execute: 16 {
        count: u32,
        dbc_id: u32,
        /// Address of the entries.
        data: Volatile<u64>,
    }

    /// Argument of [`Request::WaitBo`].
    pub struct Wait: 16 {
        handle: u32,
        /// Milliseconds; 0 is the kernel's default, 5000.
        timeout: u32,
        dbc_id: u32,
        pad: u32,
    }

    /// Argument of [`Request::PerfStatsBo`].
    pub(crate) struct PerfStats: 16 {
        count: u16,
        pad: u16,
        dbc_id: u32,
        /// Address of the entries.
        data: Volatile<u64>,
    }

    /// Statistics of one buffer object's last execution.
    pub struct PerfStatsEntry: 24 {
        handle: u32,
        /// Number of elements in the ring before this buffer object, including those of earlier buffer objects in the
        /// same call.
        queue_level_before: u32,
        /// Elements of this buffer object.
        num_queue_element: u32,
        /// Time from the start of the call to the doorbell of the ring.
        submit_latency_us: u32,
        /// Time from the doorbell to the handling of the completion; 0 before it.
        device_latency_us: u32,
        pad: u32,
    }

    /// Argument of [`Request::DetachSliceBo`].
    pub struct DetachSlice: 8 {
        handle: u32,
        pad: u32,
    }

    /// Argument of [`Request::GemClose`].
    pub struct GemClose: 8 {
        handle: u32,
        pad: u32,
    }

    /// Argument of [`Request::Version`]. The call writes the version and three texts. Each length is the size of the
    /// text's buffer; after the call, it is the length of the text.
    pub struct DrmVersion: 64 {
        major: i32,
        minor: i32,
        patchlevel: i32,
        pad: u32,
        name_len: u64,
        name: Volatile<u64>,
        date_len: u64,
        date: Volatile<u64>,
        desc_len: u64,
        desc: Volatile<u64>,
    }

    /// Argument of both PRIME calls.
    pub(crate) struct Prime: 12 {
        handle: u32,
        /// Flags of the file.
        flags: u32,
        fd: Volatile<i32>,
    }
}

macro_rules! layout {
    ($($type:ident $size:literal { $($field:ident $offset:literal),* })*) => {
        $(const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(offset_of!($type, $field) == $offset);)*
        };)*
    };
}

layout! {
    ManageMsg 16 { len 0, count 4, data 8 }
    CreateBo 16 { size 0, handle 8, pad 12 }
    MmapBo 16 { handle 0, pad 4, offset 8 }
    Sem 8 { val 0, index 2, presync 3, cmd 4, flags 5, pad 6 }
    AttachSliceEntry 72 { size 0, sems 8, dev_addr 40, db_addr 48, db_data 56, db_len 60, offset 64 }
    AttachSliceHdr 24 { count 0, dbc_id 4, handle 8, dir 12, size 16 }
    AttachSlice 32 { hdr 0, data 24 }
    ExecuteEntry 8 { handle 0, dir 4 }
    PartialExecuteEntry 16 { handle 0, dir 4, resize 8 }
    Execute 16 { count 0, dbc_id 4, data 8 }
    Wait 16 { handle 0, timeout 4, dbc_id 8, pad 12 }
    PerfStats 16 { count 0, pad 2, dbc_id 4, data 8 }
    PerfStatsEntry 24 { handle 0, queue_level_before 4, num_queue_element 8, submit_latency_us 12, device_latency_us 16, pad 20 }
    DetachSlice 8 { handle 0, pad 4 }
    GemClose 8 { handle 0, pad 4 }
    DrmVersion 64 { major 0, minor 4, patchlevel 8, name_len 16, name 24, date_len 32, date 40, desc_len 48, desc 56 }
    Prime 12 { handle 0, flags 4, fd 8 }
}

macro_rules! sizes {
    ($($request:ident $type:ident),*) => {
        $(const _: () = assert!(Request::$request.argument_bytes() == size_of::<$type>());)*
    };
}

sizes! {
    Manage ManageMsg, CreateBo CreateBo, MmapBo MmapBo, AttachSliceBo AttachSlice, ExecuteBo Execute,
    PartialExecuteBo Execute, WaitBo Wait, PerfStatsBo PerfStats, DetachSliceBo DetachSlice, GemClose GemClose,
    Version DrmVersion, PrimeHandleToFd Prime, PrimeFdToHandle Prime
}
