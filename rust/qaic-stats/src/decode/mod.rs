//! Stats buffers: the layouts that they may have, the rules that their records follow, and their records as columns.

pub mod check;
pub mod columns;
pub mod descriptor;
pub mod layout;
pub mod oqstats;
pub mod record;
