//! What workers do with lanes: every number is run once, in a serial lane by one thread at a time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::queue::Lanes;
use crate::with_preemptions;

struct Work {
    lanes: Lanes,
    // Touched by whoever runs a number; loom reports two at a time.
    runs: UnsafeCell<u32>,
}

/// Two threads bring a number each and run what there is; together with who comes last, they run both.
fn every_number_is_run_once(serial: bool) {
    with_preemptions(3, move || {
        let work = Arc::new(Work { lanes: Lanes::new(1, 2, serial), runs: UnsafeCell::new(0) });
        let run = |work: &Work| {
            work.lanes.run_next(|_| {
                if work.lanes.is_serial() {
                    work.runs.with_mut(|runs| unsafe { *runs += 1 });
                }
            })
        };
        let threads = [0, 1].map(|number| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                assert!(work.lanes.enter(0, number));
                u32::from(run(&work))
            })
        });
        let mut ran: u32 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        while !work.lanes.is_empty() {
            ran += u32::from(run(&work));
        }
        assert_eq!(ran, 2);
        if serial {
            work.runs.with(|runs| assert_eq!(unsafe { *runs }, 2));
        }
    });
}

#[test]
fn every_number_of_a_serial_lane_is_run_once_by_one_thread_at_a_time() {
    every_number_is_run_once(true);
}

#[test]
fn every_number_of_a_parallel_lane_is_run_once() {
    every_number_is_run_once(false);
}
