//! Transfers of tensors to the buffers of a program and back.

#[cfg(feature = "cpu")]
mod cpu_plan;
mod dma;
mod random_programs;
mod recorded_runs;
mod shape_variants;
mod transfer_plan;
