//! The product of activations with stored rows.
//!
//! For few rows of activations, weights are decoded in registers during the multiplication. For more rows, a part of
//! the weights that fits the cache of a core is decoded into panels: sixteen columns become the lanes of a vector, and
//! the elements of a partial sum follow each other. Activations are packed in the same order, four rows at a time.

// Inlined functions are compiled for the same instructions as their caller.
#![allow(clippy::inline_always)]

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use super::forms::{Several, StoredRows, Tile, TilesTask, decoded};
use super::rounding::Rounding;
use super::simd::{LANES, Prefetcher, Simd, Task, run};
use super::{StoredError, TILE_ROWS as COLUMNS, UNIT};
use crate::convert::Isa;

/// Number of units that are summed at a time.
const CHUNK: usize = 32;
/// Number of elements of a partial sum in a chunk.
const STEPS: usize = CHUNK * UNIT / LANES;
/// Maximum number of units for which a row of activations stays in the first-level cache while weights are read. With
/// longer rows, cache misses stop the processor's prefetching of weights.
const LONG_ROW: usize = 96;
/// Maximum number of activation rows for which weights are decoded in registers.
const FEW_ROWS: usize = 4;
/// Approximate number of weight bytes in a block for few rows; a block has whole groups of tiles that are read together.
const BLOCK_BYTES: usize = 1 << 17;
/// Number of columns of a block for more rows.
const BLOCK_COLUMNS: usize = 32;
/// Maximum number of tiles that are read together.
const STREAMS: usize = 4;
/// Number of lines of a panel that are prefetched into the nearest cache.
const LINES_AHEAD: usize = 16;
/// Number of rows of a panel of activations.
const PANEL_ROWS: usize = 4;
/// Number of panels that one thread packs at a time.
const PART_PANELS: usize = 8;
/// Lanes in the order of their partial sums in a panel. The sums of neighbors are added, then the sums of pairs, so that
/// partial sums are added as [`Simd::sums`] adds them.
const ORDER: [usize; LANES] = [0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15];
/// Place of each lane in [`ORDER`].
const PLACES: [usize; LANES] = {
    let mut places = [0; LANES];
    let mut place = 0;
    while place < LANES {
        places[ORDER[place]] = place;
        place += 1;
    }
    places
};

/// The left operand of a product.
#[derive(Debug)]
enum Activations<'a> {
    /// At most [`FEW_ROWS`] rows, padded to whole units.
    Rows(Cow<'a, [f32]>),
    /// More rows.
    Panels(Packed<'a>),
}

/// Panels of rows of activations. The first thread that uses a part packs it.
#[derive(Debug)]
struct Packed<'a> {
    activations: &'a [f32],
    len: usize,
    /// The panels of each chunk, [`PART_PANELS`] in a part.
    parts: Vec<OnceLock<Vec<[f32; PANEL_ROWS]>>>,
}

impl<'a> Packed<'a> {
    fn new(activations: &'a [f32], len: usize) -> Self {
        let mut packed = Self { activations, len, parts: Vec::new() };
        let count = chunks(len.div_ceil(UNIT)).count() * packed.parts_of_chunk();
        packed.parts.resize_with(count, OnceLock::new);
        packed
    }

    const fn parts_of_chunk(&self) -> usize {
        self.activations.len().div_ceil(PART_PANELS * PANEL_ROWS * self.len)
    }

    /// Returns a part, and packs it if no thread has done so.
    fn part(&self, part: usize) -> &[[f32; PANEL_ROWS]] {
        self.parts[part].get_or_init(|| {
            let units = self.len.div_ceil(UNIT);
            let start = part / self.parts_of_chunk() * CHUNK;
            let first = part % self.parts_of_chunk() * PART_PANELS * PANEL_ROWS * self.len;
            let rows = &self.activations[first..];
            let rows = &rows[..rows.len().min(PART_PANELS * PANEL_ROWS * self.len)];
            panels(rows, self.len, start..units.min(start + CHUNK))
        })
    }

    /// Returns a panel in a chunk of units.
    fn panel(&self, chunk: &Range<usize>, panel: usize) -> &[[f32; PANEL_ROWS]] {
        let part = self.part(chunk.start / CHUNK * self.parts_of_chunk() + panel / PART_PANELS);
        let len = chunk.len() * UNIT;
        &part[panel % PART_PANELS * len..][..len]
    }
}

/// A matrix product whose result is computed in blocks of columns. One thread computes each block.
#[derive(Debug)]
pub struct Product<'a> {
    weights: StoredRows<'a>,
    activations: Activations<'a>,
    rows: usize,
    bias: &'a [f32],
    rounding: Rounding,
    prefetcher: Prefetcher,
}

impl<'a> Product<'a> {
    /// Maximum number of rows of a pass ([`Self::passes`]).
    pub const PASS_ROWS: usize = 512;

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
        let activations = if rows > FEW_ROWS {
            Activations::Panels(Packed::new(activations, len))
        } else if len == padded_len {
            Activations::Rows(Cow::Borrowed(activations))
        } else {
            let mut padded = vec![0.0; rows * padded_len];
            for (to, from) in padded.chunks_exact_mut(padded_len).zip(activations.chunks_exact(len)) {
                to[..len].copy_from_slice(from);
            }
            Activations::Rows(Cow::Owned(padded))
        };
        Ok(Self { weights, activations, rows, bias, rounding, prefetcher: Prefetcher::detect() })
    }

    /// Splits the product into products with fewer rows, whose packed activations take limited memory.
    pub fn passes(self) -> Vec<Self> {
        let (activations, len) = match &self.activations {
            Activations::Panels(packed) => (packed.activations, packed.len),
            Activations::Rows(_) => return vec![self],
        };
        let count = self.rows.div_ceil(Self::PASS_ROWS);
        // Passes of equal size: a few rows would be multiplied by the other kernel.
        let passes = (0..count).map(|pass| {
            let rows = self.rows * pass / count..self.rows * (pass + 1) / count;
            let activations = &activations[rows.start * len..rows.end * len];
            Self { activations: Activations::Panels(Packed::new(activations, len)), rows: rows.len(), ..self }
        });
        passes.collect()
    }

    /// Number of parts of the activations that threads can pack before they compute blocks.
    pub const fn parts(&self) -> usize {
        match &self.activations {
            Activations::Panels(packed) => packed.parts.len(),
            Activations::Rows(_) => 0,
        }
    }

    /// Packs a part of the activations. Blocks pack the parts that are not packed yet, and wait for each other.
    pub fn pack(&self, part: usize) {
        if let Activations::Panels(packed) = &self.activations {
            packed.part(part);
        }
    }

    /// Reads weights as for another prefetcher than this machine's. The sums are the same.
    #[must_use]
    pub const fn with_prefetcher(mut self, prefetcher: Prefetcher) -> Self {
        self.prefetcher = prefetcher;
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
        let tiles = if self.prefetcher == Prefetcher::StopsAtPages { STREAMS } else { 1 };
        (BLOCK_BYTES / self.weights.row_bytes().max(1)).max(1).next_multiple_of(tiles * COLUMNS)
    }

    /// Computes a block with the kernels of a family. `write` receives each row, the index of the first column, and
    /// the numbers.
    pub fn block(&self, isa: Isa, block: usize, mut write: impl FnMut(usize, usize, &[f32])) {
        let first = (block * self.block_columns()).min(self.columns());
        let columns = first..(first + self.block_columns()).min(self.columns());
        if columns.is_empty() {
            return;
        }
        SCRATCH.with_borrow_mut(|Scratch { sums, lines }| {
            sums.clear();
            sums.resize(self.rows * columns.len(), 0.0);
            run(isa, Block { product: self, columns: columns.clone(), sums, lines });
            for (row, sums) in sums.chunks_exact_mut(columns.len()).enumerate() {
                self.finish(isa, &columns, sums);
                write(row, first, sums);
            }
        });
    }

    fn finish(&self, isa: Isa, columns: &Range<usize>, sums: &mut [f32]) {
        let bias = self.bias.get(columns.clone()).unwrap_or_default();
        for (sum, bias) in sums.iter_mut().zip(bias) {
            *sum += bias;
        }
        self.rounding.round(isa, sums);
    }
}

/// Ranges of units whose sums are added in this order.
fn chunks(units: usize) -> impl Iterator<Item = Range<usize>> {
    (0..units).step_by(CHUNK).map(move |start| start..units.min(start + CHUNK))
}

/// Packs a chunk of rows of `len` activations. A panel has the elements of each partial sum in [`ORDER`].
fn panels(activations: &[f32], len: usize, chunk: Range<usize>) -> Vec<[f32; PANEL_ROWS]> {
    let elements = chunk.start * UNIT..len.min(chunk.end * UNIT);
    let steps = chunk.len() * UNIT / LANES;
    let mut panels = vec![[0.0; PANEL_ROWS]; activations.len().div_ceil(PANEL_ROWS * len) * steps * LANES];
    for (panel, rows) in panels.chunks_exact_mut(steps * LANES).zip(activations.chunks(PANEL_ROWS * len)) {
        for (at, row) in rows.chunks_exact(len).enumerate() {
            for (step, numbers) in row[elements.clone()].chunks(LANES).enumerate() {
                for (place, number) in PLACES.iter().zip(numbers) {
                    panel[place * steps + step][at] = *number;
                }
            }
        }
    }
    panels
}

/// Elements of sixteen columns, in one line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([f32; LANES]);

/// Sixteen decoded columns of a chunk: the elements of each partial sum in [`ORDER`]. One more line for each partial sum
/// keeps the lines that are written together from one set of the nearest cache.
type Panel = [[Line; STEPS + 1]; LANES];

/// Memory of a thread for the computation of blocks.
struct Scratch {
    sums: Vec<f32>,
    lines: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { sums: Vec::new(), lines: Vec::new() }) };
}

/// The sums of a block, row by row.
struct Block<'a> {
    product: &'a Product<'a>,
    columns: Range<usize>,
    sums: &'a mut [f32],
    lines: &'a mut Vec<Line>,
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
        let rows = match &self.product.activations {
            Activations::Rows(rows) => rows.as_chunks().0,
            Activations::Panels(packed) if TOGETHER == COLUMNS => {
                return self.in_panels::<S, T, 1>(simd, tile, packed);
            }
            Activations::Panels(packed) => return self.in_panels::<S, T, COLUMNS>(simd, tile, packed),
        };
        let in_streams = T::IN_STREAMS && S::IS_WIDE && self.product.prefetcher == Prefetcher::StopsAtPages;
        match (self.product.rows, in_streams, TOGETHER) {
            (1, true, COLUMNS) => self.streamed::<S, T, 1, STREAMS, { STREAMS * COLUMNS }>(simd, tile, rows),
            (2, true, COLUMNS) => self.streamed::<S, T, 2, 2, { 2 * COLUMNS }>(simd, tile, rows),
            (1, true, _) => self.streamed::<S, T, 1, STREAMS, STREAMS>(simd, tile, rows),
            (_, true, 1) => self.streamed::<S, T, 2, STREAMS, STREAMS>(simd, tile, rows),
            (1, false, _) => self.streamed::<S, T, 1, 1, TOGETHER>(simd, tile, rows),
            (3.., _, COLUMNS) if S::IS_WIDE => self.streamed::<S, T, FEW_ROWS, 1, COLUMNS>(simd, tile, rows),
            _ => self.streamed::<S, T, 2, 1, TOGETHER>(simd, tile, rows),
        }
    }
}

impl Block<'_> {
    /// Multiplies a few rows and decodes weights in registers. `TILES` tiles with `COLUMNS` columns are read together.
    #[inline(always)]
    fn streamed<S: Simd, T: Tile, const ROWS: usize, const TILES: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        tile: impl Fn(usize) -> T,
        rows: &[[f32; UNIT]],
    ) {
        let together = COLUMNS / TILES;
        let last = (self.columns.end - 1) / together;
        for first in (0..self.columns.len()).step_by(COLUMNS) {
            let start = (self.columns.start + first) / together;
            let tiles: Several<T, TILES, COLUMNS> =
                Several(std::array::from_fn(|at| tile((start + at).min(last))));
            for chunk in chunks(self.product.weights.units()) {
                let weights = tiles.part(chunk.clone());
                for row in (0..self.product.rows).step_by(ROWS) {
                    self.tile_at::<S, _, ROWS, COLUMNS>(simd, rows, &chunk, row, first, weights);
                }
            }
        }
    }

    /// Decodes a part of the weights, and multiplies with the result. `TILES` tiles have four columns.
    #[inline(always)]
    fn in_panels<S: Simd, T: Tile, const TILES: usize>(
        mut self,
        simd: S,
        tile: impl Fn(usize) -> T,
        activations: &Packed<'_>,
    ) {
        let together = COLUMNS / TILES;
        let last = (self.columns.end - 1) / together;
        let count = self.columns.len().div_ceil(LANES);
        let mut lines = std::mem::take(self.lines);
        lines.resize(count * size_of::<Panel>() / size_of::<Line>(), Line([0.0; LANES]));
        let (panels, _) = lines.as_chunks_mut().0.as_chunks_mut();
        for chunk in chunks(self.product.weights.units()) {
            for (at, panel) in panels.iter_mut().enumerate() {
                let tiles: [Several<T, TILES, COLUMNS>; LANES / COLUMNS] = std::array::from_fn(|four| {
                    let start = (self.columns.start + at * LANES + four * COLUMNS) / together;
                    Several(std::array::from_fn(|at| tile((start + at).min(last)).part(chunk.clone())))
                });
                decode(simd, &tiles, chunk.len(), panel);
            }
            simd.run(Panels { block: &mut self, activations, chunk: &chunk, weights: panels });
        }
        *self.lines = lines;
    }

    /// Adds the products of a chunk to every sum, `PANELS` panels of activations and `VECTORS` of weights at a time.
    #[inline(always)]
    fn panels<S: Simd, const PANELS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        activations: &Packed<'_>,
        chunk: &Range<usize>,
        weights: &[Panel],
    ) {
        let product = self.product;
        let last = weights.len() - 1;
        let last_rows = product.rows.div_ceil(PANEL_ROWS) - 1;
        for first_panel in (0..=last_rows).step_by(PANELS) {
            let activations: [_; PANELS] =
                std::array::from_fn(|at| activations.panel(chunk, (first_panel + at).min(last_rows)));
            for first in (0..=last).step_by(VECTORS) {
                let weights: [_; VECTORS] = std::array::from_fn(|at| &weights[(first + at).min(last)]);
                let sums = panel_sums::<S, PANELS, VECTORS>(simd, activations, weights, chunk.len());
                for (panel, sums) in sums.iter().enumerate() {
                    for (row, sums) in sums.iter().enumerate() {
                        let row = (first_panel + panel) * PANEL_ROWS + row;
                        if row >= product.rows {
                            break;
                        }
                        let mut numbers = [[0.0; LANES]; VECTORS];
                        for (numbers, sums) in numbers.iter_mut().zip(sums) {
                            simd.store(*sums, numbers);
                        }
                        self.add(row, first * LANES, numbers.as_flattened());
                    }
                }
            }
        }
    }

    /// Adds a chunk's products to the sums of some rows and columns. Sums beyond the last row and column are dropped.
    #[inline(always)]
    fn tile_at<S: Simd, T: Tile, const ROWS: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        activations: &[[f32; UNIT]],
        chunk: &Range<usize>,
        first_row: usize,
        first_column: usize,
        weights: T,
    ) {
        let (rows, units) = (self.product.rows, self.product.weights.units());
        let activations: [_; ROWS] =
            std::array::from_fn(|row| &activations[(first_row + row).min(rows - 1) * units..][chunk.clone()]);
        let ahead = self.product.prefetcher.ahead(!T::IN_STREAMS, units > LONG_ROW);
        let sums = tile::<S, T, ROWS, COLUMNS>(simd, activations, weights, chunk.len(), ahead);
        for (row, sums) in sums.iter().enumerate().take(rows - first_row) {
            self.add(first_row + row, first_column, sums);
        }
    }

    /// Adds numbers to the sums of a row. Numbers beyond the last column are dropped.
    #[inline(always)]
    fn add(&mut self, row: usize, first_column: usize, numbers: &[f32]) {
        let columns = self.columns.len();
        let into = &mut self.sums[row * columns + first_column..(row + 1) * columns];
        into.iter_mut().zip(numbers).for_each(|(into, sum)| *into += sum);
    }
}

/// Decodes tiles of four columns to a panel of weights.
#[allow(clippy::needless_range_loop)] // see `tile`
#[inline(always)]
fn decode<S: Simd, T: Tile>(simd: S, tiles: &[T; LANES / COLUMNS], units: usize, panel: &mut Panel) {
    for unit in 0..units.min(CHUNK) {
        for (place, tile) in tiles.iter().enumerate() {
            let mut halves = [[simd.splat(0.0); COLUMNS]; 2];
            for column in 0..COLUMNS {
                [halves[0][column], halves[1][column]] = decoded(simd, *tile, unit, column);
            }
            for half in 0..2 {
                let vectors = simd.transposed(halves[half]);
                for lane in 0..COLUMNS {
                    let mut numbers = [0.0; LANES];
                    simd.store(vectors[lane], &mut numbers);
                    for (quarter, numbers) in numbers.as_chunks::<COLUMNS>().0.iter().enumerate() {
                        let Line(to) = &mut panel[PLACES[4 * quarter + lane]][2 * unit + half];
                        to.as_chunks_mut::<COLUMNS>().0[place] = *numbers;
                    }
                }
            }
        }
    }
}

/// Multiplies with panels, one part of a [`Block`]. All storage formats share the compiled task.
struct Panels<'a, 'b> {
    block: &'a mut Block<'b>,
    activations: &'a Packed<'a>,
    chunk: &'a Range<usize>,
    weights: &'a [Panel],
}

impl Task for Panels<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { block, activations, chunk, weights } = self;
        let count = block.product.rows.div_ceil(PANEL_ROWS);
        // Tiles of equal size, so that few panels are computed twice.
        match (S::IS_WIDE, count.div_ceil(count.div_ceil(3)), weights.len()) {
            (false, ..) => block.panels::<S, 1, 1>(simd, activations, chunk, weights),
            (true, ..=2, 1) => block.panels::<S, 2, 1>(simd, activations, chunk, weights),
            (true, ..=2, _) => block.panels::<S, 2, 2>(simd, activations, chunk, weights),
            (true, _, 1) => block.panels::<S, 3, 1>(simd, activations, chunk, weights),
            (true, ..) => block.panels::<S, 3, 2>(simd, activations, chunk, weights),
        }
    }
}

/// Sums of panels over `units` units.
#[allow(clippy::needless_range_loop)] // see `tile`
#[inline(always)]
fn panel_sums<S: Simd, const PANELS: usize, const VECTORS: usize>(
    simd: S,
    activations: [&[[f32; PANEL_ROWS]]; PANELS],
    weights: [&Panel; VECTORS],
    units: usize,
) -> [[[S::V; VECTORS]; PANEL_ROWS]; PANELS] {
    let zeros = [[[simd.splat(0.0); VECTORS]; PANEL_ROWS]; PANELS];
    // Sums of 1, 2, 4 and 8 partial sums that wait for as many more.
    let mut waiting = [zeros; 4];
    let mut sums = zeros;
    for place in 0..LANES {
        sums = zeros;
        // Two elements of each partial sum for each unit.
        let activations: [_; PANELS] =
            std::array::from_fn(|at| &activations[at].as_chunks::<2>().0[place * units..][..units]);
        let weights: [_; VECTORS] = std::array::from_fn(|at| &weights[at][place].as_chunks::<2>().0[..units]);
        for unit in 0..units {
            let mut vectors = [[simd.splat(0.0); VECTORS]; 2];
            for vector in 0..VECTORS {
                for half in 0..2 {
                    let Line(numbers) = &weights[vector][unit][half];
                    simd.prefetch_near(numbers.as_ptr().wrapping_add(LINES_AHEAD * LANES).cast());
                    vectors[half][vector] = simd.load(numbers);
                }
            }
            for panel in 0..PANELS {
                for row in 0..PANEL_ROWS {
                    let [first, second] = activations[panel][unit];
                    let (first, second) = (simd.splat(first[row]), simd.splat(second[row]));
                    for vector in 0..VECTORS {
                        let (low, high) = (vectors[0][vector], vectors[1][vector]);
                        let sum = &mut sums[panel][row][vector];
                        *sum = simd.mul_add(second, high, simd.mul_add(first, low, *sum));
                    }
                }
            }
        }
        let pairs = place.trailing_ones() as usize;
        for size in 0..pairs {
            for panel in 0..PANELS {
                for row in 0..PANEL_ROWS {
                    for vector in 0..VECTORS {
                        let sum = &mut sums[panel][row][vector];
                        *sum = simd.add(waiting[size][panel][row][vector], *sum);
                    }
                }
            }
        }
        if let Some(waiting) = waiting.get_mut(pairs) {
            *waiting = sums;
        }
    }
    sums
}

/// Sums of `ROWS` rows and `COLUMNS` columns over `units` units.
#[allow(clippy::needless_range_loop)] // see below
#[inline(always)]
fn tile<S: Simd, T: Tile, const ROWS: usize, const COLUMNS: usize>(
    simd: S,
    activations: [&[[f32; UNIT]]; ROWS],
    weights: T,
    units: usize,
    ahead: Option<usize>,
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
        if let Some(ahead) = ahead {
            weights.prefetch(simd, index, ahead);
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
                    sums[row][column] = simd.mul_add(second, high, simd.mul_add(first, low, total));
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
