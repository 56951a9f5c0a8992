"""``Program``: placement, loading, activation, and description."""

import gc
import time
from pathlib import Path

import numpy as np
import pytest

import qaicrt
import rt_programs
from child_process import WATCHDOG_S
from qaic import _core
from rt_programs import Client, S

DATA = Path(__file__).parents[1] / "data" / "qpc"
X = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def affine(tmp_path_factory):
    return rt_programs.compiled(tmp_path_factory.mktemp("affine"), rt_programs.affine(), aic_num_cores=4)


@pytest.fixture
def cores():
    """Free cores before the test, after objects of earlier tests in reference cycles have released their
    cores.
    """
    gc.collect()
    return rt_programs.free_cores()


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setenv("QAIC_CPU_DEVICES", "3")


@pytest.fixture
def noop(monkeypatch):
    # The call is repeated if it finds a busy device and an object was released since.
    gc.collect()
    assert _core.await_teardown(WATCHDOG_S)
    monkeypatch.setenv("QAIC_DEVICE", "noop")
    control = _core.NoopControl()
    control.recover()
    control.plan("")
    yield control
    control.plan("")


def fixture(name):
    return str(DATA / f"{name}.qpc")


# --- placing -----------------------------------------------------------------------------------------


def test_every_form_of_the_constructor(affine):
    context, qpc = qaicrt.Context(), qaicrt.Qpc(affine)
    for program in (
        qaicrt.Program(context, 0, qpc, qaicrt.QAicProgramProperties()),
        qaicrt.Program(context, 0, qpc),
        qaicrt.Program(context, None, qpc, rt_programs.properties(SubmitRetryTimeoutMs=60000)),
        qaicrt.Program(context, qpcObj=qpc),
        qaicrt.Program(context=context, dev=np.int64(0), qpcObj=qpc, properties=None),
    ):
        assert program.load() == S.QS_SUCCESS
        assert repr(program) == "Program('net' on device 0)"


def test_the_container_may_go_at_once(affine):
    context = qaicrt.Context()
    qpc = qaicrt.Qpc(affine)
    program = qaicrt.Program(context, 0, qpc)
    queue = qaicrt.Queue(context, 0)
    exec_obj = qaicrt.ExecObj(context, program)
    del qpc, context, program
    gc.collect()
    y = np.zeros((2, 4), np.float32)
    assert exec_obj.setData([(0, X), (1, y)]) == S.QS_SUCCESS
    assert queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)


def test_without_a_device_it_is_the_first_of_the_context(affine, cards):
    context = qaicrt.Context(qaicrt.QIDList([2, 1]))
    assert "device 2" in repr(qaicrt.Program(context, None, qaicrt.Qpc(affine)))


def test_without_a_device_it_is_the_first_with_enough_free_cores(affine, cards):
    """Clients open several programs in this way: each takes its resources before the next one is created."""
    context = qaicrt.Context()
    programs = []
    for _ in range(3 * 4):
        programs.append(qaicrt.Program(context, None, qaicrt.Qpc(affine)))
        assert programs[-1].activate() == S.QS_SUCCESS
    assert [repr(program)[-2] for program in programs] == list("000011112222")
    # If no device has room, the program uses the first device, and the activation reports the error.
    full = qaicrt.Program(context, None, qaicrt.Qpc(affine))
    assert "device 0" in repr(full)
    assert full.activate() == S.QS_DEV_ERROR
    assert programs[5].deactivate() == S.QS_SUCCESS
    assert "device 1" in repr(qaicrt.Program(context, None, qaicrt.Qpc(affine)))


@pytest.mark.virtual_card("cards run only programs for one device")
def test_several_devices_work_as_one(affine, cards):
    before = [rt_programs.free_cores(device) for device in range(3)]
    context = qaicrt.Context()
    properties = rt_programs.properties(devMapping="1:2")
    program = qaicrt.Program(context, None, qaicrt.Qpc(affine), properties)
    assert repr(program).endswith("on device 1:2)")
    exec_obj = qaicrt.ExecObj(context, program)
    assert [before[device] - rt_programs.free_cores(device) for device in range(3)] == [0, 4, 4]
    y = np.zeros((2, 4), np.float32)
    assert exec_obj.setData([(0, X), (1, y)]) == S.QS_SUCCESS
    for device in (1, 2):
        assert qaicrt.Queue(context, device).enqueue(exec_obj) == S.QS_SUCCESS
        assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
    del exec_obj
    assert [rt_programs.free_cores(device) for device in range(3)] == before


def test_the_device_goes_before_the_mapping(affine, cards):
    properties = rt_programs.properties(devMapping="1:2")
    assert "device 0" in repr(qaicrt.Program(qaicrt.Context(), 0, qaicrt.Qpc(affine), properties))


@pytest.mark.parametrize("device", [3, -1, 2**40])
def test_unknown_devices_are_named(affine, cards, device):
    with pytest.raises(qaicrt.ExceptionInit, match=r"does not exist; existing ids: \[0, 1, 2\]") as caught:
        qaicrt.Program(qaicrt.Context(), device, qaicrt.Qpc(affine))
    assert str(caught.value).startswith("Initialization Exception: in object: Program ")
    assert isinstance(caught.value, RuntimeError)


def test_devices_outside_the_context_are_unknown(affine, cards):
    context = qaicrt.Context([1])
    with pytest.raises(qaicrt.ExceptionInit, match=r"device 0 does not exist; existing ids: \[1\]"):
        qaicrt.Program(context, 0, qaicrt.Qpc(affine))
    with pytest.raises(qaicrt.ExceptionInit, match="device 2"):
        qaicrt.Program(context, None, qaicrt.Qpc(affine), rt_programs.properties(devMapping="1:2"))


@pytest.mark.parametrize(
    ("mapping", "what"),
    [
        ("0:7", "device 7"),
        ("0:0", "twice"),
        ("0,1", "joined with"),
        ("x", "'x'|\"x\""),
        ("0:", "joined with"),
    ],
)
def test_bad_mappings(affine, cards, mapping, what):
    properties = rt_programs.properties(devMapping=mapping)
    with pytest.raises(qaicrt.ExceptionInit, match=what):
        qaicrt.Program(qaicrt.Context(), None, qaicrt.Qpc(affine), properties)


def test_parents_are_needed(affine):
    context, qpc = qaicrt.Context(), qaicrt.Qpc(affine)
    for arguments in ((None, 0, qpc), (context, 0, None), (context,)):
        with pytest.raises(qaicrt.ExceptionNullPtr, match="in object: Program"):
            qaicrt.Program(*arguments)
    for arguments in ((5, 0, qpc), (context, 0, 5), (context, "x", qpc)):
        with pytest.raises(TypeError):
            qaicrt.Program(*arguments)


@pytest.mark.virtual_card("emulated cards return the inputs of programs that were compiled for cards")
def test_a_container_for_a_card_is_refused_when_it_is_loaded(capfd):
    context = qaicrt.Context()
    program = qaicrt.Program(context, 0, qaicrt.Qpc(fixture("s01_simple_f32_file")))
    assert program.load() == S.QS_ERROR
    assert "cannot run it" in capfd.readouterr().err
    assert program.activate() == S.QS_ERROR
    assert not program.isLoaded()
    with pytest.raises(qaicrt.ExceptionInit, match="in object: ExecObj"):
        qaicrt.ExecObj(context, program)


# --- states ------------------------------------------------------------------------------------------


def states(program):
    return program.isLoaded(), program.isActivated()


def test_states(affine, cores):
    program = Client(affine).program
    for _ in range(2):
        assert states(program) == (False, False)
        assert (program.load(), states(program)) == (S.QS_SUCCESS, (True, False))
        assert (program.activate(), states(program)) == (S.QS_SUCCESS, (True, True))
        assert rt_programs.free_cores() == cores - 4
        assert (program.activate(), states(program)) == (S.QS_SUCCESS, (True, True))
        assert (program.deactivate(), states(program)) == (S.QS_SUCCESS, (True, False))
        assert (program.deactivate(), rt_programs.free_cores()) == (S.QS_SUCCESS, cores)
        assert (program.unload(), states(program)) == (S.QS_SUCCESS, (False, False))
    assert (program.activate(), states(program)) == (S.QS_SUCCESS, (True, True))
    assert (program.unload(), states(program)) == (S.QS_SUCCESS, (False, False))
    assert rt_programs.free_cores() == cores


def test_the_first_exec_obj_activates_and_the_last_deactivates(affine, cores):
    client = Client(affine)
    first = client.exec_obj()
    assert (states(client.program), rt_programs.free_cores()) == ((True, True), cores - 4)
    second = client.exec_obj()
    del first
    assert rt_programs.free_cores() == cores - 4
    del second
    assert (states(client.program), rt_programs.free_cores()) == ((True, False), cores)


def test_what_the_user_activates_stays(affine, cores):
    client = Client(affine)
    assert client.program.activate() == S.QS_SUCCESS
    exec_obj = client.exec_obj()
    del exec_obj
    assert (states(client.program), rt_programs.free_cores()) == ((True, True), cores - 4)
    del client
    gc.collect()
    assert rt_programs.free_cores() == cores


def test_living_exec_objs_forbid_unloading(affine, capfd):
    client = Client(affine)
    exec_obj = client.exec_obj()
    assert client.program.unload() == S.QS_ERROR
    error = capfd.readouterr().err
    assert "[ERROR]" in error
    assert "the program still has 1 exec object; delete all first" in error
    assert states(client.program) == (True, True)
    client.infer(exec_obj, [(0, X), (1, np.zeros((2, 4), np.float32))])


def test_deactivation_gives_the_cores_back_with_the_last_exec_obj(affine, capfd, cores):
    client = Client(affine)
    assert client.program.activate() == S.QS_SUCCESS
    exec_objs = [client.exec_obj() for _ in range(3)]
    assert client.program.deactivate() == S.QS_SUCCESS
    assert client.program.deactivate() == S.QS_SUCCESS
    # Existing exec objects remain usable; new ones require another activation.
    y = np.zeros((2, 4), np.float32)
    while exec_objs:
        assert (states(client.program), rt_programs.free_cores()) == ((True, True), cores - 4)
        client.infer(exec_objs[-1], [(0, X), (1, y)])
        np.testing.assert_allclose(y, rt_programs.affine_of(X), rtol=1e-6)
        with pytest.raises(qaicrt.ExceptionInit, match="not activated"):
            qaicrt.ExecObj(client.context, client.program, 0)
        exec_objs.pop()
    assert (states(client.program), rt_programs.free_cores()) == ((True, False), cores)
    assert "deactivat" not in capfd.readouterr().err
    assert (client.program.unload(), states(client.program)) == (S.QS_SUCCESS, (False, False))


def test_deactivation_waits_for_no_inference(affine, noop, cores):
    client = Client(affine)
    exec_obj = client.exec_obj()
    noop.hold()
    assert exec_obj.setData([(0, X)]) == S.QS_SUCCESS
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert noop.wait_executing(1)
    assert client.program.deactivate() == S.QS_SUCCESS
    assert client.program.isActivated()
    noop.release()
    assert exec_obj.waitForCompletion() == S.QS_SUCCESS
    del exec_obj
    assert rt_programs.free_cores() == cores


def test_activation_after_a_deactivation_begins_anew_on_the_same_cores(tmp_path, cores):
    """Clients do this when they replace exec objects with new ones."""
    path = rt_programs.compiled(tmp_path, rt_programs.counter(), retained_state=True, aic_num_cores=16)
    client = Client(path)
    exec_objs = [client.exec_obj(), client.exec_obj()]

    def counted(exec_obj):
        y = np.zeros((3, 4), np.float32)
        client.infer(exec_obj, [(rt_programs.X, np.ones(1, np.float32)), (rt_programs.Y, y)])
        return y[0, 0]

    assert [counted(exec_objs[0]), counted(exec_objs[1])] == [0, 1]
    for _ in range(2):
        assert client.program.deactivate() == S.QS_SUCCESS
        # All cores of the device are still allocated, now to the new activation.
        assert client.program.activate() == S.QS_SUCCESS
        for place in range(2):
            exec_objs[place] = client.exec_obj()
        assert [counted(exec_objs[0]), counted(exec_objs[1])] == [0, 1]
    assert client.program.deactivate() == S.QS_SUCCESS
    exec_objs.clear()
    assert rt_programs.free_cores() == cores


def test_two_programs_take_turns(affine, tmp_path):
    encoder, decoder = (
        Client(affine),
        Client(rt_programs.compiled(tmp_path, rt_programs.sum_and_difference())),
    )
    for _ in range(3):
        for client, count in ((encoder, 2), (decoder, 4)):
            assert client.program.activate() == S.QS_SUCCESS
            exec_obj = client.exec_obj()
            size = 32 if count == 2 else 12
            client.infer(exec_obj, [qaicrt.QBuffer(bytes(size)) for _ in range(count)])
            del exec_obj
            assert client.program.deactivate() == S.QS_SUCCESS


def test_too_few_cores(affine, capfd, cores):
    clients = [Client(affine) for _ in range(cores // 4)]
    for client in clients:
        assert client.program.activate() == S.QS_SUCCESS
    late = Client(affine)
    assert late.program.activate() == S.QS_DEV_ERROR
    assert "free cores" in capfd.readouterr().err
    with pytest.raises(qaicrt.ExceptionInit, match="free cores"):
        late.exec_obj()
    assert clients.pop().program.deactivate() == S.QS_SUCCESS
    assert late.program.activate() == S.QS_SUCCESS
    del clients, client, late
    gc.collect()
    assert rt_programs.free_cores() == cores


# --- facts -------------------------------------------------------------------------------------------


def test_facts(affine):
    client = Client(affine)
    program, qpc = client.program, qaicrt.Qpc(affine)
    assert program.getIoDescriptor() == qpc.getIoDescriptor()
    assert program.getBufferMappings() == qpc.getBufferMappings()
    info = program.getProgramInfo()
    # At its default level, the compiler measures inferences.
    assert (info.numNsp, info.isAicStatsAvailable) == (4, True)
    assert (info.batchSize, info.numMcid) == (
        qpc.getInfo().program[0].batchSize,
        qpc.getInfo().program[0].numMcId,
    )
    assert info.uniqueProgramID != Client(affine).program.getProgramInfo().uniqueProgramID
    assert (program.getId(), info.userDefinedProgramID) == (0, 0)
    program.setId(41)
    assert (program.getId(), program.getProgramInfo().userDefinedProgramID) == (41, 41)


@pytest.mark.parametrize(("name", "has_stats"), [("s10_stats", True), ("s01_simple_f32_file", False)])
def test_a_program_with_statistics_says_so(name, has_stats):
    program = Client(fixture(name)).program
    assert program.getProgramInfo().isAicStatsAvailable == has_stats


def test_inferences_are_counted(affine, capfd):
    client = Client(affine)
    exec_obj = client.exec_obj()
    assert client.program.getInferenceCompleteCount() == 0
    for _ in range(3):
        client.infer(exec_obj, [(0, X)])
    assert exec_obj.run() == S.QS_SUCCESS
    assert client.program.getInferenceCompleteCount() == 4
    assert exec_obj.setData([(0, X.reshape(4, 2))]) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_INVAL
    assert client.program.getInferenceCompleteCount() == 4


def test_init_properties_never_fails(affine):
    program = Client(affine).program
    given = rt_programs.properties(SubmitRetryTimeoutMs=5, devMapping="0:1")
    assert program.initProperties(given) is None
    assert qaicrt.Program.initProperties(rt_programs.properties()) is None
    assert (given.SubmitRetryTimeoutMs, given.SubmitNumRetries, given.devMapping) == (0, 5, "")
    for other in (None, 5, object(), qaicrt.QAicQueueProperties()):
        assert program.initProperties(other) is None


def test_a_device_mapping_of_the_wrong_type(affine):
    with pytest.raises(TypeError):
        Client(affine, devMapping=5)


def test_the_number_of_retries_has_two_names():
    given = qaicrt.QAicProgramProperties()
    assert given.submitNumRetries == 5
    given.submitNumRetries = 2
    assert given.SubmitNumRetries == 2
    given.SubmitNumRetries = 7
    assert given.submitNumRetries == 7
    assert qaicrt.Program.initProperties(given) is None
    assert (given.SubmitNumRetries, given.submitNumRetries) == (5, 5)
    with pytest.raises(AttributeError):
        given.submitnumretries = 1


@pytest.mark.parametrize(
    "name", ["SubmitNumRetries", "submitNumRetries", "dataPathTimeoutMs", "SubmitRetryTimeoutMs"]
)
@pytest.mark.parametrize("number", [-1, 2**32, 2**64, "a", 1.5, None])
def test_properties_out_of_range_are_named(affine, name, number):
    spelled = name[0].upper() + name[1:] if name == "submitNumRetries" else name
    with pytest.raises(qaicrt.ExceptionInit, match=f"{spelled} is {number!r}; a number from 0 to 4294967295"):
        Client(affine, **{name: number})


# --- rare behavior of a device -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "least"),
    [
        ({"SubmitRetryTimeoutMs": 20, "SubmitNumRetries": 2}, 0.06),
        ({"SubmitRetryTimeoutMs": 2_000_000_000, "SubmitNumRetries": 1, "dataPathTimeoutMs": 25}, 0.05),
        ({"SubmitRetryTimeoutMs": 50, "SubmitNumRetries": 0}, 0.05),
    ],
)
def test_time_limits(noop, capfd, values, least):
    client = Client(fixture("s01_simple_f32_file"), **values)
    exec_obj = client.exec_obj()
    assert (
        exec_obj.setData([qaicrt.QBuffer(bytes(m.size)) for m in client.program.getBufferMappings()])
        == S.QS_SUCCESS
    )
    noop.plan("execute@*=stuck")
    for call in ("enqueue", "run"):
        began = time.monotonic()
        if call == "enqueue":
            assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
            status = exec_obj.waitForCompletion()
        else:
            status = exec_obj.run()
        took = time.monotonic() - began
        assert status == S.QS_TIMEDOUT
        assert took >= least
        assert "timed out" in capfd.readouterr().err
    # The exec object can be used again. On a busy machine, this inference may also exceed its limit.
    noop.plan("")
    assert any(exec_obj.run() == S.QS_SUCCESS for _ in range(1_000))


def test_failures_say_why(noop, capfd):
    client = Client(fixture("s01_simple_f32_file"))
    exec_obj = client.exec_obj()
    assert (
        exec_obj.setData([qaicrt.QBuffer(bytes(m.size)) for m in client.program.getBufferMappings()])
        == S.QS_SUCCESS
    )
    noop.plan("execute@1=fail")
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert exec_obj.waitForCompletion() == S.QS_ERROR
    assert "inference failed" in capfd.readouterr().err
    client.infer(exec_obj)


def test_a_lost_device_can_be_used_again(noop, capfd):
    client = Client(fixture("s01_simple_f32_file"))
    exec_obj = client.exec_obj()
    buffers = [qaicrt.QBuffer(bytes(m.size)) for m in client.program.getBufferMappings()]
    assert exec_obj.setData(buffers) == S.QS_SUCCESS
    noop.plan("execute@1=stuck")
    assert client.queue.enqueue(exec_obj) == S.QS_SUCCESS
    assert noop.wait_executing(1)
    noop.lose()
    assert exec_obj.waitForCompletion() == S.QS_DEV_ERROR
    assert "lost" in capfd.readouterr().err
    assert exec_obj.run() == S.QS_DEV_ERROR
    noop.recover()
    assert exec_obj.run() == S.QS_DEV_ERROR
    del exec_obj
    assert client.program.unload() == S.QS_SUCCESS
    exec_obj = client.exec_obj()
    client.infer(exec_obj, buffers)


@pytest.mark.parametrize(
    ("plan", "call", "expected"),
    [
        ("load@1=no_memory", "load", S.QS_NOMEM),
        ("activate@1=no_cores", "activate", S.QS_DEV_ERROR),
        ("activate@1=no_memory", "activate", S.QS_NOMEM),
    ],
)
def test_what_runs_out_can_be_tried_again(noop, capfd, plan, call, expected):
    program = Client(fixture("s01_simple_f32_file")).program
    noop.plan(plan)
    assert getattr(program, call)() == expected
    assert "[ERROR]" in capfd.readouterr().err
    assert not program.isActivated()
    assert getattr(program, call)() == S.QS_SUCCESS


def test_an_exec_obj_that_cannot_be_had(noop):
    client = Client(fixture("s01_simple_f32_file"))
    noop.plan("exec@1=no_memory")
    with pytest.raises(qaicrt.ExceptionNullPtr, match="in object: ExecObj"):
        client.exec_obj()
    assert not client.program.isActivated()
    client.exec_obj()
