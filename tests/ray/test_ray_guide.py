"""The code of the page about many cards runs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import session_models
from guide_blocks import blocks
from serving_support import BATCH, WIDTH, expected

CODE = [
    block
    for block in blocks()
    if block.page == "docs/scale.md" and block.run_by == "tests/ray/test_ray_guide.py"
]


@pytest.fixture
def run(cluster, tmp_path):
    """Run a block with files of this test, which actors find by absolute paths; return its names."""
    x = np.random.default_rng(0).normal(size=(33, WIDTH)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH)
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": np.arange(33), "x": lists}), tmp_path / "rows" / "0.parquet")
    session_models.save(tmp_path, session_models.affine(WIDTH, BATCH))

    def run(block):
        code = block.code
        for name in ("rows", "model.onnx", "results"):
            code = code.replace(f'"{name}"', repr(str(tmp_path / name)))
        names = {"__name__": "block"}
        exec(compile(code, str(block), "exec"), names)
        return names, x

    return run


def test_rows(run, tmp_path):
    run(CODE[0])
    assert sorted(pq.read_table(tmp_path / "results").column("id").to_pylist()) == list(range(33))


def test_requests(run):
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": 0})
    try:
        names, x = run(CODE[1])
        found = names["handle"].infer.remote({"x": x[:3]}).result()
        assert found["y"].tobytes() == expected(x[:3]).tobytes()
    finally:
        serve.shutdown()


def test_an_actor_of_ones_own(run, cluster, tmp_path):
    names, x = run(CODE[2])
    worker = names["Worker"].remote(str(tmp_path / "model.onnx"))
    found = cluster.get(worker.run.remote({"x": x[:BATCH]}))
    assert found["y"].tobytes() == expected(x[:BATCH]).tobytes()
    cluster.kill(worker)
