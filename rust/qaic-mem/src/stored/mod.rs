//! Kernels that compute with weights in the storage format and in the memory of their container.
//!
//! A matrix is stored as rows along which products sum. Each row is padded with zeros to whole units of [`UNIT`]
//! elements. A product with one row of activations therefore reads every stored byte once, in order, and decodes it
//! in registers. The rows of a tile are interleaved, so that rows that are computed together form one stream
//! ([`Layout`]). [`Product`] is the matrix product; [`StoredRows::gather`] copies rows.
//!
//! * `simd` defines the operations on vectors of sixteen numbers. Its portable implementation defines the results.
//! * `x86` implements the operations with vector instructions; results are equal bit for bit on every machine. On
//!   aarch64, the portable code is compiled to vector instructions and fused multiplication, which are part of its
//!   base set.
//! * `forms` has one reader for each storage format, and `product` the common implementation of the product. `rounding`
//!   rounds results, also those of other arithmetic.
//!
//! A sum is computed in the same order for any number of rows, block and thread: in chunks of 1,024 elements, with
//! sixteen partial sums each.

mod forms;
mod product;
mod rounding;
mod simd;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // intrinsics behind values that exist only where the machine has them
mod x86;

use thiserror::Error;

pub use forms::StoredRows;
pub use product::Product;
pub use qaic_quant::stored::{Form, Layout, TILE_ROWS, UNIT};
pub use rounding::{Arithmetic, Rounding, widen_float16};
pub use simd::Prefetcher;

/// Reason why bytes are not a stored matrix, or why operands do not match it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The bytes do not have the length of the format and shape.
    #[error("{form} of {rows} rows x {len} elements: found {found} bytes, expected {expected}")]
    #[allow(missing_docs)]
    Bytes { form: String, rows: usize, len: usize, found: usize, expected: String },
    /// The group size of quantized weights is not a power-of-two number of units.
    #[error(
        "groups of {found} elements; a power of two of at least {UNIT}, or 0 for one group per row, is expected"
    )]
    #[allow(missing_docs)]
    Group { found: usize },
    /// An operand of a product has the wrong size.
    #[error("{operand}: found {found} numbers, expected {expected}")]
    #[allow(missing_docs)]
    Operand { operand: &'static str, found: usize, expected: String },
}
