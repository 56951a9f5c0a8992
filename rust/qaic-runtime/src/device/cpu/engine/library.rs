//! Loads ONNX Runtime: one shared library, one environment, one table of C functions per process.
//!
//! The library is part of the installed `onnxruntime` package. The caller finds the package without importing it, and
//! passes the possible paths. `ort-sys` contributes only the types of the function table (docs/adr/0003).

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

/// Oldest onnxruntime version whose function table has all called functions.
pub(crate) const MINIMUM_VERSION: &str = "1.22";

/// The loaded library. It is never unloaded: worker threads of the engine may outlive every session.
#[derive(Debug)]
pub struct Engine {
    pub(super) api: &'static OrtApi,
    pub(super) env: *mut OrtEnv,
    pub(super) host_memory: *mut OrtMemoryInfo,
    run_profiling: Option<RunProfiling>,
    /// Path of the library.
    pub path: PathBuf,
    /// Version that the library reports.
    pub version: String,
}

/// The functions that make the engine write a profile of single runs. They are the first functions that version 25 of
/// the table adds to version 24, so they follow the part whose type is known here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::device::cpu) struct RunProfiling {
    /// Makes runs with these options write profiles to files with this name prefix.
    pub(super) enable: unsafe extern "system" fn(*mut OrtRunOptions, *const c_char) -> OrtStatusPtr,
    /// Ends the profiling of runs with these options.
    pub(super) disable: unsafe extern "system" fn(*mut OrtRunOptions) -> OrtStatusPtr,
}

/// Returns the minor version: engine version 1.n provides versions of the table up to n.
fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("1.")?.split('.').next()?.parse().ok()
}

/// The first version of the table that has [`RunProfiling`].
const RUN_PROFILING_VERSION: u32 = 25;
/// Number of functions in version 24 of the table, which is the index of the first function of [`RunProfiling`].
const RUN_PROFILING_PLACE: usize = 415;
// The function table is that of the oldest supported engine: exactly version 22.
const _: () = assert!(ORT_API_VERSION == 22 && size_of::<OrtApi>() == 318 * size_of::<usize>());

// SAFETY: ONNX Runtime documents its environment, memory-info and function table as usable from any thread;
// all are created once, never changed and never released.
unsafe impl Send for Engine {}
// SAFETY: as for `Send`.
unsafe impl Sync for Engine {}

/// The loaded engine. A child forked while the library is being loaded loads it itself; any other child reuses the
/// parent's library.
static ENGINE: ForkLocal<Option<&'static Engine>> = ForkLocal::new();

impl Engine {
    /// Returns the engine of this process, which is loaded on first use from the first existing path of `candidates`.
    ///
    /// Blocking: the first call maps the library (tens of milliseconds). Failures are not cached, so a call with
    /// better candidates can succeed.
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

    /// Returns the profiling functions; `None` for an engine before 1.25.
    pub(in crate::device::cpu) fn run_profiling(&self) -> Option<RunProfiling> {
        self.run_profiling
    }

    fn load(path: &Path) -> Result<Self, RuntimeError> {
        let unusable = |found: &str, reason: String| {
            ErrorDetail::Engine(EngineError::Unusable {
                path: path.to_owned(),
                found: found.to_owned(),
                reason,
            })
        };
        // SAFETY: loading runs the library's initializers; the path is that of an onnxruntime package or one
        // that the user named in QAIC_ONNXRUNTIME_LIB.
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
        // SAFETY: any version number may be requested; unknown numbers return null.
        let api = unsafe { (base.GetApi)(ORT_API_VERSION) };
        // SAFETY: null or a valid static table of the requested version.
        let api: &'static OrtApi = unsafe { api.as_ref() }.ok_or_else(|| {
            unusable(&version, format!("version {version} is too old; expected {MINIMUM_VERSION} or newer"))
        })?;

        // An engine prints an error on standard error if it does not have the requested version.
        let is_newer = minor_version(&version).is_some_and(|minor| minor >= RUN_PROFILING_VERSION);
        let newer = if is_newer {
            // SAFETY: as above.
            unsafe { (base.GetApi)(RUN_PROFILING_VERSION) }
        } else {
            ptr::null()
        };
        let run_profiling = (!newer.is_null()).then(|| {
            // SAFETY: tables grow only at their ends, so a table of this version has all functions of earlier
            // versions.
            let functions = unsafe { newer.cast::<usize>().add(RUN_PROFILING_PLACE) };
            // SAFETY: two functions of these types follow.
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

/// Discards the engine's log lines, because errors reach callers through status values.
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
pub(super) fn take_message(api: &OrtApi, status: OrtStatusPtr) -> String {
    // SAFETY: the status is not null and not yet released; the text lives as long as it.
    let text = unsafe { (api.GetErrorMessage)(status.0) };
    // SAFETY: NUL-terminated, copied before the release below.
    let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: released once.
    unsafe { (api.ReleaseStatus)(status.0) };
    message
}
