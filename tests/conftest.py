"""What all Python tests share: a compile cache of their own, and property tests without a stop-watch."""

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("qaic", deadline=None)
settings.load_profile("qaic")


@pytest.fixture(scope="session", autouse=True)
def _compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
