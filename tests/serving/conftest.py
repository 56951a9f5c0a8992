"""Servers for the tests, which need the packages of the extra ``serve`` and Triton's clients.

`make test-scale` installs these packages in a separate environment. In other environments, pytest does not
collect these tests.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("starlette") is None or find_spec("tritonclient") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    if find_spec("schemathesis") is None:
        collect_ignore = ["test_openapi.py"]

    import http_connections
    import serving_support

    @pytest.fixture
    def connect():
        """Return a function that opens connections to a server without a network."""
        return http_connections.connections()

    @pytest.fixture(scope="module")
    def repository(tmp_path_factory):
        """A Triton repository with one model that has batches, one without, and two that cannot be loaded."""
        return serving_support.make_repository(tmp_path_factory.mktemp("repository"))

    @pytest.fixture(scope="module")
    def server(repository):
        """Start a server for the folder in a separate process."""
        with serving_support.serving(repository, arguments=["--model-control"]) as server:
            yield server
