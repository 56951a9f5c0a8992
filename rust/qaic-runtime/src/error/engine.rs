//! Errors of the host device's engine.

use std::path::PathBuf;

/// The engine is missing, or refused a graph or an inference.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine of the host device is missing.
    #[error("{}", engine_missing(looked_at))]
    Missing {
        /// Places looked at.
        looked_at: Vec<String>,
    },

    /// The engine of the host device cannot be used.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// Library file.
        path: PathBuf,
        /// Version it reports, if it got that far.
        found: String,
        /// Why not.
        reason: String,
    },

    /// The engine refused the graph of a program.
    #[error("the engine refused the graph: {message}")]
    Graph {
        /// The engine's words.
        message: String,
    },

    /// The engine failed during an inference.
    #[error("inference failed: {message}")]
    Inference {
        /// Status name.
        status: &'static str,
        /// The engine's words.
        message: String,
    },
}

impl EngineError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "engine.missing",
            Self::Unusable { .. } => "engine.unusable",
            Self::Graph { .. } => "engine.graph",
            Self::Inference { .. } => "inference.failed",
        }
    }
}

fn engine_missing(looked_at: &[String]) -> String {
    if looked_at.is_empty() {
        "the cpu device needs the package onnxruntime, which is not installed".to_owned()
    } else {
        format!("the library of onnxruntime was not found; searched: {}", looked_at.join(", "))
    }
}
