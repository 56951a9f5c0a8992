//! Numbers of reduced precision: the values that a card stores instead of float32.
//!
//! The crate contains only arithmetic on slices: no files, no threads, no unsafe code, and no knowledge of graphs or
//! containers. The compiler uses it through the binding, and the runtime decodes stored weights with it, so the same
//! oracles test both.
//!
//! Convention of the whole crate: `real = scale * (q - offset)`.
//!
//! ```
//! use qaic_quant::{Precision, Schema, quant_params};
//!
//! let params = quant_params(-1.0, 3.0, Schema::Asymmetric, Precision::Int8)?;
//! assert_eq!((params.scale, params.offset), (0.015_686_275, -64));
//! # Ok::<(), qaic_quant::QuantError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// This crate converts between number types; comments state what a conversion can lose.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
// Exact comparisons are intended: with zero, infinity and powers of two.
#![allow(clippy::float_cmp)]

pub mod affine;
mod calibration;
mod error;
mod histogram;
pub mod mx;
mod named;
mod range;
pub mod stored;
mod tensor;

pub use calibration::{Method, calibrate};
pub use error::QuantError;
pub use histogram::{Histogram, SharedHistogram, check_bins};
pub use range::{Precision, QuantParams, Schema, quant_params};
pub use tensor::{Channels, Quantized, quantize};
