"""`openqaic bench --rate`: a latency starts when its request is due."""

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_clock import FakeClock
from qaic.cli.openqaic import main
from qaic.cli.openqaic.commands import bench
from qaic.cli.openqaic.commands.bench import RequestRate, _best

TIMES = [("enqueued_ns", np.int64), ("completed_ns", np.int64)]


@given(services_ms=st.lists(st.integers(1, 40), min_size=1, max_size=30), rate=st.sampled_from([20, 50, 100]))
def test_latencies_are_those_of_a_queue_with_one_server(services_ms, rate):
    clock = FakeClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "time", clock)
        requests = RequestRate("x", rate, seconds=1.0, count=len(services_ms))
        samples = []
        for service_ms, _ in zip(services_ms, requests, strict=True):
            begun_ns = clock.now_s * 1e9
            clock.advance(service_ms / 1e3)
            samples.append((begun_ns, clock.now_s * 1e9))
        # With concurrent streams, inferences can end in any order.
        found_ms = 1e3 * requests.latencies_s(np.array(samples[::-1], TIMES))
    end_ms, wanted_ms = 0.0, []
    for number, service_ms in enumerate(services_ms):
        due_ms = 1e3 * number / rate
        end_ms = max(end_ms, due_ms) + service_ms
        wanted_ms.append(end_ms - due_ms)
    np.testing.assert_allclose(found_ms, wanted_ms, atol=1e-3)


@given(service_ms=st.integers(1, 400), rate=st.sampled_from([1.0, 50.0, 1e5, 1e308]))
def test_requests_end_with_the_time_however_slow_the_program_is(service_ms, rate):
    clock = FakeClock()
    began_s = clock.now_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "time", clock)
        taken_s = []
        for _ in RequestRate("x", rate, seconds=1.0, count=None):
            taken_s.append(clock.now_s - began_s)
            clock.advance(service_ms / 1e3)
    assert all(time_s < 1.0 for time_s in taken_s)
    # All inferences that are due have run, or as many as the program can process.
    assert len(taken_s) >= min(rate, 1e3 / service_ms) * 0.999


@pytest.fixture
def model(tmp_path):
    value = {"elem_type": onnx.TensorProto.FLOAT, "shape": [2]}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [onnx.helper.make_tensor_value_info("x", **value)],
        [onnx.helper.make_tensor_value_info("y", **value)],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_bench_starts_no_more_than_the_rate(model, capsys):
    arguments = ["bench", model, "--streams", "1", "--rate", "200", "-n", "20", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["measurements"]
    assert found["rate"] == 200
    assert row["latency"]["count"] == 20
    assert row["inferences_per_s"] <= 200 * (1 + 1e-9)


def test_bench_names_the_rate_in_its_last_lines(model, capsys):
    assert main(["bench", model, "--streams", "1", "--rate", "500", "-n", "5"]) == 0
    assert " of 500 inferences/s" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "has_rate"), [(20, False), (99_000, False), (101_000, True)])
def test_a_short_measurement_states_a_median_instead_of_a_rate(count, has_rate):
    """Regression: 20 inferences in 29 us were called the best rate, 699,227 inferences/s."""
    row = {
        "runtime": "openqaic",
        "streams": 2,
        "inferences_per_s": 1e6,
        "latency": {"count": count, "p50_us": 1.04, "min_us": 1.02, "max_us": 78.2},
    }
    slower = {**row, "streams": 1, "inferences_per_s": 1e5}
    sentence = _best([slower, row, {**row, "runtime": "onnxruntime", "inferences_per_s": 1e9}], None)
    assert sentence.startswith("best: 1,000,000 inferences/s (streams: 2)") is has_rate
    assert sentence.startswith("median: 1.04 us, 1.02 us to 78.2 us; ") is not has_rate
