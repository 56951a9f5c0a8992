//! Faults of the `noop` device: every fault occurs at the call it was planned for, and nothing hangs.

use std::time::Instant;

use crate::tests::prelude::*;
use qaic_runtime::device::{Activation, LoadedProgram};

struct Bench {
    context: Arc<Context>,
    image: Arc<Image>,
    control: Arc<Control>,
}

impl Bench {
    /// A device that no other test uses.
    fn new(faults: &str) -> Self {
        let context =
            noop(RegistryOptions { noop_faults: Some(faults.to_owned()), ..RegistryOptions::default() });
        let control = control(&context);
        Self { context, image: recorded(), control }
    }

    fn load_with(&self, options: &LoadOptions) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        self.context.load(&self.image, &Placement::one(DeviceId(0)), options)
    }

    fn load(&self) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        self.load_with(&LoadOptions::default())
    }

    fn activation(&self) -> Arc<dyn Activation> {
        self.load().unwrap().activate().unwrap()
    }

    fn free_cores(&self) -> u32 {
        self.context.devices[0].resources().nsp_free
    }

    /// Waits until `count` executions are inside the device.
    fn inside(&self, count: u32) {
        await_executing(&self.control, count);
    }
}

fn codes(exec: &mut dyn Exec, count: usize) -> Vec<&'static str> {
    (0..count).map(|_| exec.execute().map_or_else(|error| error.code(), |()| "")).collect()
}

#[test]
fn execution_fails_only_as_planned() {
    let bench = Bench::new("execute@2..3=fail; execute@5=fail");
    let activation = bench.activation();
    let mut exec = activation.create_exec().unwrap();
    let failed = "inference.failed";
    assert_eq!(codes(&mut *exec, 6), ["", failed, failed, "", failed, ""]);
    assert_eq!(bench.control.calls(), [1, 1, 1, 6]);
    bench.control.plan("execute@1=fail").unwrap();
    assert_eq!(codes(&mut *exec, 2), [failed, ""]);
    assert_eq!(bench.control.calls(), [0, 0, 0, 2]);
}

#[test]
fn load_activation_and_exec_that_fail_take_nothing() {
    let bench = Bench::new("load@1=no_memory; activate@1=no_cores; activate@2=no_memory; exec@2=no_memory");
    let error = bench.load().unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Device(DeviceError::OutOfMemory { what: "the program", .. })),
        "{error}"
    );
    let program = bench.load().unwrap();
    match program.activate().unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { id: 0, needed: 1.., free: 0, total: 16 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(program.activate().unwrap_err().code(), "device.memory");
    assert_eq!(bench.free_cores(), 16);
    let activation = program.activate().unwrap();
    assert!(bench.free_cores() < 16);
    let exec = activation.create_exec().unwrap();
    assert_eq!(activation.create_exec().unwrap_err().code(), "device.memory");
    drop((exec, activation));
    assert_eq!(bench.free_cores(), 16);
}

#[test]
fn slow_execution_takes_its_time() {
    let bench = Bench::new("execute@1=slow:20ms");
    let activation = bench.activation();
    let mut exec = activation.create_exec().unwrap();
    let began = Instant::now();
    exec.execute().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20));
}

#[test]
fn cancellation_ends_slow_stuck_and_held_executions() {
    let bench = Bench::new("execute@1=slow:3600s; execute@2=stuck");
    let activation = bench.activation();
    let mut exec = activation.create_exec().unwrap();
    let canceller = exec.canceller();
    // Nothing happens without a running execution.
    canceller.cancel();
    for round in 0..3 {
        if round == 2 {
            bench.control.hold().unwrap();
        }
        let outcome = thread::scope(|scope| {
            let running = scope.spawn(|| exec.execute());
            bench.inside(1);
            canceller.cancel();
            running.join().unwrap()
        });
        assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
        assert_eq!(bench.control.executing().unwrap(), 0);
    }
    bench.control.release().unwrap();
    exec.execute().unwrap();
}

#[test]
fn closed_barrier_holds_executions_until_its_release() {
    let bench = Bench::new("");
    let activation = bench.activation();
    bench.control.hold().unwrap();
    let ended = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            let mut exec = activation.create_exec().unwrap();
            let ended = &ended;
            scope.spawn(move || {
                exec.execute().unwrap();
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        bench.inside(3);
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        assert!(!bench.control.wait_executing(4, &mut soon()).unwrap());
        assert_interrupted(|scope| bench.control.wait_executing(4, scope));
        bench.control.release().unwrap();
    });
    assert_eq!(ended.load(Ordering::SeqCst), 3);
    assert_eq!(bench.control.executing().unwrap(), 0);
}

#[test]
fn loss_ends_every_execution_and_all_that_was_loaded() {
    let bench = Bench::new("execute@3=lost");
    let program = bench.load().unwrap();
    let activation = program.activate().unwrap();
    bench.control.hold().unwrap();
    let mut execs = [(); 2].map(|()| activation.create_exec().unwrap());
    let [first, second] = &mut execs;
    let lost = thread::scope(|scope| {
        let stuck = [first, second].map(|exec| scope.spawn(|| exec.execute().unwrap_err().code()));
        bench.inside(2);
        let third = activation.create_exec().unwrap().execute().unwrap_err().code();
        let [first, second] = stuck.map(|thread| thread.join().unwrap());
        [first, second, third]
    });
    assert_eq!(lost, ["device.lost"; 3]);
    bench.control.release().unwrap();
    assert_eq!(execs[0].execute().unwrap_err().code(), "device.lost");
    assert_eq!(activation.create_exec().unwrap_err().code(), "device.lost");
    assert_eq!(program.activate().unwrap_err().code(), "device.lost");
    // The device works again, and a program that is loaded now works.
    assert_eq!(bench.context.devices[0].status(), DeviceStatus::Ready);
    let rebuilt = bench.activation();
    rebuilt.create_exec().unwrap().execute().unwrap();
    drop((program, activation, rebuilt));
    assert_eq!(bench.free_cores(), 16);
}

#[test]
fn lost_device_loads_nothing_until_its_recovery() {
    let bench = Bench::new("");
    let activation = bench.activation();
    let mut exec = activation.create_exec().unwrap();
    exec.execute().unwrap();
    bench.control.lose().unwrap();
    assert!(matches!(bench.context.devices[0].status(), DeviceStatus::Error { .. }));
    assert_eq!(exec.execute().unwrap_err().code(), "device.lost");
    assert_eq!(bench.load().unwrap_err().code(), "device.lost");
    bench.control.recover().unwrap();
    assert_eq!(bench.context.devices[0].status(), DeviceStatus::Ready);
    assert_eq!(exec.execute().unwrap_err().code(), "device.lost");
    bench.activation().create_exec().unwrap().execute().unwrap();
}

#[test]
fn load_that_is_cancelled_or_lost_ends() {
    let bench = Bench::new("load@1=slow:1ms; load@2..3=stuck; load@4=lost");
    bench.load().unwrap();
    let options = LoadOptions::default();
    let outcome = thread::scope(|scope| {
        let loading = scope.spawn(|| bench.load_with(&options).map(drop));
        // A load that is cancelled before, while or after it begins never succeeds.
        options.token.cancel();
        loading.join().unwrap()
    });
    assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
    let outcome = thread::scope(|scope| {
        let loading = scope.spawn(|| bench.load().map(drop));
        while !loading.is_finished() {
            bench.control.lose().unwrap();
            thread::yield_now();
        }
        loading.join().unwrap()
    });
    assert_eq!(outcome.unwrap_err().code(), "device.lost");
    bench.control.recover().unwrap();
    bench.control.plan("load@1=lost").unwrap();
    assert_eq!(bench.load().unwrap_err().code(), "device.lost");
    bench.load().unwrap();
}
