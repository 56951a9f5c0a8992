//! The kernel interface of Cloud AI 100 cards.
//!
//! Everything above calls two traits, [`kmd::Kmd`] and [`kmd::AccelFile`], at the system-call boundary, so that one and
//! the same code drives a card, an emulated one, and a recording of either. [`ioctl`] has the calls as values, [`calls`]
//! makes them, [`abi`] has their bytes. Where the open runtime and the upstream kernel disagree, the kernel is followed.
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
