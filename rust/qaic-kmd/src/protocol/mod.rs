//! The control protocol: what the host asks of a card's firmware, and what that answers.
//!
//! [`command`], [`reply`], [`card_status`] and [`transaction`] declare each structure once, for the code that sends, answers or
//! record it. [`message`] has whole messages as they are sent, [`parse`] takes replies apart. A command travels in a
//! transaction of type "passthrough", which the kernel copies as it is; some commands go with a transaction that the kernel
//! acts on: data that the card fetches, or the channel of an activation.

#[allow(unsafe_code)] // plain-data casts of the structures
pub(crate) mod card_status;
#[allow(unsafe_code)] // plain-data casts of the structures
pub mod command;
pub mod message;
pub mod parse;
#[allow(unsafe_code)] // plain-data casts of the structures
pub mod reply;
#[allow(unsafe_code)] // a plain-data cast of a number
mod status;
mod table;
#[allow(unsafe_code)] // plain-data casts of the structures
pub mod transaction;

use crate::wire::Layout;

pub use card_status::{CardStatus, EMULATED_IMAGE, PerformanceInfo, ResourceInfo};
pub use status::NncStatus;
pub(crate) use table::{command_entry, transaction_entry};

/// Major version of the commands: a card of another one is not driven.
pub const COMMAND_PROTOCOL_MAJOR: u16 = 17;
/// Version of the metadata that a card must take.
pub const METADATA_VERSION: (u16, u16) = (1, 0);

/// A command or reply, which begins with its number.
pub trait Numbered: Layout + Default {
    /// The number.
    const NUMBER: u32;
    /// Name in transcripts.
    const NAME: &'static str;
}
