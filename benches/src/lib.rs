//! Benchmarks of the openqaic crates. The crate itself is empty; see `benches/README.md`.
