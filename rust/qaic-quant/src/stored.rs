//! Sizes of stored rows: the storage formats of weights and caches, and the order of their units.
//!
//! A row is padded with zeros to whole units of [`UNIT`] elements.

use crate::mx::{BLOCK, MxFormat};

/// Number of elements of a unit.
pub const UNIT: usize = BLOCK;

/// Number of rows of a tile, which are computed together.
pub const TILE_ROWS: usize = 4;

/// Storage format of stored rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Little-endian float32.
    Float32,
    /// Little-endian float16.
    Float16,
    /// Little-endian bfloat16.
    Bfloat16,
    /// Blocks of [`UNIT`] elements with a common exponent ([`crate::mx`]).
    Mxfp6,
    /// Blocks of [`UNIT`] signed bytes with a common exponent, used by caches.
    Mxint8,
    /// Signed bytes. After the rows follow a float32 scale for each group, then a signed zero point for each.
    Int8 {
        /// Number of elements of a group; 0 if a row is one group.
        group: usize,
    },
    /// Unsigned numbers of four bits, the lower four bits of a byte first; scales and zero points as for `Int8`.
    Uint4 {
        /// Number of elements of a group; 0 if a row is one group.
        group: usize,
    },
}

impl Form {
    /// Returns the format with this name in plans; `group` applies to quantized weights.
    pub fn from_name(name: &str, group: usize) -> Option<Self> {
        Some(match name {
            "float32" => Self::Float32,
            "float16" => Self::Float16,
            "bfloat16" => Self::Bfloat16,
            "mxfp6_e2m3" => Self::Mxfp6,
            "mxint8" => Self::Mxint8,
            "int8" => Self::Int8 { group },
            "uint4" => Self::Uint4 { group },
            _ => return None,
        })
    }

    /// Returns the name of the format in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Mxfp6 => "mxfp6_e2m3",
            Self::Mxint8 => "mxint8",
            Self::Int8 { .. } => "int8",
            Self::Uint4 { .. } => "uint4",
        }
    }

    /// Number of bytes of a unit, without separately stored scales.
    pub const fn unit_bytes(self) -> usize {
        match self {
            Self::Float32 => 4 * UNIT,
            Self::Float16 | Self::Bfloat16 => 2 * UNIT,
            Self::Mxfp6 => MxFormat::Fp6E2M3.block_bytes(),
            Self::Mxint8 => MxFormat::Int8.block_bytes(),
            Self::Int8 { .. } => UNIT,
            Self::Uint4 { .. } => UNIT / 2,
        }
    }

    /// Number of groups in a row of `units`; `None` for a format without groups.
    pub fn groups(self, units: usize) -> Option<usize> {
        match self {
            Self::Int8 { group: 0 } | Self::Uint4 { group: 0 } => Some(units.min(1)),
            Self::Int8 { group } | Self::Uint4 { group } => Some(units.div_ceil((group / UNIT).max(1))),
            _ => None,
        }
    }

    /// Returns the size of the groups if it is not 0 or a power-of-two number of units.
    pub fn wrong_group(self) -> Option<usize> {
        match self {
            Self::Int8 { group } | Self::Uint4 { group } => {
                Some(group).filter(|&group| group != 0 && !(group % UNIT == 0 && group.is_power_of_two()))
            }
            _ => None,
        }
    }

    /// Number of bytes of `rows` rows of `len` elements; `None` if it exceeds the address space.
    pub fn bytes(self, layout: Layout, rows: usize, len: usize) -> Option<usize> {
        let rows = rows.checked_next_multiple_of(layout.together())?;
        let units = len.div_ceil(UNIT);
        let codes = units.checked_mul(self.unit_bytes())?.checked_mul(rows)?;
        match self.groups(units) {
            // Four bytes for the scale and one for the zero point of a group.
            Some(groups) => codes.checked_add(groups.checked_mul(rows)?.checked_mul(5)?),
            None => Some(codes),
        }
    }
}

crate::named! {
    /// Order of the units of a matrix.
    pub enum Layout [2] {
        /// Row after row.
        Rows = "rows",
        /// [`TILE_ROWS`] rows interleaved by unit, so that a product reads one stream. The last tile is padded with
        /// rows of zeros.
        Tiles = "tiles",
    }
}

impl Layout {
    /// Number of rows whose units are interleaved.
    pub const fn together(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Tiles => TILE_ROWS,
        }
    }
}
