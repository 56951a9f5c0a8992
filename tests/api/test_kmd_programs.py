"""Programs for the host on emulated cards: shapes, state, precision, statistics, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import card_programs
import qaic
import qaic.stats
import qpc_support
from kmd_sessions import EMULATED, VIRTUAL, assert_same, device, on_both
from qaic import _core
from qaic.errors import DeviceLostError, InferenceError, QaicError
from session_models import affine, model, save

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _no_devices_of_others():
    with device():
        yield


def compiled(folder, net, **options):
    return qaic.compile(save(folder, net), output_dir=folder / "out", **options).path


def scores():
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Softmax", ["m"], ["y"]),
            helper.make_node("ReduceSum", ["m"], ["z"], keepdims=0),
        ],
        [("x", "float32", ["batch", "seq", 8])],
        [("y", "float32", None), ("z", "float32", None)],
        {"w": RNG.standard_normal((8, 70)).astype(np.float32)},
    )


@pytest.mark.parametrize("combined", [True, False])
@pytest.mark.parametrize("level", [0, 40])
def test_sets_of_shapes_in_any_order(tmp_path, combined, level):
    sets = [{"batch": 1, "seq": 3}, {"batch": 4, "seq": 1}, {"batch": 2, "seq": 9}]
    program = compiled(
        tmp_path,
        scores(),
        network_specialization_config=sets,
        combine_inputs=combined,
        combine_outputs=combined,
        stats_level=level,
    )
    shapes = [(entry["batch"], entry["seq"], 8) for entry in (*sets, *reversed(sets), sets[1])]
    on_both(program, [{"x": RNG.standard_normal(shape).astype(np.float32)} for shape in shapes])


@pytest.mark.parametrize("combined", [True, False])
def test_late_transfers_of_inferences_in_flight(tmp_path, combined):
    """The cores read no old inputs, and do not overwrite outputs during their transfer."""
    program = compiled(
        tmp_path,
        scores(),
        network_specialization_config=[{"batch": 2, "seq": 3}],
        combine_inputs=combined,
        combine_outputs=combined,
    )
    feeds = [{"x": RNG.standard_normal((2, 3, 8)).astype(np.float32)} for _ in range(8)]
    with device(**VIRTUAL), qaic.Session(program) as session:
        expected = [session.run(feed) for feed in feeds]
    faults = {**EMULATED, "QAIC_EMU_FAULTS": "inference@1=late_dma*all"}
    with device(**faults), qaic.Session(program, set_size=4) as session:
        found = [future.result(60) for future in [session.submit(feed) for feed in feeds]]
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


def test_fences_of_one_direction_hold_late_transfers(tmp_path):
    """Each fence waits for transfers in its direction; without it, data is old or overwritten."""
    program = card_programs.one_place_for_two()
    assert not program.is_refused()
    path = tmp_path / "programqpc.bin"
    path.write_bytes(program.container())
    feed = {
        binding.name: RNG.integers(-128, 128, binding.size, np.int8)
        for binding in program.of_side(card_programs.IN)
    }
    expected = card_programs.Card(program).infer({name: data.tobytes() for name, data in feed.items()})
    faults = {**EMULATED, "QAIC_EMU_FAULTS": "inference@1=late_dma*all", "QAIC_EMU_WORKLOAD": "loopback"}
    with device(**faults), qaic.Session(path, set_size=1) as session:
        for _ in range(3):
            found = session.run(feed)
            assert {name: data.tobytes() for name, data in found.items()} == expected


@pytest.mark.parametrize(
    "options",
    [
        {"convert_to_fp16": True},
        {"aic_num_cores": 4, "stats_level": 0},
        {"mxfp6_matmul": True, "convert_to_fp16": True},
        {"custom_io": True},
    ],
    ids=["fp16", "cores", "mxfp6", "custom_io"],
)
def test_precisions(tmp_path, options):
    options = dict(options)
    if options.pop("custom_io", False):
        text = "- IOName: x\n  Precision: float16\n- IOName: y\n  Precision: float16\n"
        (tmp_path / "io.yaml").write_text(text)
        options |= {"custom_io_list_file": str(tmp_path / "io.yaml"), "convert_to_fp16": True}
    program = compiled(tmp_path, affine(64, 3), **options)
    dtype = np.float16 if "custom_io_list_file" in options else np.float32
    on_both(program, [{"x": RNG.standard_normal((3, 64)).astype(dtype)} for _ in range(3)])


def test_integers_of_a_quantized_model(tmp_path):
    samples = [{"x": RNG.standard_normal((3, 64)).astype(np.float32)} for _ in range(4)]
    program = compiled(tmp_path, affine(64, 3), convert_to_quantize=True, calibration_data=samples)
    on_both(program, samples)


def test_state_stays_and_can_be_read_and_written(tmp_path):
    nodes = [
        helper.make_node("Add", ["kept", "x"], ["kept_RetainedState"]),
        helper.make_node("Identity", ["kept"], ["y"]),
    ]
    sides = [("x", "float32", [2, 40]), ("kept", "float32", [2, 40])]
    net = model(nodes, sides, [("y", "float32", [2, 40]), ("kept_RetainedState", "float32", [2, 40])])
    feeds = [{"x": RNG.standard_normal((2, 40)).astype(np.float32)} for _ in range(4)]
    for blocks in (False, True):
        options = {"retained_state": True, "mxint8_kv_cache": blocks, "split_retained_state_io": True}
        seen = []
        for variables in (VIRTUAL, EMULATED):
            with device(**variables), qaic.Session(save(tmp_path, net), **options) as session:
                results = [session.run(feed) for feed in feeds]
                results.append({"kept": session.read_state("kept")})
                session.write_state("kept", np.ones((2, 40), results[-1]["kept"].dtype))
                results.append(session.run(feeds[0]))
                seen.append(results)
        for expected, found in zip(*seen, strict=True):
            assert_same(found, expected)


@settings(max_examples=8)
@given(
    count=st.integers(1, 6),
    in_flight=st.integers(1, 5),
    activations=st.integers(1, 3),
    level=st.sampled_from([0, 40, 70]),
)
def test_many_at_once(tmp_path_factory, count, in_flight, activations, level):
    folder = tmp_path_factory.mktemp("many")
    program = compiled(folder, affine(16, 2), stats_level=level)
    feeds = [{"x": np.full((2, 16), number, np.float32)} for number in range(count * 4)]
    found = []
    for variables in (VIRTUAL, EMULATED):
        options = {"set_size": in_flight, "num_activations": activations}
        with device(**variables), qaic.Session(program, **options) as session:
            found.append(list(session.map(feeds)))
    for expected, results in zip(*found, strict=True):
        assert_same(results, expected)


# --- statistics ---------------------------------------------------------------------------------------------


def stats_of(program, feeds, variables):
    with device(**variables), qaic.Session(program) as session:
        profiler = _core.Profiler([session._ensure_loaded()], device_stats=True)
        profiler.start()
        results = [session.run(feed) for feed in feeds]
        profiler.stop()
        samples = profiler.drain()
        buffers = [qaic.stats.open(samples.stats(number), qpc=program) for number in range(len(samples))]
        return results, buffers, samples.times()


@pytest.mark.parametrize("level", [40, 50, 70])
@pytest.mark.parametrize("sets", [None, [{"n": 1}, {"n": 5}]])
def test_statistics_come_from_the_card(tmp_path, level, sets):
    net = model(
        [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Softmax", ["s"], ["y"])],
        [("x", "float32", [5 if sets is None else "n", 4])],
        [("y", "float32", None)],
    )
    options = {} if sets is None else {"network_specialization_config": sets}
    program = compiled(tmp_path, net, stats_level=level, **options)
    feeds = [{"x": np.ones((rows, 4), np.float32)} for rows in ((5, 5) if sets is None else (5, 1, 5))]
    expected, host, _ = stats_of(program, feeds, VIRTUAL)
    found, card, times = stats_of(program, feeds, EMULATED)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
    assert len(card) == len(host) == len(feeds)
    for number, (buffer, other) in enumerate(zip(card, host, strict=True)):
        buffer.check()
        assert buffer.warnings == ()
        run = buffer.run
        assert (run.inference, run.specialization) == (number, other.run.specialization)
        assert (run.stats_level, run.op_stats_level) == (level, level if level >= 70 else 0)
        (thread,) = buffer.threads
        assert 0 < thread["start_u"] <= thread["end_u"]
        assert len(buffer.ops) == len(other.ops)
        assert list(buffer.ops["oc"]) == list(other.ops["oc"])
        assert list(buffer.ops["out_bytes"]) == list(other.ops["out_bytes"])
        ticks = {
            name: int(times[name][number]) * 192 // 10_000 for name in ("inputs_ready_ns", "executed_ns")
        }
        assert ticks["inputs_ready_ns"] <= thread["start_u"]
        assert thread["end_u"] <= ticks["executed_ns"] + 1
        assert list(buffer.ports["port"]) == ([100, 101] if level >= 50 else [])


def test_program_without_measurement_measures_nothing(tmp_path):
    program = compiled(tmp_path, affine(), stats_level=70)
    with device(**EMULATED), qaic.Session(program) as session:
        core = session._ensure_loaded()
        session.run({"x": np.ones((2, 4), np.float32)})
        profiler = _core.Profiler([core], device_stats=True)
        profiler.start()
        session.run({"x": np.ones((2, 4), np.float32)})
        profiler.stop()
        session.run({"x": np.ones((2, 4), np.float32)})
        assert len(profiler.drain()) == 1


# --- echo, and refusals -------------------------------------------------------------------------------------


def test_an_echo_of_a_program_for_the_host(tmp_path):
    program = compiled(tmp_path, affine(16, 1), stats_level=70)
    x = RNG.standard_normal((1, 16)).astype(np.float32)
    with device(**EMULATED, QAIC_EMU_WORKLOAD="echo"), qaic.Session(program) as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], x)


def old_container(program):
    """A container of an earlier compiler, whose metadata has no DMA requests."""
    core = _core.Qpc(str(program))
    metadata = json.loads(core.metadata_json())["fields"]
    metadata |= {"dmaRequests": [], "numSemaphores": 0, "semaphoreInitState": [], "staticSharedDDRSize": 0}
    names = ("openqaic_graph", "openqaic_plan")
    sections = [("metadata_fb", bytes(_core.encode_metadata(json.dumps(metadata))))]
    sections += [(name, bytes(core.elf_section(name))) for name in names]
    segments = [(segment[0], bytes(core.payload(segment[0])), segment[3]) for segment in core.segments]
    kept = [segment for segment in segments if segment[0] not in ("network.elf", "metadata_fb.crc")]
    return qpc_support.container([*kept, ("network.elf", bytes(_core.encode_elf(sections)), 0)], alignment=64)


def test_containers_of_before_run_on_virtual_cards_only(tmp_path):
    program = compiled(tmp_path, affine(), stats_level=0)
    path = tmp_path / "old.bin"
    path.write_bytes(old_container(program))
    x = np.ones((2, 4), np.float32)
    with device(**VIRTUAL), qaic.Session(program) as now, qaic.Session(path) as before:
        assert_same(before.run({"x": x}), now.run({"x": x}))
    with device(**EMULATED), pytest.raises(QaicError, match="compile it again"):
        qaic.Session(path).run({"x": x})


def test_an_inference_that_the_engine_fails_in_is_a_lost_channel(tmp_path, capfd):
    net = model(
        [helper.make_node("Gather", ["x", "at"], ["y"])],
        [("x", "float32", [4]), ("at", "int64", [1])],
        [("y", "float32", [1])],
    )
    program = compiled(tmp_path, net)
    x = np.arange(4, dtype=np.float32)
    good, bad = ({"x": x, "at": np.array([at], np.int64)} for at in (2, 9))
    with device(**VIRTUAL), qaic.Session(program) as session, pytest.raises(InferenceError):
        session.run(bad)
    with device(**EMULATED), qaic.Session(program) as other, qaic.Session(program) as session:
        assert session.run(good)["y"] == 2
        with pytest.raises(DeviceLostError):
            session.run(bad)
        assert other.run(good)["y"] == 2
    assert "out of" in capfd.readouterr().err
