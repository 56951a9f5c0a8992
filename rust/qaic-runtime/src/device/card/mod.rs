//! Cards behind the kernel's driver, or behind anything that answers the same system calls.
//!
//! This device speaks to [`qaic_kmd::kmd::Kmd`] and nothing below it, so that it cannot distinguish a card from an
//! emulated one and makes the same calls to both. Where the open runtime and the upstream kernel disagree, it follows the kernel.
//!
//! **Ownership.** A `Connection` is a card of this process; its `CardSession` is the open file, one for all programs, replaced
//! when a reset has left it dead. A `CardProgram`, a `CardActivation` and a `CardExec` are a program, its channel and the
//! buffer objects of one inference; each keeps the one before, so that things are given back in order, and none of them
//! gives anything back that went with an earlier *generation* of the card ([`device_state`]) or belongs to the process it
//! was forked from.
//!
//! **What is lost when.** A reset of the card, or cores that do not come back, end a generation: everything fails with
//! [`DeviceError::Lost`] until the program is unloaded and loaded again. A restart of the cores of one channel ends
//! that activation alone: [`CardError::ChannelLost`], until the program is deactivated and activated again. Errors of
//! calls and events of the kernel report either, whichever comes first.
//!
//! **An inference** is an execute call and a wait. The execs of an activation share its [`submit_queue`] and the word that
//! says why its channel is lost, and no lock.
//!
//! [`DeviceError::Lost`]: crate::error::DeviceError::Lost
//! [`CardError::ChannelLost`]: crate::error::CardError::ChannelLost

mod activation;
mod buffer_object;
mod channel;
mod connection;
mod constants;
mod device;
mod device_state;
mod errno;
mod event_pump;
mod exec;
mod facts;
mod program;
mod session;
mod slices;
mod stats;
mod submit_queue;
mod wait_limits;

pub use device::CardDevice;
pub use facts::{CardFacts, FirmwareFacts};
