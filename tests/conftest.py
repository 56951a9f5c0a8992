"""Environment of all Python tests.

The tests use a package that was built from this checkout, signals that no shell ignores, a separate compile
cache, and marks by subject. Property tests have no time limits and no random seeds. Tests must not change
emulated cards.
"""

import gc
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import checkout
import child_process
import device_free
import emulated_cards
import engine_version
import fake_clock
import printed_steps
import qaic
import sampling
import timing
from qaic import _core
from qaic.support import status_line

# This call also gives the test processes the default actions.
child_process.restore_signals()

# The time of an example depends more on the machine than on the code.
EXPLORING = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, print_blob=True
)
# The examples are fixed, unless `make explore` or --hypothesis-profile=explore requests others.
settings.register_profile("qaic", EXPLORING, derandomize=True)
settings.register_profile("explore", EXPLORING)
settings.load_profile("qaic")


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run whole sweeps, where other runs take a sample")
    parser.addoption("--shuffle-files", metavar="SEED", help="run the files in an order that a seed decides")


def pytest_configure(config):
    if os.environ.get("QAIC_TEST_ANY_BUILD") or hasattr(config, "workerinput"):
        return
    found = checkout.difference(Path(qaic.__file__).parent, Path(_core.__file__))
    if found:
        pytest.exit(
            f"the imported package does not match this checkout: {found}. Run `make develop`; or set "
            "QAIC_TEST_ANY_BUILD=1 to test the package as it is",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_ignore_collect(collection_path, config):
    # Importing all other files would take a third of the time of the tests with the mark.
    is_other = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.option.markexpr == "timing" and is_other and not timing.tests_of(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("--shuffle-files")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])
    sampling.take_samples(config, items)
    for item in items:
        # Property tests take most of the time, and have another subject.
        if item.originalname in timing.tests_of(item.path) and not hasattr(item.obj, "hypothesis"):
            item.add_marker("timing")
    profiled = [item for item in items if item.get_closest_marker("run_profiles")]
    if profiled and not engine_version.profiles_runs():
        for item in profiled:
            item.add_marker(pytest.mark.skip(reason="this engine cannot profile single runs"))
    if not emulated_cards.are_meant():
        return
    for item in items:
        for marker in item.iter_markers("virtual_card"):
            (reason,) = marker.args
            item.add_marker(pytest.mark.skip(reason=f"on cards: {reason}"))


def pytest_collection_finish():
    # A garbage collection visits every object, and the items of ten thousand tests exist until the end.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run every command that a tool prints for its user, while the files of the test exist."""
    with printed_steps.collected() as steps:
        result = yield
    printed_steps.run_all(steps, item.path)
    return result


@pytest.fixture
def noop(monkeypatch):
    """Control of a device that computes nothing; it holds executions and fails as a test requests."""
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    control = _core.NoopControl()
    control.plan("")
    yield control
    control.plan("")
    control.release()
    control.recover()


@pytest.fixture(scope="session", autouse=True)
def _compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        # Every model is verified after every pass.
        patch.setenv("QAIC_VERIFY_PASSES", "1")
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_device(request):
    with pytest.MonkeyPatch.context() as patch:
        if device_free.holds(request.path):
            patch.setenv("QAIC_DEVICE", device_free.NO_DEVICE)
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_by_a_module(request):
    yield from emulated_cards.nothing_left(request.session)


@pytest.fixture(autouse=True)
def _nothing_left_by_a_test(request):
    # Set up before the fixtures of the test, so it ends after them; only the record of the test still has
    # them.
    yield from emulated_cards.nothing_left(request.session, release=request.node.funcargs.clear)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, for messages about long work."""
    made = fake_clock.FakeClock()
    monkeypatch.setattr(status_line, "time", made)
    monkeypatch.setattr(status_line, "repeated", made.repeated)
    return made
