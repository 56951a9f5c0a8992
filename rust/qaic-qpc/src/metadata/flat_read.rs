//! Checked `FlatBuffer` reads. Each read does the checks of a verifier, and is charged to the budget.
//!
//! Positions and alignment are relative to the buffer's start; the buffer itself may have an odd address.

use crate::bytes::{range_within, u8_at, u16_at, u32_at, u64_at};
use crate::error::{FlatDefect, QpcError};
use crate::limits::Budget;

/// A table whose field table has been checked.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    name: &'static str,
    start: u64,
    slots: u64,
    slots_len: u64,
}

/// Elements of a vector.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    pub(super) first: u64,
    pub(super) count: u64,
}

type Read<T> = Result<T, QpcError>;

fn error<T>(table: &'static str, offset: u64, defect: FlatDefect) -> Read<T> {
    Err(QpcError::FlatBuffer { table, offset, defect })
}

impl<'a> Table<'a> {
    /// The root table of a buffer without file identifier and size prefix.
    pub(super) fn root(bytes: &'a [u8], name: &'static str) -> Read<Self> {
        match u32_at(bytes, 0) {
            Some(distance) => Self::at(bytes, name, u64::from(distance)),
            None => error(name, 0, FlatDefect::OutOfBounds),
        }
    }

    fn at(bytes: &'a [u8], name: &'static str, start: u64) -> Read<Self> {
        aligned(name, start, 4)?;
        let back = u32_at(bytes, start).map(u32::cast_signed);
        let slots = back.and_then(|back| start.checked_add_signed(i64::from(back).checked_neg()?));
        let Some(slots) = slots else { return error(name, start, FlatDefect::OutOfBounds) };
        aligned(name, slots, 2)?;
        let Some(slots_len) = u16_at(bytes, slots) else {
            return error(name, slots, FlatDefect::OutOfBounds);
        };
        let slots_len = u64::from(slots_len);
        if slots_len % 2 != 0 {
            return error(name, slots, FlatDefect::FieldTable);
        }
        if range_within(bytes.len(), slots, slots_len).is_none() {
            return error(name, slots, FlatDefect::OutOfBounds);
        }
        Ok(Self { bytes, name, start, slots, slots_len })
    }

    /// Position of field `id`; `None` if the field is absent.
    fn slot(&self, id: u16, alignment: u64) -> Read<Option<u64>> {
        let entry = u64::from(id).saturating_mul(2).saturating_add(4);
        if entry >= self.slots_len {
            return Ok(None);
        }
        match u16_at(self.bytes, self.slots.saturating_add(entry)).unwrap_or_default() {
            0 => Ok(None),
            offset => {
                let slot = self.start.saturating_add(u64::from(offset));
                aligned(self.name, slot, alignment)?;
                Ok(Some(slot))
            }
        }
    }

    fn scalar<T>(&self, id: u16, size: u64, default: T, read: fn(&[u8], u64) -> Option<T>) -> Read<T> {
        let Some(slot) = self.slot(id, size)? else { return Ok(default) };
        read(self.bytes, slot).map_or_else(|| error(self.name, slot, FlatDefect::OutOfBounds), Ok)
    }

    pub(super) fn u8(&self, id: u16) -> Read<u8> {
        self.scalar(id, 1, 0, u8_at)
    }

    pub(super) fn i8(&self, id: u16, default: i8) -> Read<i8> {
        self.scalar(id, 1, default, |bytes, slot| u8_at(bytes, slot).map(u8::cast_signed))
    }

    pub(super) fn u16(&self, id: u16) -> Read<u16> {
        self.scalar(id, 2, 0, u16_at)
    }

    pub(super) fn u32(&self, id: u16) -> Read<u32> {
        self.scalar(id, 4, 0, u32_at)
    }

    pub(super) fn optional_u32(&self, id: u16) -> Read<Option<u32>> {
        self.scalar(id, 4, None, |bytes, slot| u32_at(bytes, slot).map(Some))
    }

    pub(super) fn u64(&self, id: u16) -> Read<u64> {
        self.scalar(id, 8, 0, u64_at)
    }

    fn follow(&self, slot: u64) -> Read<u64> {
        match u32_at(self.bytes, slot) {
            Some(distance) => Ok(slot.saturating_add(u64::from(distance))),
            None => error(self.name, slot, FlatDefect::OutOfBounds),
        }
    }

    fn vector_at(&self, start: u64, element_bytes: u64, alignment: u64) -> Read<Vector> {
        aligned(self.name, start, 4)?;
        let first = start.saturating_add(4);
        let Some(count) = u32_at(self.bytes, start).map(u64::from) else {
            return error(self.name, start, FlatDefect::OutOfBounds);
        };
        aligned(self.name, first, alignment)?;
        if range_within(self.bytes.len(), first, count.saturating_mul(element_bytes)).is_none() {
            return error(self.name, first, FlatDefect::OutOfBounds);
        }
        Ok(Vector { first, count })
    }

    /// Returns the vector in field `id`; an absent vector is empty.
    pub(super) fn vector(&self, id: u16, element_bytes: u64, alignment: u64) -> Read<Vector> {
        match self.slot(id, 4)? {
            Some(slot) => self.vector_at(self.follow(slot)?, element_bytes, alignment),
            None => Ok(Vector { first: 0, count: 0 }),
        }
    }

    fn text_at(&self, start: u64, budget: &mut Budget) -> Read<String> {
        let Vector { first, count } = self.vector_at(start, 1, 1)?;
        let bytes = range_within(self.bytes.len(), first, count).and_then(|range| self.bytes.get(range));
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let terminator = u8_at(self.bytes, first.saturating_add(count));
        match (text, terminator) {
            (Some(text), Some(0)) => {
                budget.charge(text.len())?;
                Ok(text.to_owned())
            }
            _ => error(self.name, start, FlatDefect::Text),
        }
    }

    pub(super) fn text(&self, id: u16, budget: &mut Budget) -> Read<String> {
        match self.slot(id, 4)? {
            Some(slot) => self.text_at(self.follow(slot)?, budget),
            None => Ok(String::new()),
        }
    }

    pub(super) fn texts(&self, id: u16, budget: &mut Budget) -> Read<Vec<String>> {
        self.each(id, 4, 4, budget, |slot, budget| self.text_at(self.follow(slot)?, budget))
    }

    pub(super) fn bytes(&self, id: u16, budget: &mut Budget) -> Read<Vec<u8>> {
        let Vector { first, count } = self.vector(id, 1, 1)?;
        let bytes = range_within(self.bytes.len(), first, count).and_then(|range| self.bytes.get(range));
        let bytes = bytes.unwrap_or_default();
        budget.charge(bytes.len())?;
        Ok(bytes.to_vec())
    }

    pub(super) fn words(&self, id: u16, budget: &mut Budget) -> Read<Vec<u32>> {
        self.each(id, 4, 4, budget, |slot, _| Ok(u32_at(self.bytes, slot).unwrap_or_default()))
    }

    /// Returns a vector of four-byte structs.
    pub(super) fn structs<T>(
        &self,
        id: u16,
        budget: &mut Budget,
        read: impl Fn(&'a [u8], u64) -> T,
    ) -> Read<Vec<T>> {
        self.each(id, 4, 2, budget, |slot, _| Ok(read(self.bytes, slot)))
    }

    pub(super) fn table(&self, id: u16, name: &'static str) -> Read<Option<Self>> {
        match self.slot(id, 4)? {
            Some(slot) => Self::at(self.bytes, name, self.follow(slot)?).map(Some),
            None => Ok(None),
        }
    }

    /// Returns a vector of tables, each of which `read` decodes.
    pub(super) fn tables<T>(
        &self,
        id: u16,
        name: &'static str,
        budget: &mut Budget,
        read: impl Fn(&Self, &mut Budget) -> Read<T>,
    ) -> Read<Vec<T>> {
        self.each(id, 4, 4, budget, |slot, budget| {
            read(&Self::at(self.bytes, name, self.follow(slot)?)?, budget)
        })
    }

    fn each<T>(
        &self,
        id: u16,
        element_bytes: u64,
        alignment: u64,
        budget: &mut Budget,
        read: impl Fn(u64, &mut Budget) -> Read<T>,
    ) -> Read<Vec<T>> {
        let Vector { first, count } = self.vector(id, element_bytes, alignment)?;
        let mut out = Vec::new();
        let mut slot = first;
        for _ in 0..count {
            budget.charge_value::<T>()?;
            out.push(read(slot, budget)?);
            slot = slot.saturating_add(element_bytes);
        }
        Ok(out)
    }
}

fn aligned(table: &'static str, position: u64, alignment: u64) -> Read<()> {
    if position.checked_rem(alignment).unwrap_or_default() != 0 {
        return error(table, position, FlatDefect::Misaligned);
    }
    Ok(())
}
