//! Every value arrives once and unchanged, in the order of its producer, and wakes a sleeping consumer.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::{Event, EventCount, FOREVER, MpscQueue};

/// A queue, and the event on which its consumer sleeps.
#[derive(Default)]
struct Heard {
    queue: MpscQueue<UnsafeCell<u32>>,
    pushed: EventCount,
}

impl Heard {
    fn push(&self, value: u32) {
        self.queue.push(UnsafeCell::new(value));
        self.pushed.notify_one();
    }

    /// Waits for `count` values.
    fn take(&self, count: usize) -> Vec<u32> {
        let mut values = Vec::new();
        while values.len() < count {
            let _ = self.pushed.wait(FOREVER, || {
                self.queue.drain(|value| values.push(value.with(|value| unsafe { *value })));
                (values.len() >= count).then_some(())
            });
        }
        values
    }
}

#[test]
fn values_of_two_producers_arrive_at_a_consumer_that_sleeps() {
    loom::model(|| {
        let heard = Arc::new(Heard::default());
        let producers = [[1, 2].as_slice(), &[3]].map(|values| {
            let heard = Arc::clone(&heard);
            thread::spawn(move || values.iter().for_each(|&value| heard.push(value)))
        });
        let values = heard.take(3);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(values.iter().filter(|&&value| value < 3).eq([1, 2].iter()));
        assert_eq!(values.len(), 3);
        heard.queue.drain(|_| panic!("a value arrived twice"));
    });
}

#[test]
fn value_pushed_while_the_queue_is_dropped_by_its_last_user_is_dropped() {
    loom::model(|| {
        let value = std::sync::Arc::new(());
        let queue = Arc::new(MpscQueue::new());
        let producer = {
            let (queue, value) = (Arc::clone(&queue), std::sync::Arc::clone(&value));
            thread::spawn(move || queue.push(value))
        };
        queue.drain(|_| ());
        drop(queue);
        producer.join().unwrap();
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    });
}
