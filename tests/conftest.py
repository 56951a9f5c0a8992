"""What every test gets: a cache of its own, no engine environment from outside, and reproducible properties in CI."""

import os

import pytest
from hypothesis import HealthCheck, settings

# CI must give the same answer for the same tree; developers look for new examples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session", autouse=True)
def _compile_cache(tmp_path_factory):
    """Compiled containers of one test run stay in the test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(tmp_path_factory.mktemp("compile-cache")))
        for variable in ("QAIC_DEVICE", "QAIC_CPU_DEVICES", "QAIC_ONNXRUNTIME_LIB"):
            patch.delenv(variable, raising=False)
        yield
