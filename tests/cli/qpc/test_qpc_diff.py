"""``qaic-qpc diff`` reports every kind of difference, no others, and an error for hostile files."""

import json

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qaic.cli import qpc as tool
from qaic.cli.qpc.diff import _content, diff_text, differences
from qaic.compiler.driver import compile_model
from qaic.errors import QpcError
from qaic.options import resolve
from qaic.qpc import Qpc
from qpc_support import DATA, FIXTURES, HOSTILE, container, program


def model(weight, *, kind="Relu", name="y", outputs=("y",), attributes=None, extra=()):
    """y = kind(x @ weight)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node(kind, ["product"], [name], **(attributes or {})),
        *extra,
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", weight.shape[0]])],
        [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", weight.shape[1]])
            for output in outputs
        ],
        initializer=[numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHT = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)


@pytest.fixture
def compiled(tmp_path):
    count = 0

    def build(proto, **options):
        nonlocal count
        count += 1
        path = tmp_path / f"model{count}.onnx"
        onnx.save(proto, path)
        resolved = resolve(
            {"onnx_define_symbol": {"batch": 2}, **options}, options_path=None, model_is_container=False
        )
        return compile_model(
            path, resolved.compile, resolved.set_compile, output_dir=tmp_path / f"out{count}"
        ).rename(tmp_path / f"{count}.bin")

    return build


def diff(a, b, capsys):
    code = tool.main(["diff", str(a), str(b), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["same"] else 1)
    return found


def test_equal_containers_have_no_difference(compiled, capsys):
    a, b = compiled(model(WEIGHT)), compiled(model(WEIGHT.copy()))
    found = diff(a, b, capsys)
    assert found["same"]
    assert tool.main(["diff", str(a), str(b)]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_options_are_compared_as_set_and_in_effect(compiled, capsys):
    a = compiled(model(WEIGHT))
    b = compiled(model(WEIGHT), convert_to_fp16=True, aic_num_cores=4)
    found = diff(a, b, capsys)
    assert found["options"]["set"] == {"convert_to_fp16": [None, True], "aic_num_cores": [None, 4]}
    assert found["options"]["effective"]["convert_to_fp16"][1] is True
    assert found["program"]["cores"] == [1, 4]
    # The weights are stored as float16, under another name.
    assert found["constants"]["removed"] == ["w"]
    assert found["graph"]["operators"]["Cast"][0] == 0


@given(st.integers(0, WEIGHT.size - 1), st.floats(-4, 4, width=32).filter(bool))
def test_content_of_constants(at, step):
    changed = WEIGHT.copy()
    changed.reshape(-1)[at] += np.float32(step)
    found = _content(WEIGHT, changed)
    distance = abs(float(changed.reshape(-1)[at]) - float(WEIGHT.reshape(-1)[at]))
    if distance:
        assert found == {"different": 1, "of": WEIGHT.size, "max_abs_difference": distance}
    else:
        assert found == {}


def test_content_beyond_one_piece_and_without_numbers(monkeypatch):
    monkeypatch.setattr("qaic.cli.qpc.diff.PIECE", 256)
    a = np.zeros(1000, np.float32)
    b = a.copy()
    b[[1, 500, 999]] = [2.0, np.nan, -3.0]
    assert _content(a, b) == {"different": 3, "of": 1000, "max_abs_difference": 3.0}
    assert _content(b, b.copy()) == {}
    integers = np.arange(1000, dtype=np.int64)
    assert _content(integers, integers[::-1].copy()) == {"different": 1000, "of": 1000}


def test_weights_that_changed(compiled, capsys):
    other = WEIGHT.copy()
    other[0, :2] += [0.5, -0.25]
    found = diff(compiled(model(WEIGHT)), compiled(model(other)), capsys)
    assert found["constants"] == {"changed": {"w": {"different": 2, "of": 2048, "max_abs_difference": 0.5}}}
    assert found["graph"] == {}
    assert set(found["segments"]["changed"]) == {"constants.bin", "constants.bin.crc"}


def test_weights_stored_in_another_format_are_compared_as_well(tmp_path, capsys):
    paths = []
    for name, more, step in (("a", {}, 0.0), ("b", {"axis": 0}, 0.5)):
        values = np.arange(4, dtype=np.float32)
        values[2] += step
        record = {"name": "w", "dtype": "float32", "dims": [4], "offset": 0, "size": 16, **more}
        paths.append(tmp_path / name)
        paths[-1].write_bytes(container(program(constants=values.tobytes(), plan={"initializers": [record]})))
    assert diff(*paths, capsys)["constants"]["changed"] == {
        "w": {"axis": [None, 0], "different": 1, "of": 4, "max_abs_difference": 0.5}
    }
    tool.main(["diff", *map(str, paths)])
    line = "  w: 1 of 4 elements differ, by at most 0.5; axis  (none) -> 0"
    assert line in capsys.readouterr().out.splitlines()


def test_small_constants_are_compared_as_well(compiled, capsys):
    def with_bias(value):
        proto = model(WEIGHT, name="r", extra=[helper.make_node("Add", ["r", "bias"], ["y"])])
        proto.graph.initializer.append(numpy_helper.from_array(np.full(64, value, np.float32), "bias"))
        return proto

    found = diff(compiled(with_bias(1.0)), compiled(with_bias(3.0)), capsys)
    assert found["constants"]["changed"]["bias"] == {"different": 64, "of": 64, "max_abs_difference": 2.0}


def test_shapes_of_weights_and_of_bindings(compiled, capsys):
    found = diff(compiled(model(WEIGHT)), compiled(model(WEIGHT[:, :32].copy())), capsys)
    assert found["constants"]["changed"]["w"] == {"dims": [[32, 64], [32, 32]]}
    assert found["bindings"]["inputs"] == {}
    assert found["bindings"]["outputs"]["changed"]["y"]["shape"] == [[2, 64], [2, 32]]


def test_operators_nodes_and_attributes(compiled, capsys):
    def leaky(alpha):
        return model(WEIGHT, kind="LeakyRelu", attributes={"alpha": alpha})

    found = diff(compiled(leaky(0.5)), compiled(leaky(0.25)), capsys)
    assert found["graph"] == {"changed": {"y": {"attribute alpha": [0.5, 0.25]}}}

    found = diff(compiled(leaky(0.5)), compiled(model(WEIGHT)), capsys)
    assert found["graph"]["operators"] == {"LeakyRelu": [1, 0], "Relu": [0, 1]}
    assert found["graph"]["changed"]["y"]["operator"] == ["LeakyRelu", "Relu"]

    longer = model(WEIGHT, outputs=("y", "z"), extra=[helper.make_node("Exp", ["y"], ["z"])])
    found = diff(compiled(model(WEIGHT)), compiled(longer), capsys)
    assert found["graph"]["added"] == ["z (Exp)"]
    assert found["bindings"]["outputs"] == {"added": ["z"]}


def test_specializations(compiled, capsys):
    def sized(*sizes):
        entries = {"specializations": [{"batch": size} for size in sizes]}
        return compiled(model(WEIGHT), onnx_define_symbol=None, network_specialization_config=entries)

    a, b = sized(1, 2), sized(1, 4)
    assert diff(a, b, capsys)["shapes"] != []
    assert tool.main(["diff", str(a), str(b)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("allowed shapes") + 1 :][:2] == ["  - x 2x32, y 2x64", "  + x 4x32, y 4x64"]
    assert "  set: network_specialization_config[1].symbols.batch  2 -> 4" in lines


def test_sets_of_shapes_are_named_once_for_each_side():
    def shown(a, b):
        return diff_text({"problems": [], "same": False, "shapes": [a, b]}).splitlines()[1:]

    one, two, three = ({"x": [size, 8], "mask": [1]} for size in (1, 2, 3))
    assert shown([one, two], [two, three]) == ["  - x 1x8", "  + x 3x8"]
    assert shown([one, two], [two, one]) == ["  the same in another order or number"]
    assert shown([], [one, two]) == ["  + x 1x8", "  + x 2x8"]
    assert shown([], [one]) == ["  + x 1x8, mask 1"]
    many = [{"x": [size]} for size in range(50)]
    assert len(shown(many[:1], many)) == 21


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "1", "a, b", "a=b", "x" * 300])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_sides_that_differ_have_different_texts(before, after):
    changes = {} if before == after else {"option": [before, after]}
    shown = {"problems": [], "same": False, "options": {"set": changes, "effective": {}}}
    for line in diff_text(shown).splitlines()[1:]:
        one, arrow, two = line.partition(" -> ")
        assert arrow
        assert one.partition("  set: option")[2].partition("  ")[2] != two


def test_text_names_both_sides(compiled, capsys):
    a, b = compiled(model(WEIGHT)), compiled(model(WEIGHT + 1), aic_num_cores=2)
    assert tool.main(["diff", str(a), str(b)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  set: aic_num_cores  (none) -> 2" in lines
    assert "  w: 2048 of 2048 elements differ, by at most 1" in lines


def test_values_without_content_are_visible():
    options = {"set": {}, "effective": {"onnx_define_symbol": [{"n": 2}, {}]}}
    assert diff_text({"problems": [], "same": False, "options": options}).splitlines() == [
        "options",
        "  effective: onnx_define_symbol  n=2 -> (empty)",
    ]


def test_long_lists_are_cut_in_text_only(compiled, capsys):
    many = [helper.make_node("Neg", ["y"], [f"n{i}"]) for i in range(30)]
    outputs = ("y", *(f"n{i}" for i in range(30)))
    a, b = compiled(model(WEIGHT)), compiled(model(WEIGHT, outputs=outputs, extra=many))
    assert len(diff(a, b, capsys)["graph"]["added"]) == 30
    tool.main(["diff", str(a), str(b)])
    assert "  ... and 10 more" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_containers_of_others(fixture, capsys):
    assert diff(fixture, fixture, capsys)["same"]
    other = FIXTURES[0] if fixture != FIXTURES[0] else FIXTURES[1]
    found = diff(fixture, other, capsys)
    assert not found["same"]
    assert found["segments"]


def test_a_segment_that_is_not_ours(tmp_path, capsys):
    paths = []
    for content in (b"one", b"two"):
        path = tmp_path / f"{content.decode()}.bin"
        path.write_bytes(container(program(extra=[("notes.txt", content)])))
        paths.append(path)
    found = diff(*paths, capsys)
    assert set(found["segments"]["changed"]) == {"notes.txt"}
    assert found["segments"]["changed"]["notes.txt"]["bytes"] == [3, 3]


@pytest.mark.parametrize(
    "segments",
    [
        program(plan=b"[" * 100_000, graph=b"\xff" * 64),
        program(
            plan={
                "initializers": [
                    {"name": "w", "dtype": "float32", "dims": [4], "offset": 1 << 60, "size": 16}
                ]
            }
        ),
        program(plan={"effective": [], "initializers": 3}, graph=b"\x0a"),
        program(plan={"options": {"\x1b[31m": "\x07"}, "initializers": []}),
    ],
)
def test_damaged_parts_are_problems_and_not_crashes(tmp_path, compiled, segments, capsys):
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(container(segments))
    good = compiled(model(WEIGHT))
    for a, b in [(damaged, good), (good, damaged), (damaged, damaged)]:
        assert tool.main(["diff", str(a), str(b)]) in (0, 1)
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out
        assert printed.err == ""
        assert diff(a, b, capsys)["same"] == (a == b)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_what_cannot_be_opened_is_no_difference(name, compiled, capsys):
    path = DATA / "hostile" / name
    if not path.exists():
        path = path.with_suffix(".qpc")
    code = tool.main(["diff", str(path), str(compiled(model(WEIGHT)))])
    printed = capsys.readouterr()
    assert code in (1, 2)
    assert (code == 2) == printed.err.startswith(f"error: {path}: ")


@pytest.mark.parametrize("argv", [[], ["a"], ["a", "b", "c"], ["--nope", "a", "b"]])
def test_wrong_usage(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        tool._tool(["diff", *argv])
    assert caught.value.code == 2


def test_missing_file(tmp_path, capsys):
    assert tool.main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'a'}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    # The weight is small, so graph and plan are a large part of the file.
    proto = model(WEIGHT[:4, :8].copy(), kind="LeakyRelu", attributes={"alpha": 0.5})
    resolved = resolve({"onnx_define_symbol": {"batch": 2}}, options_path=None, model_is_container=False)
    return compile_model(proto, resolved.compile, resolved.set_compile, output_dir=folder).read_bytes()


def test_names_that_are_no_text(whole, tmp_path, capsys):
    path = tmp_path / "damaged.bin"
    path.write_bytes(whole.replace(b"\x07product", b"\x07\xf0roduct"))
    assert tool.main(["diff", str(path), str(path)]) == 0
    (tmp_path / "whole.bin").write_bytes(whole)
    assert tool.main(["diff", str(path), str(tmp_path / "whole.bin")]) == 1
    assert "problem: a: graph: the graph is damaged" in capsys.readouterr().out


@settings(max_examples=400)
@given(data=st.data())
def test_any_damage_is_a_difference_or_an_error(whole, data):
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        broken = Qpc(bytes(damaged))
        found = differences(Qpc(whole), broken)
    except QpcError:
        return
    payloads = [
        {name: bytes(segment.data) for name, segment in qpc.segments.items()} for qpc in (Qpc(whole), broken)
    ]
    # Only differences in the padding between payloads are ignored.
    if payloads[0] != payloads[1]:
        assert not found["same"]
    assert diff_text(found)
    json.dumps(found)
