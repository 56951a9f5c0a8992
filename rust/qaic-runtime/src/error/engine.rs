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

#[cfg(feature = "cpu")]
impl EngineError {
    /// Returns the error for an inference that failed with a message of the engine.
    pub(crate) fn inference(message: String) -> Self {
        let message = result_of_another_shape(&message).unwrap_or(message);
        EngineError::Inference { status: "QS_ERROR", message }
    }
}

/// Rewords the engine's message about a result whose shape differs from that of its buffer; else None.
#[cfg(feature = "cpu")]
fn result_of_another_shape(message: &str) -> Option<String> {
    let (_, after) = message.split_once("while running ")?;
    let (operator, reason) = after.split_once(" node. ")?;
    let is_about_shapes = ["the computed output shape", "OrtValue shape verification failed"];
    if !is_about_shapes.iter().any(|words| reason.contains(words)) {
        return None;
    }
    // Both texts name the shape of the buffer first.
    let mut shapes = reason
        .split('{')
        .skip(1)
        .filter_map(|part| part.split_once('}'))
        .map(|(sizes, _)| sizes.replace(',', ", "));
    let (declared, made) = (shapes.next()?, shapes.next()?);
    Some(format!(
        "a result of the operator {operator} has the shape [{made}], expected the declared shape [{declared}]; \
         its sizes depend on the inputs, so declare the shape that all inputs give, or end the model before this \
         operator"
    ))
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_another_shape_is_described_with_both_shapes() {
        let texts = [
            "Non-zero status code returned while running NonZero node. Name:'n' Status Message: op_kernel.cc:87 The \
             output OrtValue provided for output 'y' of node 'n' (NonZero) has shape {1,5} but the computed output \
             shape for this run is {1,3}. When calling Run() with pre-allocated output OrtValues, ensure ...",
            "Non-zero status code returned while running NonZero node. Name:'n' Status Message: tensor.Shape() == \
             *shape was false. OrtValue shape verification failed. Current shape:{1,5} Requested shape:{1,3}",
        ];
        for text in texts {
            let found = EngineError::inference(text.to_owned()).to_string();
            let words =
                "a result of the operator NonZero has the shape [1, 3], expected the declared shape [1, 5]";
            assert!(found.contains(words), "{found}");
        }
        let other =
            "Non-zero status code returned while running Gather node. Name:'n' Status Message: {1}, {2}";
        assert_eq!(
            EngineError::inference(other.to_owned()).to_string(),
            format!("inference failed: {other}")
        );
    }
}
