//! Layouts of stats buffers, and which one a buffer has.
//!
//! A layout for real cards can be added without touching anything here: it turns the bytes into the records of a
//! [`StatsModel`], and everything else follows from those.

use std::fmt::Debug;
use std::sync::Arc;

use qaic_qpc::container::Container;

use crate::decode::check;
use crate::decode::descriptor::{Fingerprint, OpsDescriptor, fingerprint};
use crate::decode::oqstats::OqStats;
use crate::error::StatsError;
use crate::model::StatsModel;

/// The program that a buffer is of.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its operations.
    pub descriptor: &'a OpsDescriptor,
    /// Fingerprint of the segment that the descriptor was read from.
    pub fingerprint: Fingerprint,
}

/// The operations of a program, for as long as they are needed.
#[derive(Clone, Debug)]
pub struct ProgramOperations {
    /// The operations.
    pub ops: Arc<OpsDescriptor>,
    /// Fingerprint of the segment that the operations were read from.
    pub fingerprint: Fingerprint,
}

impl ProgramOperations {
    /// Those of a container's program; `None` of a program without statistics.
    pub fn of_container(container: &Container, bytes: &[u8]) -> Result<Option<Self>, StatsError> {
        let found = OpsDescriptor::of_container(container, bytes)?;
        Ok(found.map(|(ops, fingerprint)| Self { ops: Arc::new(ops), fingerprint }))
    }

    /// Reads the JSON of the segment of operations.
    pub fn from_json(json: &[u8]) -> Result<Self, StatsError> {
        Ok(Self { ops: Arc::new(OpsDescriptor::from_json(json)?), fingerprint: fingerprint(json) })
    }

    /// Returns the facts about the operations that a layout needs.
    pub(crate) fn program(&self) -> Program<'_> {
        Program { descriptor: &self.ops, fingerprint: self.fingerprint }
    }
}

/// How sure a layout is that a buffer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// It has not.
    No,
    /// It may have; taken only when it is asked for by name.
    Maybe,
    /// It has.
    Yes,
}

/// How strictly a buffer is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Takes a buffer that another program wrote. Its operations are then not compared with the descriptor.
    pub any_program: bool,
    /// Reads every record to check it. Without that only what is needed to read any of them safely is looked at, in time
    /// that does not depend on how many operations there are.
    pub records: bool,
}

impl Default for DecodeOptions {
    /// Everything is checked.
    fn default() -> Self {
        Self { any_program: false, records: true }
    }
}

/// Turns buffers of one layout into models.
pub trait StatsLayout: Debug + Send + Sync {
    /// Number of the layout, unique in a registry.
    fn id(&self) -> u32;

    /// Name of the layout, unique in a registry.
    fn name(&self) -> &str;

    /// Returns how well a buffer matches this layout.
    fn probe(&self, bytes: &[u8], program: Option<Program<'_>>) -> Match;

    /// Gives a buffer's records, after checking what is special to the layout; rules for the records themselves are
    /// checked by the registry. Never reads outside `bytes`, whatever they are.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes; [`StatsError::Layout`] is for defects that have no variant here.
    fn decode<'a>(
        &self,
        bytes: &'a [u8],
        program: Option<Program<'_>>,
        options: DecodeOptions,
    ) -> Result<StatsModel<'a>, StatsError>;
}

/// The layouts of a reader.
#[derive(Debug)]
pub struct Registry {
    layouts: Vec<Box<dyn StatsLayout>>,
}

impl Default for Registry {
    /// The open layout alone.
    fn default() -> Self {
        Self { layouts: vec![Box::new(OqStats)] }
    }
}

impl Registry {
    /// Adds a layout; one of the same name is replaced.
    pub fn register(&mut self, layout: Box<dyn StatsLayout>) {
        self.layouts.retain(|known| known.name() != layout.name());
        self.layouts.push(layout);
    }

    /// Names of the layouts, in the order they are asked.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layouts.iter().map(|layout| layout.name())
    }

    /// The layout of a buffer: the one called `name`, else the first that is sure.
    ///
    /// # Errors
    ///
    /// [`StatsError::UnknownLayoutName`], [`StatsError::Empty`] and [`StatsError::UnknownLayout`].
    pub(crate) fn layout(
        &self,
        bytes: &[u8],
        program: Option<Program<'_>>,
        name: Option<&str>,
    ) -> Result<&dyn StatsLayout, StatsError> {
        let mut layouts = self.layouts.iter().map(Box::as_ref);
        if let Some(name) = name {
            return layouts.find(|layout| layout.name() == name).ok_or_else(|| {
                StatsError::UnknownLayoutName {
                    name: name.to_owned(),
                    known: self.names().map(str::to_owned).collect(),
                }
            });
        }
        layouts
            .find(|layout| layout.probe(bytes, program) == Match::Yes)
            .ok_or_else(|| unknown(bytes, program))
    }

    /// The records of a buffer, in the layout called `name`, else in the one that is sure of it.
    ///
    /// # Errors
    ///
    /// The first defect in the order of the checks.
    pub fn decode<'a>(
        &self,
        bytes: &'a [u8],
        program: Option<Program<'_>>,
        name: Option<&str>,
        options: DecodeOptions,
    ) -> Result<StatsModel<'a>, StatsError> {
        let mut model = self.layout(bytes, program, name)?.decode(bytes, program, options)?;
        check::structure(&model)?;
        if options.records {
            let descriptor = program.filter(|_| !options.any_program).map(|program| program.descriptor);
            let warnings = check::records(&model, descriptor)?;
            model.warnings.extend(warnings);
        }
        Ok(model)
    }
}

/// Why no layout is sure of a buffer.
pub(crate) fn unknown(bytes: &[u8], program: Option<Program<'_>>) -> StatsError {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if bytes.iter().all(|byte| *byte == 0) {
        return StatsError::Empty { bytes: size };
    }
    let descriptor = program.map(|program| program.descriptor);
    StatsError::UnknownLayout {
        bytes: size,
        level: descriptor.map_or(0, |descriptor| descriptor.stats_level),
        cores: descriptor.map_or(0, |descriptor| descriptor.cores.len()),
        threads: descriptor.map_or(0, |descriptor| descriptor.thread_groups.len()),
        ops: descriptor
            .map_or_else(Vec::new, |descriptor| descriptor.cores.iter().map(|core| core.ops.len()).collect()),
    }
}
