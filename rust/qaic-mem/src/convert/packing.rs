//! Conversion of the numbers of a weight to the form in which a container stores them.
//!
//! The result consists of blocks that threads compute independently. A block reads its part of the source in stages
//! that stay in the second-level cache: the numbers of a stage are converted, checked and placed before the next
//! stage is read. Memory is therefore read and written once.

use std::io;
use std::ops::{AddAssign, Range};
use std::sync::{Mutex, PoisonError};

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};
use qaic_quant::mx::{self, BLOCK, MxFormat, NotFinite};
use qaic_quant::stored::Layout;
use thiserror::Error;

use super::dispatch::{self, Isa};
use super::transpose::turn;
use super::{ElementOp, half as half_kernel};
use crate::{HostSlice, HostSliceMut};

/// Number of elements of a stage.
const STAGE: usize = 1 << 14;
/// Bytes of a block without an order of its own.
const FLAT_BYTES: usize = 1 << 19;
/// Bytes of a block of rows, unless a single tile is larger.
const BLOCK_BYTES: usize = 1 << 21;
/// Most bytes of a block of turned columns, which are read in short pieces.
const TURNED_BYTES: usize = 1 << 25;
/// Least number of bytes that are read from a row of the source if columns become rows.
const PIECE_BYTES: usize = 1 << 11;
/// Most columns of a block.
const MOST_COLUMNS: usize = 1 << 11;

/// Bits of a float16 without its sign.
const MAGNITUDE: u16 = 0x7fff;
/// Bits of infinity as float16; NaN has larger bits.
const INFINITY: u16 = 0x7c00;
/// Bits of the largest finite float16.
const LARGEST: u16 = 0x7bff;
/// Bytes of a block.
const MXFP6_BYTES: usize = MxFormat::Fp6E2M3.block_bytes();
/// Least stored exponent for which float16 represents every element of a block.
const LEAST_OF_FLOAT16: u8 = 127 - 24 + 3;

qaic_quant::named! {
    /// Type of a number.
    pub enum Number [5] {
        /// Float64.
        Float64 = "float64",
        /// Float32.
        Float32 = "float32",
        /// Float16.
        Float16 = "float16",
        /// Bfloat16.
        Bfloat16 = "bfloat16",
        /// A byte, which is never converted.
        Byte = "uint8",
    }
}

qaic_quant::named! {
    /// Stored form of numbers.
    pub enum Code [4] {
        /// The numbers themselves.
        Plain = "plain",
        /// Bytes with the highest bit inverted, so that unsigned numbers become signed.
        Signed = "signed",
        /// Blocks of MXFP6.
        Mxfp6 = "mxfp6_e2m3",
        /// Blocks of MXFP6 whose elements are rounded to float16.
        Mxfp6Float16 = "mxfp6_e2m3 of float16",
    }
}

impl Number {
    /// Bytes of a number.
    pub const fn size(self) -> usize {
        match self {
            Self::Float64 => 8,
            Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Byte => 1,
        }
    }

    /// Returns the types that a number has one after the other on its way from one type to another.
    fn path(from: Self, to: Self) -> Option<Vec<Self>> {
        if from == to {
            return Some(vec![from]);
        }
        match (from, to) {
            (Self::Byte, _) | (_, Self::Byte) => None,
            (Self::Float32, _) | (_, Self::Float32) | (Self::Float64, Self::Float16) => Some(vec![from, to]),
            _ => Some(vec![from, Self::Float32, to]),
        }
    }
}

/// Matrices that are stored as rows along which products are summed.
#[derive(Clone, Copy, Debug)]
pub struct Matrices {
    /// Number of matrices.
    pub count: usize,
    /// Rows of a matrix of the source.
    pub rows: usize,
    /// Columns of a matrix of the source.
    pub columns: usize,
    /// True if columns are stored as rows.
    pub is_turned: bool,
    /// Order of the units.
    pub layout: Layout,
    /// Numbers of a unit; rows are padded with zeros to whole units.
    pub unit: usize,
}

/// Reason why numbers cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct PackingError {
    what: String,
}

/// Values that a conversion changed more than by rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// Number of finite values that float16 makes infinite.
    pub beyond: u64,
    /// One of them with the largest magnitude.
    pub farthest: f64,
    /// Largest magnitude among values of stages that float16 turned into zeros.
    pub lost: f64,
    /// True if a value is not zero in float16.
    pub has_survivors: bool,
    /// Values that a block cannot represent.
    pub not_finite: NotFinite,
}

impl AddAssign for Found {
    fn add_assign(&mut self, more: Self) {
        self.beyond += more.beyond;
        if more.farthest.abs() > self.farthest.abs() {
            self.farthest = more.farthest;
        }
        self.lost = self.lost.max(more.lost);
        self.has_survivors |= more.has_survivors;
        self.not_finite += more.not_finite;
    }
}

/// Findings of the conversion of each block. A block that is converted again counts once.
#[derive(Debug)]
pub struct FoundInBlocks(Mutex<Vec<Found>>);

impl FoundInBlocks {
    /// Creates an empty record of a number of blocks.
    pub fn new(blocks: usize) -> Self {
        Self(Mutex::new(vec![Found::default(); blocks]))
    }

    /// Records the findings of a block.
    pub fn record(&self, index: usize, found: Found) {
        if let Some(entry) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *entry = found;
        }
    }

    /// Returns the sum over all blocks.
    pub fn total(&self) -> Found {
        let mut total = Found::default();
        for found in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            total += *found;
        }
        total
    }
}

/// Source of the numbers: reads the bytes at an offset.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync + 'a;

/// Conversion of a number of bytes to blocks.
#[derive(Clone, Debug)]
pub struct Packing {
    path: Vec<Number>,
    code: Code,
    clip: bool,
    shape: Shape,
    /// Bytes of the source.
    pub source_bytes: usize,
    /// Bytes of the result.
    pub bytes: usize,
    /// Number of blocks.
    pub blocks: usize,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Numbers in the order of the source.
    Flat,
    Rows(Rows),
}

/// The stored rows of matrices.
#[derive(Clone, Copy, Debug)]
struct Rows {
    matrices: Matrices,
    /// Numbers of a row.
    len: usize,
    /// Units of a row.
    units: usize,
    unit_bytes: usize,
    /// Rows of a tile.
    together: usize,
    /// Stored rows of a matrix, without those that fill its last tile.
    in_matrix: usize,
    /// Stored rows of a block, a whole number of tiles.
    in_block: usize,
    /// Blocks of a matrix.
    blocks: usize,
}

/// A block of stored rows.
struct Part {
    matrix: usize,
    rows: Range<usize>,
}

impl Packing {
    /// Describes the conversion of `source_bytes` bytes of type `from` to type `to`, which `code` then stores.
    ///
    /// With `clip`, finite values beyond float16 become its largest value instead of infinity. Without `matrices`, the
    /// order of the numbers does not change.
    pub fn new(
        source_bytes: usize,
        (from, to): (Number, Number),
        clip: bool,
        code: Code,
        matrices: Option<Matrices>,
    ) -> Result<Self, PackingError> {
        let refuse = |what: String| PackingError { what };
        let names = || format!("{} to {} as {}", from.name(), to.name(), code.name());
        let mut path =
            Number::path(from, to).ok_or_else(|| refuse(format!("no conversion from {}", names())))?;
        if matches!(code, Code::Mxfp6 | Code::Mxfp6Float16) {
            let wide = Number::path(to, Number::Float32);
            path.extend(wide.ok_or_else(|| refuse(format!("no conversion from {}", names())))?.drain(1..));
        } else if code == Code::Signed && to != Number::Byte {
            return Err(refuse(format!("no conversion from {}", names())));
        }
        let stored = path.last().map_or(1, |number| number.size());
        let Some(matrices) = matrices else {
            let count = source_bytes / from.size();
            if code != Code::Plain || count * from.size() != source_bytes {
                return Err(refuse(format!("{source_bytes} bytes without rows, from {}", names())));
            }
            let bytes =
                count.checked_mul(stored).ok_or_else(|| refuse(format!("too many numbers: {count}")))?;
            let blocks = bytes.div_ceil(FLAT_BYTES);
            return Ok(Self { path, code, clip, shape: Shape::Flat, source_bytes, bytes, blocks });
        };
        let sizes = Rows::new(matrices, from.size(), stored, code);
        let (rows, expected, bytes) =
            sizes.ok_or_else(|| refuse(format!("matrices of these sizes: {matrices:?}")))?;
        if expected != source_bytes {
            return Err(refuse(format!("{matrices:?}: found {source_bytes} bytes, expected {expected}")));
        }
        let blocks = rows.blocks * rows.matrices.count;
        Ok(Self { path, code, clip, shape: Shape::Rows(rows), source_bytes, bytes, blocks })
    }

    /// Number of bytes of a block; 0 if there is no such block.
    pub fn block_bytes(&self, index: usize) -> usize {
        match &self.shape {
            Shape::Flat => self.bytes.saturating_sub(index.saturating_mul(FLAT_BYTES)).min(FLAT_BYTES),
            Shape::Rows(_) if index >= self.blocks => 0,
            Shape::Rows(rows) => {
                let part = rows.part(index);
                part.rows.len().next_multiple_of(rows.together) * rows.row_bytes()
            }
        }
    }

    /// Computes a block. `into` has [`Packing::block_bytes`] bytes, all of which are written; none if there is no such
    /// block.
    pub fn fill(&self, index: usize, read: &Read<'_>, into: &mut [u8]) -> io::Result<Found> {
        let mut found = Found::default();
        if index >= self.blocks {
            return Ok(found);
        }
        match &self.shape {
            Shape::Flat if self.path.len() == 1 => read((index * FLAT_BYTES) as u64, into)?,
            Shape::Flat => self.fill_flat(index, read, into, &mut found)?,
            Shape::Rows(rows) => {
                let part = rows.part(index);
                if rows.len != rows.units * rows.matrices.unit || part.rows.len() % rows.together != 0 {
                    into.fill(0);
                }
                if rows.matrices.is_turned {
                    self.fill_turned(rows, &part, read, into, &mut found)?;
                } else {
                    self.fill_rows(rows, &part, read, into, &mut found)?;
                }
            }
        }
        if self.code == Code::Signed {
            for byte in into {
                *byte ^= 0x80;
            }
        }
        Ok(found)
    }

    fn fill_flat(&self, index: usize, read: &Read<'_>, into: &mut [u8], found: &mut Found) -> io::Result<()> {
        let mut stage = Stage::new(&self.path, STAGE);
        let (size_in, size_out) = (self.size_in(), self.size_out());
        let mut first = index * (FLAT_BYTES / size_out);
        for part in into.chunks_mut(STAGE * size_out) {
            let count = part.len() / size_out;
            read((first * size_in) as u64, stage.bytes(count * size_in))?;
            part.copy_from_slice(self.convert(&mut stage, count, found));
            first += count;
        }
        Ok(())
    }

    /// Fills a block with rows that are rows of the source.
    fn fill_rows(
        &self,
        rows: &Rows,
        part: &Part,
        read: &Read<'_>,
        into: &mut [u8],
        found: &mut Found,
    ) -> io::Result<()> {
        let size_in = self.size_in();
        let unit = rows.matrices.unit;
        // Several rows, or a part of one.
        let many = (STAGE / rows.len.max(1)).max(1);
        let length = if many > 1 { rows.len } else { (STAGE / unit).max(1) * unit };
        let mut stage = Stage::new(&self.path, many * length);
        let mut blocks = Vec::new();
        for row in part.rows.clone().step_by(many) {
            let count = many.min(part.rows.end - row);
            for start in (0..rows.len).step_by(length.max(1)) {
                let len = length.min(rows.len - start);
                let first = row * rows.len + start;
                read((first * size_in) as u64, stage.bytes(count * len * size_in))?;
                let mut stored = self.convert(&mut stage, count * len, found);
                if self.is_blocks() {
                    blocks.resize(count * len.div_ceil(unit) * rows.unit_bytes, 0);
                    found.not_finite += self.encode(len, cast_slice(stored), &mut blocks);
                    stored = &blocks;
                }
                for (r, stored) in stored.chunks_exact(stored.len() / count).enumerate() {
                    for (u, stored) in stored.chunks(rows.unit_bytes).enumerate() {
                        let at = rows.position(row + r - part.rows.start, start / unit + u);
                        into[at..at + stored.len()].copy_from_slice(stored);
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills a block with rows that are columns of the source.
    fn fill_turned(
        &self,
        rows: &Rows,
        part: &Part,
        read: &Read<'_>,
        into: &mut [u8],
        found: &mut Found,
    ) -> io::Result<()> {
        let (size_in, size_out) = (self.size_in(), self.size_out());
        let Matrices { unit, columns, .. } = rows.matrices;
        let wide = part.rows.len();
        let mut stage = Stage::new(&self.path, unit * wide);
        for u in 0..rows.units {
            let high = unit.min(rows.len - u * unit);
            let first = (part.matrix * rows.len + u * unit) * columns + part.rows.start;
            let bytes = stage.bytes(high * wide * size_in);
            if wide == columns {
                read((first * size_in) as u64, bytes)?;
            } else {
                for (r, piece) in bytes.chunks_exact_mut(wide * size_in).enumerate() {
                    read(((first + r * columns) * size_in) as u64, piece)?;
                }
            }
            let numbers = self.convert(&mut stage, high * wide, found);
            if !self.is_blocks() {
                // The units of a tile are adjacent; without tiles, all units have the same distance.
                let (group, stride) =
                    if rows.together == 1 { (wide, rows.units * unit) } else { (rows.together, unit) };
                for c in (0..wide).step_by(group) {
                    let from = HostSlice::of(&numbers[c * size_out..]);
                    let mut to = HostSliceMut::of(&mut into[rows.position(c, u)..]);
                    let turned = turn(size_out, from, wide, &mut to, stride, high, group.min(wide - c));
                    debug_assert!(turned.is_some(), "the block has room for its columns");
                }
                continue;
            }
            let (mut turned_columns, mut blocks) = ([[0.0_f32; BLOCK]; 4], [[0; MXFP6_BYTES]; 4]);
            for c in (0..wide).step_by(turned_columns.len()) {
                let count = turned_columns.len().min(wide - c);
                let from = HostSlice::of(&numbers[c * size_out..]);
                let mut to = HostSliceMut::of(turned_columns.as_flattened_mut());
                let turned = turn(size_out, from, wide, &mut to, BLOCK, high, count);
                debug_assert!(turned.is_some(), "a unit is a block");
                found.not_finite += self.encode(
                    BLOCK,
                    turned_columns[..count].as_flattened(),
                    blocks[..count].as_flattened_mut(),
                );
                for (k, block) in blocks[..count].iter().enumerate() {
                    let at = rows.position(c + k, u);
                    into[at..at + block.len()].copy_from_slice(block);
                }
            }
        }
        Ok(())
    }

    /// Encodes rows of `len` numbers as blocks.
    fn encode(&self, len: usize, values: &[f32], blocks: &mut [u8]) -> NotFinite {
        let found = dispatch::encode_mxfp6(Isa::best(), len, values, blocks);
        if self.code == Code::Mxfp6Float16 {
            for block in blocks.as_chunks_mut::<MXFP6_BYTES>().0 {
                if block[0] < LEAST_OF_FLOAT16 {
                    round_to_float16(block);
                }
            }
        }
        found
    }

    fn is_blocks(&self) -> bool {
        matches!(self.code, Code::Mxfp6 | Code::Mxfp6Float16)
    }

    fn size_in(&self) -> usize {
        self.path.first().map_or(1, |number| number.size())
    }

    fn size_out(&self) -> usize {
        self.path.last().map_or(1, |number| number.size())
    }

    /// Converts the first `count` numbers of a stage.
    fn convert<'a>(&self, stage: &'a mut Stage, count: usize, found: &mut Found) -> &'a [u8] {
        for step in self.path.windows(2) {
            let &[from, to] = step else { continue };
            let source: &[u8] = &cast_slice::<u64, u8>(&stage.numbers)[..count * from.size()];
            let result: &mut [u8] = &mut cast_slice_mut::<u64, u8>(&mut stage.converted)[..count * to.size()];
            convert(from, to, source, result);
            if to == Number::Float16 {
                match from {
                    Number::Float64 => self.check::<f64>(cast_slice(source), cast_slice_mut(result), found),
                    _ => self.check::<f32>(cast_slice(source), cast_slice_mut(result), found),
                }
            }
            std::mem::swap(&mut stage.numbers, &mut stage.converted);
        }
        &cast_slice::<u64, u8>(&stage.numbers)[..count * self.size_out()]
    }

    /// Finds values that float16 changes more than by rounding.
    fn check<T: Pod + Into<f64>>(&self, values: &[T], halves: &mut [u16], found: &mut Found) {
        // Signed numbers, because the base set of x86-64 has no maximum of unsigned ones.
        let highest = halves.iter().map(|half| (half & MAGNITUDE).cast_signed()).fold(0, i16::max);
        if highest == 0 {
            found.lost = values.iter().map(|&value| value.into().abs()).fold(found.lost, f64::max);
            return;
        }
        found.has_survivors = true;
        if highest < INFINITY.cast_signed() {
            return;
        }
        for (half, &value) in halves.iter_mut().zip(values) {
            let value: f64 = value.into();
            if *half & MAGNITUDE == INFINITY && value.is_finite() {
                found.beyond += 1;
                if value.abs() > found.farthest.abs() {
                    found.farthest = value;
                }
                if self.clip {
                    *half = *half & !MAGNITUDE | LARGEST;
                }
            }
        }
    }
}

impl Rows {
    /// Returns the rows, the bytes of the source and those of the result; `None` if they do not fit the address space,
    /// or a tile would contain rows of two matrices.
    fn new(matrices: Matrices, size_in: usize, size_out: usize, code: Code) -> Option<(Self, usize, usize)> {
        let Matrices { mut count, rows, columns, is_turned, layout, unit } = matrices;
        let source_bytes = count.checked_mul(rows)?.checked_mul(columns)?.checked_mul(size_in)?;
        let (mut in_matrix, len) = if is_turned { (columns, rows) } else { (rows, columns) };
        if !is_turned {
            // The rows of all matrices are adjacent.
            (count, in_matrix) = (1, count.checked_mul(rows)?);
        }
        let together = layout.together();
        let is_blocks = matches!(code, Code::Mxfp6 | Code::Mxfp6Float16);
        if unit == 0 || is_blocks && unit != BLOCK || count > 1 && in_matrix % together != 0 {
            return None;
        }
        let units = len.div_ceil(unit);
        let unit_bytes = if is_blocks { MXFP6_BYTES } else { unit.checked_mul(size_out)? };
        let row_bytes = units.checked_mul(unit_bytes)?;
        let bytes =
            in_matrix.checked_next_multiple_of(together)?.checked_mul(row_bytes)?.checked_mul(count)?;
        let most = |bytes: usize| (bytes / row_bytes.max(1)).max(1);
        let mut in_block = most(BLOCK_BYTES);
        if is_turned {
            in_block = in_block.max(PIECE_BYTES / size_in).min(most(TURNED_BYTES)).min(MOST_COLUMNS);
        }
        in_block = in_block.min(in_matrix).next_multiple_of(together).max(together);
        let blocks = if row_bytes == 0 { 0 } else { in_matrix.div_ceil(in_block) };
        let matrices = Matrices { count, ..matrices };
        let rows = Self { matrices, len, units, unit_bytes, together, in_matrix, in_block, blocks };
        Some((rows, source_bytes, bytes))
    }

    fn row_bytes(&self) -> usize {
        self.units * self.unit_bytes
    }

    fn part(&self, index: usize) -> Part {
        let start = index % self.blocks * self.in_block;
        Part { matrix: index / self.blocks, rows: start..self.in_matrix.min(start + self.in_block) }
    }

    /// Returns the position of a unit in a block, whose rows count from 0.
    fn position(&self, row: usize, unit: usize) -> usize {
        let tile = row / self.together * self.units;
        ((tile + unit) * self.together + row % self.together) * self.unit_bytes
    }
}

/// Numbers on their way from the source to the block.
struct Stage {
    // Words, so that numbers of every type are aligned.
    numbers: Vec<u64>,
    converted: Vec<u64>,
}

impl Stage {
    /// Creates room for `count` numbers of each type of `path`.
    fn new(path: &[Number], count: usize) -> Self {
        let widest = path.iter().map(|number| number.size()).max().unwrap_or(1);
        let words = (count * widest).div_ceil(size_of::<u64>());
        Self { numbers: vec![0; words], converted: vec![0; if path.len() > 1 { words } else { 0 }] }
    }

    fn bytes(&mut self, count: usize) -> &mut [u8] {
        &mut cast_slice_mut::<u64, u8>(&mut self.numbers)[..count]
    }
}

/// Converts numbers along one step of [`Number::path`].
fn convert(from: Number, to: Number, source: &[u8], result: &mut [u8]) {
    fn each<T: Pod, U: Pod>(source: &[u8], result: &mut [u8], convert: impl Fn(T) -> U) {
        for (from, to) in cast_slice::<_, T>(source).iter().zip(cast_slice_mut::<_, U>(result)) {
            *to = convert(*from);
        }
    }
    let vectors = |op, result: &mut [u8]| {
        dispatch::apply(Isa::best(), op, HostSlice::of(source), HostSliceMut::of(result))
    };
    match (from, to) {
        (Number::Float32, Number::Float16) => vectors(ElementOp::F32ToF16, result),
        (Number::Float16, Number::Float32) => vectors(ElementOp::F16ToF32, result),
        (Number::Bfloat16, Number::Float32) => {
            // A bfloat16 is the upper half of a float32.
            each(source, result, |bits: u16| u32::from(bits) << 16);
        }
        (Number::Float32, Number::Bfloat16) => each::<f32, bf16>(source, result, bf16::from_f32),
        (Number::Float64, Number::Float16) => each(source, result, half_kernel::narrow_f64),
        #[allow(clippy::cast_possible_truncation)] // rounds to nearest
        (Number::Float64, Number::Float32) => each(source, result, |value: f64| value as f32),
        (Number::Float32, Number::Float64) => each::<f32, f64>(source, result, f64::from),
        _ => unreachable!("a path has no such step"),
    }
}

/// Rounds the elements of a block to values of float16.
fn round_to_float16(block: &mut [u8; MXFP6_BYTES]) {
    let mut values = [0.0; BLOCK];
    mx::decode(MxFormat::Fp6E2M3, BLOCK, block, &mut values);
    for value in &mut values {
        *value = f16::from_f32(*value).to_f32();
    }
    mx::encode(MxFormat::Fp6E2M3, BLOCK, &values, block);
}
