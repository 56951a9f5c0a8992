//! Stats buffers: their possible layouts, the rules for their records, and their records as columns.

pub mod check;
pub mod columns;
pub mod descriptor;
pub mod layout;
pub mod oqstats;
pub mod record;
