"""``Session.submit`` and ``run_async``: futures complete for every outcome of an inference."""

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
from concurrent.futures import CancelledError, Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qaic
import session_models
from child_process import WATCHDOG_S
from qaic.errors import DeviceLostError, DeviceTimeoutError, InferenceError, InputShapeError, OptionError

#: Time limit of a test for an event that follows at once.
SOON = WATCHDOG_S
ONE = np.zeros(1, np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return session_models.save(tmp_path_factory.mktemp("futures"), session_models.affine())


@pytest.fixture
def session(path):
    with qaic.Session(path, set_size=4) as session:
        yield session


@pytest.fixture
def controlled(noop):
    """A session on a device that the test holds and makes fail, with the control of the device."""
    with qaic.Session(session_models.FIXTURES / "s01_simple_f32_file.qpc", set_size=2) as session:
        session.setup()
        yield session, noop


def zeros(session):
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in session.model_input_shape_dict.items()}


def batch(number):
    return {"x": np.full((2, 4), number, np.float32)}


def free_cores():
    # Deleting an object waits only briefly for the thread that releases cores.
    assert qaic._core.await_teardown(WATCHDOG_S)
    return qaic._core.Context().devices()[0]["nsp_free"]


def futures_threads():
    return [thread for thread in threading.enumerate() if thread.name == "qaic-futures"]


@pytest.fixture(autouse=True)
def _no_threads_of_earlier_tests():
    """The thread ends soon after its session; the test does not wait for it."""
    gc.collect()
    for thread in futures_threads():
        thread.join(SOON)


# --- submit ---------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(count=st.integers(0, 40), set_size=st.integers(1, 4), activations=st.integers(1, 3))
def test_every_future_has_the_result_of_run(path, count, set_size, activations):
    with qaic.Session(path, set_size=set_size, num_activations=activations) as session:
        expected = [session.run(batch(number))["y"] for number in range(count)]
        futures = [session.submit(batch(number)) for number in range(count)]
        for future, other in zip(futures, expected, strict=True):
            assert isinstance(future, Future)
            np.testing.assert_array_equal(future.result(SOON)["y"], other)


def test_future_of_a_short_inference_has_ended_when_submit_returns(controlled):
    """On this device, an inference is short by definition, independent of its measured time."""
    session, _ = controlled
    assert session.submit(zeros(session)).done()
    assert not futures_threads()


def test_inputs_may_be_used_again_at_once(session):
    buffer = np.empty((2, 4), np.float32)
    futures = []
    for number in range(30):
        buffer[:] = number
        futures.append(session.submit({"x": buffer}))
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(SOON)["y"], session.run(batch(number))["y"])


def test_tools_of_the_standard_library_work(session):
    futures = [session.submit(batch(number)) for number in range(20)]
    assert set(concurrent.futures.as_completed(futures, SOON)) == set(futures)
    done, waiting = concurrent.futures.wait(futures, SOON)
    assert (len(done), len(waiting)) == (20, 0)
    assert all(future.done() and not future.running() and not future.cancelled() for future in futures)


def test_bad_inputs_are_refused_by_the_call(session):
    with pytest.raises(InputShapeError):
        session.submit({"x": np.zeros(3, np.float32)})
    for timeout in (-1, "a"):
        for call in (session.submit, session.run):
            with pytest.raises(OptionError, match=f"timeout is {timeout!r}; a number of seconds"):
                call(batch(0), timeout=timeout)
    assert session.submit(batch(1)).result(SOON)


def test_a_failure_of_the_device_is_the_futures_exception(controlled):
    session, control = controlled
    control.plan("execute@2=fail")
    futures = [session.submit(zeros(session)) for _ in range(3)]
    errors = [future.exception(SOON) for future in futures]
    assert sorted(type(error) for error in errors if error) == [InferenceError]


def test_a_lost_device_ends_all_futures_and_a_new_load_works(controlled):
    session, control = controlled
    control.hold()
    futures = [session.submit(zeros(session)) for _ in range(2)]
    assert control.wait_executing(1)
    control.lose()
    for future in futures:
        assert isinstance(future.exception(SOON), DeviceLostError)
    control.recover()
    control.release()
    session.reset()
    assert session.submit(zeros(session)).result(SOON)


# --- cancelling and time --------------------------------------------------------------------------


@pytest.fixture
def held(noop):
    """One exec object is in the device; others wait behind it."""
    qpc = session_models.FIXTURES / "s01_simple_f32_file.qpc"
    with qaic.Session(qpc, set_size=4, threads_per_queue=1) as session:
        session.run(zeros(session))
        noop.hold()
        running = session.submit(zeros(session))
        assert noop.wait_executing(1)
        yield session, noop, running
        noop.release()
        noop.recover()


def test_cancel_succeeds_until_the_device_has_the_inference(held):
    session, control, running = held
    queued = [session.submit(zeros(session)) for _ in range(3)]
    assert running.running()
    assert not running.cancel()
    assert not running.cancelled()
    assert not queued[1].running()
    assert queued[1].cancel()
    assert queued[1].cancel()
    assert queued[1].cancelled()
    with pytest.raises(CancelledError):
        queued[1].result(0)
    control.release()
    for future in (running, queued[0], queued[2]):
        assert list(future.result(SOON))
        assert not future.cancel()
    before = control.calls()["execute"]
    assert session.submit(zeros(session)).result(SOON)
    # The cancelled inference never reached the device.
    assert before + 1 == control.calls()["execute"]


def test_all_cancelled_futures_give_their_exec_objects_back(held):
    session, control, running = held
    for _ in range(5):
        queued = [session.submit(zeros(session)) for _ in range(3)]
        assert all(future.cancel() for future in queued)
        assert concurrent.futures.wait(queued, SOON).not_done == set()
        control.release()
        assert running.result(SOON)
        control.hold()
        running = session.submit(zeros(session))
        assert control.wait_executing(1)


def test_time_outs_end_running_and_queued_inferences(held):
    session, control, _ = held
    queued = session.submit(zeros(session), timeout=0.2)
    error = queued.exception(SOON)
    assert isinstance(error, DeviceTimeoutError)
    assert error.context["timeout_ms"] == 200
    control.release()
    assert session.run(zeros(session))


def test_a_stuck_inference_times_out_and_the_session_goes_on(controlled):
    session, control = controlled
    control.plan("execute@*=stuck")
    stuck = session.submit(zeros(session), timeout=0.2)
    assert isinstance(stuck.exception(SOON), DeviceTimeoutError)
    control.plan("")
    futures = [session.submit(zeros(session)) for _ in range(6)]
    assert all(future.result(SOON) for future in futures)


def test_no_exec_object_in_time_is_an_error_of_the_call(controlled):
    session, control = controlled
    control.hold()
    busy = [session.submit(zeros(session)) for _ in range(2)]
    with pytest.raises(DeviceTimeoutError, match="exec object"):
        session.submit(zeros(session), timeout=0.1)
    control.release()
    assert all(future.result(SOON) for future in busy)


def test_time_that_is_up_before_the_start_costs_no_exec_object(session):
    for _ in range(200):
        # Either the thread of the futures or the calling thread detects the timeout.
        with contextlib.suppress(DeviceTimeoutError):
            session.submit(batch(0), timeout=0).exception(SOON)
    futures = [session.submit(batch(number), timeout=SOON) for number in range(4)]
    assert all(future.result(SOON) for future in futures)


def test_submit_timeout_counts_for_futures(noop):
    noop.plan("execute@*=stuck")
    qpc = session_models.FIXTURES / "s01_simple_f32_file.qpc"
    with qaic.Session(qpc, submit_timeout=1, submit_num_retries=0) as session:
        stuck = session.submit(zeros(session))
        assert isinstance(stuck.exception(SOON), DeviceTimeoutError)


# --- callbacks ------------------------------------------------------------------------------------


def test_callbacks_run_on_one_thread_and_may_use_the_session(session):
    names, results = [], []
    finished = threading.Event()

    def more(future):
        names.append(threading.current_thread().name)
        results.append(future.result())
        if len(results) < 20:
            # If all exec objects are busy, this call waits for one, on the thread that completes futures.
            session.submit(batch(len(results))).add_done_callback(more)
        else:
            finished.set()

    session.submit(batch(0)).add_done_callback(more)
    assert finished.wait(SOON)
    assert len(results) == 20
    assert set(names) <= {"qaic-futures", "MainThread"}


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_in_a_callback_does_not_stop_the_others(session, caplog, error):
    def fail(_):
        raise error

    futures = [session.submit(batch(number)) for number in range(10)]
    for future in futures:
        if not future.done():
            future.add_done_callback(fail)
    for future in [*futures, session.submit(batch(11))]:
        assert future.result(SOON)


# --- life of the thread and of the session --------------------------------------------------------


def test_one_thread_serves_a_session_and_ends_with_its_reset(controlled):
    session, control = controlled
    for _ in range(2):
        control.hold()
        futures = [session.submit(zeros(session)) for _ in range(2)]
        (thread,) = futures_threads()
        control.release()
        assert all(future.result(SOON) for future in futures)
        session.reset()
        thread.join(SOON)
        assert not thread.is_alive()


def test_thread_of_a_session_ends_with_it(path):
    session = qaic.Session(path)
    session.run(batch(0))
    assert futures_threads() == []
    assert session.submit(batch(1)).result(SOON)
    # If the inference ended in `submit`, the list is empty.
    threads = futures_threads()
    assert len(threads) <= 1
    del session
    gc.collect()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert free_cores() == 16


def test_futures_of_a_session_that_was_reset_end_normally(path):
    session = qaic.Session(path, set_size=4)
    futures = []
    for turn in range(6):
        futures += [session.submit(batch(number)) for number in range(8)]
        session.update_backend_options(set_size=2 + turn) if turn % 2 else session.reset()
    for index, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(SOON)["y"], session.run(batch(index % 8))["y"])
    session.reset()


def test_futures_outlive_their_session(held):
    session, control, running = held
    queued = session.submit(zeros(session))
    session.reset()
    control.release()
    assert running.result(SOON)
    assert queued.result(SOON)


def test_a_kept_future_keeps_no_cores(path):
    session = qaic.Session(path)
    future = session.submit(batch(1))
    assert future.result(SOON)
    session.reset()
    assert free_cores() == 16
    assert future.result(0)


def test_run_beside_unfetched_results_does_not_wait(session):
    futures = [session.submit(batch(number)) for number in range(4)]
    np.testing.assert_array_equal(session.run(batch(7))["y"], session.run(batch(7))["y"])
    assert all(future.result(SOON) for future in futures)


def test_two_loads_of_one_input_dictionary(session):
    futures = [session.submit(batch(3)) for _ in range(12)]
    first = futures[0].result(SOON)["y"]
    for future in futures[1:]:
        other = future.result(SOON)["y"]
        np.testing.assert_array_equal(first, other)
        assert not np.shares_memory(first, other)


# --- asyncio --------------------------------------------------------------------------------------


def test_run_async_gives_what_run_gives(path):
    async def work(session):
        found = await asyncio.gather(*(session.run_async(batch(number)) for number in range(40)))
        return [one["y"] for one in found]

    with qaic.Session(path, set_size=3) as session:
        found = asyncio.run(work(session))
        for number, one in enumerate(found):
            np.testing.assert_array_equal(one, session.run(batch(number))["y"])


def test_the_loop_goes_on_while_the_device_and_all_exec_objects_are_busy(controlled):
    session, control = controlled
    control.hold()
    beats = []

    async def beat():
        while not control.executing():
            await asyncio.sleep(0)
        for _ in range(100):
            beats.append(control.executing())
            await asyncio.sleep(0)
        control.release()

    async def work():
        # Three times as many inferences as exec objects.
        results = asyncio.gather(*(session.run_async(zeros(session)) for _ in range(6)))
        await beat()
        return await asyncio.wait_for(results, SOON)

    assert len(asyncio.run(work())) == 6
    assert len(beats) == 100
    assert all(beats)


def test_waiting_coroutines_start_when_another_thread_gives_an_exec_object_back(controlled):
    session, control = controlled
    control.hold()
    others = [threading.Thread(target=session.run, args=(zeros(session),)) for _ in range(2)]
    for thread in others:
        thread.start()
    assert control.wait_executing(2)

    async def work():
        tasks = [asyncio.create_task(session.run_async(zeros(session))) for _ in range(4)]
        await asyncio.sleep(0)
        control.release()
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    assert len(asyncio.run(work())) == 4
    for thread in others:
        thread.join()


@pytest.mark.parametrize("waits_for_room", [False, True])
def test_a_cancelled_task_never_blocks_the_loop(controlled, waits_for_room):
    session, control = controlled
    control.plan("execute@*=stuck")

    async def work():
        tasks = [
            asyncio.create_task(session.run_async(zeros(session))) for _ in range(5 if waits_for_room else 2)
        ]
        while control.executing() < 1:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(work())
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    # The stuck inferences have also ended, so exec objects are free again.
    control.plan("")
    assert session.run(zeros(session), timeout=SOON)


def test_time_outs_of_run_async(controlled):
    session, control = controlled
    control.plan("execute@*=stuck")

    async def work():
        return await asyncio.gather(
            *(session.run_async(zeros(session), timeout=0.2) for _ in range(4)), return_exceptions=True
        )

    outcomes = asyncio.run(work())
    assert [type(outcome) for outcome in outcomes] == [DeviceTimeoutError] * 4
    control.plan("")
    assert session.run(zeros(session), timeout=SOON)


def test_loading_does_not_block_the_loop(path):
    session = qaic.Session(path)
    beats = []

    async def work():
        task = asyncio.create_task(session.run_async(batch(1)))
        while session._loaded is None:
            beats.append(1)
            await asyncio.sleep(0)
        return await task

    assert list(asyncio.run(work())) == ["y"]
    assert beats
    session.reset()


def test_bad_inputs_are_raised_where_they_are_awaited(session):
    async def work():
        with pytest.raises(InputShapeError):
            await session.run_async({"x": np.zeros(3, np.float32)})
        return await session.run_async(batch(2))

    assert asyncio.run(work())
