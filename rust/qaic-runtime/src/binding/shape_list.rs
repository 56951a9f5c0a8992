//! Shapes of all bindings, as clients of `qaicrt` have them: a list that any thread may change.

use super::GivenShape;
use crate::sync::Mutex;

/// Element size and dims, one entry per binding.
#[derive(Debug, Default)]
pub struct ShapeList {
    shapes: Mutex<Vec<GivenShape>>,
}

impl ShapeList {
    /// A list of these.
    pub fn new(shapes: Vec<GivenShape>) -> Self {
        Self { shapes: Mutex::new(shapes) }
    }

    /// Lets `read` see the entries, which stay as they are meanwhile. It must not use the list, nor run code of a client.
    pub fn with<T>(&self, read: impl FnOnce(&[GivenShape]) -> T) -> T {
        read(&self.shapes.lock())
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.with(<[_]>::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at a position counted from the front, or from the back when it is negative.
    pub fn get(&self, index: isize) -> Option<GivenShape> {
        self.with(|shapes| shapes.get(position(index, shapes.len())?).cloned())
    }

    /// Replaces an entry; whether there is one.
    pub fn set(&self, index: isize, shape: GivenShape) -> bool {
        let shapes = &mut *self.shapes.lock();
        let position = position(index, shapes.len());
        match position.and_then(|position| shapes.get_mut(position)) {
            Some(slot) => *slot = shape,
            None => return false,
        }
        true
    }

    /// Adds an entry for one more binding.
    pub fn push(&self, shape: GivenShape) {
        self.shapes.lock().push(shape);
    }
}

fn position(index: isize, len: usize) -> Option<usize> {
    if index < 0 { len.checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use super::*;

    fn shape(item_bytes: u64) -> GivenShape {
        GivenShape { item_bytes, dims: vec![1] }
    }

    #[test]
    fn entries_are_counted_from_both_ends() {
        let list = ShapeList::new(vec![shape(0), shape(1)]);
        list.push(shape(2));
        let found = |index| list.get(index).map(|shape| shape.item_bytes);
        assert_eq!([-4, -3, -1, 0, 2, 3].map(found), [None, Some(0), Some(2), Some(0), Some(2), None]);
        assert!(list.set(-1, shape(7)) && list.set(0, shape(8)));
        assert!(!list.set(3, shape(9)) && !list.set(-4, shape(9)) && !list.set(isize::MIN, shape(9)));
        assert_eq!(list.with(<[_]>::to_vec), [8, 1, 7].map(shape));
        assert!(list.len() == 3 && !list.is_empty() && ShapeList::default().is_empty());
    }
}
