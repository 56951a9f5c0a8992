"""``Session.run``: the arrays that it accepts and returns, and their owners."""

import ctypes
import gc
import re
from collections import OrderedDict, UserDict
from types import MappingProxyType

import numpy as np
import pytest
from onnx import helper

import emulated_cards
import qaic
import session_models
from qaic.errors import InputError, InputShapeError, InputTypeError, MissingInputError


@pytest.fixture(scope="module")
def affine(tmp_path_factory):
    """A session, and its model computed with numpy."""
    path = session_models.save(tmp_path_factory.mktemp("affine"), session_models.affine())
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    bias = np.linspace(0, 1, 4, dtype=np.float32)
    with qaic.Session(path) as session:
        session.setup()
        yield session, lambda x: np.maximum(np.asarray(x, np.float32).reshape(2, 4) @ weight + bias, 0)


def identity(tmp_path, dtype, shape):
    built = session_models.model(
        [helper.make_node("Identity", ["x"], ["y"])], [("x", dtype, shape)], [("y", dtype, shape)]
    )
    return qaic.Session(session_models.save(tmp_path, built))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two inputs and two outputs: sum and difference, in int32."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["diff"])]
    built = session_models.model(
        nodes,
        [("a", "int32", [3]), ("b", "int32", [3])],
        [("sum", "int32", [3]), ("diff", "int32", [3])],
    )
    with qaic.Session(session_models.save(tmp_path_factory.mktemp("two"), built)) as session:
        session.setup()
        yield session


A = np.array([1, 2, 3], np.int32)
B = np.array([10, 20, 30], np.int32)


# --- the dictionary of inputs ----------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [dict, OrderedDict, UserDict, MappingProxyType])
def test_any_mapping_will_do(two, wrap):
    assert two.run(wrap({"a": A, "b": B}))["sum"].tolist() == [11, 22, 33]


def test_an_input_with_two_values_is_refused_as_by_python(two, tmp_path):
    with pytest.raises(TypeError, match=r"run\(\) got multiple values for input 'b'"):
        two.run({"a": A, "b": B}, b=A)
    with identity(tmp_path, "int32", [3]) as session, pytest.raises(TypeError, match="input 'x'"):
        session.run(A, x=B)


@pytest.mark.parametrize("inputs", [[A, B], A, None, "a", 3])
def test_rejects_inputs_without_names(two, inputs):
    with pytest.raises(InputTypeError, match="a dict of name to numpy array is expected") as caught:
        two.run(inputs)
    assert caught.value.code == "input.not_a_dict"


# --- arrays of every layout -----------------------------------------------------------------------


X = np.arange(8, dtype=np.float32).reshape(2, 4) - 4


def misaligned():
    memory = bytearray(X.nbytes + 1)
    memory[1:] = X.tobytes()
    return np.ndarray((2, 4), np.float32, memory, offset=1)


def read_only():
    array = X.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "exact": X,
    "read-only": read_only(),
    "fortran": np.asfortranarray(X),
    "strided": np.repeat(X, 3, axis=1)[:, ::3],
    "reversed": X[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": X.T.copy().T,
    "big-endian": X.astype(">f4"),
    "misaligned": misaligned(),
    "float64": X.astype(np.float64),
    "float16": X.astype(np.float16),
    "int64": X.astype(np.int64),
    "flat": X.reshape(8),
    "leading ones": X.reshape(1, 1, 2, 4),
    "list": X.tolist(),
    "subclass": X.view(np.recarray),
    "memoryview": memoryview(X),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same(affine, layout):
    session, model = affine
    given = LAYOUTS[layout]
    before = np.array(given, copy=True)
    np.testing.assert_allclose(session.run({"x": given})["y"], model(X), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(given), before)


def test_broadcast_view_is_expanded(affine):
    session, model = affine
    row = np.broadcast_to(X[0], (2, 4))
    np.testing.assert_allclose(session.run({"x": row})["y"], model(row), rtol=1e-6)


# --- shapes ---------------------------------------------------------------------------------------

#: Shape of the input -> shapes of arrays, and the transposition that gives the right shape.
OTHER_LAYOUTS = {
    (1, 3, 8, 6): {
        (1, 8, 6, 3): "(0, 3, 1, 2)",
        (8, 6, 3): "(2, 0, 1)",
        (1, 3, 6, 8): "(0, 1, 3, 2)",
        (3, 6, 8): "(0, 2, 1)",
        (1, 1, 8, 6, 3): "(0, 1, 4, 2, 3)",
        (1, 24, 6): None,
        (3, 48): None,
        (144, 1): None,
        (1, 3, 8, 6, 1): None,
    },
    (2, 3, 4): {(4, 3, 2): "(2, 1, 0)", (3, 2, 4): "(1, 0, 2)", (6, 4): None, (2, 1, 3, 4): None},
    (4,): {(2, 2): None, (4, 1): None},
    # Dimensions of equal size keep their order.
    (3, 5, 5): {(5, 5, 3): "(2, 0, 1)"},
}


@pytest.mark.parametrize(
    ("expected", "found", "axes"),
    [(expected, *other) for expected, others in OTHER_LAYOUTS.items() for other in others.items()],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_refuses_other_layouts_with_the_transposition_to_write(tmp_path, expected, found, axes, dtype):
    count = np.prod(expected)
    given = np.arange(count, dtype=dtype).reshape(found)
    with identity(tmp_path, "float32", expected) as session:
        with pytest.raises(InputShapeError) as caught:
            session.run({"x": given})
        assert caught.value.code == "input.shape"
        text = str(caught.value)
        assert f"{dtype} of shape {list(found)}" in text
        assert f"float32 of shape {list(expected)}" in text
        assert ("transpose" in text) == (axes is not None)
        if axes is not None:
            assert f"numpy.transpose(x, {axes})" in text
            moved = np.transpose(given, eval(axes))
            np.testing.assert_array_equal(session.run({"x": moved})["y"].ravel(), moved.ravel())


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (1, 1, 2, 3), (), (1,), (1, 1)])
def test_leading_dimensions_of_one_make_no_difference(tmp_path, shape):
    core = shape[len(shape) - 2 :] if np.prod(shape) > 1 else ()
    values = np.arange(np.prod(shape), dtype=np.float32)
    with identity(tmp_path, "float32", shape) as session:
        for given in (core, (1, *core), (1, 1, 1, *core), values.shape):
            np.testing.assert_array_equal(
                session.run({"x": values.reshape(given)})["y"], values.reshape(shape)
            )


# --- casting rules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float64", "float32"), ("float32", "float16"), ("float16", "float32"), ("int64", "float32"),
        ("bool", "float32"), ("uint8", "float16"), ("int64", "int32"), ("int64", "int8"), ("int16", "uint8"),
        ("uint64", "int64"), ("int32", "int64"), ("uint16", "int16"), ("bool", "int8"), ("int8", "bool"),
        ("bool", "int64"), ("uint8", "int8"),
    ],
)  # fmt: skip
def test_casts_that_lose_nothing_are_made(tmp_path, source, target):
    given = np.array([0, 1, 1, 0], source)
    with identity(tmp_path, target, [4]) as session:
        found = session.run({"x": given})["y"]
    assert found.dtype == target
    np.testing.assert_array_equal(found, given.astype(target))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"), ("float64", "int64"), ("float16", "uint8"), ("float32", "bool"),
        ("int32", "bool"), ("complex64", "float32"), ("U3", "float32"), ("datetime64[s]", "int64"),
        ("O", "float32"), ("uint8", "bool"),
    ],
)  # fmt: skip
def test_refuses_casts_that_lose(tmp_path, source, target):
    given = np.array(["1", "2"]).astype(source) if source == "U3" else np.array([1, 2]).astype(source)
    with identity(tmp_path, target, [2]) as session:
        with pytest.raises(InputTypeError) as caught:
            session.run({"x": given})
        (hint,) = caught.value.hints
        conversion = re.search(r"numpy\.asarray\(x, '(\w+)'\)", hint)
        # Only real numbers convert.
        assert bool(conversion) == (source not in {"U3", "datetime64[s]", "O", "complex64"})
        if conversion:
            session.run({"x": np.asarray(given, conversion[1])})
    assert isinstance(caught.value, TypeError)
    for text in ("'x'", str(given.dtype), target):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "target"),
    [
        ([-1, 3], "uint8"),
        ([0, 256], "uint8"),
        ([0, 128], "int8"),
        ([2**40, -7], "int32"),
        ([-(2**15) - 1, 0], "int16"),
    ],
)
def test_integers_out_of_range_are_refused_with_both_ends(tmp_path, values, target):
    with identity(tmp_path, target, [2]) as session, pytest.raises(InputError) as caught:
        session.run({"x": np.array(values, np.int64)})
    assert caught.value.code == "input.range"
    for text in ("'x'", str(min(values)), str(max(values)), target):
        assert text in str(caught.value)


def test_uint64_beyond_int64_is_refused(tmp_path):
    with identity(tmp_path, "int64", [1]) as session, pytest.raises(InputError, match=str(2**63)):
        session.run({"x": np.array([2**63], np.uint64)})


@pytest.mark.parametrize("dtype", session_models.TYPES)
@pytest.mark.parametrize("shape", [[], [0], [3], [2, 0, 3], [1, 2, 1, 2, 1, 2, 1, 2]])
def test_every_type_and_rank_passes_through(tmp_path, dtype, shape):
    given = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype)
    with identity(tmp_path, dtype, shape) as session:
        declared = session.model_input_shape_dict["x"]
        assert declared == (declared.shape, declared.dtype) == (tuple(shape), np.dtype(dtype))
        found = session.run({"x": given})["y"]
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    np.testing.assert_array_equal(found, given)


def test_bool_output_is_bool_and_true_is_one(tmp_path):
    built = session_models.model(
        [helper.make_node("Not", ["x"], ["y"])], [("x", "bool", [3])], [("y", "bool", [3])]
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        found = session.run({"x": np.array([True, False, True])})["y"]
    assert found.dtype == np.bool_
    assert found.view(np.uint8).tolist() == [0, 1, 0]


# --- names and shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (2, 5), (), (0,), (2, 4, 2)])
def test_rejects_wrong_number_of_elements(affine, shape):
    with pytest.raises(InputShapeError) as caught:
        affine[0].run({"x": np.zeros(shape, np.float32)})
    assert isinstance(caught.value, ValueError)
    for text in ("'x'", str([*shape]), "[2, 4]", "float32"):
        assert text in str(caught.value)


def test_rejects_missing_inputs_and_lists_all(two):
    with pytest.raises(MissingInputError) as caught:
        two.run({})
    assert isinstance(caught.value, KeyError)
    assert caught.value.context["missing"] == ["a", "b"]
    with pytest.raises(MissingInputError, match="b"):
        two.run({"a": A})


@pytest.mark.parametrize(
    "inputs", [{"a": A, "b": B, "c": B}, {"a": A, "c": B}, {"a": A, 3: B}, {"a": A, "b\0": B}]
)
def test_rejects_unknown_input_and_lists_the_known(two, inputs):
    with pytest.raises(InputError) as caught:
        two.run(inputs)
    assert caught.value.code == "input.unknown_name"
    assert repr(next(name for name in inputs if name not in {"a", "b"})) in str(caught.value)
    assert caught.value.context["known"] == ["a", "b"]


@pytest.mark.parametrize("inputs", [None, [A, B], A, "ab", 3])
def test_rejects_inputs_that_are_no_mapping(two, inputs):
    with pytest.raises(InputTypeError, match=r'"a", "b"'):
        two.run(inputs)


@pytest.mark.parametrize("value", [None, object(), {}, "text", [[1, 2], [3]]])
def test_rejects_values_that_are_no_arrays(affine, value):
    with pytest.raises((InputError, TypeError, ValueError), match=r"x|inhomogeneous"):
        affine[0].run({"x": value})


def test_session_works_after_refusals(two):
    for inputs in ({}, {"a": A}, {"a": A, "b": np.zeros(5, np.int32)}, {"a": A, "b": np.zeros(3)}):
        with pytest.raises(InputError):
            two.run(inputs)
    np.testing.assert_array_equal(two.run({"a": A, "b": B})["sum"], A + B)


# --- outputs --------------------------------------------------------------------------------------


def test_outputs_come_in_binding_order_fresh_and_contiguous(two):
    found = two.run({"b": B, "a": A})
    assert list(found) == ["sum", "diff"]
    again = two.run({"a": A, "b": B})
    for name, array in found.items():
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
        assert not np.shares_memory(array, again[name])
        assert np.frombuffer(array, np.int32).tolist() == array.tolist()


def test_output_names_select(two):
    assert list(two.run({"a": A, "b": B}, output_names=["diff"])) == ["diff"]
    assert list(two.run({"a": A, "b": B}, output_names=("diff", "sum"))) == ["sum", "diff"]
    assert two.run({"a": A, "b": B}, output_names=[]) == {}
    with pytest.raises(InputError, match="product") as caught:
        two.run({"a": A, "b": B}, output_names=["product"])
    assert caught.value.context["known"] == ["sum", "diff"]


def test_out_receives_the_output_and_is_returned(two):
    mine = np.full(3, -1, np.int32)
    found = two.run({"a": A, "b": B}, out={"diff": mine})
    assert found["diff"] is mine
    np.testing.assert_array_equal(mine, A - B)
    np.testing.assert_array_equal(found["sum"], A + B)


def test_out_and_output_names_together(two):
    mine = np.zeros(3, np.int32)
    found = two.run({"a": A, "b": B}, out={"sum": mine}, output_names=["diff"])
    assert list(found) == ["diff"]
    np.testing.assert_array_equal(found["diff"], A - B)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, np.int32), np.zeros((3, 1), np.int32), np.zeros(3, np.int64), np.zeros(6, np.int32)[::2],
        np.zeros(3, ">i4"), np.ndarray(3, np.int32, bytearray(13), offset=1), [0, 0, 0], None,
        np.zeros(3, np.float32), np.frombuffer(bytes(12), np.int32),
    ],
)  # fmt: skip
def test_rejects_out_arrays_that_do_not_fit(two, array):
    with pytest.raises(InputError) as caught:
        two.run({"a": A, "b": B}, out={"sum": array})
    assert caught.value.code == "output.array"
    assert "sum" in str(caught.value)
    assert "int32" in str(caught.value)


def test_rejects_unknown_out_name(two):
    with pytest.raises(InputError, match="product"):
        two.run({"a": A, "b": B}, out={"product": np.zeros(3, np.int32)})


def test_input_array_as_out_of_another_name_is_written_after_it_was_read(two):
    mine = A.copy()
    found = two.run({"a": mine, "b": B}, out={"diff": mine}, output_names=["diff"])
    np.testing.assert_array_equal(found["diff"], A - B)


def test_outputs_never_change_and_outlive_the_session(tmp_path):
    path = session_models.save(tmp_path, session_models.affine(width=64, rows=16))
    session = qaic.Session(path, set_size=1)
    generator = np.random.default_rng(1)
    kept = []
    for _ in range(50):
        found = session.run({"x": generator.random((16, 64), np.float32)})["y"]
        kept.append((found, found.copy()))
    session.reset()
    after_reset = session.run({"x": np.ones((16, 64), np.float32)})["y"]
    kept.append((after_reset, after_reset.copy()))
    del session
    gc.collect()
    for found, copy in kept:
        np.testing.assert_array_equal(found, copy)
        np.negative(found, out=found)  # writable to the end
    assert len({found.ctypes.data for found, _ in kept}) == len(kept)


def test_memory_of_dropped_outputs_is_used_again(tmp_path):
    # The cost per run must not grow; addresses repeat if storage is pooled.
    path = session_models.save(tmp_path, session_models.affine(width=64, rows=16))
    with qaic.Session(path) as session:
        x = np.ones((16, 64), np.float32)
        addresses = {session.run({"x": x})["y"].ctypes.data for _ in range(200)}
    assert len(addresses) < 50


def test_output_that_is_an_input_or_a_constant(tmp_path):
    built = session_models.model(
        [helper.make_node("Identity", ["c"], ["k"]), helper.make_node("Identity", ["x"], ["y"])],
        [("x", "float32", [2])],
        [("k", "float32", [300]), ("y", "float32", [2])],
        {"c": np.arange(300, dtype=np.float32)},
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        x = np.array([1, 2], np.float32)
        first = session.run({"x": x})
        first["k"][:] = -1  # the caller's array, not the program's constant
        first["y"][:] = -1
        second = session.run({"x": x})
    np.testing.assert_array_equal(x, [1, 2])
    np.testing.assert_array_equal(second["k"], np.arange(300))
    np.testing.assert_array_equal(second["y"], [1, 2])


def test_output_larger_than_declared_is_an_error_not_a_cut(tmp_path):
    # The file claims a size for an output whose size depends on data. The claim is right only for some data.
    built = session_models.model(
        [helper.make_node("NonZero", ["x"], ["y"])], [("x", "float32", [4])], [("y", "int64", [1, 2])]
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        np.testing.assert_array_equal(session.run({"x": [0.0, 1, 0, 1]})["y"], [[1, 3]])
        for x in ([1.0, 1, 1, 1], [0.0, 0, 0, 1]):
            with pytest.raises(
                emulated_cards.inference_error(), match=r"NonZero has the shape|its cores failed"
            ):
                session.run({"x": x})
            emulated_cards.end_stuck_inference(session)
        np.testing.assert_array_equal(session.run({"x": [1.0, 1, 0, 0]})["y"], [[0, 1]])


@pytest.mark.parametrize("name", ["größe/π", "名前:0", "🙂", "a b\tc", "x" * 300, "input.1", "%s{}"])
def test_any_name_works(tmp_path, name):
    built = session_models.model(
        [helper.make_node("Neg", [name], [name + "'"])],
        [(name, "float32", [2])],
        [(name + "'", "float32", [2])],
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        assert list(session.model_input_shape_dict) == [name]
        np.testing.assert_array_equal(session.run({name: [1.0, -2.0]})[name + "'"], [-1, 2])
        with pytest.raises(MissingInputError):
            session.run({})


def test_model_without_inputs(tmp_path):
    built = session_models.model(
        [helper.make_node("Neg", ["c"], ["y"])],
        [],
        [("y", "float32", [2])],
        {"c": np.array([1, 2], np.float32)},
    )
    with qaic.Session(session_models.save(tmp_path, built)) as session:
        assert session.model_input_shape_dict == {}
        np.testing.assert_array_equal(session.run({})["y"], [-1, -2])


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("-inf")])
def test_rejects_timeouts_that_are_no_duration(two, timeout):
    with pytest.raises(qaic.errors.OptionError, match="timeout"):
        two.run({"a": A, "b": B}, timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 10, 1e300, float("inf"), 5.5])
def test_timeout_that_does_not_pass_changes_nothing(two, timeout):
    np.testing.assert_array_equal(two.run({"a": A, "b": B}, timeout=timeout)["sum"], A + B)


def test_rejects_a_float_that_would_become_infinite(affine):
    session, _ = affine
    with pytest.raises(InputError, match=r"contains 1e\+300; float32 holds numbers up to 3.40") as caught:
        session.run({"x": np.full((2, 4), 1e300)})
    assert caught.value.code == "input.range"
    session.run({"x": np.full((2, 4), np.inf)})


#: Flags of the buffer protocol: strides, and a promise about the order of the elements.
C_ORDER, FORTRAN_ORDER = 0x38, 0x58


@pytest.mark.parametrize(("rows", "is_refused"), [(3, True), (1, False)])
def test_memory_of_outputs_is_refused_in_an_order_that_it_has_not(tmp_path, rows, is_refused):
    with qaic.Session(session_models.save(tmp_path, session_models.affine(width=4, rows=rows))) as session:
        output = session.run({"x": np.zeros((rows, 4), np.float32)})["y"]
    exporter = getattr(output.base, "obj", output.base)

    def ask(flags):
        view = ctypes.create_string_buffer(256)
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), view, flags)
        ctypes.pythonapi.PyBuffer_Release(view)

    ask(C_ORDER)
    if is_refused:
        with pytest.raises(BufferError, match="in C order"):
            ask(FORTRAN_ORDER)
    else:
        ask(FORTRAN_ORDER)
