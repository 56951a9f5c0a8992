//! Calls as values, which name files, images, activations and buffer objects by the order in which a sequence made them.

/// A step of a sequence. References to missing objects use numbers that the driver does not know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// Opens the card as this file, which is closed before.
    Open(usize),
    /// Unmaps what is mapped of a file and closes it.
    Close(usize),
    /// Closes a file of which something is still mapped.
    CloseMapped(usize),
    /// Closes a file that has given a channel up, which stays in use.
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
    /// Maps so many bytes; `file` may be another than the object's.
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
    /// Resets the card and waits until it is back.
    Reset,
    /// Waits until a card that resets by itself is back.
    AwaitOnline,
    /// Stops the process (`SIGSTOP`) and lets it go on.
    Stop,
    /// Makes a call on a thread of its own and, while that blocks, the others; then waits for it.
    While(Box<Call>, Vec<Call>),
    /// Reads the firmware's free resources through a file of its own.
    Usage,
}

/// A transaction of a control message, or what makes a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Features,
    Status,
    ResourceInfo,
    /// An image of so many bytes.
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
    /// The command alone; whether a channel goes with it.
    Deactivate {
        activation: usize,
        tears_down: bool,
    },
    /// The channel's transaction.
    TearDown {
        dbc_id: u32,
        pad: u32,
    },
    /// A command of this number and no more.
    Command(u32),
    /// A command whose length is no multiple of 8.
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
