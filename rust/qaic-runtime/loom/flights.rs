//! What threads do with inferences on the device: each has an entry in the list, or somebody who has taken it.

use std::sync::Arc;

use loom::thread;

use crate::device::Canceller;
use crate::flights::Flights;
use crate::inference::Inference;
use crate::progress::{Phase, Progress};
use crate::with_preemptions;

#[derive(Debug)]
struct Nobody;

impl Canceller for Nobody {
    fn cancel(&self) {}
}

/// An exec object and the list.
struct Device {
    flights: Flights,
    progress: Arc<Progress>,
    inference: Arc<Inference>,
}

impl Device {
    fn new() -> Arc<Self> {
        let progress = Arc::new(Progress::new(Arc::new(Nobody), None));
        progress.begin_running().unwrap();
        Arc::new(Self { flights: Flights::new(1), progress, inference: Arc::new(Inference) })
    }

    /// Leaves the inference, which the calling thread has, to the device.
    fn leave(&self) {
        self.progress.leave_to_device();
        self.flights.add(&self.progress, Arc::downgrade(&self.inference));
    }

    /// Ends the inference, which the calling thread has, and begins the next one of the exec object.
    fn end_and_begin(&self) {
        self.progress.finish(Ok(()));
        self.progress.begin_running().unwrap();
    }
}

/// A worker takes the oldest, is called away and leaves it; the thread that handed it over adds it a moment later.
#[test]
fn what_is_left_to_the_device_is_found_in_the_list() {
    with_preemptions(3, || {
        let device = Device::new();
        let worker = {
            let device = Arc::clone(&device);
            thread::spawn(move || {
                if device.flights.take_oldest().is_some() {
                    device.leave();
                }
            })
        };
        device.leave();
        worker.join().unwrap();
        assert_eq!(device.progress.phase(), Phase::OnDevice);
        assert!(device.flights.take_oldest().is_some());
        assert!(device.flights.take_oldest().is_none());
    });
}

/// Who needs the inference takes it without the list, and hands over the next of its exec object while the entry of the one
/// before is being made, or being taken.
#[test]
fn an_entry_of_an_earlier_inference_stands_for_the_next() {
    with_preemptions(3, || {
        let device = Device::new();
        let caller = {
            let device = Arc::clone(&device);
            thread::spawn(move || {
                if device.progress.take_from_device(None) {
                    device.end_and_begin();
                    device.leave();
                }
            })
        };
        device.leave();
        let is_taken = device.flights.take_oldest().is_some();
        caller.join().unwrap();
        assert_eq!(device.progress.phase(), if is_taken { Phase::Running } else { Phase::OnDevice });
        assert_eq!(device.flights.take_oldest().is_some(), !is_taken);
    });
}
