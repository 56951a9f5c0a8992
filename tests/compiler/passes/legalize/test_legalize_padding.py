"""Automatic padding: the compiler declares the sizes that the engine computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper

from compiler_oracle import PLACES, info, lowered, model_of, node, run, whole
from qaic.errors import CompileError
from qaic.options.files.specializations import SpecializationEntry

MODES = st.sampled_from(["SAME_UPPER", "SAME_LOWER"])
PLACE = st.sampled_from(sorted(PLACES))


@st.composite
def pool_axes(draw, most=2):
    """Draw size, kernel, stride and dilation of each axis; every window contains elements."""
    axes = []
    for _ in range(draw(st.integers(1, most))):
        edge, stride, step = (draw(st.integers(1, 3)) for _ in range(3))
        axes.append(((edge - 1) * step + 1 + stride + draw(st.integers(0, 4)), edge, stride, step))
    return axes


def pool(op, axes, mode, shape, opset=19, **attributes):
    _, kernel, strides, dilations = zip(*axes, strict=True)
    attributes |= {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "auto_pad": mode}
    nodes = [node(op, ["x"], ["y"], **attributes)]
    return model_of(nodes, [info("x", [1, 2, *shape])], [info("y", None)], opset=opset)


def in_engine(model, x):
    """Run the user's model; None if the engine refuses it."""
    try:
        return run(model, {"x": x}, optimize=False)["y"]
    except Exception:  # noqa: BLE001 - the engine has no exception type of its own
        return None


def compiled(model, x):
    """Compile and run a model, and compare the shape of the result with the declared shape."""
    program = whole(lowered(model))
    declared = [dim.dim_value for dim in program.graph.output[0].type.tensor_type.shape.dim]
    result = run(program, {"x": x}, optimize=False)["y"]
    assert list(result.shape) == declared
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
    over = tuple(range(x.ndim, windows.ndim))
    if op == "MaxPool":
        return np.nanmax(windows, over)
    if op == "LpPool":
        return np.sqrt(np.nansum(windows**2, over))
    is_read = np.isfinite(windows)
    counted = ~np.isinf(windows) if counts_padding else is_read
    return np.where(is_read, windows, 0).sum(over) / counted.sum(over)


@settings(max_examples=80)
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
    has_sizes = original is not None and original.shape[2:] == tuple(
        -(-size // stride) for size, _, stride, _ in axes
    )
    if has_sizes and not (op == "AveragePool" and counts_padding):
        np.testing.assert_array_equal(compiled(model, x), original)
    elif not has_sizes and (original is None or is_too_wide):
        with pytest.raises(CompileError, match="y' ." + op):
            lowered(model)
    else:
        expected = pooled(op, axes, pads, x, counts_padding=counts_padding)
        np.testing.assert_allclose(compiled(model, x), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=80)
@given(pool_axes(3), st.data(), st.booleans(), PLACE, st.sampled_from([19, 22]))
def test_averages_count_the_padding_of_each_end(axes, data, rounds_up, place, opset):
    pads = [tuple(data.draw(st.integers(0, edge - 1)) for _ in range(2)) for _, edge, *_ in axes]
    sizes = [size for size, *_ in axes]
    flat = [end for ends in zip(*pads, strict=True) for end in ends]
    model = pool(
        "AveragePool", axes, "NOTSET", sizes, opset, pads=flat, ceil_mode=int(rounds_up), count_include_pad=1
    )
    x = np.random.default_rng(3).standard_normal((1, 2, *sizes)).astype(np.float32)
    expected = pooled("AveragePool", axes, pads, x, counts_padding=True, rounds_up=rounds_up)
    np.testing.assert_allclose(compiled(PLACES[place](model), x), expected, rtol=1e-5, atol=1e-6)


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
