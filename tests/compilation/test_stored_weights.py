"""Programs whose weights stay in the container, compared with unstored weights and with float64."""

import json

import ml_dtypes
import numpy as np
import pytest

import qaic
from child_process import run_script
from compiler_oracle import info, model_of, node
from qaic.cli.openqaic.commands.inspect import program_fit
from qaic.compiler.passes import store_weights
from qaic.compiler.passes.fuse_elementwise import ELEMENTWISE
from session_models import save

HIGH, WIDE = 320, 288
ROWS = (1, 2, 7)


@pytest.fixture(autouse=True)
def _programs_of_any_size(monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)
    monkeypatch.setattr(store_weights, "LEAST_FLOAT32", 1)


def matrix(shape=(HIGH, WIDE), seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(rows, nodes=None, more=()):
    nodes = nodes or [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    constants = [("w", matrix()), ("b", matrix((WIDE,), 2)), *more]
    return model_of(nodes, [info("x", [rows, HIGH])], [info("y", [rows, WIDE])], constants)


def answer(path, feeds):
    with qaic.Session(path) as session:
        return session.run(feeds)["y"].astype(np.float32)


def compiled(folder, proto, name, **options):
    path = save(folder, proto)
    return qaic.compile(path, output_dir=folder / name, **options)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "options", [{}, {"convert_to_fp16": True}, {"convert_to_fp16": True, "mxfp6_matmul": True}]
)
def test_product_is_that_of_the_plain_way(tmp_path, rows, options):
    proto = model(rows)
    x = matrix((rows, HIGH), 3)
    stored, plain = (
        compiled(tmp_path, proto, name, **options, **more)
        for name, more in (("stored", {}), ("plain", {"stored_weights": False}))
    )
    plan = qaic.Qpc(stored).plan
    # The activations are rounded.
    operators = [store_weights.PRODUCT, *([ELEMENTWISE] if options else [])]
    assert (plan["own_operators"], plan["version"]) == (operators, 4)
    assert "own_operators" not in qaic.Qpc(plain).plan
    found, expected = answer(stored, {"x": x}), answer(plain, {"x": x})
    size = np.abs(x).astype(np.float64) @ np.abs(matrix()).astype(np.float64)
    bound = 1e-6 * size.max() + (np.spacing(np.abs(expected).astype(np.float16)) if options else 0)
    assert (np.abs(found - expected) <= bound).all()
    if not options:
        exact = x.astype(np.float64) @ matrix().astype(np.float64) + matrix((WIDE,), 2)
        assert (np.abs(found - exact) <= 1e-6 * size).all()


def test_model_of_bfloat16_computes_with_stored_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CPU_FAMILY", "ai200")
    weight = matrix().astype(ml_dtypes.bfloat16)
    nodes = [
        node("Cast", ["x"], ["h"], to=16),
        node("MatMul", ["h", "w"], ["p"]),
        node("Cast", ["p"], ["y"], to=1),
    ]
    import onnx

    tensor = onnx.TensorProto(name="w", data_type=16, dims=weight.shape, raw_data=weight.tobytes())
    proto = model_of(nodes, [info("x", [2, HIGH])], [info("y", [2, WIDE])], [tensor])
    path = compiled(tmp_path, proto, "stored", aic_hw_version="ai200")
    (entry,) = qaic.Qpc(path).plan["initializers"]
    assert (entry["dtype"], entry["layout"]) == ("bfloat16", "tiles")
    x = matrix((2, HIGH), 3).astype(ml_dtypes.bfloat16)
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    found = answer(path, {"x": x.astype(np.float32)})
    assert (np.abs(found - exact) <= np.abs(exact) / 256 + 1e-4).all()


def tied_table(index_type):
    nodes = [
        node("Gather", ["w", "ids"], ["rows"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["rows", "t"], ["y"]),
    ]
    return model_of(nodes, [info("ids", [1, 3], index_type)], [info("y", [1, 3, HIGH])], [("w", matrix())])


@pytest.mark.parametrize("index_type", [6, 7])
@pytest.mark.parametrize("options", [{"convert_to_fp16": True}, {}])
def test_rows_of_a_tied_table_are_gathered(tmp_path, index_type, options):
    path = compiled(tmp_path, tied_table(index_type), "stored", **options)
    assert sorted(qaic.Qpc(path).plan["own_operators"]) == [store_weights.GATHER, store_weights.PRODUCT]
    ids = np.array([[3, HIGH - 1, -1]]).astype(np.int32 if index_type == 6 else np.int64)
    rows = matrix().astype(np.float16).astype(np.float32) if options else matrix()
    exact = rows[ids].astype(np.float64) @ rows.T.astype(np.float64)
    np.testing.assert_allclose(answer(path, {"ids": ids}), exact, rtol=1e-3, atol=2e-2)


@pytest.mark.virtual_card("a failing operator ends the channel of a card with all inferences in flight")
def test_a_row_that_a_table_does_not_have_is_an_error(tmp_path):
    path = compiled(tmp_path, tied_table(7), "stored")
    with qaic.Session(path) as session, pytest.raises(qaic.errors.QaicError, match="index 320 of 320 rows"):
        session.run({"ids": np.full((1, 3), HIGH)})


def test_fit_tells_what_an_inference_reads(tmp_path):
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("MatMul", ["rows", "w"], ["y"]),
    ]
    constants = [("table", matrix((300, HIGH))), ("w", matrix())]
    proto = model_of(nodes, [info("ids", [1, 3], 7)], [info("y", [1, 3, WIDE])], constants)
    path = compiled(tmp_path, proto, "stored", convert_to_fp16=True, mxfp6_matmul=True).path
    weights = program_fit(qaic.Qpc(path), [])["weights"]
    table, product = 2 * 300 * HIGH, 25 * HIGH // 32 * WIDE
    assert weights == {
        "count": (300 + WIDE) * HIGH,
        "bytes": table + product,
        "bytes_per_weight": (table + product) / ((300 + WIDE) * HIGH),
        "read_bytes": product,
    }
    plain = compiled(tmp_path, proto, "plain", stored_weights=False).path
    assert program_fit(qaic.Qpc(plain), [])["weights"] is None


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 32), (8, 64)])
@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}])
def test_packed_weights_are_used_as_they_are_stored(tmp_path, bits, group, has_zeros, options):
    rng = np.random.default_rng(4)
    groups = HIGH // group
    codes = rng.integers(0, 1 << bits, (WIDE, HIGH), np.uint8)
    zeros = rng.integers(0, 1 << bits, (WIDE, groups), np.uint8)
    scales = rng.uniform(0.01, 0.02, (WIDE, groups)).astype(np.float32)

    def packed(numbers):
        if bits == 8:
            return numbers
        even = np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2)))
        return even[:, ::2] | even[:, 1::2] << 4

    constants = [("w", packed(codes).reshape(WIDE, groups, -1)), ("s", scales.reshape(-1))]
    constants += [("z", packed(zeros).reshape(-1))] if has_zeros else []
    product = node(
        "MatMulNBits",
        ["x", "w", "s", *(["z"] if has_zeros else [])],
        ["y"],
        domain="com.microsoft",
        N=WIDE,
        K=HIGH,
        bits=bits,
        block_size=group,
    )
    proto = model_of([product], [info("x", [2, HIGH])], [info("y", [2, WIDE])], constants)
    path = compiled(tmp_path, proto, "stored", **options)
    (entry,) = qaic.Qpc(path.path).plan["initializers"]
    assert (entry["encoding"], entry["group"]) == ({4: "uint4", 8: "int8"}[bits], group)
    x = matrix((2, HIGH), 3)
    shifts = zeros.astype(int) if has_zeros else np.full(zeros.shape, 1 << bits - 1)
    weight = (codes.astype(int) - shifts.repeat(group, axis=1)) * scales.repeat(group, axis=1).astype(
        np.float64
    )
    found = answer(path, {"x": x})
    used = x.astype(np.float16) if options else x
    size = np.abs(used.astype(np.float64)) @ np.abs(weight).T
    exact = used.astype(np.float64) @ weight.T
    bound = 1e-6 * size + (np.abs(exact) / 1024 if options else 0)
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize(
    "options", [{}, {"convert_to_fp16": True}, {"convert_to_fp16": True, "mxfp6_matmul": True}]
)
def test_program_of_before_with_rows_one_by_one_gives_the_same_numbers(tmp_path, monkeypatch, options):
    wide = WIDE + 3
    weight = matrix((HIGH, wide))
    proto = model_of(
        [node("MatMul", ["x", "w"], ["y"])],
        [info("x", [2, HIGH])],
        [info("y", [2, wide])],
        [("w", weight)],
    )
    tiles = compiled(tmp_path, proto, "tiles", **options).path
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store_weights, "TILES", "rows")
    rows = compiled(tmp_path, proto, "rows", **options).path
    monkeypatch.undo()
    entries = [qaic.Qpc(path).plan["initializers"][0] for path in (tiles, rows)]
    assert [entry["layout"] for entry in entries] == ["tiles", "rows"]
    assert entries[0]["size"] * wide == entries[1]["size"] * (wide + 1)
    shown = [np.asarray(qaic.Qpc(path).initializers[entries[0]["name"]]) for path in (tiles, rows)]
    np.testing.assert_array_equal(*shown)
    if not options:
        np.testing.assert_array_equal(shown[0], weight.T)
    x = matrix((2, HIGH), 3)
    np.testing.assert_array_equal(*(answer(path, {"x": x}) for path in (tiles, rows)))


def test_answers_do_not_depend_on_the_number_of_threads(tmp_path):
    x = matrix((7, HIGH), 3)
    found = [
        answer(
            compiled(tmp_path, model(7), f"cores{cores}", convert_to_fp16=True, aic_num_cores=cores), {"x": x}
        )
        for cores in (1, 2)
    ]
    np.testing.assert_array_equal(*found)


PRIVATE = """
import sys
import numpy as np
import qaic

def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) << 10

import gc
def run(path):
    session = qaic.Session(path)
    session.run({"x": np.ones((1, 2048), np.float32)})
    return session

first = run(sys.argv[1])
gc.collect()
before = anonymous()
second = run(sys.argv[2])
print(anonymous() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"convert_to_fp16": True}, {"convert_to_fp16": True, "mxfp6_matmul": True}]
)
def test_loading_makes_no_private_copy_of_weights(tmp_path, options):
    """Stored weights take at most a tenth of a byte per weight; unstored weights take four bytes or more."""
    width = 2048
    paths = []
    for name, count in (("small", 1), ("large", 4)):
        nodes = [node("MatMul", [f"v{at}" if at else "x", f"w{at}"], [f"v{at + 1}"]) for at in range(count)]
        nodes[-1].output[0] = "y"
        constants = [(f"w{at}", matrix((width, width), at)) for at in range(count)]
        proto = model_of(nodes, [info("x", [1, width])], [info("y", [1, width])], constants)
        folder = tmp_path / name
        folder.mkdir()
        paths.append(compiled(folder, proto, "qpc", **options).path)
    private = int(run_script(PRIVATE, *paths, device="cpu").stdout)
    assert private <= 0.1 * 4 * width**2 + (1 << 20)


def changed(source, target, change):
    """Write a container with another plan of the same length."""
    data = bytearray(source.read_bytes())
    start = data.index(b'{"batch"')
    plan, end = json.JSONDecoder().raw_decode(data[start:].decode("latin-1"))
    change(plan)
    text = json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()
    assert len(text) <= end
    data[start : start + end] = text.ljust(end)
    target.write_bytes(data)
    return target


@pytest.mark.virtual_card("the firmware of a card refuses a program only with a status number")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "piles"}, "the layout `piles`, which this release does not support"),
        ({"dims": [WIDE, 328]}, r"184320 bytes of float16 with dims \[288, 328\]; expected 202752 bytes"),
        ({"dims": [WIDE]}, "rows and their length are expected"),
        ({"dims": [-WIDE, -HIGH]}, "rows and their length are expected"),
        ({"dims": [-1, WIDE, HIGH]}, "rows and their length are expected"),
        ({"dims": [1 << 62, 1 << 62]}, "expected dims of a tensor that fits memory"),
        ({"encoding": "mxfp6_e2m3"}, "184320 bytes of mxfp6_e2m3"),
        ({"encoding": "int8", "group": 48}, "groups of 48 elements"),
        ({"offset": 1}, "offset"),
        ({"offset": 1 << 40}, "at offset 1099511627776 is outside constants.bin"),
        ({"dtype": "uint8"}, "found the form `uint8`, which no kernel reads"),
        ({"size": 999}, "999 bytes of float16"),
        ({"name": "v"}, "the plan has no stored weight"),
    ],
)
def test_plan_that_lies_about_weights_is_refused_when_it_is_loaded(tmp_path, change, message):
    path = compiled(tmp_path, model(1), "qpc", convert_to_fp16=True)

    def apply(plan):
        entry = next(one for one in plan["initializers"] if "layout" in one)
        entry.update(change)
        # The segment has no free space.
        plan |= {"producer": "", "effective": {}}

    lying = changed(path.path, tmp_path / "lying.bin", apply)
    with pytest.raises(qaic.errors.QaicError, match=message), qaic.Session(lying) as session:
        session.run({"x": matrix((1, HIGH))})
