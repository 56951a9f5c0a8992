"""The example of Dask: each row once, in order, on workers that claim one card each."""

import json
import sys

import numpy as np
import pytest
import scale_jobs

from child_process import WATCHDOG_S, started


@pytest.fixture
def job(tmp_path):
    """Runs the example; checks the results."""
    x = scale_jobs.rows()
    np.save(tmp_path / "rows.npy", x)
    model = scale_jobs.model(tmp_path)
    target = tmp_path / "results.npy"

    def run(*scheduler):
        said = scale_jobs.run(tmp_path, "dask_job.py", model, tmp_path / "rows.npy", target, *scheduler)
        assert said == f"301 rows, results of shape (301, 16) in {target}"
        assert np.load(target).tobytes() == scale_jobs.results(x).tobytes()

    return run


def test_dask_job(job):
    job()


def test_dask_job_on_a_scheduler_of_another_program(job, tmp_path):
    """Neither the scheduler nor the workers can import the example."""
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "dask"]
    place = ["--scheduler-file", str(file), "--no-dashboard"]
    workers = ["--nthreads", "1", "--nworkers", "2", "--resources", "QAIC=1"]
    with (
        started([*command, "scheduler", "--host", "127.0.0.1", "--port", "0", *place]) as scheduler,
        started([*command, "worker", *place, *workers], env=scale_jobs.two_cards(tmp_path)) as worker,
    ):
        # The scheduler creates the file before it writes to it.
        while not (file.exists() and file.read_text().rstrip().endswith("}")):
            assert scheduler.poll() is None
        job(json.loads(file.read_text())["address"])
        worker.terminate()
        worker.wait(WATCHDOG_S)
