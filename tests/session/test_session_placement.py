"""The cores that a session takes, and the time that it waits for them."""

import numpy as np
import pytest

import qaic
import session_models
from child_process import WATCHDOG_S
from qaic.errors import DeviceBusyError, DeviceNotFoundError, DeviceTimeoutError, OptionError

X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def path(tmp_path):
    return session_models.save(tmp_path, session_models.affine())


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "3")
    return lambda: [device["nsp_free"] for device in qaic._core.Context().devices()]


@pytest.mark.virtual_card("cards run only programs for one device")
@pytest.mark.parametrize("dev_id", [[0, 2], (2, 0), "0:2", "2,0"])
def test_one_program_takes_its_cores_on_every_card_it_is_placed_on(path, cards, dev_id):
    alone = qaic.Session(path).run(X)["y"]
    with qaic.Session(path, dev_id=dev_id, aic_num_cores=3, num_activations=2) as session:
        np.testing.assert_array_equal(session.run(X)["y"], alone)
        assert len(list(session.map([X] * 10))) == 10
        assert cards() == [10, 16, 10]
        session.update_backend_options(dev_id=1)
        session.setup()
        assert cards() == [16, 10, 16]
        assert session.backend_options()["dev_id"] == 1
    assert cards() == [16, 16, 16]


@pytest.mark.parametrize(("dev_id", "error"), [([0, 7], DeviceNotFoundError), ([3], DeviceNotFoundError)])
def test_cards_that_do_not_exist_are_named(path, cards, dev_id, error):
    with pytest.raises(error, match=str(dev_id[-1])):
        qaic.Session(path, dev_id=dev_id).setup()
    assert cards() == [16, 16, 16]


@pytest.mark.parametrize("dev_id", [[0, 0], "0:", [0, -1], "a", [[0]]])
def test_rejects_lists_of_cards_that_make_no_sense(path, dev_id):
    with pytest.raises(OptionError, match="dev_id"):
        qaic.Session(path, dev_id=dev_id)


@pytest.mark.virtual_card("cards run only programs for one device")
def test_all_cards_or_none(path, cards):
    with qaic.Session(path, dev_id=2, aic_num_cores=15) as other:
        other.setup()
        with pytest.raises(DeviceBusyError):
            qaic.Session(path, dev_id=[0, 2], aic_num_cores=2).setup()
        assert cards() == [16, 16, 1]


@pytest.mark.virtual_card("cards do not share cores by name")
def test_sessions_of_one_name_share_cores(path, cards):
    small = qaic.Session(path, aic_num_cores=6, oversubscription_name="group1")
    large = qaic.Session(path, aic_num_cores=12, oversubscription_name="group1")
    expected = small.run(X)["y"]
    assert cards() == [10, 16, 16]
    np.testing.assert_array_equal(large.run(X)["y"], expected)
    assert cards() == [4, 16, 16]
    with pytest.raises(DeviceBusyError):
        qaic.Session(path, aic_num_cores=6).setup()
    with pytest.raises(DeviceBusyError):
        qaic.Session(path, aic_num_cores=6, oversubscription_name="group2").setup()
    np.testing.assert_array_equal(small.run(X)["y"], expected)
    large.reset()
    assert cards() == [10, 16, 16]
    small.reset()
    assert cards() == [16, 16, 16]


@pytest.mark.virtual_card("cards do not share cores by name")
def test_the_group_may_be_changed(path, cards):
    with (
        qaic.Session(path, aic_num_cores=10, oversubscription_name="a") as one,
        qaic.Session(path, aic_num_cores=10) as other,
    ):
        one.setup()
        with pytest.raises(DeviceBusyError):
            other.setup()
        other.update_backend_options(oversubscription_name="a")
        other.setup()
        assert cards() == [6, 16, 16]
    assert cards() == [16, 16, 16]


def noop_session(**options):
    return qaic.Session(session_models.FIXTURES / "s01_simple_f32_file.qpc", **options)


def zeros(session):
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in session.model_input_shape_dict.items()}


def test_waiting_limits_are_tries_times_timeout(noop):
    with noop_session(submit_timeout=1, submit_num_retries=0) as session:
        # A late cancellation can end the next execution, which then runs again. The plan therefore names no
        # number.
        noop.plan("execute@*=stuck")
        with pytest.raises(DeviceTimeoutError) as caught:
            session.run(zeros(session))
        assert caught.value.context["timeout_ms"] == 1000
        # The same limit applies if the results are fetched one by one.
        with pytest.raises(DeviceTimeoutError) as caught:
            next(session.map([zeros(session)]))
        assert caught.value.context["timeout_ms"] == 1000


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_per_queue_bounds_what_the_device_has_at_a_time(noop, threads):
    with noop_session(set_size=8, threads_per_queue=threads) as session:
        session.setup()
        noop.hold()
        futures = [session.submit(zeros(session)) for _ in range(8)]
        assert noop.wait_executing(threads)
        assert sum(future.running() for future in futures) == threads
        assert noop.executing() == threads
        noop.release()
        assert all(future.result(WATCHDOG_S) for future in futures)
