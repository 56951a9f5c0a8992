//! Containers and descriptors as a whole: recorded ones, generated ones and damaged ones.

mod defects;
mod derivations;
mod fixture;
mod fixtures;
mod flatbuffer_oracle;
mod generate;
mod oracle;
mod plan;
mod properties;
