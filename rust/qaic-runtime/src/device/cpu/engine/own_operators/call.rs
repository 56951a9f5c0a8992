//! Arguments of a kernel for one execution: operands, room for the result, threads.

use std::ffi::c_void;
use std::ops::Range;
use std::{ptr, slice};

use ort_sys::{ONNXTensorElementDataType, OrtApi, OrtKernelContext, OrtTensorTypeAndShapeInfo, OrtValue};

use super::super::library::check;
use super::{FLOAT, guarded};
use crate::sync::Mutex;

/// One execution of a kernel. The data that the kernel reads lives until it returns.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) api: &'static OrtApi,
    pub(super) context: *mut OrtKernelContext,
}

/// An operand: its address, its dims and its number of elements.
pub(super) struct Operand {
    address: *mut c_void,
    pub(super) dims: Vec<i64>,
    len: usize,
}

/// State that the threads of one execution share.
struct Parts<'a, F> {
    part: &'a F,
    // Error of a part that panicked.
    failure: Mutex<Option<String>>,
}

impl Call {
    /// Returns an operand; fails if it is missing.
    pub(super) fn required(self, index: usize) -> Result<Operand, String> {
        self.operand(index)?.ok_or_else(|| format!("operand {index} is missing"))
    }

    /// Calls `part` with each number below `count`, on the threads of the session. A thread that finishes a number
    /// takes the next, so no thread waits for another that the host schedules less often.
    pub(super) fn in_parallel<F: Fn(usize) + Sync>(self, count: usize, part: &F) -> Result<(), String> {
        unsafe extern "C" fn one<F: Fn(usize) + Sync>(parts: *mut c_void, number: usize) {
            // SAFETY: the call below passes a value of this type, which lives until it returns.
            let parts = unsafe { &*parts.cast_const().cast::<Parts<'_, F>>() };
            let done = guarded(|| {
                (parts.part)(number);
                Ok(())
            });
            if let Err(failure) = done {
                *parts.failure.lock() = Some(failure);
            }
        }
        let parts = Parts { part, failure: Mutex::default() };
        let shared = (&raw const parts).cast_mut().cast::<c_void>();
        // SAFETY: the call returns when every part was run, so `parts` outlives it.
        let status =
            unsafe { (self.api.KernelContext_ParallelFor)(self.context, one::<F>, count, count, shared) };
        check(self.api, status)?;
        parts.failure.lock().take().map_or(Ok(()), Err)
    }

    /// Returns an operand; `None` if it was omitted.
    pub(super) fn operand(self, index: usize) -> Result<Option<Operand>, String> {
        let Some(value) = self.value(index)? else { return Ok(None) };
        let api = self.api;
        let info = self.info(value)?;
        let mut rank = 0;
        // SAFETY: the description is live, `rank` writable.
        let status = unsafe { (api.GetDimensionsCount)(info.raw, &raw mut rank) };
        check(api, status)?;
        let mut dims = vec![0_i64; rank];
        // SAFETY: there is room for every dim.
        let status = unsafe { (api.GetDimensions)(info.raw, dims.as_mut_ptr(), rank) };
        check(api, status)?;
        let mut len = 0;
        // SAFETY: the description is live, `len` writable.
        let status = unsafe { (api.GetTensorShapeElementCount)(info.raw, &raw mut len) };
        check(api, status)?;
        let mut address = ptr::null_mut();
        // SAFETY: the value is a live tensor; it is only read.
        let status = unsafe { (api.GetTensorMutableData)(value.cast_mut(), &raw mut address) };
        check(api, status)?;
        Ok(Some(Operand { address, dims, len }))
    }

    fn value(self, index: usize) -> Result<Option<*const OrtValue>, String> {
        let mut count = 0;
        // SAFETY: the context is live during the call.
        let status = unsafe { (self.api.KernelContext_GetInputCount)(self.context, &raw mut count) };
        check(self.api, status)?;
        if index >= count {
            return Ok(None);
        }
        let mut value = ptr::null();
        // SAFETY: as above, and there is such an operand.
        let status = unsafe { (self.api.KernelContext_GetInput)(self.context, index, &raw mut value) };
        check(self.api, status)?;
        Ok((!value.is_null()).then_some(value))
    }

    pub(super) fn element_type(self, index: usize) -> Result<ONNXTensorElementDataType, String> {
        let value = self.value(index)?.ok_or_else(|| format!("operand {index} is missing"))?;
        let info = self.info(value)?;
        let mut found = FLOAT;
        // SAFETY: the description is live, `found` writable.
        let status = unsafe { (self.api.GetTensorElementType)(info.raw, &raw mut found) };
        check(self.api, status)?;
        Ok(found)
    }

    fn info(self, value: *const OrtValue) -> Result<Info, String> {
        let mut raw = ptr::null_mut();
        // SAFETY: the value is a live tensor.
        let status = unsafe { (self.api.GetTensorTypeAndShape)(value, &raw mut raw) };
        check(self.api, status)?;
        Ok(Info { api: self.api, raw })
    }

    /// Allocates a result of `len` numbers in the engine.
    pub(super) fn result(self, dims: &[i64], len: usize) -> Result<ResultMemory, String> {
        let mut value = ptr::null_mut();
        // SAFETY: the context is live, and the dims are read during the call.
        let status = unsafe {
            (self.api.KernelContext_GetOutput)(self.context, 0, dims.as_ptr(), dims.len(), &raw mut value)
        };
        check(self.api, status)?;
        let mut address = ptr::null_mut();
        // SAFETY: the value is a live tensor.
        let status = unsafe { (self.api.GetTensorMutableData)(value, &raw mut address) };
        check(self.api, status)?;
        Ok(ResultMemory { address: address.cast(), len })
    }
}

/// Memory of a result that several threads write.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultMemory {
    address: *mut f32,
    len: usize,
}

// SAFETY: the caller that takes a part guarantees that no other thread has it.
unsafe impl Sync for ResultMemory {}

impl ResultMemory {
    /// Returns the numbers of a range; an empty slice if the range is out of bounds.
    ///
    /// # Safety
    ///
    /// The output has been created with its final dims, and no other reference to numbers of this range exists.
    #[allow(clippy::mut_from_ref)] // parts are disjoint, as the caller guarantees
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        if range.is_empty() || range.end > self.len {
            return &mut [];
        }
        // SAFETY: the range is inside the result.
        let start = unsafe { self.address.add(range.start) };
        // SAFETY: as above, and nothing else borrows it.
        unsafe { slice::from_raw_parts_mut(start, range.len()) }
    }
}

impl Operand {
    /// Returns the dims with the last dim, which must be `last`, replaced by `with`.
    pub(super) fn dims_with_last(&self, last: usize, with: usize) -> Result<Vec<i64>, String> {
        let size = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        match self.dims.split_last() {
            Some((&found, leading)) if found == size(last) => Ok([leading, &[size(with)]].concat()),
            _ => Err(format!("activations of dims {:?}; {last} numbers in a row are expected", self.dims)),
        }
    }

    /// # Safety
    ///
    /// The operand has elements of this type, and does not change while they are borrowed.
    pub(super) unsafe fn elements<T>(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the engine aligns tensors for their elements; the caller guarantees the rest.
        unsafe { slice::from_raw_parts(self.address.cast_const().cast(), self.len) }
    }
}

/// A tensor description of the engine, released on drop.
struct Info {
    api: &'static OrtApi,
    raw: *mut OrtTensorTypeAndShapeInfo,
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: created by `Call::info`, released once.
        unsafe { (self.api.ReleaseTensorTypeAndShapeInfo)(self.raw) };
    }
}
