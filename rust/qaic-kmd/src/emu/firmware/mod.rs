//! The firmware of an emulated card: takes control messages apart byte by byte, keeps the books of what a card has, and
//! answers as a card does (device-kmd §2.5, §2.6, §7.2).
//!
//! It shares nothing with the encoders and decoders of the runtime's side, so that each tests the other.

mod config;
pub(crate) mod wire;

pub use config::{FirmwareConfig, Performance, Totals};
