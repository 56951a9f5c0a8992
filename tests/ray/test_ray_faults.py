"""If processes end during a dataset, no rows are lost or duplicated."""

import os
import signal

import pytest
from ray_jobs import ROWS, actors, check, dataset, run_and_kill, slow_model

import qaic.ray
from qaic.errors import DeviceLostError
from qaic.ray.batch_inference import BatchInference, Columns
from qaic.ray.shared_program import SharedProgram


def test_a_killed_actor(cluster):
    killed = []

    def kill():
        victim = actors(os.getpid())[0]
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    x, ids, results = run_and_kill(cluster, kill, preserve_order=True)
    assert killed
    assert ids == list(range(ROWS))
    check(x, ids, results)


def test_a_lost_device_is_loaded_again(cluster, monkeypatch):
    _, rows = dataset(cluster, 64)
    (table,) = cluster.get(rows.repartition(1).to_arrow_refs())
    program, _ = SharedProgram.put(slow_model(), {}, 0)
    actor = BatchInference(program, Columns({}, None, ("id",), "numpy"))
    expected = actor(table)
    real, lost = actor.session.map, []

    def map_once_lost(inputs):
        """Return two results, then lose the device, like a card that is removed."""
        for number, outputs in enumerate(real(inputs)):
            if number == 2 and not lost:
                lost.append(number)
                raise DeviceLostError("device 0 is gone", code="device.lost")
            yield outputs

    monkeypatch.setattr(actor.session, "map", map_once_lost)
    assert actor(table).equals(expected)
    assert lost


def test_a_disk_that_is_full_ends_the_job_with_its_reason(cluster, tmp_path):
    _, rows = dataset(cluster, 64)
    found = qaic.ray.map_batches(rows, slow_model(), keep=["id"], output_format="arrow")
    full = tmp_path / "full"
    full.symlink_to("/dev/full")

    class Full(cluster.data.datasource.BlockBasedFileDatasink):
        def write_block_to_file(self, block, file):
            with full.open("wb", buffering=0) as target:
                target.write(block.to_arrow().column("id").combine_chunks().to_numpy().tobytes())

    with pytest.raises(Exception, match="No space left on device"):
        found.write_datasink(Full(str(tmp_path / "out"), file_format="bin"))
    # The actors and their cards are available to the next job.
    assert found.count() == 64
