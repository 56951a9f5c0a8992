//! Sequences about slices, executions and waits. A comment names the matching case of Intel's `kmd-test`, if
//! there is one.

use crate::call::Call::*;
use crate::call::{Call, Slice};
use crate::scripted::{
    FROM, LONG_MS, SHORT_MS, TO, activate, active, attach, blocked, create, deactivate, detach, execute,
    load, partial, ready, short_wait, wait,
};

pub(crate) fn slices() -> Vec<Call> {
    let mut calls = active(4);
    calls.push(create(0, 4096));
    let one = |change: fn(&mut Slice)| {
        let mut slice = Slice::of(64);
        change(&mut slice);
        attach(0, TO, vec![slice])
    };
    calls.extend([
        attach(0, TO, vec![]),
        attach(0, 0, vec![Slice::of(64)]),
        attach(0, 3, vec![Slice::of(64)]),
        attach(9, TO, vec![Slice::of(64)]),
        Attach { file: 0, dbc_id: 1, object: 0, dir: TO, slices: vec![Slice::of(64)] },
        Attach { file: 0, dbc_id: 16, object: 0, dir: TO, slices: vec![Slice::of(64)] },
        one(|slice| slice.size = 4097),
        one(|slice| slice.offset = 4096),
        one(|slice| (slice.size, slice.offset) = (u64::MAX, 1)),
        one(|slice| slice.semaphores = vec![(0x1000, 0, 0, 0, 0)]),
        one(|slice| slice.semaphores = vec![(0, 32, 0, 0, 0)]),
        one(|slice| slice.semaphores = vec![(0, 0, 2, 0, 0)]),
        one(|slice| slice.semaphores = vec![(0, 0, 0, 7, 0)]),
        one(|slice| slice.semaphores = vec![(0, 0, 0, 0, 4)]),
        one(|slice| slice.semaphores = vec![(0, 0, 1, 2, 0), (0, 1, 1, 2, 0)]),
        one(|slice| slice.doorbell = Some((2, 32))),
        one(|slice| slice.doorbell = Some((1, 16))),
        one(|slice| slice.doorbell = Some((1, 8))),
        attach(0, TO, vec![Slice::of(64)]),
        detach(0),
        one(|slice| slice.doorbell = Some((4, 7))),
        attach(0, TO, vec![Slice::of(64); 5]),
        attach(0, TO, vec![Slice::of(64); 4]),
        execute(&[0]),
        Detach { file: 0, object: 0, pad: 1 },
        detach(0),
        detach(0),
        detach(9),
        attach(0, TO, vec![Slice::of(64); 3]),
        execute(&[0]),
        wait(0),
        CloseHandle { file: 0, object: 0 },
        execute(&[0]),
        Usage,
    ]);
    calls
}

pub(crate) fn slices_of_no_bytes() -> Vec<Call> {
    let mut calls = active(8);
    calls.push(create(0, 2 * 4096));
    for offset in [0, 8, 4096, 4097, 2 * 4096, 2 * 4096 + 1] {
        calls.push(attach(0, TO, vec![Slice { offset, ..Slice::default() }]));
        calls.push(execute(&[0]));
        calls.push(wait(0));
        calls.push(detach(0));
    }
    calls
}

/// `UapiSubmit.NoBufHandles`, `ManyBufHandles`, `BufHandleInvalid`, `BufHandleForDeletedBuf`.
pub(crate) fn executions() -> Vec<Call> {
    let mut calls = ready(8);
    calls.extend([
        execute(&[]),
        partial(&[]),
        execute(&[9]),
        execute(&[0, 9]),
        Execute { file: 0, dbc_id: 16, objects: vec![0] },
        Execute { file: 0, dbc_id: 1, objects: vec![0] },
        create(0, 4096),
        execute(&[2]),
        Write { object: 0, begin: 7 },
        execute(&[0, 1]),
        wait(0),
        wait(1),
        Read { object: 1 },
        execute(&[1]),
        wait(1),
        Read { object: 1 },
        CloseHandle { file: 0, object: 0 },
        execute(&[0]),
        execute(&[1]),
        wait(1),
    ]);
    calls
}

pub(crate) fn executions_in_part() -> Vec<Call> {
    let mut calls = active(16);
    calls.extend([
        create(0, 3 * 4096),
        create(0, 3 * 4096),
        attach(
            0,
            TO,
            vec![Slice::of(4096), Slice { size: 8192, offset: 4096, to: 4096, ..Slice::default() }],
        ),
        attach(1, FROM, vec![Slice::of(3 * 4096)]),
        Write { object: 0, begin: 1 },
        execute(&[0]),
        wait(0),
        Write { object: 0, begin: 2 },
        partial(&[(0, 3 * 4096 + 1)]),
        partial(&[(0, 100)]),
        wait(0),
        execute(&[1]),
        wait(1),
        Read { object: 1 },
        Write { object: 0, begin: 3 },
        partial(&[(0, 4096)]),
        wait(0),
        partial(&[(1, 5000)]),
        wait(1),
        Read { object: 1 },
        Write { object: 0, begin: 4 },
        partial(&[(0, 0)]),
        wait(0),
        execute(&[1]),
        wait(1),
        Read { object: 1 },
        partial(&[(0, 9000), (1, 3 * 4096)]),
        wait(1),
        Read { object: 1 },
    ]);
    calls
}

pub(crate) fn refused_in_the_middle() -> Vec<Call> {
    let mut calls = ready(8);
    calls.extend([
        execute(&[0, 9]),
        // Nothing was executed, but there is an object to wait for.
        short_wait(0),
        detach(0),
        short_wait(0),
        attach(0, TO, vec![Slice::of(4096)]),
        execute(&[0, 0]),
        short_wait(0),
        execute(&[0]),
        wait(0),
        execute(&[1, 0, 9]),
        short_wait(1),
        deactivate(0, 0, 0),
        wait(1),
    ]);
    calls
}

pub(crate) fn full_ring() -> Vec<Call> {
    let mut calls = active(4);
    calls.extend((0..4).map(|_| create(0, 4096)));
    calls.push(attach(0, TO, vec![blocked(64)]));
    calls.extend((1..4).map(|object| attach(object, TO, vec![Slice::of(64)])));
    calls.extend([
        execute(&[0, 1, 2, 3]),
        execute(&[0]),
        short_wait(0),
        execute(&[1, 2]),
        execute(&[3]),
        short_wait(1),
        partial(&[(3, 10)]),
        execute(&[1]),
        detach(1),
        detach(3),
        deactivate(0, 0, 0),
        Usage,
    ]);
    calls
}

pub(crate) fn waits() -> Vec<Call> {
    let mut calls = ready(8);
    let other = |dbc_id, object, timeout_ms, pad| Wait { file: 0, dbc_id, object, timeout_ms, pad };
    calls.extend([
        wait(0),
        other(0, 0, LONG_MS, 1),
        other(16, 0, LONG_MS, 0),
        other(1, 0, LONG_MS, 0),
        other(0, 9, LONG_MS, 0),
        detach(0),
        wait(0),
        attach(0, TO, vec![blocked(64)]),
        execute(&[0]),
        short_wait(0),
        other(0, 0, 1, 0),
        CloseHandle { file: 0, object: 0 },
        short_wait(0),
    ]);
    calls
}

pub(crate) fn semaphores() -> Vec<Call> {
    let mut calls = active(16);
    calls.extend((0..3).map(|_| create(0, 4096)));
    let slice =
        |semaphores: &[(u16, u8, u8, u8, u8)]| Slice { semaphores: semaphores.to_vec(), ..Slice::of(64) };
    calls.extend([
        // The semaphore is raised after the first transfer, and awaited before the second one.
        attach(0, TO, vec![slice(&[(1, 3, 0, 1, 0)])]),
        attach(1, FROM, vec![slice(&[(1, 3, 1, 4, 3)])]),
        attach(2, FROM, vec![slice(&[(0, 3, 1, 6, 0), (0, 3, 0, 2, 0)])]),
        Write { object: 0, begin: 5 },
        execute(&[0, 1]),
        wait(0),
        wait(1),
        Read { object: 1 },
        execute(&[2]),
        wait(2),
        Read { object: 2 },
        execute(&[1]),
        wait(1),
        detach(2),
        attach(2, FROM, vec![slice(&[(9, 3, 1, 5, 0)])]),
        execute(&[2]),
        short_wait(2),
        execute(&[0]),
        short_wait(0),
    ]);
    calls
}

pub(crate) fn figures() -> Vec<Call> {
    let figures = |dbc_id, objects: &[usize]| PerfStats { file: 0, dbc_id, objects: objects.to_vec() };
    let mut calls = active(16);
    calls.extend([
        create(0, 4096),
        create(0, 2 * 4096),
        figures(0, &[]),
        figures(0, &[0]),
        attach(0, TO, vec![Slice::of(64); 3]),
        attach(1, FROM, vec![Slice::of(8192)]),
        figures(0, &[0, 1]),
        figures(0, &[0, 9]),
        figures(1, &[0]),
        figures(16, &[0]),
        execute(&[0]),
        wait(0),
        figures(0, &[0, 0]),
        detach(0),
        figures(0, &[0]),
    ]);
    calls
}

/// `UapiSubmit.BufHandleFromOtherContext`.
pub(crate) fn two_files() -> Vec<Call> {
    let mut calls = ready(8);
    calls.extend([
        Open(1),
        create(1, 4096),
        create(1, 4096),
        create(1, 4096),
        Attach { file: 1, dbc_id: 0, object: 2, dir: TO, slices: vec![Slice::of(64)] },
        Execute { file: 1, dbc_id: 0, objects: vec![2] },
        Wait { file: 1, dbc_id: 0, object: 2, timeout_ms: SHORT_MS, pad: 0 },
        Detach { file: 1, object: 4, pad: 0 },
        execute(&[4]),
        activate(1, 0, 8),
        load(1),
        activate(1, 1, 8),
        Attach { file: 1, dbc_id: 1, object: 2, dir: TO, slices: vec![Slice::of(64)] },
        Execute { file: 1, dbc_id: 1, objects: vec![2] },
        Wait { file: 1, dbc_id: 1, object: 2, timeout_ms: LONG_MS, pad: 0 },
        Execute { file: 0, dbc_id: 1, objects: vec![0] },
        deactivate(0, 1, 1),
        Close(0),
        Usage,
        Execute { file: 1, dbc_id: 1, objects: vec![2] },
        Wait { file: 1, dbc_id: 1, object: 2, timeout_ms: LONG_MS, pad: 0 },
        activate(1, 1, 4),
        Close(1),
        Usage,
    ]);
    calls
}

pub(crate) fn restart_of_a_channel() -> Vec<Call> {
    let mut calls = ready(8);
    for (activation, begin) in [(0, 11), (1, 22), (2, 33)] {
        calls.extend([
            Write { object: 0, begin },
            execute(&[0, 1]),
            wait(0),
            wait(1),
            Read { object: 1 },
            deactivate(0, activation, 0),
            // The slices were removed with the channel.
            execute(&[0]),
            detach(0),
            activate(0, 0, 8),
            execute(&[0]),
            // The memory of the device was also released.
            attach(1, FROM, vec![Slice::of(4096)]),
            execute(&[1]),
            wait(1),
            Read { object: 1 },
            attach(0, TO, vec![Slice::of(4096)]),
        ]);
    }
    calls
}
