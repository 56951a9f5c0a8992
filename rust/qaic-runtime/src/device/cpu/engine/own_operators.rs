//! The operators that the device brings to the engine, in the domain [`DOMAIN`].

use std::ffi::{CStr, c_char, c_void};
use std::{ptr, slice};

use half::f16;
use ort_sys::{
    ONNXTensorElementDataType, ORT_API_VERSION, OrtApi, OrtCustomOp, OrtCustomOpDomain,
    OrtCustomOpInputOutputCharacteristic, OrtErrorCode, OrtKernelContext, OrtKernelInfo, OrtMemType,
    OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue,
};

use super::attended_rows::{AttendedRows, BLOCK_SLOTS, Operands, StateNumbers};
use super::library::check;

/// Domain of the operators.
pub(super) const DOMAIN: &CStr = c"com.openqaic";

/// Names of the operators, as plans list them.
pub(super) const NAMES: &[&str] = &["AttendedRows"];

/// Numbers of a result from which on several threads copy.
const PARALLEL_LEN: usize = 1 << 15;

/// An operator whose state has one element type. The engine sees its first member.
#[repr(C)]
struct OwnOperator {
    callbacks: OrtCustomOp,
    state: ONNXTensorElementDataType,
}

const FLOAT: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
const FLOAT16: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
const INT64: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
const BOOL: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;

/// Places of the operands.
const STATE: usize = 0;
const LENGTH: usize = 1;
const INDICES: usize = 2;
const ROWS: usize = 3;
const BLANKED: usize = 4;

static OPERATORS: [OwnOperator; 2] = [OwnOperator::new(FLOAT), OwnOperator::new(FLOAT16)];

impl OwnOperator {
    const fn new(state: ONNXTensorElementDataType) -> Self {
        let callbacks = OrtCustomOp {
            version: ORT_API_VERSION,
            CreateKernel: None,
            GetName: Some(name),
            GetExecutionProviderType: Some(provider),
            GetInputType: Some(input_type),
            GetInputTypeCount: Some(input_count),
            GetOutputType: Some(output_type),
            GetOutputTypeCount: Some(output_count),
            KernelCompute: None,
            KernelDestroy: Some(destroy),
            GetInputCharacteristic: Some(input_characteristic),
            GetOutputCharacteristic: Some(output_characteristic),
            GetInputMemoryType: Some(memory_type),
            GetVariadicInputMinArity: Some(one),
            GetVariadicInputHomogeneity: Some(one),
            GetVariadicOutputMinArity: Some(one),
            GetVariadicOutputHomogeneity: Some(one),
            CreateKernelV2: Some(create),
            KernelComputeV2: Some(compute),
            InferOutputShapeFn: None,
            GetStartVersion: Some(first_version),
            GetEndVersion: Some(last_version),
            GetMayInplace: None,
            ReleaseMayInplace: None,
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        Self { callbacks, state }
    }
}

/// Makes the domain with the operators, which is never released: sessions use it as long as they live.
pub(super) fn domain(api: &OrtApi) -> Result<*mut OrtCustomOpDomain, String> {
    let mut domain = ptr::null_mut();
    // SAFETY: the name is NUL-terminated, `domain` is writable.
    let status = unsafe { (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), &raw mut domain) };
    check(api, status)?;
    for operator in &OPERATORS {
        // SAFETY: the domain is live, and the operator lives as long as the process.
        let status = unsafe { (api.CustomOpDomain_Add)(domain, &raw const operator.callbacks) };
        check(api, status)?;
    }
    Ok(domain)
}

unsafe extern "system" fn name(_: *const OrtCustomOp) -> *const c_char {
    c"AttendedRows".as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn input_count(_: *const OrtCustomOp) -> usize {
    BLANKED + 1
}

unsafe extern "system" fn output_count(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn input_type(
    operator: *const OrtCustomOp,
    index: usize,
) -> ONNXTensorElementDataType {
    match index {
        // SAFETY: the engine gives back what it was given: the first member of one of `OPERATORS`.
        STATE => unsafe { (*operator.cast::<OwnOperator>()).state },
        ROWS => FLOAT,
        BLANKED => BOOL,
        _ => INT64,
    }
}

unsafe extern "system" fn output_type(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    FLOAT
}

unsafe extern "system" fn input_characteristic(
    _: *const OrtCustomOp,
    index: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    if index == BLANKED {
        OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_OPTIONAL
    } else {
        OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
    }
}

unsafe extern "system" fn output_characteristic(
    _: *const OrtCustomOp,
    _: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory_type(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> i32 {
    1
}

unsafe extern "system" fn first_version(_: *const OrtCustomOp) -> i32 {
    1
}

unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> i32 {
    i32::MAX
}

/// A kernel has no state but the table of functions.
unsafe extern "system" fn create(
    _: *const OrtCustomOp,
    api: *const OrtApi,
    _: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: the engine passes a place for the result.
    unsafe { kernel.write(api.cast_mut().cast()) };
    OrtStatusPtr::default()
}

unsafe extern "system" fn destroy(_: *mut c_void) {}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: `create` made the kernel of the table, which is static.
    let api: &'static OrtApi = unsafe { &*kernel.cast_const().cast() };
    let call = Call { api, context };
    match call.run() {
        Ok(()) => OrtStatusPtr::default(),
        Err(message) => {
            let mut text = format!("AttendedRows: {message}").into_bytes();
            text.push(0);
            // SAFETY: the text is NUL-terminated and copied.
            unsafe { (api.CreateStatus)(OrtErrorCode::ORT_INVALID_ARGUMENT, text.as_ptr().cast()) }
        }
    }
}

/// One execution of a kernel; what it reads lives until it returns.
#[derive(Clone, Copy)]
struct Call {
    api: &'static OrtApi,
    context: *mut OrtKernelContext,
}

/// An operand: where it lies, its dims and how many elements it has.
struct Operand {
    address: *mut c_void,
    dims: Vec<i64>,
    len: usize,
}

/// What the threads that write a result share.
struct Parts<'a> {
    attended: AttendedRows<'a>,
    result: *mut f32,
}

impl Call {
    fn run(self) -> Result<(), String> {
        let required = |index| self.operand(index)?.ok_or_else(|| format!("operand {index} is missing"));
        let (state, length, indices, rows) =
            (required(STATE)?, required(LENGTH)?, required(INDICES)?, required(ROWS)?);
        let blanked = self.operand(BLANKED)?;
        let is_half = self.element_type(STATE)? == FLOAT16;
        let operands = Operands {
            state: if is_half {
                // SAFETY: the engine has checked the type of every operand, and they do not change during the call.
                StateNumbers::Float16(unsafe { state.elements::<f16>() })
            } else {
                // SAFETY: as above.
                StateNumbers::Float32(unsafe { state.elements::<f32>() })
            },
            state_dims: &state.dims,
            // SAFETY: as above.
            length: unsafe { length.elements::<i64>() },
            // SAFETY: as above.
            indices: unsafe { indices.elements::<i64>() },
            index_dims: &indices.dims,
            // SAFETY: as above.
            rows: unsafe { rows.elements::<f32>() },
            // SAFETY: as above; the engine's bool is a byte of 0 or 1.
            blanked: blanked.as_ref().map(|blanked| unsafe { blanked.elements::<bool>() }),
        };
        let attended = AttendedRows::new(&operands)?;
        let mut dims = state.dims.clone();
        if let Some(slots) = dims.get_mut(2) {
            *slots = i64::try_from(attended.length()).unwrap_or(i64::MAX);
        }
        let result = self.result(&dims)?;
        let parts = Parts { attended, result };
        if attended.result_len() < PARALLEL_LEN || attended.length() <= BLOCK_SLOTS {
            for block in 0..attended.blocks() {
                // SAFETY: the result has the dims that were asked for, and this is its only writer.
                unsafe { parts.write(block) };
            }
            return Ok(());
        }
        let shared = (&raw const parts).cast_mut().cast::<c_void>();
        // SAFETY: the call returns when every block was written, so `parts` outlives it.
        let status = unsafe {
            (self.api.KernelContext_ParallelFor)(self.context, write_block, attended.blocks(), 0, shared)
        };
        check(self.api, status)
    }

    /// `None` of an operand that was left out.
    fn operand(self, index: usize) -> Result<Option<Operand>, String> {
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

    fn element_type(self, index: usize) -> Result<ONNXTensorElementDataType, String> {
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

    /// Has the engine make room for the result.
    fn result(self, dims: &[i64]) -> Result<*mut f32, String> {
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
        Ok(address.cast())
    }
}

impl Operand {
    /// # Safety
    ///
    /// The operand has elements of this type, and does not change while they are borrowed.
    unsafe fn elements<T>(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the engine aligns tensors for their elements; the rest is said above.
        unsafe { slice::from_raw_parts(self.address.cast_const().cast(), self.len) }
    }
}

/// A description of a tensor that is released whatever happens.
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

impl Parts<'_> {
    /// # Safety
    ///
    /// The result has room for all blocks, and no other call writes this one.
    unsafe fn write(&self, block: usize) {
        let range = self.attended.range(block);
        // SAFETY: the range lies inside of the result.
        let start = unsafe { self.result.add(range.start) };
        // SAFETY: ranges of blocks do not overlap, and nothing else borrows this one.
        let result = unsafe { slice::from_raw_parts_mut(start, range.len()) };
        self.attended.write(block, result);
    }
}

unsafe extern "C" fn write_block(parts: *mut c_void, block: usize) {
    // SAFETY: `Call::run` passes parts that live until all blocks were written.
    let parts = unsafe { &*parts.cast_const().cast::<Parts<'_>>() };
    // SAFETY: the engine calls once for each block.
    unsafe { parts.write(block) };
}
