"""Bytes that products read from the container: one number in `inspect`, `inspect fit` and the profile."""

import json

import numpy as np
import pytest

import qaic
from compiler_oracle import info, model_of, node
from qaic.cli.openqaic import main
from qaic.cli.stored_weights import bandwidth_limit, stored_weights
from qaic.compiler.passes import store_weights
from qaic.errors import QpcFormatError
from qaic.qpc.initializers import mapped_sizes
from session_models import save

HIGH, WIDE = 320, 288
READ = 2 * HIGH * WIDE


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)
    weight = np.random.default_rng(1).standard_normal((HIGH, WIDE)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    proto = model_of(nodes, [info("x", [1, HIGH])], [info("y", [1, WIDE])], [("w", weight)])
    options = {"convert_to_fp16": True, "stats_level": 70, "output_dir": tmp_path / "qpc"}
    return qaic.compile(save(tmp_path, proto), **options).path


def printed(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.run_profiles
def test_every_view_has_the_same_bytes(path, capsys):
    weights = stored_weights(qaic.Qpc(path))
    assert weights == {"count": HIGH * WIDE, "bytes": READ, "bytes_per_weight": 2.0, "read_bytes": READ}
    text = printed(capsys, "inspect", path)
    assert "180 KiB, 2.00 bytes per weight; an inference reads 180 KiB" in text
    fit = json.loads(printed(capsys, "inspect", path, "fit", "--json"))["weights"]
    limit = fit.pop("limit")
    assert fit == weights
    assert limit["seconds"] == pytest.approx(READ / limit["bytes_per_second"])
    assert "(measured)" in printed(capsys, "inspect", path, "fit")
    reports = json.loads(printed(capsys, "profile", path, "--json", "-n", "3"))
    (overview,) = [report for report in reports if report["name"] == "overview"]
    tables = {table["name"]: table["rows"] for table in overview["tables"]}
    values = {row["figure"]: row["value"] for row in tables["weights"]}
    time_us = next(row["median"] for row in tables["figures"] if row["figure"] == "inference time")
    assert values["bytes per weight"] == weights["bytes_per_weight"]
    assert values["weights read"] == pytest.approx(READ / time_us / 1e3)
    share = 100 * values["weights read"] / values["read bandwidth"]
    assert values["share of the bandwidth"] == pytest.approx(share)
    assert f"reached {share:.1f} % of this limit" in overview["verdict"][-1]


def test_bandwidth_is_that_of_the_processors_that_run_the_program(path):
    qpc = qaic.Qpc(path)
    limit = bandwidth_limit(qpc, READ)
    assert limit["threads"] == 1
    assert limit["bytes_per_second"] > 0
    # A run does not read more bytes than the file has.
    assert bandwidth_limit(qpc, 1 << 62)["seconds"] > limit["seconds"]


@pytest.mark.parametrize(
    "change",
    [
        {"dims": [1 << 64, 1]},
        {"dims": [["a"], 1]},
        {"dims": [1] * 1000},
        {"dims": [-1, 2]},
        {"dims": None},
        {"size": -1},
        {"size": 10**400},
        {"size": "2"},
        {"layout": "piles"},
        {"layout": ["tiles"]},
    ],
)
def test_record_that_lies_is_an_error(change):
    record = {"name": "w", "dims": [2, 3], "size": 64, "layout": "tiles"}
    assert mapped_sizes({"w": record}) == {"w": (6, 64)}
    with pytest.raises(QpcFormatError, match="initializer 'w'"):
        mapped_sizes({"w": record | change})
