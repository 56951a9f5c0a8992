//! Buffer objects: memory of the host with a handle, and its use by a channel.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::card::CardState;
use crate::data_path::pages::{PAGE_BYTES, Pages};
use crate::data_path::slices::Slices;
use crate::fault::Trigger;
use crate::file::EmuFile;
use crate::options::Profile;
use qaic_kmd::Errno;
use qaic_kmd::abi::{
    AttachSliceEntry, CreateBo, DBC_COUNT, DIR_FROM_DEVICE, DIR_TO_DEVICE, DetachSlice, GemClose, MmapBo,
};
use qaic_mem::Mapping;

/// Bytes of the largest buffer object, more than any host has memory for.
const MAX_BYTES: u64 = 1 << 40;
/// First mapping offset. Each buffer object has one page of offsets, so it can only be mapped from its first byte.
const MAP_BEGIN: u64 = 1 << 32;

/// Maximum size of entries that the kernel copies at once.
const MAX_ENTRIES_BYTES: usize = 4 << 20;

/// The slices to attach to a buffer object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachments<'a> {
    pub(crate) dbc_id: u32,
    pub(crate) handle: u32,
    pub(crate) dir: u32,
    pub(crate) size: u64,
    pub(crate) entries: &'a [AttachSliceEntry],
}

/// A buffer object. It exists while a handle or a channel references it; its memory exists as long as it is mapped.
#[derive(Debug)]
pub(crate) struct Bo {
    pub(crate) pages: Arc<Pages>,
    pub(crate) user: u32,
    pub(crate) handle: Option<u32>,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) execution: Option<Execution>,
    /// An execution that was withdrawn because another buffer object of its call was refused. Waits for it continue
    /// until there is another execution, or the slices are detached.
    pub(crate) withdrawn: Option<u64>,
    pub(crate) last_execution: ExecutionTimes,
}

/// Attached slices and the channel that they belong to.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) dbc_id: u32,
    pub(crate) slices: Arc<Slices>,
}

/// An execution that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Execution {
    pub(crate) serial: u64,
    /// Number of slices that are not complete.
    pub(crate) slices_left: usize,
    /// Time of the submission.
    pub(crate) submitted: Duration,
    /// True while a thread sleeps until the buffer object completes.
    pub(crate) is_awaited: bool,
}

/// Times of the last execution.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExecutionTimes {
    pub(crate) level_before: u32,
    pub(crate) submit_us: u32,
    pub(crate) device_us: u32,
}

impl Bo {
    /// Returns the number of the execution that a wait is for; `None` if there is none.
    pub(crate) fn awaited(&self) -> Option<u64> {
        self.execution.map(|execution| execution.serial).or(self.withdrawn)
    }
}

impl CardState {
    /// Returns the buffer object of a user's handle.
    pub(crate) fn bo_id(&self, user: u32, handle: u32) -> Result<u64, Errno> {
        let handles = self.users.get(&user).map(|user| &user.handles);
        handles.and_then(|handles| handles.get(&handle)).copied().ok_or(Errno::NOENT)
    }

    /// Removes a buffer object without references.
    pub(crate) fn drop_unused(&mut self, bo_id: u64) {
        if self.bos.get(&bo_id).is_some_and(|bo| bo.handle.is_none() && bo.attachment.is_none()) {
            self.bos.remove(&bo_id);
        }
    }

    fn add_bo(&mut self, user: u32, pages: Arc<Pages>) -> Result<u32, Errno> {
        let bo_id = self.next_bo;
        self.next_bo += 1;
        let handles = &mut self.users.get_mut(&user).ok_or(Errno::NODEV)?.handles;
        // The smallest free handle, from 1 on.
        let taken = handles.keys().zip(1_u32..).take_while(|(handle, next)| **handle == *next).count();
        let handle = u32::try_from(taken).map_err(|_| Errno::NOMEM)? + 1;
        handles.insert(handle, bo_id);
        let last_execution = ExecutionTimes::default();
        let bo = Bo {
            pages,
            user,
            handle: Some(handle),
            attachment: None,
            execution: None,
            withdrawn: None,
            last_execution,
        };
        self.bos.insert(bo_id, bo);
        Ok(handle)
    }
}

impl EmuFile {
    pub(crate) fn create_bo(&self, arg: &mut CreateBo) -> Result<(), Errno> {
        self.inject_fault(Trigger::CreateBo, None)?;
        if arg.pad != 0 {
            return Err(Errno::INVAL);
        }
        drop(self.alive()?);
        if arg.size > MAX_BYTES && arg.size.checked_next_multiple_of(4096).is_some() {
            return Err(Errno::NOMEM);
        }
        let pages = Pages::new(arg.size)?;
        arg.handle = self.alive()?.add_bo(self.user, pages)?;
        Ok(())
    }

    pub(crate) fn mmap_bo(&self, arg: &mut MmapBo) -> Result<(), Errno> {
        self.inject_fault(Trigger::MmapBo, None)?;
        let state = self.alive()?;
        arg.offset = MAP_BEGIN + state.bo_id(self.user, arg.handle)? * PAGE_BYTES;
        Ok(())
    }

    /// Maps the buffer object at an offset. A handle of this file must reference it.
    pub(crate) fn map_at(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.inject_fault(Trigger::Mmap, None)?;
        let state = self.not_dead()?;
        let page = offset.checked_sub(MAP_BEGIN).filter(|offset| offset.is_multiple_of(PAGE_BYTES));
        let bo = page.and_then(|page| state.bos.get(&(page / PAGE_BYTES)));
        let bo = bo.filter(|bo| (1..=bo.pages.bytes()).contains(&(len as u64))).ok_or(Errno::INVAL)?;
        if bo.user != self.user || bo.handle.is_none() {
            return Err(Errno::ACCESS);
        }
        let pages = &bo.pages;
        if pages.imported().is_some() {
            return Err(Errno::INVAL);
        }
        pages.mapping(0, len).ok_or(Errno::INVAL)
    }

    pub(crate) fn attach(&self, arg: &Attachments<'_>) -> Result<(), Errno> {
        let Attachments { dbc_id, handle, dir, size, entries } = *arg;
        self.inject_fault(Trigger::Attach, Some(dbc_id))?;
        let options = self.options();
        let is_old = options.profile == Profile::Old;
        if entries.is_empty() || !matches!(dir, DIR_TO_DEVICE | DIR_FROM_DEVICE) || is_old && size == 0 {
            return Err(Errno::INVAL);
        }
        drop(self.alive()?);
        if dbc_id >= DBC_COUNT {
            return Err(Errno::INVAL);
        }
        if !fits_one_copy(entries) {
            return Err(Errno::NOMEM);
        }
        let mut state = self.alive()?;
        let bo_id = state.bo_id(self.user, handle)?;
        let CardState { bos, dbcs, .. } = &mut *state;
        let bo = bos.get_mut(&bo_id).ok_or(Errno::NOENT)?;
        let dbc = &mut dbcs[dbc_id as usize];
        if bo.attachment.is_some() || dbc.owner != Some(self.user) {
            return Err(Errno::INVAL);
        }
        if dbc.is_restarting {
            return Err(Errno::PIPE);
        }
        // Old kernels use the size from the call.
        let size = if is_old { size } else { bo.pages.bytes() };
        if size > bo.pages.bytes() {
            return Err(Errno::INVAL);
        }
        let slices = Slices::new(entries, dir, size, dbc.ring_size, options.fragment_bytes)?;
        bo.attachment = Some(Attachment { dbc_id, slices: Arc::new(slices) });
        dbc.attached.insert(bo_id);
        Ok(())
    }

    pub(crate) fn detach(&self, arg: DetachSlice) -> Result<(), Errno> {
        self.inject_fault(Trigger::Detach, None)?;
        if arg.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.alive()?;
        let bo_id = state.bo_id(self.user, arg.handle)?;
        let CardState { bos, dbcs, .. } = &mut *state;
        let bo = bos.get_mut(&bo_id).ok_or(Errno::NOENT)?;
        let attachment = bo.attachment.as_ref().ok_or(Errno::INVAL)?;
        let dbc = &mut dbcs[attachment.dbc_id as usize];
        if dbc.owner != Some(self.user) {
            return Err(Errno::INVAL);
        }
        if bo.execution.is_some() {
            return Err(Errno::BUSY);
        }
        dbc.attached.remove(&bo_id);
        (bo.attachment, bo.withdrawn) = (None, None);
        self.card.changed.notify_all();
        Ok(())
    }

    pub(crate) fn close_handle(&self, arg: GemClose) -> Result<(), Errno> {
        let mut state = self.not_dead()?;
        let handles = state.users.get_mut(&self.user).map(|user| &mut user.handles);
        let bo_id = handles.and_then(|handles| handles.remove(&arg.handle)).ok_or(Errno::INVAL)?;
        if let Some(bo) = state.bos.get_mut(&bo_id) {
            bo.handle = None;
        }
        state.drop_unused(bo_id);
        Ok(())
    }

    pub(crate) fn import(&self, file: BorrowedFd<'_>) -> Result<u32, Errno> {
        self.inject_fault(Trigger::Import, None)?;
        let identity = Pages::identity_of(file)?;
        let mut state = self.not_dead()?;
        let known = state.users.get(&self.user).and_then(|user| {
            user.handles.iter().find_map(|(handle, bo_id)| {
                (state.bos.get(bo_id)?.pages.imported() == Some(identity)).then_some(*handle)
            })
        });
        match known {
            Some(handle) => Ok(handle),
            None => state.add_bo(self.user, Pages::import(file)?),
        }
    }
}

/// Returns true if the kernel has memory for a copy of all entries of a call.
pub(crate) fn fits_one_copy<T>(entries: &[T]) -> bool {
    size_of_val(entries) <= MAX_ENTRIES_BYTES
}
