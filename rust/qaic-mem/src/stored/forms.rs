//! Stored rows of weights and caches, and a reader for each storage format.

// Inlined functions are compiled for the same instructions as their caller.
#![allow(clippy::inline_always)]

use std::ops::Range;

use qaic_quant::stored::{Form, Layout, TILE_ROWS, UNIT};

use super::StoredError;
use super::simd::{LANES, MX_BYTES, MX_FACTORS, MXINT8_BYTES, Simd, Task, ZEROS, run};
use crate::convert::Isa;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// A matrix of stored rows.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows<'a> {
    form: Form,
    layout: Layout,
    rows: usize,
    len: usize,
    codes: &'a [u8],
    scales: &'a [[u8; 4]],
    zeros: &'a [u8],
}

impl<'a> StoredRows<'a> {
    /// Checks that the bytes are `rows` rows of `len` elements.
    pub fn new(
        form: Form,
        layout: Layout,
        rows: usize,
        len: usize,
        bytes: &'a [u8],
    ) -> Result<Self, StoredError> {
        if let Some(found) = form.wrong_group() {
            return Err(StoredError::Group { found });
        }
        let expected = form.bytes(layout, rows, len);
        if expected != Some(bytes.len()) {
            return Err(StoredError::Bytes {
                form: form.name().to_owned(),
                rows,
                len,
                found: bytes.len(),
                expected: expected
                    .map_or_else(|| "more than there can be".to_owned(), |bytes| bytes.to_string()),
            });
        }
        let units = len.div_ceil(UNIT);
        let held = rows.next_multiple_of(layout.together());
        let (codes, rest) = bytes.split_at(units * form.unit_bytes() * held);
        let (scales, zeros) = rest.split_at(4 * form.groups(units).unwrap_or(0) * held);
        let (scales, _) = scales.as_chunks::<4>();
        Ok(Self { form, layout, rows, len, codes, scales, zeros })
    }

    /// Returns a range of rows that begins and ends with a tile; `None` if it does not.
    pub fn part(&self, rows: Range<usize>) -> Option<Self> {
        let together = self.layout.together();
        let is_whole = rows.end.is_multiple_of(together) || rows.end == self.rows;
        if rows.end > self.rows || !rows.start.is_multiple_of(together) || !is_whole {
            return None;
        }
        let held = rows.start..rows.end.next_multiple_of(together);
        let of = |count: usize| held.start * count..held.end * count;
        let groups = self.form.groups(self.units()).unwrap_or(0);
        let codes = self.codes.get(of(self.units() * self.form.unit_bytes()))?;
        let (scales, zeros) = (self.scales.get(of(groups))?, self.zeros.get(of(groups))?);
        Some(Self { rows: rows.len(), codes, scales, zeros, ..*self })
    }

    /// Number of rows, which are the columns of a product.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of elements of a row.
    pub const fn row_len(&self) -> usize {
        self.len
    }

    pub(super) const fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    /// Number of bytes that are read for a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.units() * self.form.unit_bytes() + 5 * self.form.groups(self.units()).unwrap_or(0)
    }

    /// Decodes rows from `first` on to float32 in `numbers`, up to the end of either, with the kernels of a family.
    pub fn gather(&self, isa: Isa, first: usize, numbers: &mut [f32]) {
        run(isa, Gather { rows: self, first, numbers });
    }
}

/// The interleaved rows of a tile, unit by unit. A row is named by its index in the tile.
pub(super) trait Tile: Copy {
    /// Values that the units of a group share.
    type Factors<S: Simd>: Copy;
    /// True if decoding takes few instructions, so that the processor waits for memory unless it reads several tiles.
    const IN_STREAMS: bool = false;
    /// Returns a range of the units.
    fn part(self, units: Range<usize>) -> Self;
    /// Number of units of a group, a power of two.
    #[inline(always)]
    fn group_units(self) -> usize {
        usize::MAX / 2 + 1
    }
    /// Reads the shared values of a unit's group.
    fn factors<S: Simd>(self, simd: S, index: usize, row: usize) -> Self::Factors<S>;
    /// Prefetches the memory `ahead` bytes after a unit.
    fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize);
    /// Decodes a unit.
    fn unit<S: Simd>(self, simd: S, index: usize, row: usize, factors: Self::Factors<S>) -> [S::V; 2];
}

/// A task that is compiled separately for each storage format and layout.
pub(super) trait TilesTask {
    /// Runs the task; `tile` returns a tile of `TOGETHER` rows.
    fn run<S: Simd, T: Tile, const TOGETHER: usize>(self, simd: S, tile: impl Fn(usize) -> T);
}

impl StoredRows<'_> {
    /// Runs a task with the reader of this format and layout.
    #[inline(always)]
    pub(super) fn with<S: Simd>(&self, simd: S, task: impl TilesTask) {
        match self.layout {
            Layout::Rows => self.with_tiles::<S, 1>(simd, task),
            Layout::Tiles => self.with_tiles::<S, TILE_ROWS>(simd, task),
        }
    }

    #[inline(always)]
    fn with_tiles<S: Simd, const TOGETHER: usize>(&self, simd: S, task: impl TilesTask) {
        macro_rules! run {
            ($tile:ident $(, $groups:ident)?) => {
                task.run::<S, $tile<'_, TOGETHER>, TOGETHER>(simd, |tile| {
                    $tile(self.units_of(tile) $(, self.$groups(tile))?)
                })
            };
        }
        match self.form {
            Form::Float32 => run!(Float32Tile),
            Form::Float16 => run!(Float16Tile),
            Form::Bfloat16 => run!(Bfloat16Tile),
            Form::Mxfp6 => run!(Mxfp6Tile),
            Form::Mxint8 => run!(Mxint8Tile),
            Form::Int8 { .. } => run!(Int8Tile, groups_of),
            Form::Uint4 { .. } => run!(Uint4Tile, groups_of),
        }
    }

    fn units_of<const N: usize, const TOGETHER: usize>(&self, tile: usize) -> Units<'_, N, TOGETHER> {
        let (units, _) = self.codes.as_chunks::<N>();
        Units(part_of(units, tile, self.units()))
    }

    fn groups_of<const TOGETHER: usize>(&self, tile: usize) -> Groups<'_, TOGETHER> {
        let count = self.form.groups(self.units()).unwrap_or(0);
        let shift = match self.form {
            Form::Int8 { group } | Form::Uint4 { group } if group != 0 => (group / UNIT).trailing_zeros(),
            // One group, regardless of the length of the row.
            _ => usize::BITS - 1,
        };
        let (scales, zeros) = (part_of(self.scales, tile, count), part_of(self.zeros, tile, count));
        Groups { scales, zeros, first: 0, shift }
    }
}

/// Returns the part of a tile if each of its rows has `count` elements.
fn part_of<T, const TOGETHER: usize>(elements: &[T], tile: usize, count: usize) -> &[[T; TOGETHER]] {
    let (elements, _) = elements.as_chunks::<TOGETHER>();
    elements.get(tile * count..(tile + 1) * count).unwrap_or_default()
}

#[derive(Clone, Copy)]
struct Units<'a, const N: usize, const TOGETHER: usize>(&'a [[[u8; N]; TOGETHER]]);

impl<'a, const N: usize, const TOGETHER: usize> Units<'a, N, TOGETHER> {
    #[inline(always)]
    fn part(self, units: Range<usize>) -> Self {
        Self(self.0.get(units).unwrap_or_default())
    }

    #[inline(always)]
    fn at(self, index: usize, row: usize) -> &'a [u8; N] {
        &self.0[index][row]
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize) {
        let start = self.0[index].as_ptr().cast::<u8>().wrapping_add(ahead);
        for line in 0..(TOGETHER * N).div_ceil(LINE) {
            simd.prefetch(start.wrapping_add(line * LINE));
        }
    }
}

#[derive(Clone, Copy)]
struct Float32Tile<'a, const TOGETHER: usize>(Units<'a, { 4 * UNIT }, TOGETHER>);
#[derive(Clone, Copy)]
struct Float16Tile<'a, const TOGETHER: usize>(Units<'a, { 2 * UNIT }, TOGETHER>);
#[derive(Clone, Copy)]
struct Bfloat16Tile<'a, const TOGETHER: usize>(Units<'a, { 2 * UNIT }, TOGETHER>);
#[derive(Clone, Copy)]
struct Mxfp6Tile<'a, const TOGETHER: usize>(Units<'a, MX_BYTES, TOGETHER>);
#[derive(Clone, Copy)]
struct Mxint8Tile<'a, const TOGETHER: usize>(Units<'a, MXINT8_BYTES, TOGETHER>);
#[derive(Clone, Copy)]
struct Int8Tile<'a, const TOGETHER: usize>(Units<'a, UNIT, TOGETHER>, Groups<'a, TOGETHER>);
#[derive(Clone, Copy)]
struct Uint4Tile<'a, const TOGETHER: usize>(Units<'a, { UNIT / 2 }, TOGETHER>, Groups<'a, TOGETHER>);

/// Tiles that are read together, each one a stream of memory. They have `COLUMNS` rows together.
#[derive(Clone, Copy)]
pub(super) struct Several<T, const TILES: usize, const COLUMNS: usize>(pub(super) [T; TILES]);

/// Scales and zero points of a tile.
#[derive(Clone, Copy)]
struct Groups<'a, const TOGETHER: usize> {
    scales: &'a [[[u8; 4]; TOGETHER]],
    zeros: &'a [[u8; TOGETHER]],
    // Index of the first unit.
    first: usize,
    // Binary logarithm of the number of units in a group.
    shift: u32,
}

impl<const TOGETHER: usize> Groups<'_, TOGETHER> {
    fn from(self, first: usize) -> Self {
        Self { first: self.first + first, ..self }
    }

    /// Number of units of a group, or the maximum number of units in a row.
    #[inline(always)]
    fn units(self) -> usize {
        1 << self.shift
    }

    /// Returns the entry of [`ZEROS`] for the zero point, and the scale, of a unit.
    #[inline(always)]
    fn factors<S: Simd>(self, simd: S, index: usize, row: usize) -> [S::V; 2] {
        let group = (self.first + index) >> self.shift;
        let zero = ZEROS[usize::from(self.zeros[group][row])];
        [simd.splat(zero), simd.splat(f32::from_le_bytes(self.scales[group][row]))]
    }
}

#[inline(always)]
fn halves<const N: usize, const HALF: usize>(unit: &[u8; N]) -> [&[u8; HALF]; 2] {
    let (halves, _) = unit.as_chunks::<HALF>();
    [&halves[0], &halves[1]]
}

/// Defines a tile whose units `$unit` reads.
macro_rules! tile {
    ($name:ident, |$simd:ident, $bytes:ident| $unit:expr) => {
        impl<const TOGETHER: usize> Tile for $name<'_, TOGETHER> {
            type Factors<S: Simd> = ();
            const IN_STREAMS: bool = true;

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                Self(self.0.part(units))
            }

            #[inline(always)]
            fn factors<S: Simd>(self, _: S, _: usize, _: usize) {}

            #[inline(always)]
            fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize) {
                self.0.prefetch(simd, index, ahead);
            }

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, row: usize, (): ()) -> [S::V; 2] {
                let $bytes = self.0.at(index, row);
                $unit
            }
        }
    };
}

tile!(Float32Tile, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.float32(first), simd.float32(second)]
});
tile!(Float16Tile, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.float16(first), simd.float16(second)]
});
tile!(Bfloat16Tile, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.bfloat16(first), simd.bfloat16(second)]
});

/// Defines a tile of blocks whose units `$unit` reads without their exponents. A group is one unit.
macro_rules! mx_tile {
    ($name:ident, |$simd:ident, $block:ident| $unit:expr) => {
        impl<const TOGETHER: usize> Tile for $name<'_, TOGETHER> {
            type Factors<S: Simd> = S::V;

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                Self(self.0.part(units))
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                1
            }

            #[inline(always)]
            fn factors<S: Simd>(self, simd: S, index: usize, row: usize) -> S::V {
                simd.splat(MX_FACTORS[usize::from(self.0.at(index, row)[0])])
            }

            #[inline(always)]
            fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize) {
                self.0.prefetch(simd, index, ahead);
            }

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, row: usize, factor: S::V) -> [S::V; 2] {
                let $block = self.0.at(index, row);
                let [first, second] = $unit;
                [$simd.mul(first, factor), $simd.mul(second, factor)]
            }
        }
    };
}

mx_tile!(Mxfp6Tile, |simd, block| simd.mxfp6(block));
mx_tile!(Mxint8Tile, |simd, block| {
    let [_, elements @ ..] = block;
    simd.int8(elements, simd.splat(ZEROS[0]), simd.splat(1.0 / 64.0))
});

impl<T: Tile, const TILES: usize, const COLUMNS: usize> Several<T, TILES, COLUMNS> {
    const TOGETHER: usize = COLUMNS / TILES;
}

impl<T: Tile, const TILES: usize, const COLUMNS: usize> Tile for Several<T, TILES, COLUMNS> {
    type Factors<S: Simd> = T::Factors<S>;
    const IN_STREAMS: bool = T::IN_STREAMS;

    #[inline(always)]
    fn part(self, units: Range<usize>) -> Self {
        Self(self.0.map(|tile| tile.part(units.clone())))
    }

    #[inline(always)]
    fn group_units(self) -> usize {
        self.0[0].group_units()
    }

    #[inline(always)]
    fn factors<S: Simd>(self, simd: S, index: usize, row: usize) -> Self::Factors<S> {
        self.0[row / Self::TOGETHER].factors(simd, index, row % Self::TOGETHER)
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize) {
        for tile in self.0 {
            tile.prefetch(simd, index, ahead);
        }
    }

    #[inline(always)]
    fn unit<S: Simd>(self, simd: S, index: usize, row: usize, factors: Self::Factors<S>) -> [S::V; 2] {
        self.0[row / Self::TOGETHER].unit(simd, index, row % Self::TOGETHER, factors)
    }
}

/// Defines a quantized tile whose units `$numbers` reads with a zero point and a scale.
macro_rules! quantized_tile {
    ($name:ident, $factors:ty, |$simd:ident, $zero:ident, $scale:ident| $made:expr, |$unit:ident, $used:ident| $numbers:expr) => {
        impl<const TOGETHER: usize> Tile for $name<'_, TOGETHER> {
            type Factors<S: Simd> = $factors;

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                let groups = self.1.from(units.start);
                Self(self.0.part(units), groups)
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                self.1.units()
            }

            #[inline(always)]
            fn factors<S: Simd>(self, $simd: S, index: usize, row: usize) -> Self::Factors<S> {
                let [$zero, $scale] = self.1.factors($simd, index, row);
                $made
            }

            #[inline(always)]
            fn prefetch<S: Simd>(self, simd: S, index: usize, ahead: usize) {
                self.0.prefetch(simd, index, ahead);
            }

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, row: usize, $used: Self::Factors<S>) -> [S::V; 2] {
                let $unit = self.0.at(index, row);
                $numbers
            }
        }
    };
}

quantized_tile!(Int8Tile, [S::V; 2], |simd, zero, scale| [zero, scale], |unit, factors| {
    let [zero, scale] = factors;
    simd.int8(unit, zero, scale)
});
quantized_tile!(Uint4Tile, S::Numbers4, |simd, zero, scale| simd.numbers4(zero, scale), |unit, numbers| {
    simd.uint4(unit, numbers)
});

/// Task that decodes rows.
struct Gather<'a> {
    rows: &'a StoredRows<'a>,
    first: usize,
    numbers: &'a mut [f32],
}

impl Task for Gather<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = *self.rows;
        rows.with(simd, self);
    }
}

impl TilesTask for Gather<'_> {
    #[inline(always)]
    fn run<S: Simd, T: Tile, const TOGETHER: usize>(self, simd: S, tile: impl Fn(usize) -> T) {
        let mut halves = [[0.0; LANES]; 2];
        let rows = self.numbers.chunks_mut(self.rows.len.max(1));
        for (numbers, at) in rows.zip(self.first..self.rows.rows) {
            let (tile, row) = (tile(at / TOGETHER), at % TOGETHER);
            for (index, numbers) in numbers.chunks_mut(UNIT).enumerate().take(self.rows.units()) {
                let [first, second] = decoded(simd, tile, index, row);
                simd.store(first, &mut halves[0]);
                simd.store(second, &mut halves[1]);
                numbers.copy_from_slice(&halves.as_flattened()[..numbers.len()]);
            }
        }
    }
}

/// Decodes a unit.
#[inline(always)]
pub(super) fn decoded<S: Simd, T: Tile>(simd: S, tile: T, index: usize, row: usize) -> [S::V; 2] {
    tile.unit(simd, index, row, tile.factors(simd, index, row))
}
