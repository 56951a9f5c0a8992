//! Threads move the requests of an inference set between states. Every completion is collected once, by the
//! first thread that reaches it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::{Event, FOREVER, Numbers, Phase, ReadyList, RequestLists, RequestState, with_preemptions};

/// Requests, their lists, and a result that only its owner may access.
struct Requests {
    states: Vec<RequestState>,
    results: Vec<UnsafeCell<u32>>,
    lists: RequestLists,
}

impl Requests {
    fn new(count: u32) -> Arc<Self> {
        Arc::new(Self {
            states: (0..count).map(|_| RequestState::idle()).collect(),
            results: (0..count).map(|_| UnsafeCell::new(0)).collect(),
            lists: RequestLists::new(count),
        })
    }

    fn state(&self, number: u32) -> &RequestState {
        &self.states[number as usize]
    }

    fn touch(&self, number: u32) {
        self.results[number as usize].with_mut(|result| unsafe { *result += 1 });
    }

    fn begin(&self, number: u32) {
        self.state(number).begin(true).unwrap();
        self.lists.submitted(number, 7);
    }

    fn complete(&self, number: u32) {
        self.touch(number);
        if self.state(number).complete(false) {
            self.lists.completed(number);
        }
    }

    /// Runs the inference of an idle request from start to end.
    fn run(&self, number: u32) {
        self.begin(number);
        self.complete(number);
    }

    /// Collects by id; the generation identifies the inference.
    fn collect(&self, number: u32) -> bool {
        let generation = self.state(number).generation();
        let is_collected = self.lists.collect_one(number, generation, |other| self.state(other));
        if is_collected {
            self.touch(number);
        }
        is_collected
    }

    fn collect_next(&self) -> Option<u32> {
        let number = self.lists.collect(|number| self.state(number));
        number.inspect(|&number| self.touch(number))
    }

    /// Waits for a completed request, or until none is outstanding.
    fn wait_or_settle(&self) -> Option<u32> {
        let is_settled = || self.lists.is_settled(|number| self.state(number));
        let look = || self.collect_next().map(Some).or_else(|| is_settled().then_some(None));
        loop {
            if let Some(found) = self.lists.for_completed().wait(FOREVER, look) {
                return found;
            }
        }
    }

    fn wait(&self) -> u32 {
        loop {
            if let Some(number) = self.lists.for_completed().wait(FOREVER, || self.collect_next()) {
                return number;
            }
        }
    }
}

/// A thread completes a request, collects it by number if possible, and completes it again; another thread takes it
/// from the list.
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
        let rest = u32::from(requests.collect_next().is_some());
        // One or two inferences: each is collected once, and none is left.
        assert_eq!(1 + by_number + rest, 1 + by_number);
        assert_eq!(requests.state(0).phase(), Phase::Idle);
    });
}

/// Two completions wake two threads that wait for any completion.
#[test]
fn two_completions_are_found_by_two_threads() {
    with_preemptions(1, || {
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

/// Two threads wait for one entry each, while a third one pushes two: each thread finds one, in any order.
fn waiting_threads_find_what_is_pushed<L: Numbers + Send + Sync + 'static>(new: fn(u32) -> ReadyList<L>) {
    with_preemptions(1, move || {
        let list = Arc::new(new(2));
        let waiting = [(); 2].map(|()| {
            let list = Arc::clone(&list);
            thread::spawn(move || {
                loop {
                    if let Some(number) = list.wait(FOREVER, |_| true) {
                        return number;
                    }
                }
            })
        });
        (0..2).for_each(|number| list.push(number));
        let mut found = waiting.map(|thread| thread.join().unwrap());
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        assert!(list.is_empty());
    });
}

#[test]
fn threads_that_wait_for_a_list_in_order_find_what_is_pushed() {
    waiting_threads_find_what_is_pushed(ReadyList::fifo);
}

#[test]
fn threads_that_wait_for_a_list_of_the_latest_find_what_is_pushed() {
    waiting_threads_find_what_is_pushed(ReadyList::lifo);
}

/// A thread takes the entry whose push woke another thread. It finds a second entry, or finds none and leaves
/// the list marked for the other thread.
#[test]
fn entry_taken_from_under_a_woken_thread_leaves_it_to_be_woken_again() {
    with_preemptions(3, || {
        let list = Arc::new(ReadyList::lifo(2));
        let waiting = {
            let list = Arc::clone(&list);
            thread::spawn(move || {
                loop {
                    if let Some(number) = list.wait(FOREVER, |_| true) {
                        return number;
                    }
                }
            })
        };
        list.push(0);
        let taken = list.take(|_| true);
        list.push(1);
        let found = waiting.join().unwrap();
        assert_eq!(found, if taken.is_some() { 1 } else { 0 });
        assert_eq!(list.take(|_| true), if taken.is_some() { None } else { Some(1) });
    });
}

/// Two threads collect by number the requests that a third thread waits for. The third thread takes one
/// before them, or is notified that none is outstanding.
#[test]
fn thread_that_waits_for_any_hears_that_nothing_is_outstanding() {
    with_preemptions(1, || {
        let requests = Requests::new(2);
        (0..2).for_each(|number| requests.begin(number));
        let collecting = [0, 1].map(|number| {
            let requests = Arc::clone(&requests);
            thread::spawn(move || {
                requests.complete(number);
                requests.collect(number);
            })
        });
        let found = requests.wait_or_settle();
        collecting.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(found.is_none_or(|number| number < 2));
        assert!((0..2).all(|number| requests.state(number).phase() == Phase::Idle));
    });
}
