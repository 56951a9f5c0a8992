//! Random sequences, equal for equal seeds; a sequence with a difference is reduced to the shortest one.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::call::{Call, Part, Slice};
use crate::scripted::ready;

/// Time limit of waits that complete.
const LONG_MS: u32 = 20_000;
/// Time limit of waits that do not complete.
const SHORT_MS: u32 = 100;

/// Fails with the shortest sequence for which `difference` finds a difference.
pub(crate) fn check(cases: u32, seed: [u8; 32], difference: &dyn Fn(&[Call]) -> Option<String>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&sequences(), |steps| {
        let mut calls = ready(8);
        calls.push(Call::Open(1));
        calls.extend(steps.into_iter().flatten());
        difference(&calls).map_or(Ok(()), |found| Err(TestCaseError::fail(format!("\n{found}"))))
    });
    outcome.unwrap();
}

/// Steps of one or more calls. Each step waits for its submissions, because the time of their completion is random.
fn sequences() -> impl Strategy<Value = Vec<Vec<Call>>> {
    let objects = || 0..6_usize;
    let file = || prop_oneof![5 => Just(0_usize), 1 => Just(1)];
    // Only one channel: executions on channels other than that of the slices are a known difference.
    let dbc_id = || prop_oneof![10 => Just(0_u32), 1 => Just(16)];
    let size = || {
        prop_oneof![
            Just(0_u64),
            Just(1),
            Just(64),
            Just(4000),
            Just(4096),
            Just(4097),
            Just(8192),
            Just(12_000)
        ]
    };
    let one = |call: Call| vec![call];
    let execution = (file(), dbc_id(), vec((objects(), size(), any::<bool>()), 0..4)).prop_map(
        |(file, dbc_id, entries)| {
            let objects: Vec<_> = entries.iter().map(|(object, ..)| *object).collect();
            let is_partial = entries.first().is_some_and(|(.., partial)| *partial);
            let mut calls = vec![if is_partial {
                let entries = entries.iter().map(|(object, size, _)| (*object, *size)).collect();
                Call::PartialExecute { file, dbc_id, objects: entries }
            } else {
                Call::Execute { file, dbc_id, objects: objects.clone() }
            }];
            for object in objects {
                calls.push(Call::Wait { file, dbc_id, object, timeout_ms: SHORT_MS * 4, pad: 0 });
            }
            calls
        },
    );
    prop::collection::vec(
        prop_oneof![
            3 => (file(), size(), 0..2_u32).prop_map(move |(file, size, pad)| one(Call::CreateBo { file, size, pad: pad & u32::from(size == 64) })),
            1 => (file(), objects()).prop_map(move |(file, object)| one(Call::MmapBo { file, object })),
            1 => (file(), objects(), size()).prop_map(move |(file, object, len)| one(Call::Map { file, object, len: usize::try_from(len).unwrap() })),
            1 => (file(), objects()).prop_map(move |(file, object)| one(Call::CloseHandle { file, object })),
            5 => (file(), dbc_id(), objects(), 0..4_u32, vec(slice(), 0..4)).prop_map(move |(file, dbc_id, object, dir, slices)| {
                one(Call::Attach { file, dbc_id, object, dir, slices })
            }),
            2 => (file(), objects(), 0..8_u32).prop_map(move |(file, object, pad)| one(Call::Detach { file, object, pad: pad / 7 })),
            8 => execution,
            1 => (file(), dbc_id(), objects(), 0..8_u32).prop_map(move |(file, dbc_id, object, pad)| {
                one(Call::Wait { file, dbc_id, object, timeout_ms: LONG_MS / 100, pad: pad / 7 })
            }),
            1 => (file(), dbc_id(), vec(objects(), 0..3)).prop_map(move |(file, dbc_id, objects)| one(Call::PerfStats { file, dbc_id, objects })),
            2 => (objects(), any::<u8>()).prop_map(move |(object, begin)| one(Call::Write { object, begin })),
            3 => objects().prop_map(move |object| one(Call::Read { object })),
            4 => (file(), vec(part(), 0..4)).prop_map(move |(file, parts)| one(Call::Manage(file, parts))),
            2 => (file(), 0..3_usize, 0..2_u32).prop_map(move |(file, activation, dbc_id)| {
                one(Call::Manage(file, vec![
                    Part::Deactivate { activation, tears_down: true },
                    Part::TearDown { dbc_id, pad: 0 },
                ]))
            }),
            2 => (file(), 0..3_usize, prop_oneof![Just(1_u32), Just(4), Just(9)]).prop_map(move |(file, image, queue_size)| {
                one(Call::Manage(file, vec![Part::Activate { image }, Part::SetUp { queue_size, pad: 0 }]))
            }),
            1 => file().prop_map(move |file| one(Call::Close(file))),
            1 => file().prop_map(move |file| one(Call::Open(file))),
            1 => Just(one(Call::Usage)),
        ],
        1..14,
    )
}

fn slice() -> impl Strategy<Value = Slice> {
    let semaphore = prop_oneof![
        6 => Just(None),
        2 => (0..3_u16, 0..3_u8, 0..2_u8, 0..4_u8, 0..4_u8).prop_map(Some),
        1 => (0..5000_u16, 0..40_u8, 0..3_u8, 0..8_u8, 0..5_u8).prop_map(Some),
    ];
    let size = prop_oneof![1 => Just(0_u64), 6 => Just(64_u64), 3 => Just(4096_u64), 1 => Just(5000_u64)];
    let offset = prop_oneof![6 => Just(0_u64), 2 => Just(64_u64), 1 => Just(4096_u64)];
    let doorbell = prop_oneof![8 => Just(None), 1 => (0..9_u64, prop_oneof![Just(0_u32), Just(8), Just(16), Just(32), Just(5)]).prop_map(Some)];
    (size, offset, 0..3_u64, vec(semaphore, 0..3), doorbell).prop_map(
        |(size, offset, to, semaphores, doorbell)| Slice {
            size,
            offset,
            to: to * 64,
            semaphores: semaphores.into_iter().flatten().collect(),
            doorbell,
        },
    )
}

/// Parts of messages that give up no channel.
fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        2 => Just(Part::Features),
        2 => Just(Part::ResourceInfo),
        3 => (1..6000_usize).prop_map(Part::Load),
        2 => (0..3_usize).prop_map(|image| Part::Unload { image }),
        1 => (0..3_usize).prop_map(|image| Part::Activate { image }),
        1 => (0..3_u32, 0..2_u32).prop_map(|(queue_size, pad)| Part::SetUp { queue_size, pad }),
        1 => (0..3_usize, any::<bool>()).prop_map(|(activation, tears_down)| Part::Deactivate { activation, tears_down }),
        1 => (16..18_u32, 0..2_u32).prop_map(|(dbc_id, pad)| Part::TearDown { dbc_id, pad }),
        1 => (0..60_u32).prop_map(Part::Command),
        1 => Just(Part::Odd),
        1 => (0..20_u32).prop_filter("data", |kind| ![1, 5, 7, 10, 12].contains(kind)).prop_map(Part::Unknown),
    ]
}
