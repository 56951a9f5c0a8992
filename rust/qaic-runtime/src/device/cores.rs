//! Accounting of a virtual card's cores.

use std::sync::{Arc, Mutex, PoisonError};

use super::DeviceId;
use crate::error::RuntimeError;

/// The cores of one device. Activations [take](Cores::take) some and give them back by dropping the lease.
#[derive(Debug)]
pub struct Cores {
    device: DeviceId,
    total: u32,
    free: Mutex<u32>,
}

impl Cores {
    /// All cores free.
    pub fn new(device: DeviceId, total: u32) -> Arc<Self> {
        Arc::new(Self { device, total, free: Mutex::new(total) })
    }

    /// Number of cores of the device.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Number of free cores.
    pub fn free(&self) -> u32 {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `needed` cores or none.
    pub fn take(self: &Arc<Self>, needed: u32) -> Result<CoreLease, RuntimeError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        match free.checked_sub(needed) {
            Some(left) => {
                *free = left;
                Ok(CoreLease { cores: Arc::clone(self), count: needed })
            }
            None => {
                Err(RuntimeError::DeviceBusy { id: self.device.0, needed, free: *free, total: self.total })
            }
        }
    }
}

/// Cores taken; dropping it gives them back.
#[derive(Debug)]
pub struct CoreLease {
    cores: Arc<Cores>,
    count: u32,
}

impl Drop for CoreLease {
    fn drop(&mut self) {
        *self.cores.free.lock().unwrap_or_else(PoisonError::into_inner) += self.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_and_gives_back() {
        let cores = Cores::new(DeviceId(3), 16);
        let lease = cores.take(10).unwrap();
        match cores.take(7).unwrap_err() {
            RuntimeError::DeviceBusy { id: 3, needed: 7, free: 6, total: 16 } => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(cores.free(), 6);
        drop(lease);
        assert_eq!(cores.free(), 16);
    }
}
