//! The kernel interface of Cloud AI 100 cards, and an emulated driver behind the same seam.
//!
//! Everything above speaks to two traits, [`kmd::Kmd`] and [`kmd::AccelFile`], at the system-call boundary and in raw
//! bytes, so that one and the same code drives a card, an emulated one, and a recording of either. [`abi`] has the bytes of
//! the calls, [`calls`] makes them. Where the open runtime and the upstream kernel disagree, the kernel is followed
//! (device-kmd §0).
#![deny(unsafe_code)]

#[allow(unsafe_code)] // plain-data casts of the calls' structures
pub mod abi;
#[cfg(feature = "sys")]
mod access;
#[cfg(feature = "sys")]
mod attribute;
#[allow(unsafe_code)] // the arguments of system calls hold addresses; every block says why they are valid
pub mod calls;
pub mod clock;
#[cfg(feature = "sys")]
mod discover;
#[cfg(feature = "emu")]
pub mod emu;
#[allow(unsafe_code)] // declares the one call that takes addresses
pub mod kmd;
#[allow(unsafe_code)] // memory that is shared with a device
pub mod mapping;
#[cfg(feature = "sys")]
mod netlink;
pub mod nnc;
#[cfg(feature = "sys")]
mod pci;
#[cfg(feature = "sys")]
#[allow(unsafe_code)] // the system calls themselves
pub mod sys;
#[cfg(feature = "sys")]
mod telemetry;
#[cfg(all(test, feature = "sys"))]
#[allow(clippy::unwrap_used)] // a machine that cannot be made fails the test
mod test_tree;
pub mod transcript;
pub mod uevent;
mod user_memory;

pub use rustix::io::Errno;
