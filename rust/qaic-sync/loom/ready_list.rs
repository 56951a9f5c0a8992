//! What an inference set does with the requests in one state: every completion is collected once, by the thread that gets
//! there first.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::{FOREVER, Phase, ReadyList, RequestState, Ring, with_preemptions};

/// Requests, a list of those that have completed, and a result that only its owner may touch.
struct Requests {
    states: Vec<RequestState>,
    results: Vec<UnsafeCell<u32>>,
    completed: ReadyList<Ring>,
}

impl Requests {
    fn new(count: u32) -> Arc<Self> {
        Arc::new(Self {
            states: (0..count).map(|_| RequestState::idle()).collect(),
            results: (0..count).map(|_| UnsafeCell::new(0)).collect(),
            completed: ReadyList::fifo(count),
        })
    }

    fn state(&self, number: u32) -> &RequestState {
        &self.states[number as usize]
    }

    fn touch(&self, number: u32) {
        self.results[number as usize].with_mut(|result| unsafe { *result += 1 });
    }

    /// The inference of an idle request, from begin to end.
    fn run(&self, number: u32) {
        self.state(number).begin(true).unwrap();
        self.touch(number);
        if self.state(number).complete(false) {
            self.completed.push(number);
        }
    }

    fn claim(&self, number: u32) -> bool {
        let is_mine = self.state(number).claim_completed_entry();
        if is_mine {
            self.touch(number);
        }
        is_mine
    }

    /// As collecting by id: the generation says which inference.
    fn collect(&self, number: u32) -> bool {
        let is_mine = self.state(number).collect(self.state(number).generation());
        if is_mine {
            self.touch(number);
        }
        is_mine
    }

    fn wait(&self) -> u32 {
        loop {
            if let Some(number) = self.completed.wait(FOREVER, |number| self.claim(number)) {
                return number;
            }
        }
    }
}

/// One thread completes a request, collects it by number if it can, and completes it again; another takes from the list.
#[test]
fn request_collected_by_number_and_from_the_list_is_collected_once_each_time() {
    with_preemptions(3, || {
        let requests = Requests::new(1);
        let other = {
            let requests = Arc::clone(&requests);
            thread::spawn(move || {
                requests.run(0);
                let by_number = requests.collect(0);
                if by_number {
                    requests.run(0);
                }
                u32::from(by_number)
            })
        };
        let from_list = requests.wait();
        assert_eq!(from_list, 0);
        let by_number = other.join().unwrap();
        let rest = u32::from(requests.completed.take(|number| requests.claim(number)).is_some());
        // One inference, or two: each collected once, and none left.
        assert_eq!(1 + by_number + rest, 1 + by_number);
        assert_eq!(requests.state(0).phase(), Phase::Idle);
    });
}

/// Two completions wake two threads that wait for any.
#[test]
fn two_completions_are_found_by_two_threads() {
    with_preemptions(2, || {
        let requests = Requests::new(2);
        let waiting = {
            let requests = Arc::clone(&requests);
            thread::spawn(move || requests.wait())
        };
        let working = {
            let requests = Arc::clone(&requests);
            thread::spawn(move || requests.run(0))
        };
        requests.run(1);
        let own = requests.wait();
        let other = waiting.join().unwrap();
        working.join().unwrap();
        assert_ne!(own, other);
    });
}
