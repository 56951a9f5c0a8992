//! Program container (QPC) of Cloud AI 100: container, network descriptor, metadata and `IoDesc`.
#![forbid(unsafe_code)]

pub mod dtype;
pub mod network_desc;
