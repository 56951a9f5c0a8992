//! Code that the benchmarks of the openqaic crates share; see `benches/README.md`.

pub mod containers;
pub mod stats_buffers;
