//! Programs, inference sets and profilers as a whole, on devices without hardware.

#[cfg(feature = "emu")]
mod card;
#[cfg(feature = "emu")]
#[allow(unsafe_code)] // callers share memory, and an allocator counts
mod costs;
#[cfg(feature = "emu")]
mod echo_card;
#[allow(unsafe_code)] // callers share memory
mod first_device;
mod held_device;
#[allow(unsafe_code)] // the callers access memory while it is bound
mod inference_set;
mod noop;
mod prelude;
mod profiling;
