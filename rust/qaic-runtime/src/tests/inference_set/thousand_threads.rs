//! Far more threads than exec objects and processors, on one set: each gets the result of its own inference.

use std::sync::Barrier;

use crate::tests::prelude::*;

const THREADS: u16 = 1_000;

/// Inferences of each thread.
const ROUNDS: u16 = 2;

/// Sixteen exec objects on two activations.
fn set(device: &dyn HeldDevice) -> Arc<InferenceSet> {
    device.set(&image(ElementType::Float32), 8, 2)
}

/// Calls `work` on a thousand threads that begin together, with the number of the thread and a value that no other call gets.
fn on_every_thread(work: impl Fn(u16, f32) + Sync) {
    let start = Barrier::new(THREADS.into());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (work, start) = (&work, &start);
            let run = move || {
                start.wait();
                for round in 0..ROUNDS {
                    work(number, f32::from(number * ROUNDS + round));
                }
            };
            thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, run).unwrap();
        }
    });
}

fn tensor(value: f32) -> Vec<u8> {
    f32_bytes(&[value; ELEMENTS as usize])
}

fn empty() -> Storage {
    Storage::new(4 * ELEMENTS as usize).unwrap()
}

fn available(set: &InferenceSet) -> usize {
    std::iter::from_fn(|| set.try_acquire()).count()
}

#[test]
fn thousand_threads_that_bind_and_collect_by_id_get_their_own_results() {
    for device in of_each_kind() {
        let set = set(&*device);
        let bound = BoundBuffers::of_set(&set).unwrap();
        on_every_thread(|number, value| {
            let given = shared(Storage::of(&tensor(value)).unwrap());
            let wanted = shared(empty());
            let HandleId(acquired) = set.acquire(&mut WaitScope::default()).unwrap();
            let buffers = || Ok::<_, RuntimeError>(vec![given, Arc::clone(&wanted)]);
            bound[acquired as usize].bind_for_new_inference(2, |_, _| false, buffers).unwrap();
            set.submit(HandleId(acquired), number.into(), Detached::assume()).unwrap();
            assert_eq!(
                set.get_completed_id(number.into(), &mut WaitScope::default()).unwrap(),
                HandleId(acquired)
            );
            set.exec_obj(HandleId(acquired)).unwrap().outcome().unwrap();
            assert_eq!(wanted.memory().to_vec(), tensor(value));
            set.put_completed(HandleId(acquired)).unwrap();
        });
        assert_eq!(available(&set), 16);
    }
}

#[test]
fn thousand_threads_that_run_get_their_own_results() {
    for device in of_each_kind() {
        let set = set(&*device);
        on_every_thread(|_, value| {
            let (given, mut wanted) = (Storage::of(&tensor(value)).unwrap(), empty());
            let outputs = &mut [Some(wanted.memory_mut())];
            let lease = set.lease(&mut WaitScope::default()).unwrap();
            lease.run(&mut Lender::default(), &[given.memory()], outputs, &mut WaitScope::default()).unwrap();
            drop(lease);
            assert_eq!(wanted.memory().to_vec(), tensor(value));
        });
        assert_eq!(available(&set), 16);
    }
}

#[test]
fn thousand_threads_that_wait_for_what_they_started_get_their_own_results() {
    for device in of_each_kind() {
        let set = set(&*device);
        on_every_thread(|_, value| {
            let given = Storage::of(&tensor(value)).unwrap();
            let bytes = given.memory().len();
            let inference =
                PendingInference::new(&set, 0, vec![Some((given, bytes))], vec![Some(empty())], None);
            inference.start(&set, None, &mut WaitScope::default()).unwrap();
            inference.wait(&mut WaitScope::default()).unwrap();
            let outputs = inference.take_outputs();
            assert_eq!(outputs[0].as_ref().unwrap().memory().to_vec(), tensor(value));
        });
        assert_eq!(available(&set), 16);
    }
}
