//! Shapes of all bindings, for clients of `qaicrt`.

use std::ops::Deref;

use super::GivenShape;

/// Element size and dims, one entry per binding.
#[derive(Debug, Default)]
pub struct ShapeList {
    shapes: Vec<GivenShape>,
}

impl ShapeList {
    /// Creates a list of these shapes.
    pub fn new(shapes: Vec<GivenShape>) -> Self {
        Self { shapes }
    }

    /// Returns the entry at a position, which counts from the back if negative.
    pub fn at(&self, index: isize) -> Option<&GivenShape> {
        self.shapes.get(position(index, self.shapes.len())?)
    }

    /// Replaces an entry; returns true if the entry exists.
    pub fn set(&mut self, index: isize, shape: GivenShape) -> bool {
        let position = position(index, self.shapes.len());
        match position.and_then(|position| self.shapes.get_mut(position)) {
            Some(slot) => *slot = shape,
            None => return false,
        }
        true
    }

    /// Adds an entry for one more binding.
    pub fn push(&mut self, shape: GivenShape) {
        self.shapes.push(shape);
    }
}

impl Deref for ShapeList {
    type Target = [GivenShape];

    fn deref(&self) -> &[GivenShape] {
        &self.shapes
    }
}

fn position(index: isize, len: usize) -> Option<usize> {
    if index < 0 { len.checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(item_bytes: u64) -> GivenShape {
        GivenShape { item_bytes, dims: vec![1] }
    }

    #[test]
    fn entries_are_counted_from_both_ends() {
        let mut list = ShapeList::new(vec![shape(0), shape(1)]);
        list.push(shape(2));
        let found = |index| list.at(index).map(|shape| shape.item_bytes);
        assert_eq!([-4, -3, -1, 0, 2, 3].map(found), [None, Some(0), Some(2), Some(0), Some(2), None]);
        assert!(list.set(-1, shape(7)) && list.set(0, shape(8)));
        assert!(!list.set(3, shape(9)) && !list.set(-4, shape(9)) && !list.set(isize::MIN, shape(9)));
        assert_eq!(list.to_vec(), [8, 1, 7].map(shape));
        assert!(list.len() == 3 && !list.is_empty() && ShapeList::default().is_empty());
    }
}
