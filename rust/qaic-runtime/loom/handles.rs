//! What threads do with the handles of an inference set: nothing is collected twice, and nobody sleeps for good.

use loom::sync::Arc;
use loom::thread;

use super::handles::Handles;
use crate::{FOREVER, with_preemptions};

/// As `getCompletedId`: waits for the inference `id` of a handle; false when somebody else collected it.
fn collect_id(handles: &Handles, number: u32, id: u64) -> bool {
    loop {
        let found = handles.for_end_of(number).unwrap().wait(FOREVER, || {
            if handles.collect_as(number, id) {
                return Some(true);
            }
            (!handles.carries(number, id)).then_some(false)
        });
        if let Some(found) = found {
            return found;
        }
    }
}

/// As `getCompleted`: waits for any completed handle; `None` when there is none to wait for.
fn collect_any(handles: &Handles) -> Option<u32> {
    loop {
        let found = handles.for_completed().wait(FOREVER, || {
            handles.collect_next().map(Some).or_else(|| handles.is_settled().then_some(None))
        });
        if let Some(found) = found {
            return found;
        }
    }
}

#[test]
fn one_inference_is_collected_once_by_id_or_in_order() {
    with_preemptions(2, || {
        let handles = Arc::new(Handles::new(1));
        assert_eq!(handles.acquire(), Some(0));
        handles.submit(0, 7).unwrap();
        let worker = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || assert!(handles.complete(0)))
        };
        let by_id = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || collect_id(&handles, 0, 7))
        };
        let any = collect_any(&handles).is_some();
        let by_id = by_id.join().unwrap();
        worker.join().unwrap();
        assert!(any != by_id, "collected {any} {by_id}");
        assert!(handles.is_settled() && handles.is_drained());
        assert_eq!(handles.first_of(7), None);
    });
}

#[test]
fn two_inferences_wake_two_threads_that_wait_for_any() {
    with_preemptions(1, || {
        let handles = Arc::new(Handles::new(2));
        for number in 0..2 {
            assert_eq!(handles.acquire(), Some(number));
            handles.submit(number, number.into()).unwrap();
        }
        let workers = [0, 1].map(|number| {
            let handles = Arc::clone(&handles);
            thread::spawn(move || assert!(handles.complete(number)))
        });
        let first = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || collect_any(&handles))
        };
        let mut found = [collect_any(&handles), first.join().unwrap()];
        found.sort_unstable();
        assert_eq!(found, [Some(0), Some(1)]);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn a_handle_with_a_stale_entry_is_found_when_it_is_put_back() {
    loom::model(|| {
        let handles = Arc::new(Handles::new(1));
        // Kept beyond its return and submitted again: its entry in the list is stale.
        handles.submit(0, 1).unwrap();
        let waiting = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || {
                loop {
                    if let Some(number) = handles.for_available().wait(FOREVER, || handles.acquire()) {
                        return number;
                    }
                }
            })
        };
        handles.complete(0);
        assert!(handles.collect(0));
        handles.put_back(0).unwrap();
        assert_eq!(waiting.join().unwrap(), 0);
    });
}

#[test]
fn who_waits_for_all_wakes_with_the_last() {
    loom::model(|| {
        let handles = Arc::new(Handles::new(2));
        for number in 0..2 {
            handles.submit(number, 5).unwrap();
        }
        let worker = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || (0..2).for_each(|number| assert!(handles.complete(number))))
        };
        while handles.for_drained().wait(FOREVER, || handles.is_drained().then_some(())).is_none() {}
        assert!(handles.collect(0) && handles.collect(1));
        worker.join().unwrap();
    });
}

/// Somebody else collects the inference and uses the handle for another one, while this thread is about to collect it.
#[test]
fn an_inference_is_not_taken_for_one_of_another_id() {
    with_preemptions(2, || {
        let handles = Arc::new(Handles::new(1));
        assert_eq!(handles.acquire(), Some(0));
        handles.submit(0, 7).unwrap();
        assert!(handles.complete(0));
        let other = {
            let handles = Arc::clone(&handles);
            thread::spawn(move || {
                let first = handles.collect_next().is_some();
                if first {
                    handles.submit(0, 8).unwrap();
                    assert!(handles.complete(0));
                }
                first
            })
        };
        let by_id = handles.collect_as(0, 7);
        let first = other.join().unwrap();
        assert!(by_id != first, "collected as 7 and as any: {by_id}");
        assert_eq!(handles.collect_as(0, 8), first);
        assert!(handles.is_settled());
        assert_eq!((handles.first_of(7), handles.first_of(8)), (None, None));
    });
}
