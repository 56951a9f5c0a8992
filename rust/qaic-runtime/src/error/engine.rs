//! Errors of the host device's engine.

use std::path::PathBuf;

qaic_qpc::errors! {
    /// The engine is missing, or refused a graph or an inference.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum EngineError: "DeviceError" {
        /// The engine of the host device is missing.
        #[error("{}", engine_missing(looked_at))]
        Missing { looked_at: Vec<String> = Vec::new() } => "engine.missing" [looked_at]
            hint "install onnxruntime (pip install onnxruntime), or set QAIC_ONNXRUNTIME_LIB to its library",
        /// The engine of the host device cannot be used.
        #[error("{}: {reason}", path.display())]
        Unusable {
            path: PathBuf = "libonnxruntime.so.1.20".into(), found: String = "1.20.0".into(),
            reason: String = "version 1.20.0 is too old".into(),
        } => "engine.unusable" [path, found]
            hint "pip install --upgrade onnxruntime, or set QAIC_ONNXRUNTIME_LIB to a newer library",
        /// The engine refused the graph of a program.
        #[error("the engine refused the graph: {message}")]
        Graph { message: String = "a node has an input of the wrong type".into() } => "engine.graph",
        /// The engine failed during an inference.
        #[error("inference failed: {message}")]
        Inference {
            status: &'static str = "FAIL", message: String = "an index is out of range".into(),
        } => "inference.failed" "InferenceError" [status],
    }
}

fn engine_missing(looked_at: &[String]) -> String {
    if looked_at.is_empty() {
        "the CPU device needs the package onnxruntime, which is not installed".to_owned()
    } else {
        format!("the library of onnxruntime was not found; searched: {}", looked_at.join(", "))
    }
}
