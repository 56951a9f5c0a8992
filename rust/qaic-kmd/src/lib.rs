//! The kernel interface of Cloud AI 100 cards.
//!
//! Higher layers use two traits at the system-call boundary, [`kmd::Kmd`] and [`kmd::AccelFile`]. The same code
//! therefore drives a card, an emulated card, and a recording of either. [`ioctl`] defines the calls as values,
//! [`calls`] makes them, and [`abi`] defines their bytes. If the open runtime and the upstream kernel disagree, this
//! crate follows the kernel.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // plain-data casts of the calls' structures
pub mod abi;
pub mod calls;
pub mod clock;
#[cfg(feature = "sys")]
#[allow(unsafe_code)] // the system calls themselves
pub mod driver;
pub mod file_mapping;
pub mod ioctl;
pub mod kmd;
pub mod manage;
pub mod protocol;
pub mod transcript;
pub mod uevent;
#[allow(unsafe_code)] // plain-data casts of fields
pub mod wire;

pub use rustix::io::Errno;
