//! Cost of an inference: allocations, locks and atomic read-modify-writes.

mod allocations;
#[cfg(feature = "cpu")]
#[path = "../../../../../benches/src/containers.rs"]
#[allow(dead_code, unreachable_pub)] // the benchmarks use the rest, from another crate
mod containers;
mod counting;
mod counting_kernel;
#[cfg(feature = "cpu")]
mod decoder;
mod operations;

/// Returns a context with the `cpu` device; `None` if the environment does not name its engine.
#[cfg(feature = "cpu")]
#[allow(clippy::print_stdout)] // reports why a test is skipped
fn on_cpu() -> Option<std::sync::Arc<qaic_runtime::Context>> {
    let Some(library) = std::env::var_os("QAIC_ONNXRUNTIME_LIB") else {
        println!("not counted on cpu: QAIC_ONNXRUNTIME_LIB does not name the engine's library");
        return None;
    };
    let options = qaic_runtime::device::RegistryOptions {
        kind: Some("cpu".into()),
        engine_candidates: vec![library.into()],
        ..Default::default()
    };
    Some(qaic_runtime::Context::new(&options).unwrap())
}
