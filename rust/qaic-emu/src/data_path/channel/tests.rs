use std::sync::Condvar;
use std::sync::atomic::AtomicU32;

use proptest::prelude::*;

use super::*;
use crate::workload::{Images, Loopback, Workload};

/// A page of the host that begins with these bytes.
fn page(bytes: &[u8]) -> Arc<Pages> {
    let pages = Pages::new(1).unwrap();
    assert_eq!(pages.write(0, bytes), Some(()));
    pages
}

fn bytes_of<const LEN: usize>(pages: &Pages) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    assert_eq!(pages.read(0, &mut bytes), Some(()));
    bytes
}

fn element(element_id: u64) -> Element {
    Element {
        pages: page(&[]),
        host_offset: 0,
        dev_addr: 0,
        len: 0,
        to_device: true,
        sems: [Sem::default(); 4],
        doorbell: None,
        id: element_id,
        is_late: false,
    }
}

fn sem(presync: u8, cmd: u8, index: u8, val: u16) -> Sem {
    Sem { val, index, presync, cmd, ..Sem::default() }
}

fn loopback() -> Channel {
    loopback_with(1 << 30)
}

fn loopback_with(budget_bytes: u64) -> Channel {
    let images = Images {
        elf: Arc::new([]),
        elf_id: 1,
        constants: Arc::new([]),
        constants_id: 0,
        ddr_base: 0,
        mcid_base: 0,
    };
    Channel::new(Loopback.activate(&images).unwrap(), Budget::new(budget_bytes))
}

fn done(element_id: u64) -> Step {
    Step::Completed { element_id, dma_status: DMA_OK }
}

/// Steps until no progress is possible; returns the completions and the final outcome.
fn run(channel: &Channel) -> (Vec<u64>, Step) {
    let mut completed = Vec::new();
    loop {
        match channel.step() {
            Step::Completed { element_id, dma_status: DMA_OK } => completed.push(element_id),
            Step::Worked => {}
            end => return (completed, end),
        }
    }
}

/// Cores that add one to each of the bytes at 0 when semaphore 0 was raised, put them to 0x100 and raise semaphore 1.
#[derive(Debug)]
struct Adder {
    len: usize,
    is_strict: bool,
    calls: Arc<AtomicU32>,
}

impl Running for Adder {
    fn honors_semaphores(&self) -> bool {
        self.is_strict
    }

    fn begin(&mut self, card: &mut CoreView<'_>) {
        card.semaphores.set(7, 77);
    }

    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_strict && !card.semaphores.take(0) {
            return Progress::Idle;
        }
        let mut bytes = vec![0; self.len];
        card.memory.read(0, &mut bytes);
        for byte in &mut bytes {
            *byte = byte.wrapping_add(1);
        }
        assert_eq!(card.memory.write(0x100, &bytes), Ok(()));
        card.semaphores.increment(1);
        // `Worked` does not cause another call in ring order.
        Progress::Worked
    }
}

fn adder(len: usize, is_strict: bool) -> (Channel, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let adder = Adder { len, is_strict, calls: Arc::clone(&calls) };
    (Channel::new(Box::new(adder), Budget::new(1 << 30)), calls)
}

#[test]
fn channel_with_an_inference_computes_its_outputs() {
    for is_strict in [true, false] {
        let (channel, calls) = adder(3, is_strict);
        let mut outputs = Vec::new();
        // Two inferences in flight, with the same device addresses.
        for (element_id, input) in [(10, [1, 2, 255]), (20, [4, 5, 6])] {
            let out = page(&[0xAA; 5]);
            let (first, rest) = (page(&[9, input[0]]), page(&input[1..]));
            channel.push(Element { pages: first, host_offset: 1, len: 1, ..element(element_id) });
            let mut last = Element { pages: rest, dev_addr: 1, len: 2, ..element(element_id + 1) };
            last.sems[2] = sem(0, 2, 0, 0);
            channel.push(last);
            let mut output = Element {
                pages: out.clone(),
                host_offset: 1,
                dev_addr: 0x100,
                len: 3,
                ..element(element_id + 2)
            };
            (output.to_device, output.sems[0]) = (false, sem(1, 6, 1, 0));
            channel.push(output);
            outputs.push(out);
        }
        assert_eq!(channel.occupancy(), 6);
        assert_eq!(run(&channel), (vec![10, 11, 12, 20, 21, 22], Step::Idle));
        assert_eq!(channel.occupancy(), 0);
        assert_eq!(bytes_of(&outputs[0]), [0xAA, 2, 3, 0, 0xAA], "{is_strict}");
        assert_eq!(bytes_of(&outputs[1]), [0xAA, 5, 6, 7, 0xAA], "{is_strict}");
        // Without semaphores, the cores are called once per inference.
        assert!(is_strict || calls.load(Ordering::Relaxed) == 2);
    }
}

#[test]
fn channel_without_inputs_computes_the_first_output() {
    let (channel, _) = adder(1, false);
    let out = page(&[0]);
    channel.push(Element { pages: out.clone(), dev_addr: 0x100, len: 1, to_device: false, ..element(1) });
    assert_eq!(run(&channel), (vec![1], Step::Idle));
    assert_eq!(bytes_of(&out), [1]);
}

#[test]
fn channel_with_an_unraised_semaphore_blocks_until_it_is_stopped() {
    let channel = loopback();
    let mut waits = element(2);
    waits.sems[3] = sem(1, 6, 5, 0);
    channel.push(element(1));
    channel.push(waits);
    channel.push(element(3));
    assert_eq!(run(&channel), (vec![1], Step::Blocked));
    assert_eq!((run(&channel), channel.occupancy()), ((vec![], Step::Blocked), 2));
    channel.stop();
    assert_eq!((run(&channel), channel.occupancy()), ((vec![], Step::Idle), 0));
    channel.push(element(4));
    assert_eq!((run(&channel), channel.occupancy()), ((vec![], Step::Idle), 0));
}

#[test]
fn element_that_waits_after_its_transfer_keeps_the_status() {
    let (channel, _) = adder(1, true);
    let source = page(&[5]);
    // Waits for the semaphore that the cores raise after they have read the data.
    let mut wait = Element { pages: source.clone(), len: 1, ..element(1) };
    (wait.sems[0], wait.sems[1]) = (sem(0, 2, 0, 0), sem(0, 5, 1, 1));
    channel.push(wait.clone());
    assert_eq!(channel.step(), Step::Worked);
    assert_eq!(source.write(0, &[50]), Some(()));
    assert_eq!(channel.step(), done(1));
    let back = page(&[0, 0]);
    channel.push(Element { pages: back.clone(), len: 1, to_device: false, ..element(2) });
    channel.push(Element {
        pages: back.clone(),
        host_offset: 1,
        dev_addr: 0x100,
        len: 1,
        to_device: false,
        ..element(3)
    });
    assert_eq!(run(&channel), (vec![2, 3], Step::Idle));
    assert_eq!(bytes_of(&back), [5, 6]);
    // A range beyond the host's memory. Its semaphore is at 1, so the element waits for the second inference.
    channel.push(Element {
        host_offset: 4096,
        id: 4,
        sems: [sem(0, 2, 0, 0), sem(0, 5, 1, 2), wait.sems[2], wait.sems[3]],
        ..wait
    });
    assert_eq!(channel.step(), Step::Worked);
    assert_eq!(channel.step(), Step::Completed { element_id: 4, dma_status: DMA_BAD_HOST_RANGE });
}

#[test]
fn semaphores_with_initial_values_pass_the_first_element() {
    let (channel, _) = adder(1, true);
    let mut first = element(1);
    first.sems[0] = sem(1, 4, 7, 77);
    channel.push(first);
    assert_eq!(channel.step(), done(1));
}

#[test]
fn transfer_without_device_memory_completes_with_a_status() {
    let channel = loopback_with(0);
    channel.push(Element { pages: page(&[1]), len: 1, ..element(1) });
    assert_eq!(channel.step(), Step::Completed { element_id: 1, dma_status: DMA_NO_MEMORY });
}

/// Cores that record the doorbells, and fail at data 13.
#[derive(Debug, Default)]
struct Listener(Arc<Mutex<Vec<Doorbell>>>);

impl Running for Listener {
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        let rang: Vec<_> = card.doorbells.drain(..).collect();
        let crash = rang.iter().any(|doorbell| doorbell.data == 13);
        lock(&self.0).extend(rang);
        if crash { Progress::Crashed } else { Progress::Idle }
    }
}

#[test]
fn doorbell_of_an_element_rings_last_and_a_crash_is_reported() {
    let rang = Arc::new(Mutex::default());
    let channel = Channel::new(Box::new(Listener(Arc::clone(&rang))), Budget::new(0));
    let doorbell = |data| Some(Doorbell { address: 0x40, data, bits: 32 });
    let mut waits = Element { doorbell: doorbell(13), ..element(3) };
    waits.sems[0] = sem(1, 5, 0, 1);
    channel.push(Element { doorbell: doorbell(7), ..element(1) });
    channel.push(Element { doorbell: doorbell(8), ..element(2) });
    channel.push(waits);
    assert_eq!(run(&channel), (vec![1, 2], Step::Blocked));
    assert_eq!(lock(&rang).iter().map(|doorbell| doorbell.data).collect::<Vec<_>>(), [7, 8]);
    channel.stop();

    let channel = Channel::new(Box::new(Listener::default()), Budget::new(0));
    channel.push(Element { doorbell: doorbell(13), ..element(1) });
    channel.push(element(2));
    assert_eq!(run(&channel), (vec![1], Step::Crashed));
    assert_eq!((run(&channel), channel.occupancy()), ((vec![], Step::Crashed), 1));
}

#[test]
fn doorbells_that_are_not_read_are_kept_up_to_the_limit() {
    let (channel, _) = adder(1, true);
    for element_id in 0..=MAX_DOORBELLS as u64 {
        let data = u32::try_from(element_id).unwrap();
        channel
            .push(Element { doorbell: Some(Doorbell { address: 0, data, bits: 32 }), ..element(element_id) });
    }
    assert_eq!(run(&channel).1, Step::Idle);
    let cores = lock(&channel.cores);
    // The newest doorbell is kept.
    assert_eq!((cores.doorbells.len(), cores.doorbells[0].data), (MAX_DOORBELLS, 1));
}

/// Cores that compute until they are stopped.
#[derive(Debug, Default)]
struct Endless(Arc<(Mutex<(bool, bool)>, Condvar)>);

impl Running for Endless {
    fn advance(&mut self, _card: &mut CoreView<'_>) -> Progress {
        let (state, changed) = &*self.0;
        let mut state = lock(state);
        state.0 = true;
        changed.notify_all();
        drop(changed.wait_while(state, |state| !state.1).unwrap());
        Progress::Worked
    }

    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        let state = Arc::clone(&self.0);
        Arc::new(move || {
            lock(&state.0).1 = true;
            state.1.notify_all();
        })
    }
}

#[test]
fn stop_while_cores_compute_does_not_wait_for_them() {
    let endless = Endless::default();
    let state = Arc::clone(&endless.0);
    let channel = Channel::new(Box::new(endless), Budget::new(0));
    channel.push(element(1));
    std::thread::scope(|scope| {
        let stepped = scope.spawn(|| run(&channel));
        drop(state.1.wait_while(lock(&state.0), |state| !state.0).unwrap());
        // Other threads can read the ring while the cores compute.
        assert_eq!(channel.occupancy(), 1);
        assert!(format!("{channel:?}").contains("occupancy: 1"));
        channel.stop();
        assert_eq!(stepped.join().unwrap(), (vec![], Step::Idle));
    });
}

fn any_sem() -> impl Strategy<Value = Sem> {
    // Few values and semaphores make satisfied waits more likely.
    (0..=1_u8, 0..7_u8, 0..3_u8, 0..3_u16)
        .prop_map(|(presync, cmd, index, val)| sem(presync, cmd, index, val))
}

proptest! {
    /// Compares the channel with a list of operations that are done one by one as far as possible.
    #[test]
    fn elements_with_any_semaphores_complete_in_order(
        all in prop::collection::vec(prop::array::uniform4(any_sem()), 0..12),
    ) {
        let channel = loopback();
        for (element_id, sems) in (0..).zip(&all) {
            channel.push(Element { sems: *sems, ..element(element_id) });
        }
        let mut values = [0_i32; 3];
        let mut completed = Vec::new();
        let mut end = Step::Idle;
        'ring: for (element_id, sems) in (0..).zip(&all) {
            for sem in sems.iter().filter(|sem| sem.presync == 1).chain(sems.iter().filter(|sem| sem.presync == 0)) {
                let value = &mut values[usize::from(sem.index)];
                let wanted = i32::from(sem.val);
                let waits = match sem.cmd {
                    1 => { *value = wanted; false }
                    2 => { *value = (*value + 1) % 4096; false }
                    3 => { *value = (*value + 4095) % 4096; false }
                    4 => *value != wanted,
                    5 => *value < wanted,
                    6 if *value == 0 => true,
                    6 => { *value -= 1; false }
                    _ => false,
                };
                if waits {
                    end = Step::Blocked;
                    break 'ring;
                }
            }
            completed.push(element_id);
        }
        prop_assert_eq!(run(&channel), (completed.clone(), end));
        prop_assert_eq!(channel.occupancy(), all.len() - completed.len());
        let semaphores = lock(&channel.cores).semaphores.clone();
        for (index, value) in (0_u8..).zip(values) {
            prop_assert_eq!(i32::from(semaphores.get(index)), value);
        }
    }

    /// Slices to the device deliver their bytes, slices back return them, and the rest of the host's memory
    /// is unchanged.
    #[test]
    fn slices_of_any_sizes_move_their_bytes(
        source in prop::collection::vec(any::<u8>(), 64),
        slices in prop::collection::vec((any::<bool>(), 0..64_usize, 0..96_u64, 0..40_usize), 1..20),
        base in prop::sample::select(vec![0x1_0000_0000_u64, 0xFFFF - 20, u64::MAX - 30]),
    ) {
        let channel = loopback();
        let (host, back) = (page(&source), page(&[0xEE; 64]));
        let (mut device, mut expected) = ([0_u8; 160], [0xEE_u8; 64]);
        for (element_id, (to_device, host_at, device_at, len)) in (0..).zip(slices.iter().copied()) {
            let len = len.min(64 - host_at);
            let pages = Arc::clone(if to_device { &host } else { &back });
            channel.push(Element {
                pages,
                host_offset: host_at as u64,
                dev_addr: base.wrapping_add(device_at),
                len: u32::try_from(len).unwrap(),
                to_device,
                ..element(element_id)
            });
            let device = &mut device[usize::try_from(device_at).unwrap()..][..len];
            if to_device {
                device.copy_from_slice(&source[host_at..][..len]);
            } else {
                expected[host_at..][..len].copy_from_slice(device);
            }
        }
        prop_assert_eq!(run(&channel), ((0..slices.len() as u64).collect(), Step::Idle));
        prop_assert_eq!(bytes_of(&back), expected);
        prop_assert_eq!(bytes_of::<64>(&host).to_vec(), source);
    }
}

/// Two inferences of two inputs and an output each, with late data; the fences are those of the operations
/// that signal the arrival of inputs and the fetch of the output. Returns the outputs.
fn late_outputs(inputs_there: u8, output_fetched: u8) -> (Vec<[u8; 2]>, Vec<u64>) {
    let (channel, _) = adder(2, true);
    let mut outputs = Vec::new();
    for (element_id, input) in [(10, [1, 2]), (20, [4, 5])] {
        let late = |element_id| Element { is_late: true, ..element(element_id) };
        // The memory is free when the previous output was fetched.
        let mut first = Element { pages: page(&input[..1]), len: 1, ..late(element_id) };
        if element_id > 10 {
            first.sems[0] = sem(1, 6, 2, 0);
        }
        channel.push(first);
        let mut last = Element { pages: page(&input[1..]), dev_addr: 1, len: 1, ..late(element_id + 1) };
        last.sems[0] = Sem { flags: inputs_there, ..sem(0, 2, 0, 0) };
        channel.push(last);
        let out = page(&[0xAA; 2]);
        let mut output =
            Element { pages: out.clone(), dev_addr: 0x100, len: 2, to_device: false, ..late(element_id + 2) };
        output.sems[0] = sem(1, 6, 1, 0);
        output.sems[1] = Sem { flags: output_fetched, ..sem(0, 2, 2, 0) };
        channel.push(output);
        outputs.push(out);
    }
    let (completed, end) = run(&channel);
    assert_eq!((end, channel.occupancy()), (Step::Idle, 0));
    (outputs.iter().map(|out| bytes_of(out)).collect(), completed)
}

#[test]
fn late_data_is_right_with_its_fences_and_wrong_without() {
    const RIGHT: [[u8; 2]; 2] = [[2, 3], [5, 6]];
    let (right, completed) = late_outputs(SEM_IN_SYNC_FENCE, SEM_OUT_SYNC_FENCE);
    assert_eq!((&right[..], completed), (&RIGHT[..], vec![10, 11, 12, 20, 21, 22]));
    for (inputs_there, output_fetched) in [
        (0, SEM_OUT_SYNC_FENCE),
        (SEM_OUT_SYNC_FENCE, SEM_OUT_SYNC_FENCE),
        (SEM_IN_SYNC_FENCE, 0),
        (SEM_IN_SYNC_FENCE, SEM_IN_SYNC_FENCE),
        (SEM_OUT_SYNC_FENCE, SEM_IN_SYNC_FENCE),
    ] {
        let (found, completed) = late_outputs(inputs_there, output_fetched);
        assert_ne!(found, RIGHT, "{inputs_there} {output_fetched}");
        assert_eq!(completed, [10, 11, 12, 20, 21, 22]);
    }
}
