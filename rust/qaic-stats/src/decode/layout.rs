//! Decoding of a stats buffer: its layout, its program, and the strictness of the checks.
//!
//! Layouts other than the open one are registered in Python, which passes their records to this module.

use std::sync::Arc;

use qaic_qpc::Container;

use crate::decode::check;
use crate::decode::descriptor::{Fingerprint, OpsDescriptor, fingerprint};
use crate::decode::oqstats::{self, MAGIC};
use crate::error::StatsError;
use crate::model::StatsModel;

/// The operations of a buffer's program.
#[derive(Clone, Debug)]
pub struct ProgramOperations {
    /// The operations.
    pub ops: Arc<OpsDescriptor>,
    /// Fingerprint of the segment that the operations were read from.
    pub fingerprint: Fingerprint,
}

impl ProgramOperations {
    /// Returns the operations of a container's program; `None` for a program without statistics.
    pub fn of_container(container: &Container, bytes: &[u8]) -> Result<Option<Self>, StatsError> {
        let found = OpsDescriptor::of_container(container, bytes)?;
        Ok(found.map(|(ops, fingerprint)| Self { ops: Arc::new(ops), fingerprint }))
    }

    /// Decodes the JSON of the segment with operations.
    pub fn from_json(json: &[u8]) -> Result<Self, StatsError> {
        Ok(Self { ops: Arc::new(OpsDescriptor::from_json(json)?), fingerprint: fingerprint(json) })
    }
}

/// Strictness of the checks of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// True to accept a buffer of another program. Its operations are then not compared with the descriptor.
    pub any_program: bool,
    /// True to read and check every record. Otherwise, only the checks that make reading safe are done, in time that
    /// does not depend on the number of operations.
    pub records: bool,
}

impl Default for DecodeOptions {
    /// Enables all checks.
    fn default() -> Self {
        Self { any_program: false, records: true }
    }
}

/// Decodes the records of a buffer in the layout `name`, or in the layout of its first bytes.
///
/// # Errors
///
/// The first defect in the order of the checks.
pub fn decode<'a>(
    bytes: &'a [u8],
    program: Option<&ProgramOperations>,
    name: Option<&str>,
    options: DecodeOptions,
) -> Result<StatsModel<'a>, StatsError> {
    match name {
        Some(name) if name != oqstats::NAME => {
            let (name, known) = (name.to_owned(), vec![oqstats::NAME.to_owned()]);
            return Err(StatsError::UnknownLayoutName { name, known });
        }
        None if !bytes.starts_with(&MAGIC) => return Err(unknown(bytes, program)),
        _ => {}
    }
    let mut model = oqstats::decode(bytes, program, options)?;
    check::structure(&model)?;
    if options.records {
        let program = program.filter(|_| !options.any_program);
        let warnings = check::records(&model, program.map(|program| &*program.ops))?;
        model.warnings.extend(warnings);
    }
    Ok(model)
}

/// Returns the error for a buffer of unknown layout.
fn unknown(bytes: &[u8], program: Option<&ProgramOperations>) -> StatsError {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if bytes.iter().all(|byte| *byte == 0) {
        return StatsError::Empty { bytes: size };
    }
    let ops = program.map_or_else(Arc::default, |program| Arc::clone(&program.ops));
    StatsError::UnknownLayout {
        bytes: size,
        level: ops.stats_level,
        cores: ops.cores.len(),
        threads: ops.thread_groups.len(),
        ops: ops.cores.iter().map(|core| core.ops.len()).collect(),
    }
}
