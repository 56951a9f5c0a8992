"""What all Python tests share: a compile cache of their own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
