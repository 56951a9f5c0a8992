//! An exec object of a set, on loan.

use std::ops::Deref;
use std::sync::Arc;

use qaic_mem::{HostSlice, HostSliceMut, Lender};
use qaic_qpc::counted;

use super::{HandleId, InferenceSet};
use crate::binding::Bindings;
use crate::error::RuntimeError;
use crate::process::{WaitScope, log};
use crate::request::ExecObj;

/// A leased exec object; dropping the lease ends the inference and returns the exec object to the set.
#[derive(Debug)]
pub struct Lease<'a> {
    pub(super) set: &'a InferenceSet,
    /// Handle of the leased exec object.
    pub(crate) handle: HandleId,
    pub(super) exec: &'a Arc<ExecObj>,
}

impl Lease<'_> {
    /// Lends tensors in binding order and runs one inference on them. An output that is `None` is not delivered. All
    /// inputs have the program's first combination of shapes.
    ///
    /// Blocking: as [`ExecObj::run`].
    pub fn run(
        &self,
        lender: &mut Lender,
        inputs: &[HostSlice<'_>],
        outputs: &mut [Option<HostSliceMut<'_>>],
        scope: &mut WaitScope<'_>,
    ) -> Result<(), RuntimeError> {
        let outputs = outputs.iter_mut().map(|memory| memory.as_mut().map(HostSliceMut::reborrow));
        lender.scope(|loan| {
            self.bind(|bindings| {
                let expected = (bindings.inputs.len(), bindings.outputs.len());
                if (inputs.len(), outputs.len()) != expected {
                    return Err(RuntimeError::argument(format!(
                        "found {} and {}, expected {} and {}",
                        counted(inputs.len(), "input"),
                        counted(outputs.len(), "output"),
                        expected.0,
                        expected.1
                    )));
                }
                bindings.lend(loan, 0, inputs.iter().copied().map(Some), outputs);
                Ok(())
            })??;
            let outcome = self.exec.run(scope);
            // The inference has ended, so the memory can be returned.
            self.bind(Bindings::clear)?;
            outcome
        })
    }
}

impl Deref for Lease<'_> {
    type Target = ExecObj;

    fn deref(&self) -> &ExecObj {
        self.exec
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // The bound memory may be freed after this call, so no inference may use it or stay bound to it.
        self.exec.end();
        match self.exec.bind(Bindings::clear) {
            Ok(()) => {
                // The handle is acquired, so it can be put back.
                let _ = self.set.put_completed(self.handle);
            }
            // The exec object is not reused, because its memory may be freed.
            Err(error) => log::global().warn(|| format!("cannot return an exec object to its set: {error}")),
        }
    }
}
