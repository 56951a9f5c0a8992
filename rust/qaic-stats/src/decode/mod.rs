//! Stats buffers: their possible layouts, the rules for their records, and their records as columns.

pub(crate) mod check;
pub(crate) mod columns;
pub mod descriptor;
pub(crate) mod layout;
pub mod oqstats;
pub(crate) mod record;

pub use columns::columns;
pub use layout::{DecodeOptions, ProgramOperations, decode};
pub use record::{
    Core, CoreFlags, EngineKind, Field, Kind, Op, OpFlags, OpKindFlags, OpPmu, Pmu, PmuEvents, Port, Record,
    Records, Ring, Thread, ThreadFlags,
};
