//! A small `FlatBuffer` writer that converts a tree of tables to aligned bytes.
//!
//! The writer works front to back and writes a table before the objects it references. Offsets therefore point
//! forward as the format requires, and equal trees result in equal bytes.

use crate::bytes::{align_up, to_u64};

/// Value of a table field.
pub(super) enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    U32(u32),
    U64(u64),
    Text(String),
    Texts(Vec<String>),
    Bytes(Vec<u8>),
    Words(Vec<u32>),
    /// Structs without members above two bytes: the bytes of each struct, all of the same size.
    Structs(Vec<[u8; 4]>),
    Table(Table),
    Tables(Vec<Table>),
}

/// A table as a list of (field id, value), with ascending ids.
pub(super) type Table = Vec<(u16, Value)>;

/// Serializes a root table without file identifier.
pub(super) fn finish(root: &Table) -> Vec<u8> {
    let mut out = Out(vec![0; 4]);
    let position = out.table(root);
    out.patch(0, position);
    out.0
}

struct Out(Vec<u8>);

impl Out {
    fn position(&self) -> u64 {
        to_u64(self.0.len())
    }

    fn align(&mut self, alignment: u64) {
        let len = align_up(self.position(), alignment).and_then(|len| usize::try_from(len).ok());
        self.0.resize(len.unwrap_or(self.0.len()), 0);
    }

    /// Writes the distance from `slot` to `target` into `slot`.
    fn patch(&mut self, slot: u64, target: u64) {
        let distance = u32::try_from(target.saturating_sub(slot)).unwrap_or(u32::MAX);
        let range = crate::bytes::range_within(self.0.len(), slot, 4);
        if let Some(bytes) = range.and_then(|range| self.0.get_mut(range)) {
            bytes.copy_from_slice(&distance.to_le_bytes());
        }
    }

    fn table(&mut self, table: &Table) -> u64 {
        // Largest first: no padding between the fields.
        let mut order: Vec<&(u16, Value)> = table.iter().collect();
        order.sort_by_key(|(_, value)| std::cmp::Reverse(value.inline_bytes()));
        let starts_wide = order.first().is_some_and(|(_, value)| value.inline_bytes() == 8);
        let slots = table.iter().map(|(id, _)| id.saturating_add(1)).max().unwrap_or(0);
        let mut field_table = vec![0_u16; usize::from(slots)];
        let mut inline: u16 = if starts_wide { 8 } else { 4 };
        for (id, value) in &order {
            if let Some(slot) = field_table.get_mut(usize::from(*id)) {
                *slot = inline;
            }
            inline = inline.saturating_add(value.inline_bytes());
        }
        self.align(2);
        let field_table_start = self.position();
        let field_table_bytes = slots.saturating_mul(2).saturating_add(4);
        for word in [field_table_bytes, inline].iter().chain(&field_table) {
            self.0.extend(word.to_le_bytes());
        }
        self.align(8);
        let start = self.position();
        // The table begins with the distance back to its field table.
        let back = u32::try_from(start.saturating_sub(field_table_start)).unwrap_or(u32::MAX);
        self.0.extend(back.to_le_bytes());
        if starts_wide {
            self.0.extend([0; 4]);
        }
        let mut references = Vec::new();
        for (_, value) in order {
            if value.is_reference() {
                references.push((self.position(), value));
            }
            self.inline(value);
        }
        for (slot, value) in references {
            let target = self.referred(value);
            self.patch(slot, target);
        }
        start
    }

    fn inline(&mut self, value: &Value) {
        match value {
            Value::U8(value) => self.0.push(*value),
            Value::I8(value) => self.0.extend(value.to_le_bytes()),
            Value::U16(value) => self.0.extend(value.to_le_bytes()),
            Value::U32(value) => self.0.extend(value.to_le_bytes()),
            Value::U64(value) => self.0.extend(value.to_le_bytes()),
            _ => self.0.extend([0; 4]),
        }
    }

    fn referred(&mut self, value: &Value) -> u64 {
        match value {
            Value::Text(text) => self.text(text),
            Value::Bytes(bytes) => {
                let start = self.vector_head(bytes.len());
                self.0.extend_from_slice(bytes);
                start
            }
            Value::Words(words) => {
                let start = self.vector_head(words.len());
                self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                start
            }
            Value::Structs(structs) => {
                let start = self.vector_head(structs.len());
                self.0.extend(structs.iter().flatten());
                start
            }
            Value::Texts(texts) => self.references(texts, |out, text| out.text(text)),
            Value::Tables(tables) => self.references(tables, Self::table),
            Value::Table(table) => self.table(table),
            Value::U8(_) | Value::I8(_) | Value::U16(_) | Value::U32(_) | Value::U64(_) => self.position(),
        }
    }

    fn references<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T) -> u64) -> u64 {
        let start = self.vector_head(items.len());
        let first = self.position();
        for _ in items {
            self.0.extend([0; 4]);
        }
        for (slot, item) in (first..).step_by(4).zip(items) {
            let target = write(self, item);
            self.patch(slot, target);
        }
        start
    }

    fn text(&mut self, text: &str) -> u64 {
        let start = self.vector_head(text.len());
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        start
    }

    fn vector_head(&mut self, count: usize) -> u64 {
        self.align(4);
        let start = self.position();
        self.0.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
        start
    }
}

impl Value {
    const fn inline_bytes(&self) -> u16 {
        match self {
            Self::U8(_) | Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::U64(_) => 8,
            _ => 4,
        }
    }

    const fn is_reference(&self) -> bool {
        !matches!(self, Self::U8(_) | Self::I8(_) | Self::U16(_) | Self::U32(_) | Self::U64(_))
    }
}
