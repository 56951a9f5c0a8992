"""A Ray cluster of this process for the tests, which need the packages of the extra ``ray``.

`make test-scale` installs these packages in a separate environment. In other environments, pytest does not
collect these tests.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# Without the package, this folder itself would be a namespace package with that name.
_found = importlib.util.find_spec("ray")
if _found is None or _found.origin is None:
    collect_ignore_glob = ["test_*.py"]

FOLDER = Path(__file__).parent

#: Virtual cards of this host, which all nodes of a test share.
CARDS = 3


def pytest_collection_modifyitems(items):
    # A run of all folders passes the items of all folders.
    for item in items:
        if not item.path.is_relative_to(FOLDER):
            continue
        # Ray closes its sockets and its processes when it is collected.
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:ray"))
        item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"))
        item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning:ray"))


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """Variables that all processes of a cluster inherit: loopback interface, no reports, three cards, other
    folders.
    """
    folder = tempfile.mkdtemp(prefix="qr")  # the folder contains sockets, whose paths must be short
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "HOME": folder,
            "QAIC_CPU_DEVICES": str(CARDS),
            "QAIC_CPU_SHARED": str(shared),
            "RAY_AUTH_MODE": "disabled",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
            # On a busy machine, a proxy takes longer to start than Serve waits for it.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
            # The machine is shared, so memory of other processes must not end actors.
            "RAY_memory_monitor_refresh_ms": "0",
        }.items():
            patch.setenv(name, value)
        patch.delenv("QAIC_VISIBLE_DEVICES", raising=False)
        yield os.environ
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(host):
    """One node with two cards."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        resources={"QAIC": 2},
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        # A loopback address; Ray would replace 127.0.0.1 with an address that other hosts can reach.
        _node_ip_address="127.0.0.2",
    )
    yield ray
    ray.shutdown()
