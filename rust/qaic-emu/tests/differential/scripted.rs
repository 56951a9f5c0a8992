//! The list of sequences. A comment names the matching case of Intel's `kmd-test` or AMD's `shim_test`, if
//! there is one.

use crate::call::Call::*;
use crate::call::{Call, Part, Slice};
use crate::data_path::{
    executions, executions_in_part, figures, full_ring, refused_in_the_middle, restart_of_a_channel,
    semaphores, slices, slices_of_no_bytes, two_files, waits,
};

pub(crate) const TO: u32 = 1;
pub(crate) const FROM: u32 = 2;
/// Time limits: `LONG_MS` for waits that complete, even on a slow machine; `SHORT_MS` for waits that do not
/// complete.
pub(crate) const LONG_MS: u32 = 20_000;
pub(crate) const SHORT_MS: u32 = 150;
/// A semaphore before the transfer that nothing raises.
const BLOCKED: (u16, u8, u8, u8, u8) = (1, 3, 1, 4, 0);

pub(crate) fn load(file: usize) -> Call {
    Manage(file, vec![Part::Load(100)])
}

fn set_up(queue_size: u32) -> Part {
    Part::SetUp { queue_size, pad: 0 }
}

fn tear_down(dbc_id: u32) -> Part {
    Part::TearDown { dbc_id, pad: 0 }
}

pub(crate) fn activate(file: usize, image: usize, queue_size: u32) -> Call {
    Manage(file, vec![Part::Activate { image }, set_up(queue_size)])
}

fn command_to_deactivate(activation: usize) -> Part {
    Part::Deactivate { activation, tears_down: true }
}

pub(crate) fn deactivate(file: usize, activation: usize, dbc_id: u32) -> Call {
    Manage(file, vec![command_to_deactivate(activation), tear_down(dbc_id)])
}

pub(crate) fn create(file: usize, size: u64) -> Call {
    CreateBo { file, size, pad: 0 }
}

pub(crate) fn attach(object: usize, dir: u32, slices: Vec<Slice>) -> Call {
    Attach { file: 0, dbc_id: 0, object, dir, slices }
}

pub(crate) fn detach(object: usize) -> Call {
    Detach { file: 0, object, pad: 0 }
}

pub(crate) fn execute(objects: &[usize]) -> Call {
    Execute { file: 0, dbc_id: 0, objects: objects.to_vec() }
}

pub(crate) fn partial(objects: &[(usize, u64)]) -> Call {
    PartialExecute { file: 0, dbc_id: 0, objects: objects.to_vec() }
}

pub(crate) fn wait(object: usize) -> Call {
    Wait { file: 0, dbc_id: 0, object, timeout_ms: LONG_MS, pad: 0 }
}

pub(crate) fn short_wait(object: usize) -> Call {
    Wait { file: 0, dbc_id: 0, object, timeout_ms: SHORT_MS, pad: 0 }
}

pub(crate) fn blocked(size: u64) -> Slice {
    Slice { size, semaphores: vec![BLOCKED], ..Slice::default() }
}

/// File 0 with an image and an activation on channel 0.
pub(crate) fn active(queue_size: u32) -> Vec<Call> {
    vec![Open(0), load(0), activate(0, 0, queue_size)]
}

/// Adds buffer object 0 to the device and buffer object 1 from it, of one page each.
pub(crate) fn ready(queue_size: u32) -> Vec<Call> {
    let mut calls = active(queue_size);
    calls.extend([
        create(0, 4096),
        create(0, 4096),
        attach(0, TO, vec![Slice::of(4096)]),
        attach(1, FROM, vec![Slice::of(4096)]),
    ]);
    calls
}

/// Returns the calls of a whole program.
fn whole_life() -> Vec<Call> {
    let mut calls = ready(8);
    calls.extend([
        Write { object: 0, begin: 1 },
        execute(&[0, 1]),
        wait(0),
        wait(1),
        Read { object: 1 },
        partial(&[(0, 100), (1, 200)]),
        wait(1),
        PerfStats { file: 0, dbc_id: 0, objects: vec![0, 1] },
        detach(0),
        detach(1),
        deactivate(0, 0, 0),
        Manage(0, vec![Part::Unload { image: 0 }]),
        CloseHandle { file: 0, object: 0 },
    ]);
    calls
}

/// Sequences by name.
#[derive(Default)]
struct Sequences(Vec<(String, Vec<Call>)>);

impl Sequences {
    /// Adds a sequence; its calls follow.
    fn case(&mut self, name: &str) -> &mut Self {
        self.0.push((name.to_owned(), Vec::new()));
        self
    }

    fn calls(&mut self, calls: Vec<Call>) {
        self.0.last_mut().unwrap().1.extend(calls);
    }

    /// Begins the sequence with [`ready`].
    fn ready(&mut self, then: Vec<Call>) {
        self.calls(ready(8));
        self.calls(then);
    }
}

/// Every sequence with its name.
#[allow(clippy::too_many_lines)] // a list
pub(crate) fn all() -> Vec<(String, Vec<Call>)> {
    let mut all = Sequences::default();
    // Device.Open, create_destroy_device: after each call, the file is closed and another file takes all resources.
    let life = whole_life();
    all.case("whole_life").calls(life.clone());
    for count in 1..life.len() {
        let mut calls = life[..count].to_vec();
        calls.extend([Close(0), Usage, Open(1), load(1), activate(1, usize::from(count > 1), 4), Close(1)]);
        all.case(&format!("close_after_{count}")).calls(calls);
    }
    // Device.ResetEngineAfterCmd.
    for count in [1, 3, 7, 9, 11] {
        let mut calls = life[..count].to_vec();
        calls.extend([Reset, Usage]);
        // The file is the same, without its resources on the card.
        calls.extend([
            load(0),
            activate(0, usize::from(count > 1), 8),
            execute(&[0]),
            wait(0),
            Read { object: 0 },
        ]);
        all.case(&format!("reset_after_{count}")).calls(calls);
    }
    all.case("version").calls(vec![Open(0), Version(0)]);
    all.case("buffer_objects").calls(buffer_objects());
    all.case("mappings").calls(mappings());
    all.case("mapping_of_a_closed_handle").calls(vec![
        Open(0),
        create(0, 4096),
        CloseHandle { file: 0, object: 0 },
        Map { file: 0, object: 0, len: 4096 },
    ]);
    all.case("close_of_a_file_that_is_mapped").ready(vec![CloseMapped(0), Usage]);
    all.case("messages").calls(messages());
    all.case("images").calls(images());
    all.case("activations").calls(activations());
    all.case("deactivations").calls(deactivations());
    all.case("two_activations_in_one_message").calls(two_in_one_message());
    all.case("replies_that_are_too_long").calls(vec![
        Open(0),
        Manage(0, vec![Part::Status; 7]),
        Manage(0, vec![Part::Status; 8]),
        Usage,
    ]);
    all.case("slices").calls(slices());
    all.case("slices_of_no_bytes").calls(slices_of_no_bytes());
    all.case("executions").calls(executions());
    all.case("executions_in_part").calls(executions_in_part());
    all.case("execution_that_is_refused_in_its_middle").calls(refused_in_the_middle());
    all.case("full_ring").calls(full_ring());
    all.case("waits").calls(waits());
    all.case("semaphores").calls(semaphores());
    all.case("figures").calls(figures());
    all.case("two_files").calls(two_files());
    all.case("restart_of_a_channel").calls(restart_of_a_channel());
    all.case("deactivation_while_a_wait_blocks").ready(vec![
        detach(0),
        attach(0, TO, vec![blocked(4096)]),
        execute(&[0]),
        // Long enough for the deactivation to begin before the wait is over.
        While(
            Box::new(Wait { file: 0, dbc_id: 0, object: 0, timeout_ms: 3000, pad: 0 }),
            vec![deactivate(0, 0, 0)],
        ),
        short_wait(0),
        activate(0, 0, 4),
    ]);
    all.case("reset_while_a_wait_blocks").ready(vec![
        detach(0),
        attach(0, TO, vec![blocked(4096)]),
        execute(&[0]),
        While(Box::new(wait(0)), vec![Reset]),
        wait(0),
        load(0),
        activate(0, 1, 4),
    ]);
    all.case("reset_while_the_firmware_is_silent").calls(vec![
        Open(0),
        Faults("command(load_elf)@1=hang"),
        While(Box::new(load(0)), vec![Reset]),
        Usage,
        load(0),
    ]);
    all.case("firmware_that_refuses").calls(refusals("nack(-13)"));
    all.case("firmware_that_refuses_both").calls(refusals("nack_both(-13)"));
    all.case("firmware_that_is_silent").calls(silence());
    all.case("replies_with_wrong_checksums").calls(checksums());
    all.case("replies_of_another_type").calls(corrupted("wrong_type"));
    all.case("replies_that_are_cut").calls(corrupted("truncated"));
    all.case("replies_with_another_count").calls(corrupted("count(5)"));
    all.case("replies_that_name_another_channel").calls(corrupted("channel(9)"));
    all.case("activation_of_a_channel_that_is_not_there").calls(corrupted("dbc(16)"));
    all.case("execution_that_does_not_complete").ready(vec![
        Faults("inference@1=lost_completion"),
        execute(&[0, 1]),
        wait(0),
        short_wait(1),
        detach(1),
        execute(&[1]),
        deactivate(0, 0, 0),
        wait(1),
    ]);
    all.case("first_slice_that_does_not_complete").ready(vec![
        Faults("inference@1=short_completion"),
        execute(&[0, 1]),
        short_wait(0),
        wait(1),
        execute(&[1]),
        wait(1),
    ]);
    all.case("executions_with_a_status").ready(vec![
        Faults("inference@1=dma_status(7)"),
        execute(&[0, 1]),
        wait(0),
        wait(1),
    ]);
    all.case("cores_that_hang").ready(vec![
        Faults("inference@1=hang"),
        execute(&[0, 1]),
        short_wait(0),
        execute(&[0]),
        detach(0),
        deactivate(0, 0, 0),
        activate(0, 0, 8),
    ]);
    all.case("card_that_resets_by_itself").ready(vec![
        Faults("inference@1=reset"),
        execute(&[0, 1]),
        AwaitOnline,
        wait(0),
        Usage,
        load(0),
        activate(0, 1, 8),
    ]);
    all.case("channel_that_is_in_use").calls(channel_in_use());
    all.case("channel_that_was_given_up_by_a_closed_file").calls(channel_given_up());
    all.case("stop_during_a_load_that_is_not_answered").calls(stopped(
        begun_at(0),
        "load_elf",
        "hang",
        load(0),
    ));
    all.case("stop_during_a_load").calls(stopped(begun_at(0), "load_elf", "slow(1s)", load(0)));
    all.case("stop_during_an_activation").calls(stopped(
        begun_at(1),
        "activate",
        "slow(1s)",
        activate(0, 0, 8),
    ));
    all.case("stop_during_a_deactivation").calls(stopped(
        ready(8),
        "deactivate",
        "slow(1s)",
        deactivate(0, 0, 0),
    ));
    all.case("stop_while_an_activation_waits_for_its_channel").calls(vec![
        Open(0),
        load(0),
        activate(0, 0, 8),
        Open(1),
        load(1),
        Faults("command(activate)@1=dbc(0)"),
        While(Box::new(activate(1, 1, 4)), vec![Stop]),
        execute(&[]),
        Close(1),
        Usage,
    ]);
    all.case("stop_during_a_wait").ready(vec![
        detach(0),
        attach(0, TO, vec![blocked(4096)]),
        execute(&[0]),
        While(Box::new(Wait { file: 0, dbc_id: 0, object: 0, timeout_ms: 1500, pad: 0 }), vec![Stop]),
        deactivate(0, 0, 0),
    ]);
    all.case("replies_that_come_late").calls(late_replies());
    all.case("reply_that_comes_after_the_time_limit").calls(vec![
        Open(0),
        load(0),
        Faults("command(activate)@1=slow(4s)"),
        activate(0, 0, 8),
        activate(0, 0, 8),
        Faults("command(deactivate)@1=slow(4s)"),
        deactivate(0, 0, 1),
        // The late reply reports that the channel is free.
        activate(0, 0, 8),
        Usage,
    ]);
    all.case("cores_that_fail").calls(failing_cores("ssr"));
    all.case("cores_that_fail_and_stay_so").calls(failing_cores("ssr_without_power_up"));
    all.case("execution_on_another_channel").ready(vec![
        activate(0, 0, 8),
        Execute { file: 0, dbc_id: 1, objects: vec![0] },
        wait(0),
    ]);
    all.case("late_data").ready(vec![
        // The slice has a fence, because the order is random without one.
        detach(1),
        attach(1, FROM, vec![Slice { semaphores: vec![(0, 0, 1, 0, 2)], ..Slice::of(4096) }]),
        Faults("inference@1=late_dma*all"),
        Write { object: 0, begin: 9 },
        execute(&[0, 1]),
        wait(0),
        wait(1),
        Read { object: 1 },
    ]);
    all.0
}

/// `UapiMem.BoCreate`, `BoCreateMultiple`, `BoCreateNegative`, `BoInfoNegative`, `BoInfoClosedNegative`.
fn buffer_objects() -> Vec<Call> {
    let mut calls = vec![Open(0)];
    for size in [1, 4096, 4097, 3 * 4096, 1 << 20, 0, u64::MAX, u64::MAX - 4095, 1 << 42] {
        calls.push(create(0, size));
    }
    calls.extend([
        CreateBo { file: 0, size: 4096, pad: 1 },
        MmapBo { file: 0, object: 99 },
        CloseHandle { file: 0, object: 1 },
        CloseHandle { file: 0, object: 1 },
        MmapBo { file: 0, object: 1 },
        create(0, 4096),
        Write { object: 0, begin: 3 },
        Read { object: 0 },
        Read { object: 2 },
    ]);
    calls
}

/// `UapiMem.BoMmap`, `BoMmapNegative`.
fn mappings() -> Vec<Call> {
    vec![
        Open(0),
        Open(1),
        create(0, 3 * 4096),
        Map { file: 0, object: 0, len: 3 * 4096 },
        Map { file: 0, object: 0, len: 4096 },
        Map { file: 0, object: 0, len: 4097 },
        Map { file: 0, object: 0, len: 4 * 4096 },
        Map { file: 0, object: 99, len: 4096 },
        Map { file: 1, object: 0, len: 4096 },
        CloseHandle { file: 0, object: 0 },
        Read { object: 0 },
    ]
}

fn messages() -> Vec<Call> {
    let mut calls = vec![Open(0)];
    let messages = vec![
        vec![],
        vec![Part::Features],
        vec![Part::Features, Part::Features],
        vec![Part::Status, Part::Features],
        vec![Part::ResourceInfo],
        vec![Part::Odd],
        vec![Part::Odd, Part::Features],
        vec![Part::Features, Part::Odd],
        vec![Part::Unknown(0)],
        vec![Part::Unknown(4)],
        vec![Part::Unknown(11)],
        vec![Part::Unknown(13)],
        vec![Part::Features, Part::Unknown(99)],
        vec![Part::Unknown(99), Part::Features],
        vec![Part::Command(0)],
        vec![Part::Command(13)],
        vec![Part::Command(50)],
        vec![Part::Command(50), Part::Command(14), Part::Features],
        vec![set_up(0)],
        vec![set_up(8)],
        vec![Part::SetUp { queue_size: 8, pad: 1 }],
        vec![set_up(u32::MAX)],
        vec![set_up(1 << 26)],
        vec![tear_down(0)],
        vec![tear_down(16)],
        vec![Part::TearDown { dbc_id: 0, pad: 1 }],
        vec![tear_down(0), Part::Features],
        vec![Part::Features, tear_down(0)],
    ];
    calls.extend(messages.into_iter().map(|parts| Manage(0, parts)));
    calls
}

fn images() -> Vec<Call> {
    vec![
        Open(0),
        Open(1),
        Manage(0, vec![Part::Load(1)]),
        Manage(0, vec![Part::Load(5000)]),
        Manage(0, vec![Part::Load(3 << 20)]),
        Manage(0, vec![Part::Load(10), Part::Features]),
        // The driver treats the data of a second load as the rest of the first one.
        Manage(0, vec![Part::Load(10), Part::Load(10)]),
        Manage(0, vec![Part::Load(10), Part::Load(30)]),
        Manage(0, vec![Part::Load(5000), Part::Load(9000), Part::Load(10_000)]),
        Manage(0, vec![Part::Unload { image: 0 }]),
        Manage(0, vec![Part::Unload { image: 0 }]),
        Manage(0, vec![Part::Unload { image: 99 }]),
        Manage(1, vec![Part::Unload { image: 1 }]),
        Usage,
    ]
}

/// `create_destroy_hw_context`, `create_destroy_virtual_context`.
fn activations() -> Vec<Call> {
    let mut calls = vec![Open(0), activate(0, 0, 8), load(0)];
    calls.extend([
        Manage(0, vec![Part::Activate { image: 0 }]),
        Manage(0, vec![Part::Activate { image: 0 }, set_up(0)]),
        Manage(0, vec![Part::Activate { image: 0 }, Part::SetUp { queue_size: 8, pad: 2 }]),
        activate(0, 9, 8),
    ]);
    // More activations than channels and cores.
    calls.extend((0..17).map(|_| activate(0, 0, 4)));
    calls.extend([Usage, deactivate(0, 3, 3), activate(0, 0, 4), Usage]);
    calls
}

fn deactivations() -> Vec<Call> {
    let mut calls = ready(8);
    calls.extend([
        Open(1),
        deactivate(1, 0, 0),
        deactivate(0, 0, 1),
        deactivate(0, 0, 16),
        Manage(0, vec![Part::Deactivate { activation: 99, tears_down: false }]),
        // The channel is released before the message is sent, regardless of the message.
        Manage(0, vec![tear_down(0), Part::Unknown(99)]),
        execute(&[0]),
        short_wait(0),
        deactivate(0, 0, 0),
        Manage(0, vec![command_to_deactivate(0)]),
        Usage,
        activate(0, 0, 8),
        // The firmware receives nothing for the channel alone.
        Manage(0, vec![tear_down(0)]),
        execute(&[0]),
        detach(0),
        Manage(0, vec![command_to_deactivate(1)]),
        detach(0),
        activate(0, 0, 8),
        Manage(0, vec![command_to_deactivate(99), tear_down(0)]),
        Manage(0, vec![command_to_deactivate(2)]),
        activate(0, 0, 8),
        // Without the transaction: the driver learns of the deactivation from the reply.
        Manage(0, vec![command_to_deactivate(3)]),
        execute(&[0]),
        activate(0, 0, 8),
        Manage(0, vec![tear_down(0), tear_down(0), command_to_deactivate(4)]),
        Manage(0, vec![command_to_deactivate(4)]),
        activate(0, 0, 8),
        Manage(0, vec![command_to_deactivate(5), tear_down(0), tear_down(0)]),
        Manage(0, vec![command_to_deactivate(5)]),
        Usage,
    ]);
    calls
}

fn two_in_one_message() -> Vec<Call> {
    vec![
        Open(0),
        load(0),
        Manage(0, vec![Part::Activate { image: 0 }, set_up(8), Part::Activate { image: 0 }, set_up(4)]),
        Close(0),
        Usage,
        Open(0),
        load(0),
        activate(0, 1, 8),
    ]
}

/// Only a reset frees the channel, or a signal to an activation that gets the channel and waits.
fn channel_given_up() -> Vec<Call> {
    vec![
        Open(0),
        load(0),
        activate(0, 0, 8),
        Manage(0, vec![tear_down(0), Part::Unknown(99)]),
        CloseGivenUp(0),
        Usage,
        Open(1),
        load(1),
        While(Box::new(activate(1, 1, 4)), vec![Stop]),
        create(1, 4096),
        Attach { file: 1, dbc_id: 0, object: 0, dir: TO, slices: vec![Slice::of(64); 3] },
        Execute { file: 1, dbc_id: 0, objects: vec![0] },
        Wait { file: 1, dbc_id: 0, object: 0, timeout_ms: LONG_MS, pad: 0 },
        Close(1),
        Usage,
        Open(0),
        load(0),
        activate(0, 2, 8),
    ]
}

/// File 0, with an image for each activation.
fn begun_at(images: usize) -> Vec<Call> {
    let mut calls = vec![Open(0)];
    calls.extend((0..images).map(|_| load(0)));
    calls
}

/// Stops the process during a call whose first message meets this action.
fn stopped(mut calls: Vec<Call>, command: &str, action: &str, call: Call) -> Vec<Call> {
    let plan = format!("command({command})@1={action}");
    calls.extend([
        // The text is leaked, because `Faults` needs one that lives as long as the process.
        Faults(Box::leak(plan.into_boxed_str())),
        While(Box::new(call), vec![Stop]),
        // Resources that the sequence has left in use.
        Usage,
        load(0),
        activate(0, 0, 8),
        Usage,
        Close(0),
        Usage,
    ]);
    calls
}

fn late_replies() -> Vec<Call> {
    let mut calls = vec![
        Open(0),
        Faults(
            "command(load_elf)@1=slow(1s); command(activate)@1=slow(200ms); command(deactivate)@1=slow(200ms)",
        ),
        While(Box::new(load(0)), vec![]),
    ];
    calls.extend(ready(8).into_iter().skip(1));
    calls.extend([execute(&[0, 1]), wait(1), deactivate(0, 0, 0), Usage]);
    calls
}

/// Drivers without restarts of cores only find that there is no progress, regardless of a restart of the
/// cores.
fn failing_cores(action: &str) -> Vec<Call> {
    let plan = format!("inference@2={action}; command(resource_info)@1={action}(1)");
    let mut calls = ready(8);
    calls.extend([
        activate(0, 0, 8),
        Faults(Box::leak(plan.into_boxed_str())),
        execute(&[0, 1]),
        wait(1),
        execute(&[0, 1]),
        short_wait(1),
        Manage(0, vec![Part::ResourceInfo]),
        deactivate(0, 0, 0),
        deactivate(0, 1, 1),
        activate(0, 0, 8),
        Usage,
    ]);
    calls
}

fn refusals(action: &str) -> Vec<Call> {
    let plan = |command: &str| -> Call {
        // The text is leaked, because `Faults` needs one that lives as long as the process.
        Faults(Box::leak(format!("command({command})@1={action}").into_boxed_str()))
    };
    vec![
        Open(0),
        plan("load_elf"),
        load(0),
        load(0),
        plan("activate"),
        activate(0, 0, 8),
        activate(0, 0, 8),
        create(0, 4096),
        attach(0, TO, vec![Slice::of(64)]),
        plan("status"),
        Manage(0, vec![Part::Status]),
        plan("unload_elf"),
        Manage(0, vec![Part::Unload { image: 0 }]),
        Usage,
        plan("deactivate"),
        deactivate(0, 0, 0),
        execute(&[0]),
        Manage(0, vec![command_to_deactivate(0)]),
        execute(&[0]),
        Usage,
    ]
}

fn silence() -> Vec<Call> {
    vec![
        Open(0),
        Faults("command(status)@1=hang"),
        Manage(0, vec![Part::Status]),
        Manage(0, vec![Part::Status]),
        load(0),
        activate(0, 0, 8),
        Faults("command(deactivate)@1=hang"),
        deactivate(0, 0, 0),
        deactivate(0, 0, 0),
        Manage(0, vec![command_to_deactivate(0)]),
        Usage,
    ]
}

fn checksums() -> Vec<Call> {
    vec![
        Open(0),
        Faults("command(load_elf)@1=crc; command(activate)@1=crc"),
        load(0),
        Usage,
        load(0),
        activate(0, 0, 8),
        Close(0),
        Usage,
    ]
}

fn corrupted(action: &str) -> Vec<Call> {
    let plan =
        format!("command(load_elf)@2={action}; command(activate)@1={action}; command(status)@1={action}");
    vec![
        Open(0),
        load(0),
        Faults(Box::leak(plan.into_boxed_str())),
        load(0),
        load(0),
        activate(0, 0, 8),
        Manage(0, vec![Part::Status]),
        Close(0),
        Usage,
    ]
}

/// An activation that receives the channel of another activation waits until the other one has ended.
fn channel_in_use() -> Vec<Call> {
    vec![
        Open(0),
        load(0),
        activate(0, 0, 8),
        Open(1),
        load(1),
        Faults("command(activate)@1=dbc(0)"),
        While(Box::new(activate(1, 1, 4)), vec![deactivate(0, 0, 0)]),
        create(1, 4096),
        Attach { file: 1, dbc_id: 0, object: 0, dir: TO, slices: vec![Slice::of(64); 3] },
        Attach { file: 1, dbc_id: 1, object: 0, dir: TO, slices: vec![Slice::of(64)] },
        Close(1),
        Usage,
    ]
}
