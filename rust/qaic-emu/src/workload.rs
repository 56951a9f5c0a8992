//! The work of an emulated card's cores: the emulator's plug-in interface.
//!
//! Firmware and driver do not know the computation of a program. A [`Workload`] creates a [`Running`] object from the
//! images of an activation. The data path of the channel then moves data to and from the memory of the device,
//! executes the semaphore operations, and advances the cores.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;

pub use crate::data_path::device_memory::{DeviceMemory, MemoryFull};
pub use crate::data_path::semaphores::Semaphores;

/// Execution of programs by the cores. All cards share one workload.
pub trait Workload: Debug + Send + Sync {
    /// Returns the needs of a program when its ELF is loaded; a status refuses the program.
    fn requirements(&self, elf: &[u8]) -> Result<Requirements, NncStatus> {
        let _ = elf;
        Ok(Requirements::default())
    }

    /// Starts the images of an activation; a status refuses them.
    ///
    /// Blocking: until the cores are ready. No lock is held meanwhile.
    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus>;
}

/// Needs of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Number of cores of an activation.
    pub cores: u32,
    /// Number of multicast ids of an activation.
    pub multicast_ids: u32,
    /// Number of semaphores of an activation, for the firmware's tables. Every channel has all of
    /// [`Semaphores::COUNT`].
    pub semaphores: u32,
    /// Bytes of memory of an activation, starting at [`Images::ddr_base`].
    pub ddr_bytes: u64,
    /// Bytes of memory of the loaded ELF.
    pub image_bytes: u64,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { cores: 1, multicast_ids: 0, semaphores: 0, ddr_bytes: 0, image_bytes: 0 }
    }
}

/// Images of an activation.
#[derive(Clone, Debug)]
pub struct Images {
    /// The program.
    pub elf: Arc<[u8]>,
    /// Id of the program, never reused on the same card.
    pub elf_id: u32,
    /// The constants: the static ones, then the dynamic ones after the static size in the descriptor. They end at the
    /// last loaded byte; empty for an activation without constants.
    pub constants: Arc<[u8]>,
    /// Id of the constants; 0 if there are none.
    pub constants_id: u32,
    /// Start of the activation's memory.
    pub ddr_base: u64,
    /// Start of the activation's multicast windows, one every `0x80_0000` bytes.
    pub mcid_base: u64,
}

/// The running cores of one activation.
pub trait Running: Debug + Send {
    /// Returns true if the data path uses the semaphores. If not, elements run in the order of the ring.
    /// [`Self::advance`] is then called once, before the first element from the device that follows elements to the
    /// device, because all inputs of the inference have arrived.
    fn honors_semaphores(&self) -> bool {
        true
    }

    /// Sets the initial values of the semaphores. Called once, before the first element.
    fn begin(&mut self, card: &mut CoreView<'_>) {
        let _ = card;
    }

    /// Makes as much progress as possible. Called after each element of the ring, and again after progress,
    /// if the data path uses the semaphores.
    ///
    /// Blocking: as long as it computes.
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress;

    /// Returns a function that ends a running [`Self::advance`] from another thread. Does nothing for a short one.
    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::new(|| ())
    }
}

/// Result of an attempt to make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do.
    Idle,
    /// The cores made progress, so that others may also make progress.
    Worked,
    /// The cores failed: the channel is lost, and its cores restart.
    Crashed,
}

/// Memory and semaphores that the cores of an activation can access.
#[derive(Debug)]
pub struct CoreView<'a> {
    /// Semaphores of the channel.
    pub semaphores: &'a mut Semaphores,
    /// Memory of the device.
    pub memory: &'a mut DeviceMemory,
    /// Doorbells that rang, oldest first. If too many accumulate, unread ones are dropped.
    pub doorbells: &'a mut VecDeque<Doorbell>,
}

/// A word that an element writes to the cores after all its other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Destination address.
    pub address: u64,
    /// The word.
    pub data: u32,
    /// Size of the word in bits: 8, 16 or 32.
    pub bits: u32,
}

/// No cores: the host reads back the data that it wrote to the device's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

impl Workload for Loopback {
    fn activate(&self, _images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        Ok(Box::new(NoCores))
    }
}

#[derive(Debug)]
pub(crate) struct NoCores;

impl Running for NoCores {
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        card.doorbells.clear();
        Progress::Idle
    }
}
