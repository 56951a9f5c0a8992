"""Options without effect on results: hardware, threads, buffers, and conversions at the interface."""

from __future__ import annotations

import hashlib
import json
import logging

import numpy as np
import pytest
from onnx import helper

import qaic
from qaic import _core
from qaic.options.spec import Effect, Stage
from qaic.options.table import SPECS
from session_models import affine, save
from session_models import model as model_of

#: Placeholder for a file of the test, whose digest is recorded.
FILE = object()
TEXT = b"settings of the splitting\n"

VALUES = {
    "sub_functions": True,
    "split_model_io": True,
    "aic_hw": True,
    "mos": [2],
    "ols": 2,
    "ols_config": FILE,
    "mdts_mos": 2,
    "allocator_dealloc_delay": 2,
    "size_split_granularity": 1024,
    "vtcm_working_set_limit_ratio": 0.5,
    "force_vtcm_spill": True,
    "aic_enable_depth_first": True,
    "aic_depth_first_mem": 16,
    "sdp_cluster_sizes": [1, 1],
    "multicast_weights": True,
    "use_producer_dma": True,
    "direct_api": True,
    "user_tiled": True,
    "ddr_stats": True,
    "aic_pmu_recipe": "AxiRd",
    "aic_pmu_events": [0x3F, 0x70],
}
CORES = {"aic_num_cores": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), affine())


def outcome(model, folder, options):
    session = qaic.Session(model, output_dir=folder, **CORES, **options)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, (shape, dtype) in session.model_input_shape_dict.items()
    }
    with session:
        outputs = session.run(inputs)
    return outputs, qaic.Qpc(folder / "programqpc.bin").options


def test_every_option_of_the_hardware_is_here():
    recorded = {spec.name for spec in SPECS if spec.effect is Effect.RECORDED and spec.stage is Stage.COMPILE}
    assert recorded == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_option_is_recorded_and_changes_no_result(name, model, tmp_path, caplog):
    plain, _ = outcome(model, tmp_path / "plain", {})
    value = recorded = VALUES[name]
    if value is FILE:
        value, recorded = tmp_path / "file", hashlib.sha256(TEXT).hexdigest()
        value.write_bytes(TEXT)
    with caplog.at_level(logging.INFO, logger="qaic.compiler"):
        outputs, options = outcome(model, tmp_path / "set", {name: value})
    assert outputs.keys() == plain.keys()
    for tensor, array in outputs.items():
        assert array.tobytes() == plain[tensor].tobytes()
    assert options == CORES | {name: recorded}
    messages = [record.getMessage() for record in caplog.records if "no effect on" in record.getMessage()]
    assert messages == [f"recorded, no effect on the cpu target: {name}"]


@pytest.mark.parametrize(
    "options",
    [
        {"host_preproc": True},
        {"host_preproc": False},
        {"aic_preproc": True},
        {"stats_level": 70},
        {"stats_batchsize": 4},
    ],
)
def test_edge_and_statistics_are_recorded_and_change_no_result(options, model, tmp_path):
    plain, _ = outcome(model, tmp_path / "plain", {})
    outputs, recorded = outcome(model, tmp_path / "set", options)
    assert {name: value.tobytes() for name, value in outputs.items()} == {
        name: value.tobytes() for name, value in plain.items()
    }
    assert recorded == CORES | options


def test_number_of_compiler_threads_changes_no_byte(model, tmp_path, monkeypatch):
    contents = set()
    for threads in (1, 2, 7):
        # A separate cache, so that each model is compiled.
        monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / f"cache{threads}"))
        folder = tmp_path / str(threads)
        with qaic.Session(model, output_dir=folder, compile_threads=threads):
            contents.add((folder / "programqpc.bin").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("name", ["combine_inputs", "combine_outputs"])
def test_buffers_of_the_card_change_no_result(name, tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Sub", ["a", "b"], ["d"])]
    sides = [[(name, "float32", [3, 5]) for name in names] for names in ("ab", "cd")]
    model = save(tmp_path, model_of(nodes, *sides))
    found = {}
    for value in (True, False):
        folder = tmp_path / str(value)
        outputs, recorded = outcome(model, folder, {name: value})
        assert recorded == CORES | {name: value}
        network = json.loads(_core.Qpc(str(folder / "programqpc.bin")).network_desc_json())
        found[value] = outputs, len(network["dma_buffers"])
    assert found[False][1] == found[True][1] + 1
    for tensor, array in found[True][0].items():
        assert array.tobytes() == found[False][0][tensor].tobytes()
