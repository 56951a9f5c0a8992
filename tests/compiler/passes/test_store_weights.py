"""Products and gathers that read their weights from the container, and the layout of the weights."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler_oracle import info, model_of, node
from qaic import _core
from qaic.compiler.ir.constants.packed import MXFP6, MXFP6_OF_FLOAT16
from qaic.compiler.ir.constants.weights import MemoryRange, read_all
from qaic.compiler.ir.graph_walk import DEVICE_DOMAIN
from qaic.compiler.passes import store_weights
from qaic.compiler.passes.emulation.mxfp6_weights import mxfp6_source
from single_pass import applied, before, ops, skipped

NAME = "store-weights"
#: Not square, and not a multiple of a unit.
WIDE, HIGH = 300, 264
HALF = {"convert_to_fp16": True}


@pytest.fixture(autouse=True)
def _programs_of_any_size(monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)
    monkeypatch.setattr(store_weights, "LEAST_FLOAT32", 1)


def weight(shape=(HIGH, WIDE), dtype=np.float32):
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def product(nodes, shape=(HIGH, WIDE), rows=2, more=()):
    return model_of(nodes, [info("x", [rows, HIGH])], [info("y", None)], [("w", weight(shape)), *more])


def stored_of(model):
    return [weight for weight in model.weights.values() if weight.layout is not None]


def attributes(made):
    return {a.name: a.s.decode() if a.type == a.STRING else a.i for a in made.attribute}


def rewritten(proto, **options):
    model, context = before(NAME, proto, **options)
    return model, applied(NAME, model, context)


def in_order(data, rows, units):
    """Collect the units of each row one by one; the units of four rows are interleaved."""
    size = len(data) // (-(-rows // 4) * 4 * units)
    places = ((row // 4 * units + index) * 4 + row % 4 for row in range(rows) for index in range(units))
    return b"".join(bytes(data[place * size : (place + 1) * size]) for place in places)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("MatMul", ["x", "w"], ["y"])], (HIGH, WIDE)),
        ([node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])], (WIDE, HIGH)),
        ([node("Gemm", ["x", "w"], ["y"])], (HIGH, WIDE)),
        ([node("Gemm", ["x", "w"], ["y"], transB=1)], (WIDE, HIGH)),
    ],
)
@pytest.mark.parametrize("options", [{}, HALF, {**HALF, "mxfp6_matmul": True}])
def test_rows_are_stored_along_the_sum(nodes, shape, options):
    model, is_changed = rewritten(product(nodes, shape), **options)
    assert is_changed
    (found,) = stored_of(model)
    assert (found.dims, found.layout.name) == ((WIDE, HIGH), "tiles")
    data = read_all(found.source)
    assert len(data) == found.source.nbytes
    data = in_order(data, WIDE, -(-HIGH // 32))
    rows = weight(shape) if shape[0] == WIDE else weight(shape).T
    if found.blocks is not None:
        assert data == _core.mx_encode(np.ascontiguousarray(rows), MXFP6)
    else:
        dtype = np.float16 if options else np.float32
        values = np.frombuffer(data, dtype).reshape(WIDE, -1)
        np.testing.assert_array_equal(values[:, :HIGH], rows.astype(dtype))
        assert values.shape[1] % 32 == 0
        assert not values[:, HIGH:].any()
    made = next(one for one in model.proto.graph.node if one.op_type == store_weights.PRODUCT)
    assert attributes(made) == {"weight": found.name, "rounding": 10 if options else 1}
    assert set(ops(model)) <= {store_weights.PRODUCT, "Cast"}


def test_bias_and_rounding_belong_to_the_product():
    bias = ("b", weight((WIDE,)))
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["b", "p"], ["q"]), node("Tanh", ["q"], ["y"])]
    model, _ = rewritten(product(nodes, more=[bias]), **HALF)
    made = next(one for one in model.proto.graph.node if one.op_type == store_weights.PRODUCT)
    assert (len(made.input), attributes(made)["rounding"]) == (2, 10)
    assert "Add" not in ops(model)


def test_an_addend_that_is_computed_stays():
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("MatMul", ["x", "w"], ["q"]),
        node("Add", ["q", "p"], ["y"]),
    ]
    model, _ = rewritten(product(nodes))
    assert "Add" in ops(model)
    assert len(stored_of(model)) == 1


def test_rounded_value_that_is_read_narrow_too_stays():
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["y"]), node("Neg", ["p"], ["z"])]
    proto = model_of(
        nodes, [info("x", [2, HIGH])], [info("y", None), info("z", None), info("p", None)], [("w", weight())]
    )
    model, is_changed = rewritten(proto, **HALF)
    assert is_changed
    assert {value.name for value in model.proto.graph.output} == {"y", "z", "p"}


def test_table_of_a_gather_and_a_product_is_stored_once():
    """Tied embeddings: a gather reads the rows over which the product sums."""
    nodes = [
        node("Gather", ["w", "ids"], ["rows"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["rows", "t"], ["y"]),
    ]
    proto = model_of(nodes, [info("ids", [1, 3], 6)], [info("y", None)], [("w", weight((WIDE, HIGH)))])
    model, _ = rewritten(proto, **HALF)
    (found,) = stored_of(model)
    assert found.dims == (WIDE, HIGH)
    made = [one for one in model.proto.graph.node if one.domain == DEVICE_DOMAIN]
    assert {one.op_type for one in made} == {store_weights.PRODUCT, store_weights.GATHER}
    assert {attributes(one)["weight"] for one in made} == {found.name}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("MatMul", ["x", "w"], ["p"]), node("Relu", ["w"], ["y"])],
        [node("Gemm", ["x", "w"], ["y"], alpha=0.5)],
        [node("Gemm", ["w", "x"], ["y"], transA=1, transB=1)],
        [node("MatMul", ["x", "w"], ["p"]), node("Gather", ["w", "i"], ["y"], axis=1)],
    ],
)
def test_weight_with_another_reader_stays_with_the_engine(nodes):
    more = [("i", np.array([0, 1]))]
    model, is_changed = rewritten(product(nodes, more=more), **HALF)
    assert not is_changed
    assert not stored_of(model)


def test_reasons_for_products_that_stay_are_reported(monkeypatch):
    proto = product([node("Gemm", ["x", "w"], ["y"], name="scaled", alpha=0.5)])
    assert skipped(NAME, *before(NAME, proto, **HALF)) == [
        f"{NAME} left 1 node (first 'scaled'): a reader needs a large weight as a tensor"
    ]
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", HIGH * WIDE + 1)
    both = product([node("MatMul", ["x", "w"], [name], name=name) for name in ("y", "z")])
    assert skipped(NAME, *before(NAME, both, **HALF)) == [
        f"{NAME} left 2 nodes (first 'y'): the weights of the program are small"
    ]


def test_small_weights_stay_with_the_engine():
    model, is_changed = rewritten(product([node("MatMul", ["x", "w"], ["y"])], (HIGH, 200)), **HALF)
    assert not is_changed
    assert not model.own_operators


@pytest.mark.parametrize("options", [{}, HALF])
@pytest.mark.parametrize(("rows", "is_stored"), [(1, True), (16, True), (17, False)])
def test_products_with_many_rows_stay_with_the_engine(rows, is_stored, options, monkeypatch):
    """The engine computes these products unless copies of their weights would take gigabytes."""
    proto = product([node("MatMul", ["x", "w"], ["y"])], rows=rows)
    assert rewritten(proto, **options)[1] is is_stored
    monkeypatch.setattr(store_weights, "MANY_ELEMENTS", HIGH * WIDE)
    assert rewritten(proto, **options)[1]


def test_program_that_fits_the_caches_stays_with_the_engine(monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", HIGH * WIDE + 1)
    assert not rewritten(product([node("MatMul", ["x", "w"], ["y"])]))[1]


@pytest.mark.parametrize(
    ("options", "is_stored"), [({}, False), (HALF, True), ({"mxfp6_matmul": True}, True)]
)
def test_float32_weights_stay_with_the_engine_in_programs_of_usual_size(options, is_stored, monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_FLOAT32", HIGH * WIDE + 1)
    assert rewritten(product([node("MatMul", ["x", "w"], ["y"])]), **options)[1] is is_stored


def test_plain_way_can_be_asked_for():
    _, context = before(NAME, product([node("MatMul", ["x", "w"], ["y"])]), stored_weights=False)
    assert not store_weights.store_weights_pass.is_needed(context)


@given(st.integers(-30, 12))
def test_blocks_of_a_float16_product_decode_to_float16(exponent):
    """Numbers below the range of float16 also decode to their float16 values."""
    values = weight((3, 64)) * np.float32(2.0**exponent)
    source = mxfp6_source(MemoryRange(values.tobytes()), 1, (3, 64), "w", moved=False)
    plain, half = (
        np.frombuffer(_core.mx_decode(read_all(replace(source, code=code)), (3, 64), MXFP6), np.float32)
        for code in (MXFP6, MXFP6_OF_FLOAT16)
    )
    np.testing.assert_array_equal(half, plain.astype(np.float16).astype(np.float32))


def test_blocks_decode_as_those_of_ml_dtypes():
    """All six-bit elements, with the smallest and largest exponents and some between them."""
    codes = np.arange(64, dtype=np.uint8)
    elements = codes.view(ml_dtypes.float6_e2m3fn).astype(np.float64)
    for exponent in (0, 1, 106, 127, 240, 241, 254):
        packed = sum(int(code) << 6 * place for place, code in enumerate(codes))
        data = packed.to_bytes(48, "little")
        blocks = b"".join(bytes([exponent]) + data[at : at + 24] for at in (0, 24))
        found = _core.mx_decode(blocks, (64,), MXFP6)
        with np.errstate(over="ignore"):
            expected = (elements * 2.0 ** (exponent - 127)).astype(np.float32)
        np.testing.assert_array_equal(found, expected)
