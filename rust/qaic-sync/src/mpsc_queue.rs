//! An unbounded queue from many producers to one consumer.
//!
//! The algorithm is Dmitry Vyukov's MPSC queue: a producer exchanges the last node for its own, then links the
//! previous node to it. Between these two steps, a consumer finds no successor of the previous node. After the link,
//! the producer notifies a sleeping consumer.

use std::sync::Arc;

use crate::ExclusiveCell;
use crate::slot::Exchanged;

/// First-in-first-out queue for any number of pushing threads and one draining thread. A push allocates a node and
/// waits for no other thread.
///
/// ```
/// let queue = qaic_sync::MpscQueue::new();
/// queue.push(1);
/// queue.push(2);
/// let mut drained = Vec::new();
/// queue.drain(|value| drained.push(*value));
/// assert_eq!(drained, [1, 2]);
/// ```
pub struct MpscQueue<T> {
    last: Exchanged<Arc<Node<T>>>,
    // The last drained node, whose link leads to the next one.
    first: ExclusiveCell<Arc<Node<T>>>,
}

struct Node<T> {
    // `None` in the initial node of a queue.
    value: Option<T>,
    next: Exchanged<Option<Arc<Node<T>>>>,
}

impl<T> Node<T> {
    fn new(value: Option<T>) -> Arc<Self> {
        Arc::new(Self { value, next: Exchanged::new(None) })
    }
}

impl<T> MpscQueue<T> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        let node = Node::new(None);
        Self { last: Exchanged::new(Arc::clone(&node)), first: ExclusiveCell::new(node) }
    }

    /// Adds a value at the end of the queue.
    ///
    /// Earlier writes of the caller are visible to the thread that drains the value.
    pub fn push(&self, value: T) {
        let node = Node::new(Some(value));
        let before = self.last.exchange(Arc::clone(&node));
        drop(before.next.exchange(Some(node)));
    }

    /// Passes the values to `work`, oldest first, up to the first value whose push is unfinished. Does nothing while
    /// another thread drains. A value is dropped when a later one is drained, or with the queue.
    pub fn drain(&self, mut work: impl FnMut(&T)) {
        let _ = self.first.try_with(|first| {
            while let Some(next) = first.next.exchange(None) {
                *first = next;
                if let Some(value) = &first.value {
                    work(value);
                }
            }
        });
    }
}

impl<T> Default for MpscQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for MpscQueue<T> {
    fn drop(&mut self) {
        // Drops the nodes one by one: a recursive drop would overflow the stack.
        self.drain(|_| {});
    }
}

crate::debug_fields!(MpscQueue<T>);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    fn drained<T: Clone>(queue: &MpscQueue<T>) -> Vec<T> {
        let mut values = Vec::new();
        queue.drain(|value| values.push(value.clone()));
        values
    }

    #[test]
    fn queue_drained_gives_each_value_once_in_order() {
        let queue = MpscQueue::new();
        assert!(drained(&queue).is_empty());
        (0..3).for_each(|value| queue.push(value));
        assert_eq!(drained(&queue), [0, 1, 2]);
        queue.push(3);
        assert_eq!(drained(&queue), [3]);
        assert!(drained(&queue).is_empty());
    }

    #[test]
    fn value_pushed_while_draining_is_drained_too() {
        let queue = MpscQueue::new();
        queue.push(3);
        let mut values = Vec::new();
        queue.drain(|&value| {
            values.push(value);
            if value > 0 {
                queue.push(value - 1);
            }
            // A concurrent drain gets no values.
            queue.drain(|_| values.push(-1));
        });
        assert_eq!(values, [3, 2, 1, 0]);
    }

    #[test]
    fn values_are_dropped_with_the_queue_however_many() {
        let value = Arc::new(());
        let queue = MpscQueue::new();
        (0..if cfg!(miri) { 1_000 } else { 200_000 }).for_each(|_| queue.push(Arc::clone(&value)));
        let mut count = 0;
        queue.drain(|_| count += 1);
        // The last value stays until another one is drained.
        assert_eq!((Arc::strong_count(&value), count > 0), (2, true));
        (0..if cfg!(miri) { 1_000 } else { 200_000 }).for_each(|_| queue.push(Arc::clone(&value)));
        drop(queue);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn values_of_many_producers_all_arrive_each_in_the_order_of_its_producer() {
        let (queue, each) = (MpscQueue::new(), if cfg!(miri) { 20_u32 } else { 5_000 });
        let mut values = Vec::new();
        thread::scope(|scope| {
            let producers: Vec<_> = (0..4)
                .map(|producer| {
                    let queue = &queue;
                    scope.spawn(move || (0..each).for_each(|number| queue.push((producer, number))))
                })
                .collect();
            while !producers.iter().all(thread::ScopedJoinHandle::is_finished) {
                values.extend(drained(&queue));
            }
        });
        values.extend(drained(&queue));
        for producer in 0..4 {
            let own = values.iter().filter(|value| value.0 == producer).map(|value| value.1);
            assert!(own.eq(0..each));
        }
        assert_eq!(values.len(), 4 * each as usize);
    }
}
