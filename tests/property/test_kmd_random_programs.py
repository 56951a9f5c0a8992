"""Random programs on emulated cards give the outputs of a model, do not end, or are refused when they are
loaded.

Time is virtual, so an inference that does not end takes no time. No program leaves anything on the card.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qaic
from card_programs import (
    DDR,
    DEC,
    IN,
    INC,
    INIT,
    MULTICAST,
    NOP,
    OUT,
    POST,
    PRE,
    WAIT_EQ,
    WAIT_GE,
    WINDOW,
    Binding,
    Card,
    CardProgram,
    P,
    Request,
    Semaphore,
)
from qaic import _core
from qaic.errors import DeviceError, DeviceTimeoutError

#: Few different addresses, so that transfers overlap.
ADDRESSES = 192


@pytest.fixture(scope="module")
def card():
    """The control of a card whose cores do nothing, in virtual time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QAIC_EMU_FAULTS", "QAIC_EMU_PROFILE", "QAIC_CPU_FAMILY", "QAIC_KMD_TRANSCRIPT"):
            patch.delenv(name, raising=False)
        patch.setenv("QAIC_DEVICE", "kmd")
        patch.setenv("QAIC_KMD", "emu")
        patch.setenv("QAIC_EMU_WORKLOAD", "loopback")
        patch.setenv("QAIC_EMU_TIME", "virtual")
        patch.setenv("QAIC_CPU_DEVICES", "1")
        yield _core.EmuControl(0)


# --- programs ------------------------------------------------------------------------------------------


@st.composite
def semaphore_ops(draw, most=4):
    """Operations on few semaphores, at most one of them before the transfer."""
    ops = []
    for _ in range(draw(st.integers(0, most))):
        op = draw(st.sampled_from([NOP, INIT, INC, INC, DEC, WAIT_EQ, WAIT_GE, P]))
        when = draw(st.sampled_from([POST, PRE])) if all(other.when == POST for other in ops) else POST
        number = draw(st.sampled_from([0, 1, 31]))
        value = draw(st.one_of(st.integers(0, 2), st.sampled_from([4095])))
        fences = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
        ops.append(Semaphore(number, op, value, when, fences))
    return tuple(ops)


@st.composite
def doorbells(draw):
    count = draw(st.sampled_from([0, 0, 0, 1, 2]))
    ring = st.tuples(st.integers(0, 64).map(lambda at: at * 4), st.integers(0, 2**32 - 1), st.integers(0, 2))
    return tuple((*draw(ring), draw(st.integers(0, 2))) for _ in range(count))


@st.composite
def slices(draw, number, size, side, *, is_single):
    """Requests for a buffer; their ranges can overlap and leave gaps."""
    found = []
    for _ in range(1 if is_single else draw(st.integers(1, 3))):
        begin = draw(st.integers(0, size - 1))
        length = draw(st.integers(1, size - begin))
        space = draw(st.sampled_from([DDR, MULTICAST]))
        device = draw(st.integers(0, ADDRESSES))
        mc_id = draw(st.integers(0, 2)) if space == MULTICAST else 0
        if space == MULTICAST and mc_id > 0 and draw(st.booleans()):
            # The same address through the preceding window.
            device, mc_id = device + WINDOW, mc_id - 1
        found.append(
            Request(
                number,
                side,
                length,
                begin,
                device,
                space,
                mc_id,
                semaphores=draw(semaphore_ops()),
                doorbells=draw(doorbells()),
            )
        )
    return found


@st.composite
def bindings_of(draw, number, size, side, *, is_partial):
    """Bindings at any offset of a buffer; partial bindings have headers at its start and space at its end."""
    found = []
    if side == IN and is_partial:
        count = draw(st.integers(0, 2))
        room = max(0, size - 8 * count - 16) // max(count, 1)
        if room:
            for index in range(count):
                align = draw(st.sampled_from([1, 2, 8]))
                found.append(
                    Binding(f"p{number}_{index}", IN, number, 8 * index, room, is_partial=True, align=align)
                )
    if not found:
        for index in range(draw(st.integers(0, 2))):
            begin = draw(st.integers(0, size - 1))
            length = draw(st.integers(1, size - begin))
            found.append(Binding(f"b{number}_{index}", side, number, begin, length))
    return found


def without_waits(program: CardProgram) -> CardProgram:
    """The program, with a set semaphore before every operation that would otherwise wait."""
    requests = []
    for request in program.requests:
        ops = []
        for op in request.semaphores:
            if op.op in (WAIT_EQ, WAIT_GE, P):
                value = max(op.value, 1) if op.op == P else op.value
                setter = replace(op, op=INIT, value=value, when=op.when)
                ops.append(setter if op.when == PRE or len(ops) % 2 else op)
            else:
                ops.append(op)
        requests.append(replace(request, semaphores=tuple(ops)))
    return replace(program, requests=tuple(requests))


@st.composite
def programs(draw, *, waits):
    is_partial = draw(st.sampled_from([False, False, True]))
    sizes = draw(st.lists(st.integers(1, 96), min_size=1, max_size=5))
    sides = [draw(st.sampled_from([IN, OUT])) for _ in sizes]
    groups, bindings = [], []
    for number, (size, side) in enumerate(zip(sizes, sides, strict=True)):
        groups.append(draw(slices(number, size, side, is_single=is_partial)))
        bindings += draw(bindings_of(number, size, side, is_partial=is_partial))
    for _ in range(draw(st.integers(0, 2))):
        side = draw(st.sampled_from([IN, OUT]))
        groups.append(
            [Request(65535, side, 0, semaphores=draw(semaphore_ops()), doorbells=draw(doorbells()))]
        )
    if not bindings:
        bindings = [Binding("only", sides[0], 0, 0, sizes[0])]
    ordered = draw(st.permutations(groups))
    if not draw(st.booleans()):
        # Most compilers send all inputs before they fetch an output.
        ordered = sorted(ordered, key=lambda group: group[0].side)
    program = CardProgram(
        tuple(zip(sizes, sides, strict=True)),
        tuple(request for group in ordered for request in group),
        tuple(sorted(bindings, key=lambda binding: binding.side)),
        constants=draw(st.sampled_from([b"", bytes(range(200))])),
    )
    return program if waits else without_waits(program)


def inputs_for(data, program):
    """Arrays for the inputs; those of partial inputs can be shorter."""
    arrays = {}
    for binding in program.of_side(IN):
        size = data.draw(st.integers(0, binding.size)) if binding.is_partial else binding.size
        drawn = data.draw(st.binary(min_size=size, max_size=size))
        arrays[binding.name] = np.frombuffer(drawn, np.int8)
    return arrays


def finish(card):
    """Assert that only the file remains open that the devices of the process share."""
    gc.collect()
    assert card.invariants() in ([], ["accel0: open files: 1"])
    ledger = card.ledger()
    assert ledger["free"] == ledger["total"]


def opened(tmp_path_factory, program, **options):
    path = tmp_path_factory.mktemp("net") / "programqpc.bin"
    path.write_bytes(program.container())
    return qaic.Session(path, dev_id=0, **options)


# --- properties ----------------------------------------------------------------------------------------


def check_against_model(tmp_path_factory, card, data, program):
    """Several inferences through one exec object and through the model."""
    assert not program.is_refused()
    session = opened(tmp_path_factory, program, set_size=1, num_activations=1)
    model, ends = Card(program), 0
    with session:
        for _ in range(data.draw(st.integers(1, 3))):
            arrays = inputs_for(data, program)
            expected = model.infer({name: array.tobytes() for name, array in arrays.items()})
            if expected is None:
                with pytest.raises(DeviceTimeoutError) as caught:
                    session.run(arrays)
                assert caught.value.code == "device.timeout"
                # No operation raises the semaphore.
                assert model.is_stuck
                continue
            found = session.run(arrays)
            assert {name: array.tobytes() for name, array in found.items()} == expected
            ends += 1
    assert card.dma_errors() == 0
    del session
    finish(card)
    return ends


@settings(max_examples=40)
@given(st.data(), programs(waits=False))
def test_outputs_are_those_of_the_model(tmp_path_factory, card, data, program):
    check_against_model(tmp_path_factory, card, data, program)


@settings(max_examples=40)
@given(st.data(), programs(waits=True))
def test_a_wrong_plan_of_semaphores_ends_in_a_timeout(tmp_path_factory, card, data, program):
    check_against_model(tmp_path_factory, card, data, program)


# --- hostile programs ----------------------------------------------------------------------------------

#: Values at the limits of fields in a request.
EDGES = {
    "size": [0, 1, 97, 2**31, 2**32 - 1],
    "host": [1, 95, 96, 2**32, 2**63, 2**64 - 1],
    "device": [WINDOW, 2**63, 2**64 - 4096, 2**64 - 1],
    "buffer": [0, 1, 5, 65535],
    "side": [0, 1, 2, 255],
    "space": [0, 1, 2, 255],
    "mc_id": [1, 65535],
}
hostile_ops = st.builds(
    Semaphore,
    st.sampled_from([0, 31, 32, 65535]),
    st.sampled_from([NOP, INC, 6, 7, 255]),
    st.sampled_from([0, 4095, 4096, 65535]),
    st.sampled_from([POST, PRE, 2, 255]),
)
hostile_bells = st.tuples(
    st.sampled_from([0, 1, 2, 4, 2**63, 2**64 - 4, 2**64 - 1]),
    st.just(7),
    st.sampled_from([0, 1, 2, 3, 255]),
    st.sampled_from([0, 65535]),
)
hostile_fields = st.one_of(
    st.sampled_from(sorted(EDGES)).flatmap(
        lambda name: st.sampled_from(EDGES[name]).map(lambda value: {name: value})
    ),
    st.lists(hostile_ops, min_size=1, max_size=6).map(lambda ops: {"semaphores": tuple(ops)}),
    st.lists(hostile_bells, min_size=1, max_size=2).map(lambda bells: {"doorbells": tuple(bells)}),
)


@st.composite
def hostile_programs(draw):
    """A valid program in which a few requests are changed, removed, or repeated many times."""
    program = draw(programs(waits=False))
    requests = list(program.requests)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(requests) - 1))
        change = draw(st.sampled_from(["field", "field", "field", "field", "again", "gone", "many"]))
        if change == "field":
            requests[place] = replace(requests[place], **draw(hostile_fields))
        elif change == "again":
            requests.insert(draw(st.integers(0, len(requests))), requests[place])
        elif change == "many":
            requests[place:place] = [requests[place]] * draw(st.sampled_from([100, 505, 511, 600]))
        elif len(requests) > 1:
            del requests[place]
    return replace(program, requests=tuple(requests))


@settings(max_examples=40)
@given(st.data(), hostile_programs())
def test_hostile_requests_are_refused_or_do_what_they_say(tmp_path_factory, card, data, program):
    session = opened(tmp_path_factory, program, set_size=1, num_activations=1)
    # The model does not know where the card's memory is, so it does not know the memory after its end.
    is_far = any(request.device >= 2**62 for request in program.requests)
    is_far = is_far or any(bell[0] >= 2**62 for request in program.requests for bell in request.doorbells)
    model = Card(program)
    arrays = inputs_for(data, program)
    if program.is_refused():
        with pytest.raises(DeviceError) as caught:
            session.run(arrays)
        assert caught.value.code == "program.transfers"
    else:
        expected = model.infer({name: array.tobytes() for name, array in arrays.items()})
        try:
            found = {name: array.tobytes() for name, array in session.run(arrays).items()}
        except DeviceError as error:
            found = error.code
        if not (is_far and found == "program.transfers"):
            assert found == ("device.timeout" if expected is None else expected)
        caught = None
    session.reset()
    del session, caught
    finish(card)


@pytest.mark.parametrize(
    "metadata",
    [
        {"numNSPs": 17},
        {"numNSPs": 65535},
        {"numSemaphores": 65535},
        {"staticSharedDDRSize": 2**64 - 1, "dynamicSharedDDRSize": 2**64 - 1},
        {"networkHeapSize": 2**63, "numNSPs": 16},
        {"hwVersionMajor": 9},
    ],
    ids=str,
)
def test_demands_beyond_the_card_are_refused_and_take_nothing(card, monkeypatch, tmp_path_factory, metadata):
    # Cores that do nothing need nothing.
    monkeypatch.setenv("QAIC_EMU_WORKLOAD", "echo")
    control = _core.EmuControl(0)
    program = CardProgram(
        ((8, IN), (8, OUT)),
        (Request(0, IN, 8, 0, 0), Request(1, OUT, 8, 0, 16)),
        (Binding("x", IN, 0, 0, 8), Binding("y", OUT, 1, 0, 8)),
        metadata=metadata,
    )
    code = "device.hardware_family" if "hwVersionMajor" in metadata else "device.firmware"
    session = opened(tmp_path_factory, program)
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            session.run({"x": np.zeros(8, np.int8)})
        assert caught.value.code == code
        finish(control)


@pytest.mark.parametrize("workload", ["echo", "graph"])
@pytest.mark.parametrize("time", ["virtual", "system"])
def test_programs_without_semaphores_are_echoed_once(card, monkeypatch, tmp_path_factory, workload, time):
    monkeypatch.setenv("QAIC_EMU_WORKLOAD", workload)
    monkeypatch.setenv("QAIC_EMU_TIME", time)
    program = CardProgram(
        ((8, IN), (8, OUT)),
        (Request(0, IN, 8, 0, 0), Request(1, OUT, 8, 0, 16)),
        (Binding("x", IN, 0, 0, 8), Binding("y", OUT, 1, 0, 8)),
    )
    x = np.arange(8, dtype=np.int8)
    with opened(tmp_path_factory, program) as session:
        for turn in range(2):
            np.testing.assert_array_equal(session.run({"x": x + turn})["y"], x + turn)
