//! Commands as bytes, taken apart at the offsets of device-kmd §2.5.

/// A command without the fields that the firmware does not look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// 1: constants and their data at once.
    LoadConstants { tag: u32, data_length: u64 },
    /// 3.
    LoadElf { tag: u32, data_length: u64 },
    /// 5.
    UnloadConstants { constants_id: u32 },
    /// 7.
    UnloadElf { elf_id: u32 },
    /// 9.
    Activate(Activate),
    /// 11.
    Deactivate { activation_id: u32, tears_channel_down: bool },
    /// 13.
    Status,
    /// 15: how large the constants are that follow.
    AnnounceConstants { static_bytes: u64, dynamic_bytes: u64 },
    /// 16: a part of them.
    LoadPayload { tag: u32, constants_id: u32, data_length: u64, offset: u64 },
    /// 19.
    ReserveChannel { semaphores: u32, source: i32 },
    /// 22.
    ReleaseChannel { reservation: u32 },
    /// 24.
    Reserve { source: i32, ddr_bytes: u64, cores: u32, multicast_ids: u32 },
    /// 26.
    ReleaseReservation { reservation: i32 },
    /// 28.
    CreateGroup {
        source: i32,
        cores: u32,
        multicast_ids: u32,
        semaphores: u32,
        channels: u32,
        ddr_bytes: u64,
    },
    /// 30.
    ReleaseGroup { group: i32 },
    /// 32.
    ResourceInfo { group: i32 },
    /// 34.
    PerformanceInfo,
    /// 36.
    ActivationStates { changes: Vec<(u32, i32)> },
    /// 38.
    DeviceConfig { option: u32, physical_channels: u32 },
    /// 44.
    UpdateReservation { reservation: i32, cores: u32 },
}

/// Command 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activate {
    pub(super) constants_id: u32,
    pub(super) elf_id: u32,
    pub(super) reservation_type: u32,
    pub(super) resource_reservation: i32,
    pub(super) sets_channel_up: bool,
    pub(super) channel_reservation: i32,
    pub(super) initial_state: i32,
    pub(super) dma_type: u32,
    pub(super) switches_datapath: bool,
}

const UNDEFINED_REQUEST: i32 = -3;
const PARAMETER: i32 = -6;
const COMMAND_LENGTH: i32 = -17;
const SWITCH_COMMAND_COUNT: i32 = -57;

/// Zero bytes behind a command.
const TAIL_BYTES: usize = 8;
/// Bytes of the sizes at the begin of a constants descriptor.
const DESCRIPTOR_BYTES: u64 = 16;
const ELF_TAG: u32 = 100;
const CONSTANTS_TAG: u32 = 300;

/// Takes a command apart. An error is the command's number, 0 if it has none, and an NNC status.
pub(super) fn parse(bytes: &[u8], is_strict: bool) -> Result<Request, (u32, i32)> {
    let Some(command) = id_of(bytes) else { return Err((0, COMMAND_LENGTH)) };
    check_length(command, bytes, is_strict).map_err(|status| (command, status))?;
    request(command, bytes, is_strict).map_err(|status| (command, status))
}

/// Number of the command.
pub(super) fn id_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_le_bytes)
}

fn check_length(command: u32, bytes: &[u8], is_strict: bool) -> Result<(), i32> {
    let size = match command {
        5 | 7 | 13 | 22 | 26 | 30 | 34 => 8,
        11 | 32 | 38 => 16,
        44 => 24,
        16 | 19 => 32,
        9 | 24 => 48,
        28 => 64,
        36 => 72,
        1 => 88,
        3 => 96,
        15 => {
            let fixed = bytes.get(..80).ok_or(COMMAND_LENGTH)?;
            80 + usize::try_from(u32_at(fixed, 72)).map_err(|_| COMMAND_LENGTH)?
        }
        _ => return Err(UNDEFINED_REQUEST),
    };
    let Some(tail) = bytes.get(size..) else { return Err(COMMAND_LENGTH) };
    let is_exact = tail == [0; TAIL_BYTES];
    if is_strict && !is_exact { Err(COMMAND_LENGTH) } else { Ok(()) }
}

fn request(command: u32, bytes: &[u8], is_strict: bool) -> Result<Request, i32> {
    let word = |offset| u32_at(bytes, offset);
    let long = |offset| u64_at(bytes, offset);
    let number = |offset| u32_at(bytes, offset).cast_signed();
    if is_strict {
        check_fields(command, bytes)?;
    }
    Ok(match command {
        1 => Request::LoadConstants { tag: word(8), data_length: long(16) },
        3 => Request::LoadElf { tag: word(4), data_length: long(80) },
        5 => Request::UnloadConstants { constants_id: word(4) },
        7 => Request::UnloadElf { elf_id: word(4) },
        9 => Request::Activate(Activate {
            constants_id: word(8),
            elf_id: word(12),
            reservation_type: word(16),
            resource_reservation: number(20),
            sets_channel_up: word(24) != 0,
            channel_reservation: number(28),
            initial_state: number(32),
            dma_type: word(36),
            switches_datapath: bytes[40] != 0,
        }),
        11 => Request::Deactivate { activation_id: word(4), tears_channel_down: word(8) != 0 },
        13 => Request::Status,
        15 if u64::from(word(72)) < DESCRIPTOR_BYTES => return Err(PARAMETER),
        15 => Request::AnnounceConstants { static_bytes: long(80), dynamic_bytes: long(88) },
        16 => Request::LoadPayload {
            tag: word(8),
            constants_id: word(12),
            data_length: long(16),
            offset: long(24),
        },
        19 => Request::ReserveChannel { semaphores: word(8), source: number(12) },
        22 => Request::ReleaseChannel { reservation: word(4) },
        24 => Request::Reserve {
            source: number(8),
            ddr_bytes: long(16),
            cores: word(24),
            multicast_ids: word(28),
        },
        26 => Request::ReleaseReservation { reservation: number(4) },
        28 => Request::CreateGroup {
            source: number(8),
            cores: word(12),
            multicast_ids: word(16),
            semaphores: word(20),
            channels: word(24),
            ddr_bytes: long(32).checked_add(long(48)).ok_or(PARAMETER)?,
        },
        30 => Request::ReleaseGroup { group: number(4) },
        32 => Request::ResourceInfo { group: number(8) },
        34 => Request::PerformanceInfo,
        36 => {
            let count = usize::try_from(word(4)).map_err(|_| SWITCH_COMMAND_COUNT)?;
            if !(1..=8).contains(&count) {
                return Err(SWITCH_COMMAND_COUNT);
            }
            let change = |index: usize| (word(8 + 8 * index), number(12 + 8 * index));
            Request::ActivationStates { changes: (0..count).map(change).collect() }
        }
        38 => Request::DeviceConfig { option: word(8), physical_channels: word(12) },
        44 => Request::UpdateReservation { reservation: number(8), cores: word(12) },
        _ => return Err(UNDEFINED_REQUEST),
    })
}

/// What real firmware may well let pass.
fn check_fields(command: u32, bytes: &[u8]) -> Result<(), i32> {
    let has_end = |offset: usize| bytes[offset..offset + 64].contains(&0);
    let is_right = match command {
        1 => has_end(24) && u32_at(bytes, 8) == CONSTANTS_TAG,
        3 => has_end(16) && u32_at(bytes, 4) == ELF_TAG,
        15 => has_end(8),
        16 => u32_at(bytes, 8) == CONSTANTS_TAG,
        9 => u32_at(bytes, 24) <= 1 && bytes[40] <= 1,
        11 => u32_at(bytes, 8) <= 1,
        _ => true,
    };
    if is_right { Ok(()) } else { Err(PARAMETER) }
}

/// The bytes at an offset that the command's length covers.
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}
