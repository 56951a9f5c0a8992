//! Whole containers and descriptors: recorded, generated and damaged.

mod defects;
mod derivations;
mod fixture;
mod fixtures;
mod flatbuffer_oracle;
mod generate;
mod oracle;
mod plan;
mod properties;
