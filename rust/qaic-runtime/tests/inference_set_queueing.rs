//! Inference sets once more, on a device that takes inferences before they are waited for.

#[path = "inference_set.rs"]
mod inference_set;
