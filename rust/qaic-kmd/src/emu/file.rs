//! An open file of an emulated card: takes system calls apart as the kernel does (device-kmd §2.1, §2.8).

use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};

use bytemuck::{Pod, bytes_of, bytes_of_mut, cast_slice_mut};

use super::card::{Card, State};
use super::faults::{Action, Trigger};
use super::options::EmuOptions;
use crate::Errno;
use crate::abi::{DrmVersion, argument_bytes, request};
use crate::kmd::AccelFile;
use crate::mapping::Mapping;
use crate::user_memory::{copy_in, copy_out};

/// Most bytes of entries that the kernel takes in one piece.
const MAX_ENTRIES_BYTES: u64 = 4 << 20;
/// Type of the requests of the kernel's graphics and accelerator drivers.
const DRM_TYPE: u8 = b'd';
/// Bit of a request code: the call reads its argument.
const IN: u32 = 1 << 30;
/// Bit of a request code: the call writes its argument.
const OUT: u32 = 1 << 31;

/// An open file.
#[derive(Debug)]
pub(crate) struct EmuFile {
    pub(crate) card: Arc<Card>,
    pub(crate) user: u32,
}

impl Drop for EmuFile {
    fn drop(&mut self) {
        self.card.close(self.user);
    }
}

impl AccelFile for EmuFile {
    // The addresses in the argument are followed through the system only, which checks them.
    #[allow(unsafe_code)]
    unsafe fn ioctl(&self, request: u32, arg: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.card.settled();
        *state.calls.entry(request).or_default() += 1;
        if !state.can_use(self.user) {
            return Err(Errno::NODEV);
        }
        drop(state);
        let [number, kind, ..] = request.to_le_bytes();
        if kind != DRM_TYPE {
            return Err(Errno::NOTTY);
        }
        // The number alone decides.
        let known = request::ALL.iter().copied().find(|known| known.to_le_bytes()[0] == number);
        let call = Call { request, known: known.ok_or(Errno::INVAL)?, bytes: arg };
        match call.known {
            request::MANAGE => call.with(|arg| self.manage(arg)),
            request::CREATE_BO => call.with(|arg| self.create_bo(arg)),
            request::MMAP_BO => call.with(|arg| self.mmap_bo(arg)),
            request::ATTACH_SLICE_BO => call.with(|arg| self.attach(arg)),
            request::EXECUTE_BO => call.with(|arg| self.execute(arg, false)),
            request::PARTIAL_EXECUTE_BO => call.with(|arg| self.execute(arg, true)),
            request::WAIT_BO => call.with(|arg| self.wait(arg)),
            request::PERF_STATS_BO => call.with(|arg| self.perf_stats(arg)),
            request::DETACH_SLICE_BO => call.with(|arg| self.detach(*arg)),
            request::GEM_CLOSE => call.with(|arg| self.gem_close(*arg)),
            request::VERSION => call.with(|arg| self.version(arg)),
            request::PRIME_HANDLE_TO_FD => call.with(|arg| self.export(arg)),
            _ => call.with(|arg| self.import(arg)),
        }
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.map_at(offset, len)
    }
}

/// A call with its argument as the caller made it.
struct Call<'a> {
    request: u32,
    known: u32,
    bytes: &'a mut [u8],
}

impl Call<'_> {
    /// Copies as much of the argument as both sides know of, the rest is zero; and back, whatever came of the call.
    fn with<T: Pod>(self, handler: impl FnOnce(&mut T) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut arg = T::zeroed();
        let len = argument_bytes(self.request).min(argument_bytes(self.known)).min(self.bytes.len());
        let both = self.request & self.known;
        if both & IN != 0 {
            bytes_of_mut(&mut arg)[..len].copy_from_slice(&self.bytes[..len]);
        }
        let result = handler(&mut arg);
        if both & OUT != 0 {
            self.bytes[..len].copy_from_slice(&bytes_of(&arg)[..len]);
        }
        result
    }
}

impl EmuFile {
    pub(crate) fn options(&self) -> &EmuOptions {
        &self.card.options
    }

    /// Counts a call; what the plan of faults has for it.
    pub(crate) fn trip(&self, trigger: Trigger, dbc_id: Option<u32>) -> Result<(), Errno> {
        match self.card.happens(trigger) {
            None => Ok(()),
            Some(Action::Fail(error)) => Err(error),
            Some(action) => {
                self.card.perform(action, dbc_id);
                Ok(())
            }
        }
    }

    /// The card's state, if the card can be used through this file.
    pub(crate) fn alive(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.not_dead()?;
        if state.is_online { Ok(state) } else { Err(Errno::NODEV) }
    }

    /// The card's state, if this file has not outlived it.
    pub(crate) fn not_dead(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.card.settled();
        if state.can_use(self.user) { Ok(state) } else { Err(Errno::NODEV) }
    }

    fn version(&self, arg: &mut DrmVersion) -> Result<(), Errno> {
        self.trip(Trigger::Version, None)?;
        (arg.major, arg.minor, arg.patchlevel) = (1, 0, 0);
        let name = self.options().driver_name.clone();
        for (text, len, address) in [
            (name.as_str(), &mut arg.name_len, arg.name),
            ("20260101", &mut arg.date_len, arg.date),
            ("Qualcomm Cloud AI Accelerators", &mut arg.desc_len, arg.desc),
        ] {
            let room = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
            *len = text.len() as u64;
            if room > 0 && address != 0 {
                copy_out(address, &text.as_bytes()[..room])?;
            }
        }
        Ok(())
    }
}

/// Copies entries from the caller.
pub(crate) fn entries_of<T: Pod>(address: u64, count: u32) -> Result<Vec<T>, Errno> {
    if u64::from(count) * size_of::<T>() as u64 > MAX_ENTRIES_BYTES {
        return Err(Errno::NOMEM);
    }
    let mut entries = vec![T::zeroed(); count as usize];
    copy_in(address, cast_slice_mut(&mut entries))?;
    Ok(entries)
}
