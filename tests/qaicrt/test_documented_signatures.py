"""Calls in the forms of the vendor's class pages: by name, by position, and with ``Factory``."""

import itertools
import threading

import numpy as np
import pytest

import inference_sets
import qaicrt
from inference_sets import Client, S, affine_of, refused, take


@pytest.fixture(scope="module")
def affine():
    return Client(inference_sets.affine())


def pairs(count):
    """Return arrays, and the buffers of `count` inferences that use them."""
    arrays = [
        (np.random.default_rng(seed).random((2, 4), np.float32), np.zeros((2, 4), np.float32))
        for seed in range(count)
    ]
    return arrays, [[qaicrt.QBuffer(array) for array in pair] for pair in arrays]


#: Arguments after the counts in the two documented forms.
FORMS = [("properties", "enableProfiling"), ("infDataVectorDmaBuf", "properties", "enableProfiling")]


@pytest.mark.parametrize("form", FORMS, ids=["user buffers", "given buffers"])
def test_inference_sets_in_both_documented_forms(affine, form):
    properties = qaicrt.InferenceSetProperties(name="words", id=7)
    values = {"infDataVectorDmaBuf": pairs(2)[1], "properties": properties, "enableProfiling": True}
    # Any number of arguments by position, and the others by name, or omitted if the form has a default.
    for placed in range(len(form) + 1):
        given = [values[name] for name in form[:placed]]
        for named in itertools.product([False, True], repeat=len(form) - placed):
            keywords = {
                name: values[name] for name, is_named in zip(form[placed:], named, strict=True) if is_named
            }
            made = qaicrt.InferenceSet(affine.context, affine.qpc, 0, 2, 1, *given, **keywords)
            has_properties = properties in given or "properties" in keywords
            assert (made.getName(), made.getId()) == (("words", 7) if has_properties else ("", 0))
    by_name = {"context": affine.context, "qpc": affine.qpc, "devId": 0, "setSize": 2, "numActivations": 1}
    qaicrt.InferenceSet(**by_name, **{name: values[name] for name in form})


def test_inference_set_takes_none_for_what_is_left_out(affine):
    made = qaicrt.InferenceSet(affine.context, affine.qpc, 0, 2, 1, None, False)
    assert made.submit(affine.vector()) == S.QS_SUCCESS


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((None, False, None), {}, "at most 7 positional arguments"),
        (([], None, False, 1), {}, "at most 8 positional arguments"),
        ((None,), {"properties": qaicrt.InferenceSetProperties()}, "properties twice"),
        (([],), {"infDataVectorDmaBuf": []}, "infDataVectorDmaBuf twice"),
        ((None, 2), {}, "enableProfiling has type int"),
        ((), {"enableProfiling": "yes"}, "enableProfiling has type str"),
    ],
)
def test_wrong_arguments_of_inference_sets(affine, arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        qaicrt.InferenceSet(affine.context, affine.qpc, 0, 1, 1, *arguments, **keywords)


def test_given_buffers_are_those_of_the_handles(affine):
    arrays, buffers = pairs(6)
    handles = qaicrt.InferenceSet(affine.context, affine.qpc, 0, 3, 2, buffers)
    for number in range(6):
        handle = take(handles.getAvailable())
        assert handles.submit(handle, number) == S.QS_SUCCESS
    assert handles.waitForCompletion() == S.QS_SUCCESS
    for x, y in arrays:
        np.testing.assert_allclose(y, affine_of(x), rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_given_buffers_that_are_not_one_list_for_each_handle(affine, count):
    with pytest.raises(qaicrt.ExceptionInit, match=rf"has {count} lists? of buffers, expected 2"):
        qaicrt.InferenceSet(affine.context, affine.qpc, 0, 2, 1, pairs(count)[1])


def test_given_buffers_of_a_wrong_size(affine):
    wrong = [[qaicrt.QBuffer(bytes(4)), qaicrt.QBuffer(bytes(32))]]
    with pytest.raises(qaicrt.ExceptionInit, match="in object: InferenceSet"):
        qaicrt.InferenceSet(affine.context, affine.qpc, 0, 1, 1, wrong)


def test_time_limit_of_get_available(affine, capfd):
    handles = affine.inference_set(1)
    for limit in (0, 1, 10**18):
        handle = take(handles.getAvailable(limit))
        assert handles.putCompleted(handle) == S.QS_SUCCESS
    held = take(handles.getAvailable(timeoutUs=1000))
    status, none = handles.getAvailable(timeoutUs=1000)
    assert (status, none) == (S.QS_TIMEDOUT, None)
    assert "a free exec object" in capfd.readouterr().err
    refused(capfd, handles.getAvailable(-1)[0], "timeoutUs is -1")
    # Without a limit, the call waits until the handle is returned.
    waiting = threading.Thread(target=handles.getAvailable, args=(0,))
    waiting.start()
    assert handles.putCompleted(held) == S.QS_SUCCESS
    waiting.join(60)
    assert not waiting.is_alive()


def test_the_id_of_an_inference_is_0_by_default(affine):
    handles = affine.inference_set(2)
    x, y = pairs(1)[0][0]
    assert handles.submit(affine.vector(x, y)) == S.QS_SUCCESS
    assert handles.putCompleted(take(handles.getCompletedId(0))) == S.QS_SUCCESS
    np.testing.assert_allclose(y, affine_of(x), rtol=1e-6)
    handle = take(handles.getAvailable())
    assert handles.submit(handle) == S.QS_SUCCESS
    take(handles.getCompletedId(0))


def test_factories_take_the_arguments_of_the_constructors(affine):
    vector = affine.vector()
    program = qaicrt.Program.Factory(affine.context, 0, affine.qpc)
    made = {
        "Context": [qaicrt.Context.Factory(), qaicrt.Context.Factory(devList=qaicrt.QIDList([0]))],
        "Qpc": [qaicrt.Qpc.Factory(bytes(affine.qpc.buffer()))],
        "Program": [program, qaicrt.Program.Factory(context=affine.context, qpcObj=affine.qpc)],
        "Queue": [qaicrt.Queue.Factory(affine.context, dev=0)],
        "ExecObj": [qaicrt.ExecObj.Factory(affine.context, program)],
        "InferenceVector": [qaicrt.InferenceVector.Factory(affine.qpc)],
        "InferenceSet": [qaicrt.InferenceSet.Factory(affine.context, affine.qpc, devId=0, setSize=1)],
        "InferenceBenchmarkSet": [
            qaicrt.InferenceBenchmarkSet.Factory(
                affine.context, affine.qpc, setSize=1, numActivations=1, inferenceDataVector=vector
            )
        ],
        "ProfilingHandle": [qaicrt.ProfilingHandle.Factory(programs=[program])],
        "StreamProfilingHandle": [qaicrt.StreamProfilingHandle.Factory("full", 500, print)],
    }
    for name, objects in made.items():
        assert {type(one) for one in objects} == {getattr(qaicrt, name)}
    with pytest.raises(TypeError, match="devid"):
        qaicrt.InferenceSet.Factory(affine.context, affine.qpc, devid=0)


def test_benchmark_callbacks_by_name(affine):
    benchmark = qaicrt.InferenceBenchmarkSet(
        affine.context, affine.qpc, dev=0, setSize=1, numActivations=1, inferenceDataVector=affine.vector()
    )
    calls = []
    assert (
        benchmark.enableExecObjCompletionCallback(callback=lambda *call: calls.append(call)) == S.QS_SUCCESS
    )
    form = qaicrt.QAicOpStatsFormatEnum.QAIC_OPSTATS_FORMAT_JSON
    sampled = {"initialSampleIndex": 0, "numSamplesPerProgramInstance": 1, "format": form}
    assert benchmark.enableOpStatsCallback(callback=print, **sampled) == S.QS_SUCCESS
    assert benchmark.enable() == S.QS_SUCCESS
    assert benchmark.run(3) == S.QS_SUCCESS
    assert len(calls) == 3
