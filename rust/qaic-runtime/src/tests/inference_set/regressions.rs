//! Fixed defects of the runtime, each with a test on the `noop` device.

use std::sync::mpsc;

use crate::tests::prelude::*;
use qaic_runtime::inference_set::Completion;

#[derive(Debug)]
pub(crate) struct CompletionSender(pub(crate) mpsc::Sender<HandleId>);

impl Completion for CompletionSender {
    fn completed(&self, handle: HandleId) {
        self.0.send(handle).unwrap();
    }
}

fn context() -> Arc<Context> {
    noop(RegistryOptions::default())
}

fn exec_obj(program: &Arc<Program>) -> Arc<ExecObj> {
    let exec = ExecObj::new(program, true).unwrap();
    let input = Storage::new(768).unwrap();
    exec.bind(|bindings| bindings.inputs[0] = InputBinding::Memory(input.into())).unwrap();
    exec
}

/// Every accepted inference ends: one that another thread cancels while its submission fails for lack of
/// room, and one that relies on its entry in the queue.
#[test]
fn inference_accepted_beside_a_cancelled_one_without_room_ends() {
    let context = context();
    let control = control(&context);
    let options = ProgramOptions { exec_objs: 1, threads_per_queue: 1, ..ProgramOptions::default() };
    let place = Placement::one(DeviceId(0));
    let program = Program::new(&context, &recorded(), &place, &options).unwrap();
    let execs: Vec<_> = (0..3).map(|_| exec_obj(&program)).collect();
    // Inferences that may block go through the queue.
    control.hold().unwrap();
    control.release().unwrap();
    control.plan("execute@1000000000=fail").unwrap();
    let accepted = AtomicU32::new(0);
    thread::scope(|scope| {
        for exec in &execs {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        if exec.enqueue(Detached::assume()).is_ok() {
                            accepted.fetch_add(1, Ordering::Relaxed);
                        }
                        exec.cancel();
                    }
                });
            }
        }
    });
    assert!(accepted.into_inner() > 0);
    // The queue is also full of requests that wait for a held device.
    control.hold().unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        let exec = exec_obj(&program);
        match exec.enqueue(Detached::assume()) {
            Ok(()) => waiting.push(exec),
            Err(error) => break error.code(),
        }
    };
    assert_eq!(refused, "queue.full");
    thread::scope(|scope| {
        for exec in execs.iter().chain(&execs) {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let _ = exec.enqueue(Detached::assume());
                    exec.cancel();
                }
            });
        }
    });
    control.release().unwrap();
    let deadline = Deadline::after(Duration::from_mins(1));
    for exec in execs.iter().chain(&waiting) {
        // The inference was cancelled, refused or completed; a timeout would mean that it never runs.
        let ended = exec.wait(&mut WaitScope::until(deadline)).map_err(|error| error.code());
        assert!(ended != Err("device.timeout"), "{ended:?}");
    }
    // The queue has room again.
    for exec in &execs {
        exec.run(&mut WaitScope::until(deadline)).unwrap();
    }
}

/// The cost of a submission, and of a search for the oldest inference, does not depend on the number of
/// inferences in flight with the same id.
#[test]
fn oldest_of_many_inferences_under_one_id_is_collected_first() {
    let context = context();
    let set = set(&context, &recorded(), 64, 1);
    let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
    for &handle in handles.iter().rev() {
        let input = Storage::new(768).unwrap();
        let exec = set.exec_obj(handle).unwrap();
        exec.bind(|bindings| bindings.inputs[0] = InputBinding::Memory(input.into())).unwrap();
        set.submit(handle, 7, Detached::assume()).unwrap();
    }
    for &handle in handles.iter().rev() {
        assert_eq!(set.get_completed_id(7, &mut WaitScope::default()).unwrap(), handle);
    }
    assert_eq!(set.get_completed_id(7, &mut WaitScope::default()).unwrap_err().code(), "inference.unknown");
}

/// A panic in a function that a worker calls ends neither the worker nor the queued inferences.
#[test]
fn worker_whose_callback_panics_goes_on() {
    #[derive(Debug)]
    struct Panics(AtomicBool);
    impl Completion for Panics {
        fn completed(&self, _: HandleId) {
            self.0.store(true, Ordering::Release);
            panic!("in a completion callback");
        }
    }

    let context = context();
    // Inferences that may block run on the worker.
    control(&context).plan("execute@1000000000=fail").unwrap();
    let options = ProgramOptions { threads_per_queue: 1, ..ProgramOptions::default() };
    let set = try_set(&context, &recorded(), 2, 1, options).unwrap();
    let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
    for &handle in &handles {
        let input = Storage::new(768).unwrap();
        let exec = set.exec_obj(handle).unwrap();
        exec.bind(|bindings| bindings.inputs[0] = InputBinding::Memory(input.into())).unwrap();
    }
    let submit = |handle, completion: Arc<dyn Completion>| {
        set.exec_obj(handle).unwrap().submit(None, Some(completion), Detached::assume()).unwrap();
    };
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    submit(handles[0], Arc::clone(&panics) as _);
    while !panics.0.load(Ordering::Acquire) {
        thread::yield_now();
    }
    // No caller waits in the set, because a waiting caller would do the worker's job.
    let (sender, ends) = mpsc::channel();
    for _ in 0..10 {
        let completion = Arc::new(CompletionSender(sender.clone()));
        submit(handles[1], completion);
        assert_eq!(ends.recv_timeout(Duration::from_mins(1)), Ok(handles[1]));
        while set.put_completed(handles[1]).is_err() {
            thread::yield_now();
        }
        assert_eq!(set.try_acquire(), Some(handles[1]));
    }
}
