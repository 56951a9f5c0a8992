//! Locks and atomic read-modify-writes per inference while no thread sleeps: no lock, and at most the number
//! of read-modify-writes on the performance page. The counts include the structures of the runtime, but not
//! reference counts, the engine and the emulator.
//!
//! `cpu` needs the engine: set `QAIC_ONNXRUNTIME_LIB` to its library, as `make test-rust` does. The
//! performance page shows the lines that these tests print.

#![allow(clippy::print_stdout)] // the performance page shows the counts

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::counting_kernel as kernel;
use crate::tests::prelude::*;
use qaic_runtime::inference_set::{Completion, CompletionQueue};
use qaic_sync::atomic::Operations;

/// Inferences before the count, which determine the usual duration.
const WARM_UP: u64 = 200;
const COUNTED: u64 = 100;
/// Number of attempts without a lock, of which the one with the fewest operations counts, and maximum number
/// of attempts.
const ATTEMPTS: u64 = 20;
const MOST_ATTEMPTS: u64 = 5_000;

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(10);

fn storage() -> Storage {
    Storage::new(ELEMENTS as usize * 4).unwrap()
}

/// A set of four whose exec objects are bound.
fn on_noop() -> Arc<InferenceSet> {
    bound(&noop(RegistryOptions::default()), &image(ElementType::Float32))
}

fn on_card() -> Arc<InferenceSet> {
    bound(&Context::of_cards(&kernel::card()).unwrap(), &image(ElementType::Float32))
}

fn bound(context: &Arc<Context>, image: &Arc<qaic_runtime::Image>) -> Arc<InferenceSet> {
    bound_of_size(context, image, 4)
}

fn bound_of_size(context: &Arc<Context>, image: &Arc<qaic_runtime::Image>, size: u32) -> Arc<InferenceSet> {
    let placement = Placement::one(DeviceId(0));
    let options = ProgramOptions { threads_per_queue: 1, ..ProgramOptions::default() };
    let set = InferenceSet::new(context, image, &placement, size, 1, options).unwrap();
    let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
    for handle in handles {
        let exec = set.exec_obj(handle).unwrap();
        exec.bind(|bindings| {
            for input in &mut bindings.inputs {
                *input = InputBinding::Memory(storage().into());
            }
            bindings.outputs[0] = OutputBinding::Memory(storage().into());
        })
        .unwrap();
        set.put_completed(handle).unwrap();
    }
    set
}

/// Counts the operations of `COUNTED` rounds, after a warm-up: the minimum of the attempts whose inferences
/// all stay on the calling thread. An inference that is interrupted on a busy machine seems long, so the next
/// ones run on a worker, whose wakeup takes a lock. Such an attempt does not count.
fn counted(mut round: impl FnMut(u64)) -> (u64, u64) {
    (0..WARM_UP).for_each(&mut round);
    let attempt = |_| {
        let Operations { locks, updates, .. } = Operations::during(|| (0..COUNTED).for_each(&mut round));
        (locks, updates.div_ceil(COUNTED))
    };
    let mut without_locks = 0;
    let until_enough = |&(locks, _): &(u64, u64)| {
        let enough = without_locks == ATTEMPTS;
        without_locks += u64::from(locks == 0);
        !enough
    };
    (0..MOST_ATTEMPTS).map(attempt).take_while(until_enough).min().unwrap()
}

/// Counts the operations of each way to run an inference: submitted and collected in order, submitted and
/// collected by id, run by its caller, or after a binding of buffers as clients of `qaicrt` do it.
fn of_each_way(device: &str, set: &Arc<InferenceSet>) -> [(u64, u64); 8] {
    let ways = [
        (
            "submit, collect the next",
            submit_and_collect(set, |_| set.get_completed(&mut WaitScope::default()).unwrap()),
        ),
        (
            "submit, collect by id",
            submit_and_collect(set, |id| {
                let ended = set.try_get_completed_id(id);
                ended.unwrap_or_else(|| set.get_completed_id(id, &mut WaitScope::default()).unwrap())
            }),
        ),
        ("run", run(set)),
        ("bind the same buffers, submit, collect the next", bind_a_vector(set, 1)),
        ("bind other buffers, submit, collect the next", bind_a_vector(set, 2)),
        ("bind buffers to a handle, submit, collect by id", bind_to_a_handle(set, None)),
        ("bind dims and buffers to a handle, submit, collect by id", bind_to_a_handle(set, Some(&dims(set)))),
        ("start the inference of a future, get its completion, read the outputs", start_for_a_future(set)),
    ];
    ways.map(|(way, (locks, updates))| {
        println!("operations on {device}, {way}: {locks} locks, {updates} read-modify-writes");
        (locks, updates)
    })
}

fn submit_and_collect(set: &InferenceSet, collect: impl Fn(u64) -> HandleId) -> (u64, u64) {
    counted(|id| {
        let handle = set.try_acquire().unwrap();
        set.submit(handle, id, Detached::assume()).unwrap();
        assert_eq!(collect(id), handle);
        set.exec_obj(handle).unwrap().outcome().unwrap();
        set.put_completed(handle).unwrap();
    })
}

fn run(set: &InferenceSet) -> (u64, u64) {
    let inputs: Vec<_> = set.image.network.inputs.iter().map(|_| storage()).collect();
    let given: Vec<_> = inputs.iter().map(Storage::memory).collect();
    let (mut output, mut lender) = (storage(), Lender::default());
    counted(|_| {
        let lease = set.try_lease().unwrap();
        let outputs = &mut [Some(output.memory_mut())];
        lease.run(&mut lender, &given, outputs, &mut WaitScope::default()).unwrap();
    })
}

/// Buffers for all bindings.
fn buffers(set: &InferenceSet) -> Vec<Arc<SharedMemory>> {
    let bytes = |shape: &GivenShape| usize::try_from(shape.dims.iter().product::<u64>() * 4).unwrap();
    let storages = dims(set).into_iter().map(|shape| Storage::new(bytes(&shape)).unwrap());
    // SAFETY: one thread at a time uses the memory.
    storages.map(|storage| unsafe { SharedMemory::of_storage(storage) }).collect()
}

/// The dims of all bindings.
fn dims(set: &InferenceSet) -> Vec<GivenShape> {
    let network = &set.image.network;
    let inputs = network.inputs.iter().map(|input| &input.io_initial.dims);
    let tensors = inputs.chain(network.outputs.iter().map(|output| &output.io_transformed.dims));
    let dims = |dims: &Vec<i32>| dims.iter().map(|&dim| dim.try_into().unwrap()).collect();
    tensors.map(|tensor| GivenShape { item_bytes: 4, dims: dims(tensor) }).collect()
}

/// Does the same as `qaicrt.InferenceSet.submit` of one vector after the other.
fn bind_a_vector(set: &InferenceSet, vectors: u64) -> (u64, u64) {
    let bound = BoundBuffers::of_set(set).unwrap();
    let vectors: Vec<_> = (0..vectors).map(|_| buffers(set)).collect();
    counted(|id| {
        let handle = set.try_acquire().unwrap();
        let bound = &bound[handle.0 as usize];
        let given = &vectors[usize::try_from(id).unwrap() % vectors.len()];
        let is_same = |index: usize, bound: &_| Arc::ptr_eq(bound, &given[index]);
        let clone = || Ok::<_, RuntimeError>(given.clone());
        bound.bind_for_new_inference(given.len(), is_same, clone).unwrap();
        bound.check_announced().unwrap();
        set.submit(handle, id, Detached::assume()).unwrap();
        assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap(), handle);
        set.exec_obj(handle).unwrap().outcome().unwrap();
        set.put_completed(handle).unwrap();
    })
}

/// Does the same as `getAvailable`, `setBufferDimensions`, `setBuffers`, `submit` and `getBuffers` of a
/// handle.
fn bind_to_a_handle(set: &InferenceSet, dims: Option<&[GivenShape]>) -> (u64, u64) {
    let bound = BoundBuffers::of_set(set).unwrap();
    let buffers = buffers(set);
    counted(|id| {
        let handle = set.try_acquire().unwrap();
        let bound = &bound[handle.0 as usize];
        bound.forget_announced().unwrap();
        if let Some(dims) = dims {
            bound.announce(dims.to_vec()).unwrap();
        }
        bound.replace_part(Part::All, &buffers).unwrap();
        bound.check_announced().unwrap();
        set.submit(handle, id, Detached::assume()).unwrap();
        assert_eq!(set.get_completed_id(id, &mut WaitScope::default()).unwrap(), handle);
        set.exec_obj(handle).unwrap().outcome().unwrap();
        assert!(bound.buffers().unwrap().iter().all(Option::is_some));
        set.put_completed(handle).unwrap();
    })
}

/// Signals that a thread ends an inference, and blocks that thread until the sender is dropped.
#[derive(Debug)]
struct Occupation(Sender<()>, Mutex<Receiver<()>>);

impl Completion for Occupation {
    fn completed(&self, _: HandleId) {
        self.0.send(()).unwrap();
        let _ = self.1.lock().unwrap().recv();
    }
}

/// Does the same as `Session.submit`, its collector and `InferenceFuture.result`. The only worker is kept
/// busy, because waking a sleeping worker takes a lock; the caller does the remaining work.
fn start_for_a_future(set: &Arc<InferenceSet>) -> (u64, u64) {
    let (release, held) = channel();
    let (occupied, worker_has_it) = channel();
    let handle = set.try_acquire().unwrap();
    let completion = Arc::new(Occupation(occupied, Mutex::new(held)));
    let counts = std::thread::scope(|scope| {
        // A short inference runs on the submitting thread.
        let submitter = scope.spawn(|| {
            set.exec_obj(handle).unwrap().submit(None, Some(completion), Detached::assume()).unwrap()
        });
        worker_has_it.recv().unwrap();
        let network = &set.image.network;
        let outputs = || network.outputs.iter().map(|_| Some(storage())).collect();
        let inputs = || network.inputs.iter().map(|_| Some((storage(), ELEMENTS as usize * 4))).collect();
        let queue = Arc::<CompletionQueue>::default();
        let counts = counted(|token| {
            let inference = PendingInference::new(set, 0, inputs(), outputs(), Deadline::after(LONG));
            assert!(inference.try_start(set, Some((&queue, token)), Detached::assume()).unwrap());
            if !inference.has_ended_in_start() {
                inference.wait(&mut WaitScope::default()).unwrap();
                // A thread that ends an inference wakes its waiters before it reports to the queue.
                assert_eq!(queue.wait(LONG).unwrap(), [token]);
            }
            assert_eq!(queue.awaited(), 0);
            inference.outcome().unwrap().unwrap();
            assert!(inference.take_outputs().iter().all(Option::is_some));
        });
        drop(release);
        submitter.join().unwrap();
        counts
    });
    while set.put_completed(handle).is_err() {
        std::thread::yield_now();
    }
    counts
}

/// The work of a collector between two ends is one sleep, regardless of the number of awaited inferences.
#[test]
fn wait_for_many_futures_costs_what_a_wait_for_one_costs() {
    let set = on_noop();
    let of = |count: usize| {
        let queue = Arc::<CompletionQueue>::default();
        let inferences: Vec<_> = (0..count)
            .map(|token| {
                let inference = PendingInference::new(&set, 0, Vec::new(), Vec::new(), Deadline::after(LONG));
                inference.report_to(&queue, token as u64);
                inference
            })
            .collect();
        // Each announcement is processed once.
        assert!(queue.wait(Duration::ZERO).unwrap().is_empty());
        // Longer than the interval of any periodic check.
        let wait = |_| Operations::during(|| drop(queue.wait(Duration::from_millis(120)).unwrap()));
        let least = (0..3).map(wait).map(|cost| (cost.locks, cost.updates)).min().unwrap();
        assert_eq!(queue.awaited(), inferences.len());
        drop(inferences);
        assert_eq!(queue.awaited(), 0);
        least
    };
    let (one, many) = (of(1), of(10_000));
    assert_eq!(one, many);
    assert_eq!(one.0, 1, "it sleeps once");
}

#[test]
fn inference_on_noop_takes_no_lock() {
    assert_eq!(
        of_each_way("noop", &on_noop()),
        [(0, 13), (0, 11), (0, 20), (0, 15), (0, 19), (0, 15), (0, 27), (0, 28)]
    );
}

#[test]
fn inference_on_a_card_takes_no_lock() {
    assert_eq!(
        of_each_way("a card", &on_card()),
        [(0, 23), (0, 19), (0, 23), (0, 25), (0, 29), (0, 23), (0, 35), (0, 57)]
    );
}

#[cfg(feature = "cpu")]
#[test]
fn inference_on_cpu_takes_no_lock() {
    let Some(context) = super::on_cpu() else { return };
    let image = qaic_runtime::Image::from_bytes(super::containers::add_program().unwrap()).unwrap();
    let set = bound(&context, &image);
    assert_eq!(
        of_each_way("cpu", &set),
        [(0, 14), (0, 12), (0, 21), (0, 16), (0, 20), (0, 16), (0, 28), (0, 29)]
    );
}

/// Counts also with one id for all inferences, and with many inferences in flight: five additional
/// read-modify-writes link an inference with its neighbors.
#[test]
fn inferences_in_flight_under_one_id_cost_little_more_than_one() {
    let set = on_noop();
    let of = |count: usize| {
        let mut handles = Vec::with_capacity(count);
        let (locks, updates) = counted(|_| {
            handles.extend((0..count).map(|_| set.try_acquire().unwrap()));
            for handle in handles.drain(..) {
                set.submit(handle, 7, Detached::assume()).unwrap();
            }
            for _ in 0..count {
                let handle = set.get_completed_id(7, &mut WaitScope::default()).unwrap();
                set.put_completed(handle).unwrap();
            }
        });
        (locks, updates / count as u64)
    };
    let (one, many) = (of(1), of(4));
    assert_eq!((one.0, many.0), (0, 0));
    assert!(many.1 <= one.1 + 5, "{one:?} {many:?}");
}

/// The reads and writes of a submission, and of collecting one inference, do not depend on how many
/// inferences with the same id are in flight.
#[test]
fn submission_beside_a_thousand_inferences_of_one_id_costs_what_one_beside_few_costs() {
    const ROUNDS: usize = 8;
    let image = image(ElementType::Float32);
    let context = noop(RegistryOptions::default());
    // Counts per inference: for the submissions, and for the collections.
    let of = |size: u32| {
        let set = bound_of_size(&context, &image, size);
        let operations = |work: &mut dyn FnMut()| {
            let cost = Operations::during(work);
            (cost.updates + cost.loads) / u64::from(size)
        };
        let round = |_| {
            let mut handles: Vec<_> = (0..size).map(|_| set.try_acquire().unwrap()).collect();
            let submitted = operations(&mut || {
                for handle in handles.drain(..) {
                    set.submit(handle, 7, Detached::assume()).unwrap();
                }
            });
            set.wait_for_completion(&mut WaitScope::default()).unwrap();
            let collected = operations(&mut || {
                for _ in 0..size {
                    handles.push(set.get_completed_id(7, &mut WaitScope::default()).unwrap());
                }
            });
            for handle in handles {
                set.put_completed(handle).unwrap();
            }
            (submitted, collected)
        };
        let costs: Vec<_> = (0..ROUNDS).map(round).collect();
        (costs.iter().map(|cost| cost.0).min().unwrap(), costs.iter().map(|cost| cost.1).min().unwrap())
    };
    let (few, many) = (of(8), of(1024));
    // If the device has no room, the inference is also queued.
    assert!(many.0 <= 3 * few.0 && many.1 <= 3 * few.1, "{few:?} {many:?}");
}
