//! Trials of small models: whether the engine loads a model, and runs it once.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use ort_sys::{GraphOptimizationLevel, OrtErrorCode, OrtSession, OrtStatusPtr, OrtValue};
use qaic_qpc::plan::Dtype;

use super::graph::Options;
use super::library::{Engine, take_message};
use super::terminator::Terminator;
use super::value::{Shape, Value, c_name, element_type};
use crate::error::{EngineError, ErrorDetail, RuntimeError};
use crate::process::CancellationToken;

/// An input of a trial: one value in all elements.
#[derive(Clone, Debug)]
pub struct TrialInput {
    /// Name in the model.
    pub name: String,
    /// Type in the model.
    pub dtype: Dtype,
    /// Dimensions.
    pub dims: Vec<i64>,
    /// Bytes of an element, in the order of the host.
    pub element: Vec<u8>,
}

/// A model that the engine refuses.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The engine's code: 1 for a failure, 2 for an invalid argument, 9 for a missing kernel, and others.
    pub code: i32,
    /// The engine's reason.
    pub message: String,
}

/// Loads a model without optimization, and runs it once with `inputs` if there are any. The results are dropped.
///
/// Blocking: as long as the load and the run take; `token` ends both.
pub fn try_model(
    engine_candidates: &[PathBuf],
    model: &[u8],
    inputs: Option<&[TrialInput]>,
    outputs: &[String],
    token: &CancellationToken,
) -> Result<Option<Refusal>, RuntimeError> {
    let engine = Engine::get(engine_candidates)?;
    let failed = |message| EngineError::Graph { message };
    let options = Options::new(engine, 1, GraphOptimizationLevel::ORT_DISABLE_ALL).map_err(failed)?;
    let mut session = Session { engine, raw: ptr::null_mut() };
    let created = {
        let _guard = options.cancelled_by(token)?;
        // SAFETY: the bytes are only read during the call; environment and options are live.
        let status = unsafe {
            (engine.api.CreateSessionFromArray)(
                engine.env,
                model.as_ptr().cast::<c_void>(),
                model.len(),
                options.raw,
                &raw mut session.raw,
            )
        };
        refusal(engine, status)
    };
    let outcome = match (created, inputs) {
        (None, Some(inputs)) => session.run(inputs, outputs, token)?,
        (created, _) => created,
    };
    if token.is_cancelled() { Err(ErrorDetail::Interrupted.into()) } else { Ok(outcome) }
}

/// A session of a trial, released on drop.
struct Session {
    engine: &'static Engine,
    raw: *mut OrtSession,
}

impl Session {
    fn run(
        &self,
        inputs: &[TrialInput],
        outputs: &[String],
        token: &CancellationToken,
    ) -> Result<Option<Refusal>, RuntimeError> {
        let failed = |message| EngineError::Graph { message };
        let terminator = Arc::new(Terminator::new(self.engine).map_err(failed)?);
        let names = inputs.iter().map(|input| c_name(&input.name)).collect::<Result<Vec<_>, _>>();
        let output_names = outputs.iter().map(|name| c_name(name)).collect::<Result<Vec<_>, _>>();
        let (names, output_names) = (names.map_err(failed)?, output_names.map_err(failed)?);
        let mut memories = Vec::with_capacity(inputs.len());
        let mut values = Vec::with_capacity(inputs.len());
        for input in inputs {
            let shape = Shape::new(&input.name, input.dtype, &input.dims).map_err(failed)?;
            let mut memory = filled(&input.element, shape.size_bytes);
            // SAFETY: the memory has at least `size_bytes` bytes, is aligned for every type, and lives past the run.
            let value = unsafe {
                Value::new(self.engine, element_type(input.dtype), &shape, memory.as_mut_ptr().cast::<u8>())
            };
            values.push(value.map_err(failed)?);
            memories.push(memory);
        }
        let pointers =
            |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
        let (input_names, output_names) = (pointers(&names), pointers(&output_names));
        let raw_values: Vec<_> = values.iter().map(|value| value.raw.cast_const()).collect();
        let mut results = Results { engine: self.engine, raw: vec![ptr::null_mut(); output_names.len()] };
        let stop = Arc::clone(&terminator);
        let _guard = token.on_cancel(Box::new(move || stop.terminate()))?;
        // SAFETY: session, options, values and names are live during the call, and the arrays have the given lengths.
        let status = unsafe {
            (self.engine.api.Run)(
                self.raw,
                terminator.run_options,
                input_names.as_ptr(),
                raw_values.as_ptr(),
                raw_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                results.raw.as_mut_ptr(),
            )
        };
        Ok(refusal(self.engine, status))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by `try_model`, released once, after its run.
            unsafe { (self.engine.api.ReleaseSession)(self.raw) };
        }
    }
}

/// The results of a run, released on drop.
struct Results {
    engine: &'static Engine,
    raw: Vec<*mut OrtValue>,
}

impl Drop for Results {
    fn drop(&mut self) {
        for &value in self.raw.iter().filter(|value| !value.is_null()) {
            // SAFETY: created by the run, released once.
            unsafe { (self.engine.api.ReleaseValue)(value) };
        }
    }
}

/// Creates memory of at least `size` bytes that repeats an element of 1, 2, 4 or 8 bytes.
fn filled(element: &[u8], size: usize) -> Vec<u64> {
    let mut word = [0; 8];
    for (at, byte) in word.iter_mut().enumerate() {
        *byte = element.get(at % element.len().max(1)).copied().unwrap_or(0);
    }
    vec![u64::from_ne_bytes(word); size.div_ceil(8).max(1)]
}

/// Turns a status into a refusal and releases it.
fn refusal(engine: &'static Engine, status: OrtStatusPtr) -> Option<Refusal> {
    if status.0.is_null() {
        return None;
    }
    // SAFETY: the status is not null and not yet released.
    let code: OrtErrorCode = unsafe { (engine.api.GetErrorCode)(status.0) };
    Some(Refusal { code: code as i32, message: take_message(engine.api, status) })
}
