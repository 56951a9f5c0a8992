"""The example of Dask: each row once, in order, on workers that claim one card each."""

import numpy as np
import scale_jobs


def test_dask_job(tmp_path):
    x = scale_jobs.rows()
    np.save(tmp_path / "rows.npy", x)
    model = scale_jobs.model(tmp_path)
    target = tmp_path / "results.npy"
    said = scale_jobs.run(tmp_path, "dask_job.py", model, tmp_path / "rows.npy", target)
    assert said == f"301 rows, results of shape (301, 16) in {target}"
    assert np.load(target).tobytes() == scale_jobs.results(x).tobytes()
