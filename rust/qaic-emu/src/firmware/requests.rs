//! Decoding of commands, checks of their lengths and fields, and the replies that refuse them.

use bytemuck::bytes_of;
use qaic_kmd::protocol::message::{CONSTANTS_TAG, ELF_TAG};
use qaic_kmd::protocol::{
    Activate, Command, ConstantsDescriptor, Deactivate, GetPerformanceInfo, GetResourceInfo, GetStatus,
    LoadConstantsEx, LoadConstantsPayload, LoadElf, NncStatus, Numbered, Reply, UnloadConstants, UnloadElf,
};
use qaic_kmd::wire;

/// Number of zero bytes after a command.
const TAIL_BYTES: usize = 8;

macro_rules! requests {
    ($($name:ident),*) => {
        /// A command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Request {
            $($name($name),)*
            /// Announcement of constants, with the start of the data after it.
            LoadConstantsEx(ConstantsDescriptor),
        }

        /// Size of a command without variable data; `None` if the command does not exist.
        fn fixed_bytes(number: u32) -> Option<usize> {
            match number {
                $($name::NUMBER => Some(size_of::<$name>()),)*
                LoadConstantsEx::NUMBER => Some(size_of::<LoadConstantsEx>()),
                _ => None,
            }
        }

        fn read(number: u32, bytes: &[u8]) -> Option<Request> {
            match number {
                $($name::NUMBER => wire::read(bytes).map(Request::$name),)*
                _ => {
                    let descriptor = bytes.get(size_of::<LoadConstantsEx>()..)?;
                    wire::read(descriptor).map(Request::LoadConstantsEx)
                }
            }
        }

        /// Returns the reply that refuses the command with this number.
        pub(super) fn refusal(number: u32, status: NncStatus) -> Vec<u8> {
            match number {
                $($name::NUMBER => bytes_of(&<$name as Command>::Reply::refused(status)).to_vec(),)*
                LoadConstantsEx::NUMBER => {
                    bytes_of(&<LoadConstantsEx as Command>::Reply::refused(status)).to_vec()
                }
                // The number of the reply to an unknown command is not documented; other replies have the number of
                // the command plus one.
                other => [other.wrapping_add(1).to_le_bytes(), status.0.to_le_bytes()].concat(),
            }
        }
    };
}

requests!(
    LoadElf,
    UnloadConstants,
    UnloadElf,
    Activate,
    Deactivate,
    GetStatus,
    LoadConstantsPayload,
    GetResourceInfo,
    GetPerformanceInfo
);

/// Parses a command. A strict firmware requires the exact length, and field values that real firmware accepts.
pub(super) fn parse(bytes: &[u8], is_strict: bool) -> Result<Request, NncStatus> {
    let number = number_of(bytes).ok_or(NncStatus::COMMAND_LENGTH)?;
    check_length(number, bytes, is_strict)?;
    let request = read(number, bytes).ok_or(NncStatus::PARAMETER)?;
    if is_strict && !(has_known_fields(&request) && has_name_with_an_end(number, bytes)) {
        return Err(NncStatus::PARAMETER);
    }
    Ok(request)
}

/// Returns the tag and the size of the data that a command references.
pub fn data_wanted(bytes: &[u8]) -> Option<(u32, u64)> {
    match parse(bytes, false).ok()? {
        Request::LoadElf(request) => Some((request.tag, request.data_length)),
        Request::LoadConstantsPayload(request) => Some((request.tag, request.data_length)),
        _ => None,
    }
}

/// Number of a command.
pub(super) fn number_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_le_bytes)
}

fn check_length(number: u32, bytes: &[u8], is_strict: bool) -> Result<(), NncStatus> {
    let fixed = fixed_bytes(number).ok_or(NncStatus::UNDEFINED_REQUEST)?;
    let descriptor = match number {
        LoadConstantsEx::NUMBER => {
            wire::read::<LoadConstantsEx>(bytes).ok_or(NncStatus::COMMAND_LENGTH)?.descriptor_len
        }
        _ => 0,
    };
    let size = usize::try_from(descriptor).ok().and_then(|len| fixed.checked_add(len));
    let tail = size.and_then(|size| bytes.get(size..)).ok_or(NncStatus::COMMAND_LENGTH)?;
    if is_strict && tail != [0; TAIL_BYTES] {
        return Err(NncStatus::COMMAND_LENGTH);
    }
    let sizes = size_of::<ConstantsDescriptor>();
    let is_short = number == LoadConstantsEx::NUMBER && (descriptor as usize) < sizes;
    if is_short { Err(NncStatus::PARAMETER) } else { Ok(()) }
}

/// Returns true if names are terminated and tags are known. Real firmware may accept other values.
fn has_known_fields(request: &Request) -> bool {
    match request {
        Request::LoadElf(command) => command.name.has_end() && command.tag == ELF_TAG,
        Request::LoadConstantsPayload(command) => command.tag == CONSTANTS_TAG,
        Request::Activate(command) => {
            command.opt_vc_setup <= 1 && command.opt_support_datapath_switching <= 1
        }
        Request::Deactivate(command) => command.opt_vc_teardown <= 1,
        _ => true,
    }
}

fn has_name_with_an_end(number: u32, bytes: &[u8]) -> bool {
    number != LoadConstantsEx::NUMBER
        || wire::read::<LoadConstantsEx>(bytes).is_some_and(|command| command.name.has_end())
}
