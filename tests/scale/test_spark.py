"""The example of Spark: executors find their cards with the discovery command, and each row is in the result
once.
"""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scale_jobs

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark runs on Java, and there is none")


def test_spark_job(tmp_path):
    x = scale_jobs.rows()
    rows = tmp_path / "rows"
    rows.mkdir()
    for part, start in enumerate(range(0, len(x), 100)):
        lists = pa.array(x[start : start + 100].tolist(), pa.list_(pa.float32()))
        ids = np.arange(start, start + len(lists))
        pq.write_table(pa.table({"id": ids, "x": lists}), rows / f"{part}.parquet")
    target = tmp_path / "results"
    said = scale_jobs.run(tmp_path, "spark_job.py", scale_jobs.model(tmp_path), rows, target)
    assert said == f"results in {target}"
    found = pq.read_table(target).sort_by("id")
    assert found.column("id").to_pylist() == list(range(len(x)))
    y = np.array(found.column("y").to_pylist(), np.float32)
    assert y.tobytes() == scale_jobs.results(x).tobytes()
