"""Options of the hardware: recorded in the container, named once, and without any effect on results."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import qaic
from qaic.options.spec import Effect, Stage
from qaic.options.table import SPECS
from session_models import affine, save

VALUES = {
    "sub_functions": True,
    "aic_hw": True,
    "mos": [2],
    "ols": 2,
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
    with caplog.at_level(logging.INFO, logger="qaic.compiler"):
        outputs, options = outcome(model, tmp_path / "set", {name: VALUES[name]})
    assert outputs.keys() == plain.keys()
    for tensor, value in outputs.items():
        assert value.tobytes() == plain[tensor].tobytes()
    assert options == CORES | {name: VALUES[name]}
    told = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert told == [f"recorded, without effect on the cpu target: {name}"]
