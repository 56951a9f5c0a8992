//! The data path: buffer objects, the ring of each channel, and the memory and semaphores of its cores.

pub(crate) mod bo;
pub(crate) mod channel;
pub(crate) mod device_memory;
mod file_mapping;
pub(crate) mod pages;
pub(crate) mod ring;
pub(crate) mod semaphores;
pub(crate) mod slices;
pub(crate) mod worker;

pub use channel::{Channel, Element, Step};
pub use pages::Pages;
