//! Kernels that compute with weights in the form and place in which a container stores them.
//!
//! A matrix is stored as rows along which products sum, each padded with zeros to whole units of [`UNIT`] elements. So a
//! product with one row of activations reads every stored byte once, in order, and widens it in registers. The rows of a tile
//! lie together, so that what is computed side by side is one stream ([`Layout`]). [`Product`] is the
//! matrix product, [`StoredRows::gather`] copies rows.
//!
//! * `simd` names the operations on vectors of sixteen numbers, and has them in portable code, which defines the results;
//! * `x86` has the same operations as instructions, so results are equal bit by bit on every machine. aarch64 has vectors and
//!   fused multiplication in its base set, for which the portable code is compiled;
//! * `forms` has one body for each form, `product` the one body of the product.
//!
//! A sum is taken in one order, whatever the number of rows, the block and the thread: in chunks of 1,024 elements, sixteen
//! partial sums in each.

mod forms;
mod product;
mod simd;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // intrinsics behind values that exist only where the machine has them
mod x86;

use thiserror::Error;

pub use forms::{Form, Layout, StoredRows};
pub use product::{Product, Rounding, round_to_float16};

/// Elements of a unit; a stored row is padded with zeros to whole units.
pub const UNIT: usize = 32;

/// Rows of a tile, which are computed side by side.
pub const TILE_ROWS: usize = 4;

/// Why bytes are not a stored matrix, or operands do not fit it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The bytes have another length than the form has for this shape.
    #[error("{found} bytes of {form} for {rows} rows of {len} elements; {expected} are expected")]
    #[allow(missing_docs)]
    Bytes { form: String, rows: usize, len: usize, found: usize, expected: String },
    /// Groups of quantized weights are no power of two of units.
    #[error(
        "groups of {found} elements; a power of two from {UNIT} on, or 0 for one group a row, is expected"
    )]
    #[allow(missing_docs)]
    Group { found: usize },
    /// An operand of a product has another size.
    #[error("{found} numbers of {operand}; {expected} are expected")]
    #[allow(missing_docs)]
    Operand { operand: &'static str, found: usize, expected: String },
}
