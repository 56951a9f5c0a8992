//! An open file of an emulated card, which dispatches each system call to its handler.

use std::fmt::Debug;
use std::sync::{Arc, MutexGuard};

use qaic_kmd::abi::PartialExecuteEntry;
use qaic_kmd::{AccelFile, Errno, Ioctl, VersionQuery};
use qaic_mem::Mapping;

use super::card::{Card, CardState};
use super::fault::{Action, Trigger};
use super::options::{EmuOptions, Profile};
use crate::data_path::bo::Attachments;
use crate::data_path::ring::ExecuteRequest;

/// Length of `Qualcomm Cloud AI Accelerators`, the driver's description.
const DESCRIPTION_BYTES: u64 = 30;

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
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let mut state = self.card.settled();
        *state.calls.entry(call.request()).or_default() += 1;
        if !state.can_use(self.user) {
            return Err(Errno::NODEV);
        }
        drop(state);
        match call {
            Ioctl::Manage(message) => self.manage(message),
            Ioctl::CreateBo(arg) => self.create_bo(arg),
            Ioctl::MmapBo(arg) => self.mmap_bo(arg),
            Ioctl::AttachSlices { dbc_id, handle, dir, size, entries } => self.attach(&Attachments {
                dbc_id: *dbc_id,
                handle: *handle,
                dir: *dir,
                size: *size,
                entries,
            }),
            Ioctl::DetachSlices(arg) => self.detach(*arg),
            Ioctl::Execute { dbc_id, entries } => {
                let entries =
                    entries.iter().map(|entry| ExecuteRequest { handle: entry.handle, resize: None });
                self.execute(*dbc_id, entries)
            }
            Ioctl::PartialExecute { dbc_id, entries } => {
                let entry = |entry: &PartialExecuteEntry| ExecuteRequest {
                    handle: entry.handle,
                    resize: Some(entry.resize),
                };
                self.execute(*dbc_id, entries.iter().map(entry))
            }
            Ioctl::Wait(arg) => self.wait(*arg),
            Ioctl::PerfStats { dbc_id, entries } => self.perf_stats(*dbc_id, entries),
            Ioctl::CloseHandle(arg) => self.close_handle(*arg),
            Ioctl::Version(query) => self.version(query),
            Ioctl::ImportDmaBuf { file, handle } => {
                **handle = self.import(*file)?;
                Ok(())
            }
        }
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.map_at(offset, len)
    }
}

impl EmuFile {
    pub(crate) fn options(&self) -> &EmuOptions {
        &self.card.options
    }

    /// Counts a call, and returns its fault in the plan.
    pub(crate) fn inject_fault(&self, trigger: Trigger, dbc_id: Option<u32>) -> Result<(), Errno> {
        match self.card.fault_action(trigger) {
            None => Ok(()),
            Some(Action::Fail(error)) => Err(error),
            Some(action) => {
                self.card.perform(action, dbc_id);
                Ok(())
            }
        }
    }

    /// Locks the card's state, if this file can use the card.
    pub(crate) fn alive(&self) -> Result<MutexGuard<'_, CardState>, Errno> {
        let state = self.not_dead()?;
        if state.is_online { Ok(state) } else { Err(Errno::NODEV) }
    }

    /// Locks the card's state, unless the card was reset since this file was opened.
    pub(crate) fn not_dead(&self) -> Result<MutexGuard<'_, CardState>, Errno> {
        let state = self.card.settled();
        if state.can_use(self.user) { Ok(state) } else { Err(Errno::NODEV) }
    }

    fn version(&self, query: &mut VersionQuery) -> Result<(), Errno> {
        self.inject_fault(Trigger::Version, None)?;
        let version = &mut query.version;
        (version.major, version.minor) = self.options().driver_version;
        // A date; newer drivers return `0` (`drm_version` in drm_ioctl.c).
        version.date_len = if self.options().profile == Profile::Old { 8 } else { 1 };
        version.desc_len = DESCRIPTION_BYTES;
        query.set_name(&self.options().driver_name);
        Ok(())
    }
}
