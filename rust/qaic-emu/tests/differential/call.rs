//! Calls as values. A call names files, images, activations and buffer objects by the order in which the
//! sequence created them.

/// A step of a sequence. References to missing objects use numbers that the driver does not know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// Opens the card as this file, after closing the file if it is open.
    Open(usize),
    /// Unmaps all mappings of a file and closes it.
    Close(usize),
    /// Closes a file that still has mappings.
    CloseMapped(usize),
    /// Closes a file that has given up a channel, which stays in use.
    CloseGivenUp(usize),
    /// A control message of these parts.
    Manage(usize, Vec<Part>),
    CreateBo {
        file: usize,
        size: u64,
        pad: u32,
    },
    MmapBo {
        file: usize,
        object: usize,
    },
    /// Maps this number of bytes; `file` need not be the file of the object.
    Map {
        file: usize,
        object: usize,
        len: usize,
    },
    CloseHandle {
        file: usize,
        object: usize,
    },
    Attach {
        file: usize,
        dbc_id: u32,
        object: usize,
        dir: u32,
        slices: Vec<Slice>,
    },
    Detach {
        file: usize,
        object: usize,
        pad: u32,
    },
    Execute {
        file: usize,
        dbc_id: u32,
        objects: Vec<usize>,
    },
    PartialExecute {
        file: usize,
        dbc_id: u32,
        objects: Vec<(usize, u64)>,
    },
    Wait {
        file: usize,
        dbc_id: u32,
        object: usize,
        timeout_ms: u32,
        pad: u32,
    },
    PerfStats {
        file: usize,
        dbc_id: u32,
        objects: Vec<usize>,
    },
    Version(usize),
    /// Fills a buffer object with bytes that begin with this one.
    Write {
        object: usize,
        begin: u8,
    },
    /// Reads a buffer object.
    Read {
        object: usize,
    },
    /// Sets the faults from now on.
    Faults(&'static str),
    /// Resets the card and waits until it is online again.
    Reset,
    /// Waits until a card that resets itself is online again.
    AwaitOnline,
    /// Stops the process (`SIGSTOP`) and continues it.
    Stop,
    /// Makes a call on a separate thread and, while that call blocks, the other calls; then waits for the
    /// first call.
    While(Box<Call>, Vec<Call>),
    /// Reads the firmware's free resources through a separate file.
    Usage,
}

/// A transaction of a control message, or the contents of a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Features,
    Status,
    ResourceInfo,
    /// An image of this number of bytes.
    Load(usize),
    Unload {
        image: usize,
    },
    /// The command alone.
    Activate {
        image: usize,
    },
    /// The channel's transaction.
    SetUp {
        queue_size: u32,
        pad: u32,
    },
    /// The command alone; `tears_down` is true if it releases a channel.
    Deactivate {
        activation: usize,
        tears_down: bool,
    },
    /// The channel's transaction.
    TearDown {
        dbc_id: u32,
        pad: u32,
    },
    /// A command that contains only this number.
    Command(u32),
    /// A command whose length is not a multiple of 8.
    Odd,
    /// A transaction of this type.
    Unknown(u32),
}

/// A slice of a buffer object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    pub(crate) size: u64,
    pub(crate) offset: u64,
    /// Address in the device's memory.
    pub(crate) to: u64,
    /// Value, index, presync, command and flags of a semaphore.
    pub(crate) semaphores: Vec<(u16, u8, u8, u8, u8)>,
    /// Address and bits of a doorbell.
    pub(crate) doorbell: Option<(u64, u32)>,
}

impl Slice {
    pub(crate) fn of(size: u64) -> Self {
        Self { size, ..Self::default() }
    }
}
