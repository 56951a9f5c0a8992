//! Buffer objects: created, attached to a channel, mapped, and destroyed in an order that leaves no memory pinned.

use std::mem;
use std::os::fd::AsFd;
use std::sync::Arc;

use qaic_kmd::abi::AttachSliceEntry;
use qaic_mem::{DmaBuf, HostSliceMut, Mapping};

use super::activation::ActivationShared;
use super::errno::{DataPath, uninterrupted};
use super::slices::BufferLayout;
use crate::error::{CardError, ErrorDetail, RuntimeError, StateError};

/// A buffer object with its slices; destroyed on drop.
#[derive(Debug)]
pub(super) struct BufferObject {
    pub(super) handle: u32,
    bytes: usize,
    // Unmapped before the handle is closed.
    memory: Option<Mapping>,
    is_attached: bool,
    is_imported: bool,
    activation: Arc<ActivationShared>,
}

impl BufferObject {
    /// Creates, attaches and maps a buffer object. If a step fails, the completed steps are undone.
    pub(super) fn new(
        activation: &Arc<ActivationShared>,
        layout: &BufferLayout,
    ) -> Result<Self, RuntimeError> {
        let file = activation.program.session.file();
        let failed = |call, errno| activation.failed(call, errno, layout.bytes);
        let handle =
            uninterrupted(|| file.create_bo(layout.bytes)).map_err(|errno| failed("CREATE_BO", errno))?;
        let bytes = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
        let mut object = Self {
            handle,
            bytes,
            memory: None,
            is_attached: false,
            is_imported: false,
            activation: Arc::clone(activation),
        };
        object.attach(layout, 0)?;
        if layout.dma.is_some() {
            let offset =
                uninterrupted(|| file.mmap_offset(handle)).map_err(|errno| failed("MMAP_BO", errno))?;
            let mapping = uninterrupted(|| file.map(offset, bytes)).map_err(|errno| failed("mmap", errno))?;
            if mapping.len() < bytes {
                return Err(RuntimeError::internal(format!(
                    "the driver mapped {} bytes of a buffer object of {bytes}",
                    mapping.len()
                )));
            }
            object.memory = Some(mapping);
        }
        Ok(object)
    }

    /// Returns memory behind a descriptor that replaces the buffer object of `layout`. Returns `None` if the memory
    /// has the handle `before`, which belongs to the caller.
    pub(super) fn import(
        activation: &Arc<ActivationShared>,
        layout: &BufferLayout,
        memory: &DmaBuf,
        before: Option<u32>,
    ) -> Result<Option<Self>, RuntimeError> {
        let file = activation.program.session.file();
        let handle = uninterrupted(|| file.import_dma_buf(memory.descriptor.as_fd()))
            .map_err(|errno| activation.failed("PRIME_FD_TO_HANDLE", errno, layout.bytes))?;
        if before == Some(handle) {
            return Ok(None);
        }
        if !activation.program.session.note_import(handle) {
            return Err(StateError::Invalid {
                what: "the memory of this descriptor is already bound to another exec object of the card"
                    .to_owned(),
            }
            .into());
        }
        let mut object = Self {
            handle,
            bytes: 0,
            memory: None,
            is_attached: false,
            is_imported: true,
            activation: Arc::clone(activation),
        };
        object.attach(layout, memory.offset).map(|()| Some(object))
    }

    fn attach(&mut self, layout: &BufferLayout, offset: u64) -> Result<(), RuntimeError> {
        let Self { activation, handle, .. } = &*self;
        let outside = || {
            ErrorDetail::Card(CardError::Transfers {
                what: "a DMA request has an address in the device beyond all addresses".to_owned(),
            })
        };
        let entries = layout.slices.iter().map(|slice| {
            let entry = slice.entry(activation.bases)?;
            Some(AttachSliceEntry { offset: entry.offset.checked_add(offset)?, ..entry })
        });
        let entries = entries.collect::<Option<Vec<_>>>().ok_or_else(outside)?;
        let size = layout.bytes.checked_add(offset).ok_or_else(outside)?;
        let file = activation.program.session.file();
        let dbc_id = activation.channel.dbc_id;
        uninterrupted(|| file.attach_slices(dbc_id, *handle, layout.dir, size, &entries))
            .map_err(|errno| activation.failed("ATTACH_SLICE_BO", errno, layout.bytes))?;
        self.is_attached = true;
        Ok(())
    }

    /// Memory of the buffer object; empty for one without data.
    pub(super) fn memory_mut(&mut self) -> HostSliceMut<'_> {
        let memory = self.memory.as_mut().map(|mapping| mapping.memory_mut().first(self.bytes));
        memory.unwrap_or(HostSliceMut::empty())
    }

    pub(super) fn unmap(&mut self) {
        self.memory = None;
    }
}

impl Drop for BufferObject {
    fn drop(&mut self) {
        let session = &self.activation.program.session;
        if !session.fork_guard.is_current() {
            // The parent process also uses the memory, and unmapping it here would call the driver of an emulated
            // card.
            mem::forget(self.memory.take());
            return;
        }
        self.memory = None;
        if self.is_imported {
            session.forget_import(self.handle);
        }
        if self.is_attached
            && let Err(errno) = uninterrupted(|| session.file().detach_slices(self.handle))
            && DataPath::of(errno) == DataPath::Busy
        {
            // The card still uses it. Other errors mean that it was detached with its channel or card.
            return self.activation.close_later(self.handle);
        }
        // Only a removed card refuses, and its removal has closed the handle.
        let _ = uninterrupted(|| session.file().close_handle(self.handle));
    }
}
