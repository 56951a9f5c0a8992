//! Calls of the engine without the `cpu` device, for comparison with the cost of the device.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;
use ort_sys::{
    ONNXTensorElementDataType, ORT_API_VERSION, OrtAllocatorType, OrtApi, OrtApiBase, OrtIoBinding,
    OrtLoggingLevel, OrtMemType, OrtSession, OrtStatusPtr, OrtValue,
};
use qaic_benches::containers::{ELEMENTS, TENSOR_BYTES, add_model};

const NAMES: [&CStr; 3] = [c"x0", c"x1", c"y"];

/// `y = x0 + x1` over memory that is bound once. Exists until the process ends, like the library.
pub(crate) struct BareAdd {
    api: &'static OrtApi,
    session: *mut OrtSession,
    binding: *mut OrtIoBinding,
}

impl BareAdd {
    /// A session of one thread in the library at `path`.
    pub(crate) fn new(path: &Path) -> Self {
        // SAFETY: the user names the engine's library; its initializers may run.
        let library = unsafe { Library::new(path) }.unwrap();
        // SAFETY: the symbol has had this type since the first release of the C interface.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0") };
        let entry = *entry.unwrap();
        std::mem::forget(library);
        // SAFETY: takes no arguments.
        let base = unsafe { entry() };
        // SAFETY: a static table or null.
        let base = unsafe { base.as_ref() }.unwrap();
        // SAFETY: any version may be requested; an unknown one returns null.
        let api = unsafe { (base.GetApi)(ORT_API_VERSION) };
        // SAFETY: null or the static table of that version.
        let api: &'static OrtApi = unsafe { api.as_ref() }.unwrap();

        let (mut env, mut options, mut memory) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut session, mut binding) = (ptr::null_mut(), ptr::null_mut());
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL;
        // SAFETY: texts are NUL-terminated, results are writable.
        ok(api, unsafe { (api.CreateEnv)(level, c"bench".as_ptr(), &raw mut env) });
        // SAFETY: as above.
        ok(api, unsafe { (api.CreateSessionOptions)(&raw mut options) });
        // SAFETY: the options are live.
        ok(api, unsafe { (api.SetIntraOpNumThreads)(options, 1) });
        let model = add_model();
        let bytes = model.as_ptr().cast::<c_void>();
        // SAFETY: the model is read during the call only.
        ok(api, unsafe { (api.CreateSessionFromArray)(env, bytes, model.len(), options, &raw mut session) });
        let (allocator, kind) = (OrtAllocatorType::OrtArenaAllocator, OrtMemType::OrtMemTypeDefault);
        // SAFETY: results are writable.
        ok(api, unsafe { (api.CreateCpuMemoryInfo)(allocator, kind, &raw mut memory) });
        // SAFETY: the session is live and never released.
        ok(api, unsafe { (api.CreateIoBinding)(session, &raw mut binding) });
        for (index, name) in NAMES.into_iter().enumerate() {
            let data = Box::leak(Box::new([1_f32; ELEMENTS])).as_mut_ptr().cast::<c_void>();
            let dims = [1_i64, 16];
            let element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
            let mut value: *mut OrtValue = ptr::null_mut();
            // SAFETY: dims describe exactly the leaked memory.
            ok(api, unsafe {
                (api.CreateTensorWithDataAsOrtValue)(
                    memory,
                    data,
                    TENSOR_BYTES,
                    dims.as_ptr(),
                    dims.len(),
                    element,
                    &raw mut value,
                )
            });
            let bind = if index < 2 { api.BindInput } else { api.BindOutput };
            // SAFETY: binding and value are live.
            ok(api, unsafe { bind(binding, name.as_ptr(), value) });
        }
        Self { api, session, binding }
    }

    /// One inference.
    pub(crate) fn run(&mut self) {
        // SAFETY: session and binding are live; no run options are needed.
        ok(self.api, unsafe { (self.api.RunWithBinding)(self.session, ptr::null(), self.binding) });
    }
}

#[track_caller]
fn ok(api: &OrtApi, status: OrtStatusPtr) {
    if status.0.is_null() {
        return;
    }
    // SAFETY: the status is not null and never released, so its text stays.
    let text = unsafe { (api.GetErrorMessage)(status.0) };
    // SAFETY: NUL-terminated.
    let text = unsafe { CStr::from_ptr(text) };
    panic!("the engine refused: {}", text.to_string_lossy());
}
