"""The examples of Ray run as described, and cards have the form of Ray's own accelerators."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import session_models
from child_process import started
from serving_support import BATCH, WIDTH, expected

EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"

#: Registers the manager, and prints the ids of two actors, and of two actors that share a card.
WITH_IDS = """
import json, os
import qaic_accelerator, ray

qaic_accelerator.register()
qaic_accelerator.register()
ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.2", **qaic_accelerator.init_options())

class Cards:
    def look(self):
        import qaic
        ids = ray.get_runtime_context().get_accelerator_ids()["QAIC"]
        return ids, os.environ["QAIC_VISIBLE_DEVICES"], qaic.claim_devices(self.count)

class Whole(Cards):
    count = 1

class Part(Cards):
    count = 0.5

whole = [ray.remote(num_cpus=0.1, resources={"QAIC": 1})(Whole).remote() for _ in range(2)]
parts = [ray.remote(num_cpus=0.1, resources={"QAIC": 0.5})(Part).remote() for _ in range(2)]
looks = [ray.get(one.look.remote()) for one in (*whole, *parts)]
print(json.dumps([ray.cluster_resources()["QAIC"], *looks]))
try:
    ray.remote(resources={"QAIC": 1.5})(Whole).remote()
except ValueError as error:
    print(error)
"""


def run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_accelerator_manager_gives_cards_by_their_ids(host):
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    found, refusal = run("-c", WITH_IDS, PYTHONPATH=path)
    count, *looks = json.loads(found)
    assert count == 3
    # Ray assigns an id to each actor, the variable contains the id, and a claim takes the devices in it.
    for ids, variable, claimed in looks:
        assert ids == [variable] == [str(number) for number in claimed]
    whole_1, whole_2, part_1, part_2 = (ids[0] for ids, _, _ in looks)
    assert {whole_1, whole_2, part_1} == {"0", "1", "2"}
    assert part_1 == part_2
    assert "QAIC is 1.5; a whole number, or a share of one card, is expected" in refusal


def test_the_manager_answers_every_question_of_ray(host, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import qaic_accelerator

    manager = qaic_accelerator.QAICAcceleratorManager()
    assert manager.get_current_node_num_accelerators() == 3
    assert manager.get_current_node_accelerator_type() == "AI100"
    assert manager.get_current_process_visible_accelerator_ids() is None
    assert manager.get_current_node_additional_resources() is None
    assert manager.get_current_node_accelerator_labels() is None
    monkeypatch.setenv("QAIC_VISIBLE_DEVICES", "2, 0")
    assert manager.get_current_process_visible_accelerator_ids() == ["2", "0"]
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_QAIC_VISIBLE_DEVICES", "1")
    manager.set_current_process_visible_accelerator_ids(["1"])
    assert os.environ["QAIC_VISIBLE_DEVICES"] == "2, 0"


def test_batch_job(host, tmp_path):
    x = np.random.default_rng(0).normal(size=(501, WIDTH)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH)
    pq.write_table(pa.table({"id": np.arange(501), "x": lists}), tmp_path / "rows.parquet")
    model = session_models.save(tmp_path, session_models.affine(WIDTH, BATCH))
    said = run(EXAMPLES / "batch_job.py", model, tmp_path / "rows.parquet", tmp_path / "results", 2)
    assert said[-1] == f"501 rows in {tmp_path / 'results'}"
    found = pq.read_table(tmp_path / "results").sort_by("id")
    assert found.column("id").to_pylist() == list(range(501))
    y = np.stack(found.column("y").to_numpy(zero_copy_only=False))
    assert y[:BATCH].tobytes() == expected(x[:BATCH]).tobytes()


def test_serve_model(host, tmp_path):
    model = session_models.save(tmp_path, session_models.affine(WIDTH, BATCH), "affine.onnx")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with started(
        [sys.executable, EXAMPLES / "serve_model.py", model, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert f"serving on http://127.0.0.1:{port}\n" in iter(process.stdout.readline, "")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/affine/ready") as answer:
            assert json.loads(answer.read()) == {"name": "affine", "ready": True}
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
