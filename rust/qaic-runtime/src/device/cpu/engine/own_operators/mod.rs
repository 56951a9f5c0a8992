//! The operators that the device adds to the engine, in the domain [`DOMAIN`].

mod attended_rows;
mod call;
mod elementwise;
mod stored_weights;

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use ort_sys::{
    ONNXTensorElementDataType, ORT_API_VERSION, OrtApi, OrtCustomOp, OrtCustomOpDomain,
    OrtCustomOpInputOutputCharacteristic, OrtErrorCode, OrtKernelContext, OrtKernelInfo, OrtMemType,
    OrtStatusPtr,
};
use qaic_mem::stored::Rounding;

use self::call::Call;
use self::elementwise::ElementwiseKernel;
use self::stored_weights::{ExpertsKernel, GatherKernel, ProductKernel};
use super::library::check;

pub(super) use stored_weights::StoredWeights;

/// Domain of the operators.
const DOMAIN: &CStr = c"com.openqaic";

/// Names of the operators, as plans list them.
pub(super) const NAMES: &[&str] =
    &["AttendedRows", "Elementwise", "StoredMatMul", "StoredExperts", "StoredGather"];

const FLOAT: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
const FLOAT16: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
const UINT8: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
const INT64: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
const BOOL: ONNXTensorElementDataType = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;

/// Signature of an operator for the engine. Every operator has one float32 result.
#[derive(Debug)]
struct Signature {
    name: &'static CStr,
    inputs: &'static [ONNXTensorElementDataType],
    /// Characteristic of the last input; the inputs before it are required.
    last: OrtCustomOpInputOutputCharacteristic,
    create: fn(&StoredWeights, &Attributes) -> Result<Kernel, String>,
}

/// Signatures of the operators. Variants of one name differ in the types of their inputs.
static SIGNATURES: [Signature; 7] = [
    attended_rows(&[FLOAT, INT64, INT64, FLOAT, BOOL]),
    attended_rows(&[FLOAT16, INT64, INT64, FLOAT, BOOL]),
    attended_rows(&[UINT8, INT64, INT64, FLOAT, BOOL]),
    Signature {
        name: c"Elementwise",
        inputs: &[FLOAT],
        last: OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_VARIADIC,
        create: |_, attributes| ElementwiseKernel::new(attributes).map(Kernel::Elementwise),
    },
    Signature {
        name: c"StoredMatMul",
        inputs: &[FLOAT, FLOAT],
        last: OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_OPTIONAL,
        create: |stored, attributes| ProductKernel::new(stored, attributes).map(Kernel::Product),
    },
    Signature {
        name: c"StoredExperts",
        inputs: &[FLOAT, INT64],
        last: OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED,
        create: |stored, attributes| ExpertsKernel::new(stored, attributes).map(Kernel::Experts),
    },
    Signature {
        name: c"StoredGather",
        inputs: &[INT64],
        last: OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED,
        create: |stored, attributes| GatherKernel::new(stored, attributes).map(Kernel::Gather),
    },
];

const fn attended_rows(inputs: &'static [ONNXTensorElementDataType]) -> Signature {
    // Older programs do not have this attribute.
    let create = |_: &StoredWeights, attributes: &Attributes| {
        Ok(Kernel::AttendedRows { is_rounded: attributes.number(c"rounding").is_ok_and(|to| to == 10) })
    };
    let last = OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_OPTIONAL;
    Signature { name: c"AttendedRows", inputs, last, create }
}

/// The kernel of one node.
#[derive(Debug)]
enum Kernel {
    AttendedRows { is_rounded: bool },
    Elementwise(ElementwiseKernel),
    Product(ProductKernel),
    Experts(ExpertsKernel),
    Gather(GatherKernel),
}

/// A kernel and its functions. The engine holds its address.
#[derive(Debug)]
struct NodeKernel {
    api: &'static OrtApi,
    name: &'static CStr,
    kernel: Kernel,
}

/// An operator of one program. The engine uses its first member.
#[repr(C)]
struct OwnOperator {
    callbacks: OrtCustomOp,
    signature: &'static Signature,
    stored: Arc<StoredWeights>,
}

/// The operators of one program. Its session uses them as long as it exists.
pub(super) struct Domain {
    api: &'static OrtApi,
    pub(super) raw: *mut OrtCustomOpDomain,
    operators: Box<[OwnOperator]>,
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Domain").field(&DOMAIN).finish()
    }
}

impl Domain {
    /// Creates the operators, with the weights that their nodes reference.
    pub(super) fn new(api: &'static OrtApi, stored: &Arc<StoredWeights>) -> Result<Self, String> {
        let operators: Box<[_]> =
            SIGNATURES.iter().map(|signature| OwnOperator::new(signature, stored)).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the name is NUL-terminated, `raw` is writable.
        let status = unsafe { (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), &raw mut raw) };
        check(api, status)?;
        let domain = Self { api, raw, operators };
        for operator in &domain.operators {
            // SAFETY: the domain is live, and owns the operator in a box as long as it exists.
            let status = unsafe { (api.CustomOpDomain_Add)(domain.raw, &raw const operator.callbacks) };
            check(api, status)?;
        }
        Ok(domain)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: created by `Domain::new`, released once, after the session that uses it.
        unsafe { (self.api.ReleaseCustomOpDomain)(self.raw) };
    }
}

impl OwnOperator {
    fn new(signature: &'static Signature, stored: &Arc<StoredWeights>) -> Self {
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
        Self { callbacks, signature, stored: Arc::clone(stored) }
    }

    /// # Safety
    ///
    /// `operator` is the pointer that [`Domain::new`] passed to the engine.
    unsafe fn of<'a>(operator: *const OrtCustomOp) -> &'a Self {
        // SAFETY: it is the first member of an operator of this layout, which outlives the session.
        unsafe { &*operator.cast::<Self>() }
    }
}

unsafe extern "system" fn name(operator: *const OrtCustomOp) -> *const c_char {
    // SAFETY: the engine passes back the pointer that it was given.
    unsafe { OwnOperator::of(operator) }.signature.name.as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn input_count(operator: *const OrtCustomOp) -> usize {
    // SAFETY: as in `name`.
    unsafe { OwnOperator::of(operator) }.signature.inputs.len()
}

unsafe extern "system" fn output_count(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn input_type(
    operator: *const OrtCustomOp,
    index: usize,
) -> ONNXTensorElementDataType {
    // SAFETY: as in `name`.
    let inputs = unsafe { OwnOperator::of(operator) }.signature.inputs;
    inputs.get(index).copied().unwrap_or(FLOAT)
}

unsafe extern "system" fn output_type(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    FLOAT
}

unsafe extern "system" fn input_characteristic(
    operator: *const OrtCustomOp,
    index: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    // SAFETY: as in `name`.
    let signature = unsafe { OwnOperator::of(operator) }.signature;
    if index + 1 == signature.inputs.len() {
        signature.last
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

unsafe extern "system" fn create(
    operator: *const OrtCustomOp,
    api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: as in `name`.
    let operator = unsafe { OwnOperator::of(operator) };
    // SAFETY: the engine passes its table of functions, which is static.
    let api: &'static OrtApi = unsafe { &*api };
    let name = operator.signature.name;
    match guarded(|| (operator.signature.create)(&operator.stored, &Attributes { api, info })) {
        Ok(made) => {
            let made = Box::new(NodeKernel { api, name, kernel: made });
            // SAFETY: the engine passes a place for the result.
            unsafe { kernel.write(Box::into_raw(made).cast()) };
            OrtStatusPtr::default()
        }
        Err(message) => failure(api, name, &message),
    }
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: `create` made the kernel, and the engine destroys it once.
    drop(unsafe { Box::from_raw(kernel.cast::<NodeKernel>()) });
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: `create` made the kernel, which is not changed until it is destroyed.
    let node: &NodeKernel = unsafe { &*kernel.cast_const().cast() };
    let call = Call { api: node.api, context };
    let done = guarded(|| match &node.kernel {
        Kernel::AttendedRows { is_rounded } => attended_rows::run(call, *is_rounded),
        Kernel::Elementwise(elementwise) => elementwise.run(call),
        Kernel::Product(product) => product.run(call),
        Kernel::Experts(experts) => experts.run(call),
        Kernel::Gather(gather) => gather.run(call),
    });
    match done {
        Ok(()) => OrtStatusPtr::default(),
        Err(message) => failure(node.api, node.name, &message),
    }
}

/// Turns a panic in `work` into a failure: a panic that reaches the engine ends the process.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of openqaic: {}", text.unwrap_or("a panic without a text"))
}

fn failure(api: &OrtApi, name: &CStr, message: &str) -> OrtStatusPtr {
    let mut text = format!("{}: {message}", name.to_string_lossy()).into_bytes();
    text.retain(|&byte| byte != 0);
    text.push(0);
    // SAFETY: the text is NUL-terminated and copied.
    unsafe { (api.CreateStatus)(OrtErrorCode::ORT_INVALID_ARGUMENT, text.as_ptr().cast()) }
}

/// The attributes of a node whose kernel is being created.
struct Attributes {
    api: &'static OrtApi,
    info: *const OrtKernelInfo,
}

impl Attributes {
    /// Returns a text attribute; fails if it is missing.
    fn text(&self, name: &CStr) -> Result<String, String> {
        let mut len = 0;
        // SAFETY: the node is live during the call, the name NUL-terminated; without room only the length is written.
        let status = unsafe {
            (self.api.KernelInfoGetAttribute_string)(self.info, name.as_ptr(), ptr::null_mut(), &raw mut len)
        };
        check(self.api, status)?;
        let mut text = vec![0_u8; len];
        // SAFETY: as above, and there is room for `len` bytes.
        let status = unsafe {
            (self.api.KernelInfoGetAttribute_string)(
                self.info,
                name.as_ptr(),
                text.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        check(self.api, status)?;
        text.pop_if(|last| *last == 0);
        String::from_utf8(text).map_err(|error| error.to_string())
    }

    /// Returns a number attribute; fails if it is missing.
    fn number(&self, name: &CStr) -> Result<i64, String> {
        let mut number = 0;
        // SAFETY: the node is live during the call, the name NUL-terminated, `number` writable.
        let status =
            unsafe { (self.api.KernelInfoGetAttribute_int64)(self.info, name.as_ptr(), &raw mut number) };
        check(self.api, status)?;
        Ok(number)
    }

    /// Returns the format to which results are rounded.
    fn rounding(&self) -> Result<Rounding, String> {
        match self.number(c"rounding")? {
            1 => Ok(Rounding::Float32),
            10 => Ok(Rounding::Float16),
            16 => Ok(Rounding::Bfloat16),
            other => Err(format!("results rounded to type {other}; 1, 10 or 16 is expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_a_kernel_is_a_failure_with_its_text() {
        assert_eq!(guarded(|| Ok(7)), Ok(7));
        assert_eq!(guarded(|| Err::<(), _>("wrong".to_owned())), Err("wrong".to_owned()));
        let failure = |work: fn() -> Result<(), String>| guarded(work).err();
        assert_eq!(failure(|| panic!("fixed")).as_deref(), Some("a defect of openqaic: fixed"));
        assert_eq!(failure(|| panic!("of {}", 2)).as_deref(), Some("a defect of openqaic: of 2"));
        let other = failure(|| std::panic::panic_any(3));
        assert_eq!(other.as_deref(), Some("a defect of openqaic: a panic without a text"));
    }
}
