"""Three nodes, one of which is killed."""

import contextlib
import os
import signal
import time
from types import SimpleNamespace

import pytest
from ray_jobs import ROWS, actors, check, descendants, run_and_kill

from child_process import WATCHDOG_S

#: A loopback address, as in `conftest.cluster`.
LOOPBACK = "127.0.0.2"


@pytest.fixture
def nodes(host, monkeypatch):
    """A head without cards, and two nodes with one card each."""
    import ray
    from ray.cluster_utils import Cluster

    # Ray gives a node 30 s to start, which is not always enough on a busy machine.
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=time.time, sleep=time.sleep)
    monkeypatch.setattr("ray._private.node.time", clock)
    common = {"object_store_memory": 100 << 20, "node_ip_address": LOOPBACK, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **common})
    workers = [cluster.add_node(num_cpus=1, resources={"QAIC": 1}, **common) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    yield ray, workers
    ray.shutdown()
    cluster.shutdown()


def test_a_killed_node(nodes):
    ray, workers = nodes

    def kill():
        """Kill all processes of a node that has an actor at once, like a power failure of a host."""
        (raylet,) = (info.process.pid for info in workers[0].all_processes["raylet"])
        assert actors(raylet)
        for number in (raylet, *descendants(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    x, ids, results = run_and_kill(ray, kill, preserve_order=False)
    assert len(ids) == ROWS
    check(x, ids, results)
    # The head detects a dead node by its health checks, perhaps after the end of the job.
    until = time.monotonic() + WATCHDOG_S
    while len([node for node in ray.nodes() if node["Alive"]]) != 2:
        assert time.monotonic() < until, ray.nodes()
        time.sleep(0.2)
