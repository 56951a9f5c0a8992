//! Cards of the kernel's driver, or of any other implementation of its system calls.
//!
//! This device uses [`qaic_kmd::Kmd`] and no lower layer. It therefore makes the same calls to real and emulated
//! cards, and cannot distinguish them. If the open runtime and the upstream kernel disagree, this device follows the
//! kernel.
//!
//! **Ownership.** A `Connection` represents a card in this process. Its `CardSession` is the open file, which all
//! programs share, and which is replaced when a reset has invalidated it. A `CardProgram` is a program, a
//! `CardActivation` is its channel, and a `CardExec` owns the buffer objects of one inference. Each keeps the
//! previous one alive, so that resources are released in order. None of them releases a resource of an earlier
//! *generation* of the card ([`device_state`]), or of the process that this one was forked from.
//!
//! **Losses.** A reset of the card, or cores that do not return, end a generation. All calls then fail with
//! [`DeviceError::Lost`] until the program is unloaded and loaded again. A restart of the cores of one channel ends
//! only that activation. Its calls fail with [`CardError::ChannelLost`] until the program is deactivated and
//! activated again. Errors of calls or events of the kernel report the loss, whichever comes first.
//!
//! **Inferences.** An inference is an execute call and a wait. The execs of an activation share its [`submit_queue`]
//! and the word that contains the reason why the channel is lost. They share no lock.
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

pub(crate) use device::CardDevice;
pub(crate) use facts::CardFacts;
