//! The product of activations with stored rows.
//!
//! For few rows of activations, weights are decoded in registers during the multiplication. For more rows, a part of
//! the weights that fits the cache of a core is decoded once.

// Inlined functions are compiled for the same instructions as their caller.
#![allow(clippy::inline_always)]

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::forms::{PlainTile, Several, StoredRows, Tile, TilesTask, widen};
use super::simd::{LANES, Simd, Task, prefers_streams, run};
use super::{StoredError, TILE_ROWS as COLUMNS, UNIT};
use crate::convert::Isa;

/// Number of units that are summed at a time.
const CHUNK: usize = 32;
/// Maximum number of units for which a row of activations stays in the first-level cache while weights are read. With
/// longer rows, cache misses stop the machine's prefetching of weights, so packed weights are prefetched on all x86
/// processors.
const LONG_ROW: usize = 96;
/// Maximum number of activation rows for which weights are decoded in registers. Wide vectors allow twice as many, except
/// for MX formats: their factors apply to sums and change results that overflow.
const FEW_ROWS: usize = 2;
/// Approximate number of weight bytes in a block for few rows; a block has whole groups of tiles that are read together.
const BLOCK_BYTES: usize = 1 << 16;
/// Number of columns of a block for more rows.
const BLOCK_COLUMNS: usize = 32;
/// Maximum number of tiles that are read together.
const STREAMS: usize = 4;

/// Format to which results are rounded; results are always stored as float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Float32.
    #[default]
    Float32,
    /// Float16.
    Float16,
    /// Bfloat16.
    Bfloat16,
}

/// A matrix product whose result is computed in blocks of columns. One thread computes each block.
#[derive(Debug)]
pub struct Product<'a> {
    weights: StoredRows<'a>,
    // Rows padded to whole units.
    activations: Cow<'a, [f32]>,
    rows: usize,
    bias: &'a [f32],
    rounding: Rounding,
    prefers_streams: bool,
}

impl<'a> Product<'a> {
    /// Creates the product of rows of activations with all stored rows. `bias` has one number per stored row, or
    /// none.
    pub fn new(
        weights: StoredRows<'a>,
        activations: &'a [f32],
        bias: &'a [f32],
        rounding: Rounding,
    ) -> Result<Self, StoredError> {
        let len = weights.row_len();
        if activations.len().checked_rem(len).is_none_or(|rest| rest != 0) {
            let expected = format!("rows of {len}");
            return Err(StoredError::Operand { operand: "activations", found: activations.len(), expected });
        }
        if !(bias.is_empty() || bias.len() == weights.rows()) {
            let expected = weights.rows().to_string();
            return Err(StoredError::Operand { operand: "bias", found: bias.len(), expected });
        }
        let rows = activations.len() / len;
        let padded_len = weights.units() * UNIT;
        let activations = if len == padded_len {
            Cow::Borrowed(activations)
        } else {
            let mut padded = vec![0.0; rows * padded_len];
            for (to, from) in padded.chunks_exact_mut(padded_len).zip(activations.chunks_exact(len)) {
                to[..len].copy_from_slice(from);
            }
            Cow::Owned(padded)
        };
        let prefers_streams = prefers_streams();
        Ok(Self { weights, activations, rows, bias, rounding, prefers_streams })
    }

    /// Sets whether plain weights are read as several streams, and packed weights prefetched; the processor decides
    /// otherwise. The sums are the same.
    #[must_use]
    pub const fn with_streams(mut self, prefers_streams: bool) -> Self {
        self.prefers_streams = prefers_streams;
        self
    }

    /// Number of rows of the result.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns of the result.
    pub const fn columns(&self) -> usize {
        self.weights.rows()
    }

    /// Number of blocks of columns.
    pub fn blocks(&self) -> usize {
        if self.rows == 0 { 0 } else { self.columns().div_ceil(self.block_columns()) }
    }

    fn block_columns(&self) -> usize {
        if self.rows > FEW_ROWS {
            return BLOCK_COLUMNS;
        }
        let tiles = if self.prefers_streams { STREAMS } else { 1 };
        (BLOCK_BYTES / self.weights.row_bytes().max(1)).max(1).next_multiple_of(tiles * COLUMNS)
    }

    /// Computes a block. `write` receives each row, the index of the first column, and the numbers.
    pub fn block(&self, block: usize, write: impl FnMut(usize, usize, &[f32])) {
        self.block_with(Isa::best(), block, write);
    }

    /// Computes a block as [`Self::block`] does, with the kernels of a family.
    pub fn block_with(&self, isa: Isa, block: usize, mut write: impl FnMut(usize, usize, &[f32])) {
        let first = (block * self.block_columns()).min(self.columns());
        let columns = first..(first + self.block_columns()).min(self.columns());
        if columns.is_empty() {
            return;
        }
        SCRATCH.with_borrow_mut(|Scratch { sums, widened }| {
            sums.clear();
            sums.resize(self.rows * columns.len(), 0.0);
            run(isa, Block { product: self, columns: columns.clone(), sums, widened });
            for (row, sums) in sums.chunks_exact_mut(columns.len()).enumerate() {
                self.finish(&columns, sums);
                write(row, first, sums);
            }
        });
    }

    fn finish(&self, columns: &Range<usize>, sums: &mut [f32]) {
        let bias = self.bias.get(columns.clone()).unwrap_or_default();
        for (sum, bias) in sums.iter_mut().zip(bias) {
            *sum += bias;
        }
        match self.rounding {
            Rounding::Float32 => {}
            Rounding::Float16 => round_to_float16(sums),
            Rounding::Bfloat16 => {
                for sum in sums {
                    *sum = bf16::from_f32(*sum).to_f32();
                }
            }
        }
    }

    /// A row of activations in units.
    fn activations(&self, row: usize) -> &[[f32; UNIT]] {
        let len = self.weights.units() * UNIT;
        self.activations[row * len..(row + 1) * len].as_chunks::<UNIT>().0
    }
}

/// Rounds numbers to the values of float16; the numbers stay float32.
pub fn round_to_float16(numbers: &mut [f32]) {
    let mut narrow = [f16::ZERO; 64];
    for part in numbers.chunks_mut(narrow.len()) {
        let narrow = &mut narrow[..part.len()];
        narrow.convert_from_f32_slice(part);
        narrow.convert_to_f32_slice(part);
    }
}

/// Memory of a thread for the computation of blocks.
struct Scratch {
    sums: Vec<f32>,
    widened: Vec<[f32; UNIT]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { sums: Vec::new(), widened: Vec::new() }) };
}

/// The sums of a block, row by row.
struct Block<'a> {
    product: &'a Product<'a>,
    columns: Range<usize>,
    sums: &'a mut [f32],
    widened: &'a mut Vec<[f32; UNIT]>,
}

impl Task for Block<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weights = self.product.weights;
        weights.with(simd, self);
    }
}

impl TilesTask for Block<'_> {
    #[inline(always)]
    fn run<S: Simd, T: Tile, const TOGETHER: usize>(mut self, simd: S, tile: impl Fn(usize) -> T) {
        let in_streams = T::IN_STREAMS && S::IS_WIDE && self.product.prefers_streams;
        match (self.product.rows, in_streams, TOGETHER) {
            (1, true, COLUMNS) => self.streamed::<S, T, 1, STREAMS, { STREAMS * COLUMNS }>(simd, tile),
            (0..=FEW_ROWS, true, COLUMNS) => self.streamed::<S, T, 2, 2, { 2 * COLUMNS }>(simd, tile),
            (1, true, _) => self.streamed::<S, T, 1, STREAMS, STREAMS>(simd, tile),
            (0..=FEW_ROWS, true, _) => self.streamed::<S, T, 2, STREAMS, STREAMS>(simd, tile),
            (1, false, _) => self.streamed::<S, T, 1, 1, TOGETHER>(simd, tile),
            (0..=FEW_ROWS, false, _) => self.streamed::<S, T, 2, 1, TOGETHER>(simd, tile),
            (rows, _, COLUMNS) if S::IS_WIDE && !T::SCALES_SUMS && rows <= 2 * FEW_ROWS => {
                self.streamed::<S, T, { 2 * FEW_ROWS }, 1, COLUMNS>(simd, tile);
            }
            _ => {
                for chunk in self.chunks() {
                    self.widened_tiles::<S, T, TOGETHER>(simd, &chunk, &tile);
                }
            }
        }
    }
}

impl Block<'_> {
    /// Ranges of units whose sums are added in this order.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let units = self.product.weights.units();
        (0..units).step_by(CHUNK).map(move |start| start..units.min(start + CHUNK))
    }

    /// Multiplies a few rows and decodes weights in registers. `TILES` tiles with `COLUMNS` columns are read together.
    #[inline(always)]
    fn streamed<S: Simd, T: Tile, const ROWS: usize, const TILES: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        tile: impl Fn(usize) -> T,
    ) {
        let together = COLUMNS / TILES;
        let last = (self.columns.end - 1) / together;
        for first in (0..self.columns.len()).step_by(COLUMNS) {
            let start = (self.columns.start + first) / together;
            let tiles: Several<T, TILES, COLUMNS> =
                Several(std::array::from_fn(|at| tile((start + at).min(last))));
            for chunk in self.chunks() {
                let weights = tiles.part(chunk.clone());
                self.tile_at::<S, _, ROWS, COLUMNS>(simd, &chunk, 0, first, weights);
            }
        }
    }

    /// Decodes a part of the weights, and multiplies with the result.
    #[inline(always)]
    fn widened_tiles<S: Simd, T: Tile, const TOGETHER: usize>(
        &mut self,
        simd: S,
        chunk: &Range<usize>,
        tile: impl Fn(usize) -> T,
    ) {
        let len = chunk.len();
        let mut widened = std::mem::take(self.widened);
        widened.resize(self.columns.len() * len, [0.0; UNIT]);
        for (column, numbers) in self.columns.clone().zip(widened.chunks_exact_mut(len)) {
            let tile = tile(column / TOGETHER).part(chunk.clone());
            for (index, numbers) in numbers.iter_mut().enumerate() {
                widen(simd, tile, index, column % TOGETHER, numbers);
            }
        }
        if T::SCALES_SUMS {
            simd.run(WidenedTiles::<true> { block: self, chunk, widened: &widened });
        } else {
            simd.run(WidenedTiles::<false> { block: self, chunk, widened: &widened });
        }
        *self.widened = widened;
    }

    /// Adds a chunk's products to every sum, `ROWS` rows at a time.
    #[inline(always)]
    fn tiles<S: Simd, const ROWS: usize, const COLUMNS: usize, const SUMS_UNITS: bool>(
        &mut self,
        simd: S,
        chunk: &Range<usize>,
        widened: &[[f32; UNIT]],
    ) {
        let (len, last) = (chunk.len(), self.columns.len() - 1);
        for first_row in (0..self.product.rows).step_by(ROWS) {
            for first_column in (0..self.columns.len()).step_by(COLUMNS) {
                let column = |at: usize| &widened[at * len..(at + 1) * len];
                let weights: PlainTile<'_, COLUMNS, SUMS_UNITS> =
                    PlainTile(std::array::from_fn(|at| column((first_column + at).min(last))));
                self.tile_at::<S, _, ROWS, COLUMNS>(simd, chunk, first_row, first_column, weights);
            }
        }
    }

    /// Adds a chunk's products to the sums of some rows and columns. Sums beyond the last row and column are dropped.
    #[inline(always)]
    fn tile_at<S: Simd, T: Tile, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        chunk: &Range<usize>,
        first_row: usize,
        first_column: usize,
        weights: T,
    ) {
        let (rows, columns) = (self.product.rows, self.columns.len());
        let activations: [_; ROWS] = std::array::from_fn(|row| {
            &self.product.activations((first_row + row).min(rows - 1))[chunk.clone()]
        });
        let prefetches = self.product.weights.units() > LONG_ROW || self.product.prefers_streams;
        let sums =
            tile::<S, T, ROWS, COLUMNS>(simd, activations, weights, chunk.end - chunk.start, prefetches);
        for (row, sums) in sums.iter().enumerate().take(rows - first_row) {
            let start = (first_row + row) * columns + first_column;
            // One addition adds four numbers of a whole tile.
            match self.sums[start..].first_chunk_mut::<COLUMNS>() {
                Some(into) if first_column + COLUMNS <= columns => {
                    into.iter_mut().zip(sums).for_each(|(into, sum)| *into += sum);
                }
                _ => {
                    let into = self.sums[start..].iter_mut().take(columns - first_column);
                    into.zip(sums).for_each(|(into, sum)| *into += sum);
                }
            }
        }
    }
}

/// Multiplies with decoded weights, one part of a [`Block`]. The task is compiled once for each order of sums.
struct WidenedTiles<'a, 'b, const SUMS_UNITS: bool> {
    block: &'a mut Block<'b>,
    chunk: &'a Range<usize>,
    widened: &'a [[f32; UNIT]],
}

impl<const SUMS_UNITS: bool> Task for WidenedTiles<'_, '_, SUMS_UNITS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { block, chunk, widened } = self;
        let rows = block.product.rows;
        // Tiles of equal size, so that few rows are computed twice.
        match (S::IS_WIDE, rows.div_ceil(rows.div_ceil(5))) {
            (false, _) => block.tiles::<S, 3, 2, SUMS_UNITS>(simd, chunk, widened),
            (true, ..=3) => block.tiles::<S, 3, COLUMNS, SUMS_UNITS>(simd, chunk, widened),
            (true, 4) => block.tiles::<S, 4, COLUMNS, SUMS_UNITS>(simd, chunk, widened),
            (true, _) => block.tiles::<S, 5, COLUMNS, SUMS_UNITS>(simd, chunk, widened),
        }
    }
}

/// Sums of `ROWS` rows and `COLUMNS` columns over `units` units.
#[allow(clippy::needless_range_loop)] // see below
#[inline(always)]
fn tile<S: Simd, T: Tile, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    activations: [&[[f32; UNIT]]; ROWS],
    weights: T,
    units: usize,
    prefetches: bool,
) -> [[f32; COLUMNS]; ROWS] {
    // Index loops: `array::map` and iterators over arrays of vectors may not be inlined into the code for these
    // instructions.
    let mut sums = [[simd.splat(0.0); COLUMNS]; ROWS];
    let group = weights.group_units();
    let mut factors = [weights.factors(simd, 0, 0); COLUMNS];
    for index in 0..units {
        if index % group == 0 {
            for column in 0..COLUMNS {
                factors[column] = weights.factors(simd, index, column);
            }
        }
        if prefetches {
            weights.prefetch(simd, index);
        }
        // Registers hold the numbers of four columns at a time.
        for first_column in (0..COLUMNS).step_by(4) {
            let columns = first_column..(first_column + 4).min(COLUMNS);
            let mut numbers = [[simd.splat(0.0); 2]; 4];
            for column in columns.clone() {
                numbers[column % 4] = weights.unit(simd, index, column, factors[column]);
            }
            for row in 0..ROWS {
                let (halves, _) = activations[row][index].as_chunks::<LANES>();
                let (first, second) = (simd.load(&halves[0]), simd.load(&halves[1]));
                for column in columns.clone() {
                    let ([low, high], total) = (numbers[column % 4], sums[row][column]);
                    sums[row][column] = if T::SCALES_SUMS {
                        let sum = simd.mul_add(second, high, simd.mul(first, low));
                        T::add_scaled(simd, sum, factors[column], total)
                    } else {
                        simd.mul_add(second, high, simd.mul_add(first, low, total))
                    };
                }
            }
        }
    }
    let mut totals = [[0.0; COLUMNS]; ROWS];
    for row in 0..ROWS {
        for (totals, sums) in totals[row].chunks_mut(4).zip(sums[row].chunks(4)) {
            let mut four = [simd.splat(0.0); 4];
            four[..sums.len()].copy_from_slice(sums);
            totals.copy_from_slice(&simd.sums(four)[..totals.len()]);
        }
    }
    totals
}
