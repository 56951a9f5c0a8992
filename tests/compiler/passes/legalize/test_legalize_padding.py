"""Automatic padding: the compiler declares the sizes that the engine computes."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

from compiler_oracle import PLACES, as_branches, info, lowered, model_of, node, run, whole
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

MODES = st.sampled_from(["SAME_UPPER", "SAME_LOWER"])
PLACE = st.sampled_from(sorted(PLACES))


@st.composite
def pool_axes(draw, most=2):
    """Draw size, kernel, stride and dilation of each axis; every window contains elements."""
    axes = []
    for _ in range(draw(st.integers(1, most))):
        edge, stride, step = (draw(st.integers(1, most_of)) for most_of in (3, 4, 3))
        axes.append(((edge - 1) * step + 1 + stride + draw(st.integers(0, 4)), edge, stride, step))
    return axes


def pool(op, axes, mode, shape, opset=19, **attributes):
    _, kernel, strides, dilations = zip(*axes, strict=True)
    attributes |= {"kernel_shape": kernel, "strides": strides, "auto_pad": mode}
    if op != "AveragePool" or opset >= 19:
        attributes["dilations"] = dilations
    nodes = [node(op, ["x"], ["y"], **attributes)]
    return model_of(nodes, [info("x", [1, 2, *shape])], [info("y", None)], opset=opset)


def in_engine(model, x):
    """Run the user's model; None if the engine refuses it."""
    try:
        return run(model, {"x": x}, optimize=False)["y"]
    except Exception:  # noqa: BLE001 - the engine has no exception type of its own
        return None


def compiled(model, x):
    """Compile and run a model, and compare the result with its declared shapes.

    The optimizer infers shapes again, and it joins Pad with its reader.
    """
    program = whole(lowered(model))
    declared = [dim.dim_value for dim in program.graph.output[0].type.tensor_type.shape.dim]
    result = run(program, {"x": x}, optimize=False)["y"]
    assert list(result.shape) == declared
    np.testing.assert_allclose(bound(program, x, declared), result, rtol=1e-5, atol=1e-6)
    return result


def bound(program, x, shape):
    """Run a program like a device: optimized, and into a buffer of the declared shape."""
    session = onnxruntime.InferenceSession(program.SerializeToString(), providers=["CPUExecutionProvider"])
    kind = program.graph.output[0].type.tensor_type.elem_type
    result = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result))
    session.run_with_iobinding(binding)
    return result


def paddings(axes, mode):
    """Compute the padding before and after each axis, as ONNX defines it."""
    totals = [
        max((-(-size // stride) - 1) * stride + (edge - 1) * step + 1 - size, 0)
        for size, edge, stride, step in axes
    ]
    halves = [(total // 2, total - total // 2) for total in totals]
    return halves if mode == "SAME_UPPER" else [half[::-1] for half in halves]


def pooled(op, axes, pads, x, *, counts_padding, rounds_up=False):
    """Compute a pool as ONNX defines it."""
    windows = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=np.nan)
    for at, (size, edge, stride, step) in enumerate(axes, 2):
        length = (edge - 1) * step + 1
        count = (windows.shape[at] - length) // stride + 1
        if rounds_up:
            # The last window starts before the padding that follows the elements.
            count = min(
                -(-(windows.shape[at] - length) // stride) + 1, -(-(pads[at - 2][0] + size) // stride)
            )
        beyond = max((count - 1) * stride + length - windows.shape[at], 0)
        widths = [(0, beyond if axis == at else 0) for axis in range(windows.ndim)]
        # Elements in the padding at the end do not count.
        windows = np.pad(windows, widths, constant_values=np.inf)
        windows = sliding_window_view(windows, length, at)[..., ::step]
        windows = windows[(slice(None),) * at + (slice(None, count * stride, stride),)]
    over, is_read = tuple(range(x.ndim, windows.ndim)), np.isfinite(windows)
    if op == "MaxPool":
        return np.where(is_read, windows, -np.inf).max(over)
    if op == "LpPool":
        return np.sqrt((np.where(is_read, windows, 0) ** 2).sum(over))
    counted = ~np.isinf(windows) if counts_padding else is_read
    return np.where(is_read, windows, 0).sum(over) / counted.sum(over)


@settings(max_examples=80)
@example("MaxPool", [(4, 1, 2, 1)], "SAME_UPPER", False, False, "graph", 19)
@example("AveragePool", [(7, 2, 3, 3)], "SAME_UPPER", True, True, "function", 19)
@example("AveragePool", [(5, 2, 1, 3)], "SAME_UPPER", False, True, "graph", 22)
@given(
    st.sampled_from(["AveragePool", "LpPool", "MaxPool"]),
    pool_axes(),
    MODES,
    st.booleans(),
    st.booleans(),
    PLACE,
    st.sampled_from([19, 22]),
)
def test_any_pool_has_the_sizes_of_onnx(op, axes, mode, rounds_up, counts_padding, place, opset):
    attributes = {"count_include_pad": int(counts_padding)} if op == "AveragePool" else {}
    sizes = [size for size, *_ in axes]
    model = pool(op, axes, mode, sizes, opset, ceil_mode=int(rounds_up), **attributes)
    x = np.random.default_rng(3).standard_normal((1, 2, *sizes)).astype(np.float32)
    original = in_engine(model, x)
    model = PLACES[place](model)
    pads = paddings(axes, mode)
    is_too_wide = any(max(ends) >= edge for ends, (_, edge, *_) in zip(pads, axes, strict=True))
    # The engine refuses such a pool, or begins with another element than the first.
    leaves_out = any(
        (edge - 1) * step + 1 - (size % stride or stride) < (-1 if op == "LpPool" else 0)
        for size, edge, stride, step in axes
    )
    has_sizes = original is not None and original.shape[2:] == tuple(
        -(-size // stride) for size, _, stride, _ in axes
    )
    is_counted = op == "AveragePool" and counts_padding
    if has_sizes and not leaves_out and not is_counted:
        np.testing.assert_array_equal(compiled(model, x), original)
    elif not is_counted and is_too_wide and (leaves_out or not has_sizes):
        with pytest.raises(CompileError, match="y' ." + op):
            lowered(model)
    else:
        expected = pooled(op, axes, pads, x, counts_padding=counts_padding)
        np.testing.assert_allclose(compiled(model, x), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=80)
@given(pool_axes(3), st.data(), st.booleans(), PLACE, st.sampled_from([10, 11, 18, 19, 22]))
def test_averages_count_the_padding_of_each_end(axes, data, rounds_up, place, opset):
    if opset < 19:
        axes = [(size, edge, stride, 1) for size, edge, stride, _ in axes]
    pads = [tuple(data.draw(st.integers(0, edge - 1)) for _ in range(2)) for _, edge, *_ in axes]
    sizes = [size for size, *_ in axes]
    flat = [end for ends in zip(*pads, strict=True) for end in ends]
    model = pool(
        "AveragePool", axes, "NOTSET", sizes, opset, pads=flat, ceil_mode=int(rounds_up), count_include_pad=1
    )
    x = np.random.default_rng(3).standard_normal((1, 2, *sizes)).astype(np.float32)
    expected = pooled("AveragePool", axes, pads, x, counts_padding=True, rounds_up=rounds_up)
    np.testing.assert_allclose(compiled(PLACES[place](model), x), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=60)
@given(
    st.sampled_from(["AveragePool", "MaxPool"]),
    pool_axes(),
    st.data(),
    st.sampled_from([*PLACES.values(), as_branches]),
    st.sampled_from([11, 18, 19, 22]),
)
def test_rounded_up_pools_behind_a_convolution_have_the_declared_sizes(op, axes, data, place, opset):
    """The engine infers sizes again if it computes both nodes in blocks of channels."""
    axes = [(size, edge, stride, 1) for size, edge, stride, _ in axes]
    ends = [tuple(data.draw(st.integers(0, edge - 1)) for _ in range(2)) for _, edge, *_ in axes]
    counts_padding = op == "AveragePool" and data.draw(st.booleans())
    attributes = {"pads": [end for pair in zip(*ends, strict=True) for end in pair], "ceil_mode": 1}
    if counts_padding:
        attributes["count_include_pad"] = 1
    x = np.random.default_rng(3).standard_normal((1, 2, *(size for size, *_ in axes))).astype(np.float32)
    model = pool(op, axes, "NOTSET", x.shape[2:], opset, **attributes)
    model.graph.node[0].input[0] = "c"
    model.graph.node.insert(0, node("Conv", ["x", "w"], ["c"]))
    weights = -np.eye(2, dtype=np.float32).reshape(2, 2, *(1 for _ in axes))
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    expected = pooled(op, axes, ends, -x, counts_padding=counts_padding, rounds_up=True)
    np.testing.assert_allclose(compiled(place(model), x), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=60)
@given(
    st.sampled_from(["AveragePool", "MaxPool"]),
    pool_axes(),
    st.data(),
    st.sampled_from([0, -1.5]),
    st.booleans(),
    PLACE,
    st.sampled_from([11, 18, 19, 22]),
)
def test_pools_read_the_numbers_of_a_pad(op, axes, data, number, rounds_up, place, opset):
    axes = [(size, edge, stride, 1) for size, edge, stride, _ in axes]
    ends = [tuple(data.draw(st.integers(0, edge - 1)) for _ in range(2)) for _, edge, *_ in axes]
    x = np.random.default_rng(3).standard_normal((1, 2, *(size for size, *_ in axes))).astype(np.float32) - 1
    wide = np.pad(x, [(0, 0), (0, 0), *ends], constant_values=number)
    around = [0, 0, *(end for end, _ in ends), 0, 0, *(end for _, end in ends)]
    model = pool(op, axes, "NOTSET", x.shape[2:], opset, ceil_mode=int(rounds_up))
    model.graph.node[0].input[0] = "wide"
    model.graph.node.insert(0, node("Pad", ["x", "around", "number"], ["wide"]))
    constants = {"around": np.array(around), "number": np.float32(number)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    axes = [(size, *axis[1:]) for size, axis in zip(wide.shape[2:], axes, strict=True)]
    expected = pooled(op, axes, [(0, 0) for _ in axes], wide, counts_padding=False, rounds_up=rounds_up)
    np.testing.assert_allclose(compiled(PLACES[place](model), x), expected, rtol=1e-5, atol=1e-6)


@example("AveragePool", [(1, 2, 3, 2)], True, True)
@example("MaxPool", [(1, 2, 3, 2), (2, 1, 2, 1)], True, True)
@given(
    st.sampled_from(["AveragePool", "LpPool", "MaxPool"]),
    st.lists(st.tuples(*[st.integers(1, most) for most in (9, 3, 3, 3)]), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_any_pool_without_padding_has_the_sizes_of_the_engine(op, axes, rounds_up, is_quantized):
    sizes = [size for size, *_ in axes]
    model = pool(op, axes, "VALID", sizes, ceil_mode=int(rounds_up))
    if is_quantized:
        # onnx does not infer the sizes of the result, so the engine infers them.
        model.graph.node[0].output[0] = "pooled"
        model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]))
        model.graph.initializer.append(helper.make_tensor("zero", TensorProto.UINT8, [], [128]))
        for name, reads, makes in (("QuantizeLinear", "pooled", "q"), ("DequantizeLinear", "q", "y")):
            model.graph.node.append(node(name, [reads, "scale", "zero"], [makes], domain="com.microsoft"))
    x = np.random.default_rng(3).standard_normal((1, 2, *sizes)).astype(np.float32)
    original = in_engine(model, x)
    if original is None:
        with pytest.raises(CompileError):
            lowered(model)
    else:
        np.testing.assert_array_equal(compiled(model, x), original)


@settings(max_examples=60)
@given(
    st.sampled_from(["Conv", "ConvInteger", "QLinearConv"]),
    st.lists(st.tuples(*[st.integers(1, most) for most in (9, 3, 5, 2)]), min_size=1, max_size=2),
    MODES,
    PLACE,
)
def test_any_convolution_begins_with_the_element_of_onnx(op, axes, mode, place):
    sizes, kernel, strides, dilations = zip(*axes, strict=True)
    kind = np.float32 if op == "Conv" else np.uint8
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 4, (1, 2, *sizes)).astype(kind), rng.integers(0, 4, (3, 2, *kernel)).astype(kind)
    one, zero = ("one", np.float32(1)), ("zero", np.uint8(0))
    operands = ["x", "one", "zero", "w", "one", "zero", "one", "zero"] if op == "QLinearConv" else ["x", "w"]
    windows = np.pad(x, [(0, 0), (0, 0), *paddings(axes, mode)])
    for at, (_, edge, stride, step) in enumerate(axes, 2):
        windows = sliding_window_view(windows, (edge - 1) * step + 1, at)[..., ::step]
        windows = windows[(slice(None),) * at + (slice(None, None, stride),)]
    image, block = "xyz"[: len(axes)], "abc"[: len(axes)]
    expected = np.einsum(f"nc{image}{block},oc{block}->no{image}", windows.astype(int), w.astype(int))
    made = {"Conv": TensorProto.FLOAT, "ConvInteger": TensorProto.INT32, "QLinearConv": TensorProto.UINT8}[op]
    model = model_of(
        [node(op, operands, ["y"], strides=strides, dilations=dilations, auto_pad=mode)],
        [info("x", x.shape, helper.np_dtype_to_tensor_dtype(np.dtype(kind)))],
        [info("y", None, made)],
        [("w", w), *([one, zero] if op == "QLinearConv" else [])],
    )
    found = compiled(PLACES[place](model), x)
    np.testing.assert_array_equal(found, np.minimum(expected, 255) if op == "QLinearConv" else expected)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2)
        ),
        min_size=1,
        max_size=2,
    ),
    MODES,
    st.booleans(),
    PLACE,
)
def test_any_transposed_convolution_is_that_of_the_engine(axes, mode, states_kernel, place):
    sizes, kernel, strides, dilations, drawn = zip(*axes, strict=True)
    # Older engines do not compute the elements that a larger output padding adds.
    added = [more % stride for more, stride in zip(drawn, strides, strict=True)]
    attributes = {"strides": strides, "dilations": dilations, "output_padding": added, "auto_pad": mode}
    if states_kernel:
        attributes["kernel_shape"] = kernel
    rng = np.random.default_rng(3)
    model = model_of(
        [node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        [info("x", [1, 2, *sizes])],
        [info("y", None)],
        [("w", rng.standard_normal((2, 3, *kernel)).astype(np.float32))],
    )
    x = rng.standard_normal((1, 2, *sizes)).astype(np.float32)
    original = run(model, {"x": x}, optimize=False)["y"]
    np.testing.assert_array_equal(compiled(PLACES[place](model), x), original)


def transposed(x, w, axes, sizes, is_upper):
    """Compute a ConvTranspose with results of some sizes as ONNX defines it."""
    full = np.zeros((1, w.shape[1], *(40 for _ in axes)), np.float64)
    begins = []
    for (size, edge, stride, step), result in zip(axes, sizes, strict=True):
        total = (size - 1) * stride + (edge - 1) * step + 1 - result
        begins.append(total // 2 if is_upper else total - total // 2)
    for place in np.ndindex(*x.shape[2:]):
        part = np.einsum("c,co...->o...", x[(0, slice(None), *place)].astype(np.float64), w)
        spans = [
            slice(at * stride, at * stride + (edge - 1) * step + 1, step)
            for at, (_, edge, stride, step) in zip(place, axes, strict=True)
        ]
        full[(0, slice(None), *spans)] += part
    return full[(..., *(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)))]


#: operators for which inference needs the rank of their operand, each with what it computes
READERS = {
    "Identity": (lambda _: {}, lambda y: y),
    "MaxPool": (lambda rank: {"kernel_shape": [1] * (rank - 2)}, lambda y: y),
    "Transpose": (lambda rank: {"perm": list(range(rank))[::-1]}, np.transpose),
}


@settings(max_examples=60)
@given(
    st.lists(st.tuples(*[st.integers(1, most) for most in (6, 3, 3, 2)]), min_size=1, max_size=2),
    st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER"]),
    st.data(),
    st.sampled_from(sorted(READERS)),
    st.booleans(),
    PLACE,
)
def test_results_of_a_transposed_convolution_have_the_stated_sizes(
    axes, mode, data, reader, states_kernel, place
):
    """Onnxruntime 1.22 ends the process for some of these readers, so numpy computes the expected results."""
    image, kernel, strides, dilations = zip(*axes, strict=True)
    wholes = [(size - 1) * stride + (edge - 1) * step + 1 for size, edge, stride, step in axes]
    sizes = [data.draw(st.integers(1, whole)) for whole in wholes]
    # A second node reads the result of the first.
    again = [data.draw(st.integers(1, size)) for size in sizes]
    attributes, computed = READERS[reader]
    own = {"kernel_shape": kernel} if states_kernel else {}
    own |= {"strides": strides, "dilations": dilations}
    nodes = [
        node("ConvTranspose", ["x", "w"], ["t"], output_shape=sizes, auto_pad=mode, **own),
        node("ConvTranspose", ["t", "one"], ["u"], output_shape=again),
        node(reader, ["u"], ["y"], **attributes(len(axes) + 2)),
    ]
    rng = np.random.default_rng(3)
    x, w, one = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in ((1, 2, *image), (2, 3, *kernel), (3, 1, *(1 for _ in axes)))
    )
    model = model_of(nodes, [info("x", x.shape)], [info("y", None)], [("w", w), ("one", one)])
    first = transposed(x, w, axes, sizes, mode == "SAME_UPPER")
    second = transposed(first, one, [(size, 1, 1, 1) for size in sizes], again, is_upper=False)
    np.testing.assert_array_equal(compiled(PLACES[place](model), x), computed(second))


@pytest.mark.parametrize("sizes", [[4, 2], [4, 5]])
def test_sets_of_sizes_share_the_stated_sizes(sizes):
    w = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    nodes = [
        node("ConvTranspose", ["x", "w"], ["t"], output_shape=[3]),
        node("Transpose", ["t"], ["y"], perm=[2, 1, 0]),
    ]
    model = model_of(nodes, [info("x", [1, 2, "n"])], [info("y", None)], [("w", w)])
    entries = tuple(SpecializationEntry(f"n{size}", {"n": size}) for size in sizes)
    program = whole(lowered(model, network_specialization_config=entries))
    for size in sizes:
        x = np.arange(2 * size, dtype=np.float32).reshape(1, 2, size)
        expected = transposed(x, w, [(size, 2, 1, 1)], [3], is_upper=False).T
        np.testing.assert_array_equal(run(program, {"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("stride", "sizes", "is_refused"),
    [
        (2, [6, 8], False),
        (2, [6, 7], True),
        (1, [6, 7], False),
        # Shapes are inferred for a few of many sets of sizes.
        (1, range(6, 24), False),
        (2, [6, 9, *range(8, 40, 2)], True),
    ],
)
def test_sets_of_sizes_share_the_padding(stride, sizes, is_refused):
    model = pool("MaxPool", [(None, 2, stride, 2)], "SAME_UPPER", ["n"])
    entries = tuple(SpecializationEntry(f"n{size}", {"n": size}) for size in sizes)
    if is_refused:
        with pytest.raises(
            CompileError, match=r"y' .MaxPool.: found sizes .* which auto_pad pads differently"
        ):
            lowered(model, network_specialization_config=entries)
        return
    program = whole(lowered(model, network_specialization_config=entries))
    for size in sizes:
        result = run(program, {"x": np.zeros((1, 2, size), np.float32)})["y"]
        assert result.shape[2] == -(-size // stride)
