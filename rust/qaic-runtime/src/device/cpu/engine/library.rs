//! Loads ONNX Runtime: one shared library, one environment, one table of C functions per process.
//!
//! The library is the one inside the installed `onnxruntime` package; the caller finds it (without importing it) and
//! passes the places to look at. `ort-sys` contributes the types of the function table and nothing else
//! (docs/adr/0003).

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;
use ort_sys::{
    ORT_API_VERSION, OrtAllocatorType, OrtApi, OrtApiBase, OrtEnv, OrtLoggingLevel, OrtMemType,
    OrtMemoryInfo, OrtRunOptions, OrtStatusPtr,
};

use crate::error::{EngineError, ErrorDetail, RuntimeError};
use crate::process::fork::ForkLocal;

/// The oldest onnxruntime whose function table has what we call.
pub(crate) const MINIMUM_VERSION: &str = "1.22";

/// The loaded library. It is never unloaded: worker threads of the engine may outlive every session.
#[derive(Debug)]
pub struct Engine {
    api: &'static OrtApi,
    env: *mut OrtEnv,
    host_memory: *mut OrtMemoryInfo,
    run_profiling: Option<RunProfiling>,
    path: PathBuf,
    version: String,
}

/// The functions that have the engine write a profile of single runs. They are the first that version 25 of the table has
/// and version 24 has not, so they lie behind the part that is typed here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::device::cpu) struct RunProfiling {
    /// Has the runs with these options write to files whose names begin so.
    pub(super) enable: unsafe extern "system" fn(*mut OrtRunOptions, *const c_char) -> OrtStatusPtr,
    /// Ends that.
    pub(super) disable: unsafe extern "system" fn(*mut OrtRunOptions) -> OrtStatusPtr,
}

/// Version 1.n of the engine has versions of the table up to n.
fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

/// The first version of the table that has [`RunProfiling`].
const RUN_PROFILING_VERSION: u32 = 25;
/// How many functions version 24 of the table has, which is the place of the first of [`RunProfiling`].
const RUN_PROFILING_PLACE: usize = 415;
// The table that is typed here is that of the oldest engine: the whole of version 22, and nothing newer.
const _: () = assert!(ORT_API_VERSION == 22 && size_of::<OrtApi>() == 318 * size_of::<usize>());

// SAFETY: ONNX Runtime documents its environment, memory-info and function table as usable from any thread;
// all are created once, never changed and never released.
unsafe impl Send for Engine {}
// SAFETY: as for `Send`.
unsafe impl Sync for Engine {}

/// A child of a process that is just loading the library loads it itself; for any other, that gives the parent's.
static ENGINE: ForkLocal<Option<&'static Engine>> = ForkLocal::new();

impl Engine {
    /// The engine of this process, loaded on first use from the first existing of `candidates`.
    ///
    /// Blocking: the first call maps the library (tens of milliseconds). A failure is not remembered, so a call
    /// with better candidates can succeed.
    pub fn get(candidates: &[PathBuf]) -> Result<&'static Self, RuntimeError> {
        ENGINE.with(|slot| {
            if let Some(engine) = *slot {
                return Ok(engine);
            }
            let Some(path) = candidates.iter().find(|path| path.is_file()) else {
                return Err(EngineError::Missing {
                    looked_at: candidates.iter().map(|path| path.display().to_string()).collect(),
                }
                .into());
            };
            let engine: &'static Self = Box::leak(Box::new(Self::load(path)?));
            *slot = Some(engine);
            Ok(engine)
        })
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version the library reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub(super) fn api(&self) -> &'static OrtApi {
        self.api
    }

    /// `None` of an engine before 1.25.
    pub(in crate::device::cpu) fn run_profiling(&self) -> Option<RunProfiling> {
        self.run_profiling
    }

    pub(super) fn env(&self) -> *mut OrtEnv {
        self.env
    }

    pub(super) fn host_memory(&self) -> *mut OrtMemoryInfo {
        self.host_memory
    }

    fn load(path: &Path) -> Result<Self, RuntimeError> {
        let unusable = |found: &str, reason: String| {
            ErrorDetail::Engine(EngineError::Unusable {
                path: path.to_owned(),
                found: found.to_owned(),
                reason,
            })
        };
        // SAFETY: loading runs the library's initializers; the path is that of an onnxruntime package or one the
        // user named in QAIC_ONNXRUNTIME_LIB.
        let library = unsafe { Library::new(path) }.map_err(|error| unusable("", error.to_string()))?;
        // SAFETY: the symbol has had this type since the first release of the C interface.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0") };
        let entry = *entry.map_err(|_| {
            unusable("", "it does not export OrtGetApiBase, so it is not onnxruntime".to_owned())
        })?;
        // Never unloaded: see the type's documentation.
        std::mem::forget(library);

        // SAFETY: takes no arguments and returns a static table.
        let base = unsafe { entry() };
        // SAFETY: the library returns a valid static table or null.
        let base =
            unsafe { base.as_ref() }.ok_or_else(|| unusable("", "it has no C interface".to_owned()))?;
        // SAFETY: returns a static NUL-terminated text.
        let version = unsafe { (base.GetVersionString)() };
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr(version) }.to_string_lossy().into_owned();
        // SAFETY: any version number may be asked for; unknown ones give null.
        let api = unsafe { (base.GetApi)(ORT_API_VERSION) };
        // SAFETY: null or a valid static table of the version asked for.
        let api: &'static OrtApi = unsafe { api.as_ref() }.ok_or_else(|| {
            unusable(&version, format!("version {version} is too old, {MINIMUM_VERSION} or newer is needed"))
        })?;

        // An engine that is asked for a version it does not have complains on the standard error.
        let is_newer = minor_version(&version).is_some_and(|minor| minor >= RUN_PROFILING_VERSION);
        let newer = if is_newer {
            // SAFETY: as above.
            unsafe { (base.GetApi)(RUN_PROFILING_VERSION) }
        } else {
            ptr::null()
        };
        let run_profiling = (!newer.is_null()).then(|| {
            // SAFETY: tables only ever grow at their ends, so one of this version has all functions of the versions before.
            let functions = unsafe { newer.cast::<usize>().add(RUN_PROFILING_PLACE) };
            // SAFETY: behind them are two functions of these types.
            unsafe { functions.cast::<RunProfiling>().read() }
        });

        let mut env = ptr::null_mut();
        // SAFETY: the logging function is a plain function without state, the id is NUL-terminated, `env` is writable.
        let status = unsafe {
            (api.CreateEnvWithCustomLogger)(
                discard_log,
                ptr::null_mut(),
                OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL,
                c"openqaic".as_ptr(),
                &raw mut env,
            )
        };
        check(api, status).map_err(|message| unusable(&version, message))?;
        // SAFETY: `env` was just created.
        let status = unsafe { (api.DisableTelemetryEvents)(env) };
        check(api, status).map_err(|message| unusable(&version, message))?;

        let mut host_memory = ptr::null_mut();
        // SAFETY: `host_memory` is writable.
        let status = unsafe {
            (api.CreateCpuMemoryInfo)(
                OrtAllocatorType::OrtArenaAllocator,
                OrtMemType::OrtMemTypeDefault,
                &raw mut host_memory,
            )
        };
        check(api, status).map_err(|message| unusable(&version, message))?;
        Ok(Self { api, env, host_memory, run_profiling, path: path.to_owned(), version })
    }
}

/// Everything the engine has to say reaches callers through status values.
unsafe extern "system" fn discard_log(
    _: *mut c_void,
    _: OrtLoggingLevel,
    _: *const c_char,
    _: *const c_char,
    _: *const c_char,
    _: *const c_char,
) {
}

/// Turns a status into the engine's message and releases it.
#[inline]
pub(super) fn check(api: &OrtApi, status: OrtStatusPtr) -> Result<(), String> {
    if status.0.is_null() { Ok(()) } else { Err(take_message(api, status)) }
}

#[cold]
fn take_message(api: &OrtApi, status: OrtStatusPtr) -> String {
    // SAFETY: the status is not null and not yet released; the text lives as long as it.
    let text = unsafe { (api.GetErrorMessage)(status.0) };
    // SAFETY: NUL-terminated, copied before the release below.
    let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: released once.
    unsafe { (api.ReleaseStatus)(status.0) };
    message
}
