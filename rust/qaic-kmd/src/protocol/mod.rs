//! The control protocol: commands of the host to a card's firmware, and their replies.
//!
//! Each structure is declared once, for code that sends, answers or records it. [`message`] builds complete messages,
//! and [`parse`] parses replies. A transaction of type "passthrough" contains a command, which the kernel copies
//! unchanged. Some commands need a further transaction that the kernel processes: data that the card fetches, or the
//! channel of an activation.

pub(crate) mod card_status;
mod command;
pub mod message;
pub mod parse;
mod reply;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod transaction;

use crate::wire::Layout;

pub use card_status::{CardStatus, EMULATED_IMAGE, PerformanceInfo, ResourceInfo};
pub use command::*;
pub use reply::*;
pub use status::NncStatus;
pub(crate) use table::command_entry;
pub use transaction::*;

/// Required major version of the commands; other cards are refused.
pub const COMMAND_PROTOCOL_MAJOR: u16 = 17;
/// Version of the metadata that a card must accept.
pub const METADATA_VERSION: (u16, u16) = (1, 0);

/// A command or reply, which begins with its number.
pub trait Numbered: Layout + Default {
    /// Number of the command or reply.
    const NUMBER: u32;
    /// Name in transcripts.
    const NAME: &'static str;
}
