"""Custom I/O in the compiler: names, refusals, descriptor and plan, specializations, state, template."""

import json
import logging

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qaic
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.errors import CompileError, OptionError
from qaic.options.files.custom_io import CustomIo, CustomIoList
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.table import CompileOptions
from session_models import model, save


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))


def image_net(**more):
    """``y = -image``; ``flat`` is its sum; ``index`` is an int64 that is passed through."""
    nodes = [
        helper.make_node("Neg", ["image"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["flat"], keepdims=0),
        helper.make_node("Add", ["ids", "ids"], ["index"]),
    ]
    image = [1, 3, 4, 5]
    return model(
        nodes,
        [("image", "float32", image), ("ids", "int64", [2])],
        [("y", "float32", image), ("flat", "float32", []), ("index", "int64", [2])],
        **more,
    )


def state_net(dtype="float32", columns=4):
    """A state of [2, columns] that grows by ``x``; ``y`` is the previous state."""
    nodes = [
        helper.make_node("Add", ["kept", "x"], ["kept_RetainedState"]),
        helper.make_node("Identity", ["kept"], ["y"]),
    ]
    shape = [2, columns]
    return model(
        nodes,
        [("x", dtype, shape), ("kept", dtype, shape)],
        [("y", dtype, shape), ("kept_RetainedState", dtype, shape)],
    )


def compiled(net, *entries, **options):
    parsed = CustomIoList().parse(list(entries))
    data = net.SerializeToString()
    return compile_model(data, CompileOptions(custom_io_list_file=parsed, **options), {})


def descriptor(path):
    network = json.loads(_core.Qpc(path).network_desc_json())
    return {binding["name"]: binding for binding in (*network["inputs"], *network["outputs"])}, network


def plan_of(path):
    section = _core.Qpc(path).elf_section("openqaic_plan")
    return json.loads(bytes(section))


def entry(name, **keys):
    return {"IOName": name, **keys}


INT8 = {"Precision": "int8", "Scale": 0.25, "Offset": -7}


def test_bindings_are_what_was_asked_for():
    path = compiled(image_net(), entry("image", Layout="NHWC", **INT8), entry("y", Precision="float16"))
    bindings, _ = descriptor(path)
    image, y = bindings["image"]["io_initial"], bindings["y"]["io_transformed"]
    assert (image["type"], image["dims"], image["qscale"], image["qoffset"]) == (2, [1, 4, 5, 3], 0.25, -7)
    assert (y["type"], y["dims"]) == (1, [1, 3, 4, 5])
    # The type float has the value zero, so its field is omitted.
    assert "type" not in bindings["flat"].get("io_transformed", {})
    plan = plan_of(path)
    assert plan["inputs"][0] == {
        "name": "image",
        "dtype": "int8",
        "dims": [1, 4, 5, 3],
        "model": {"dtype": "float32", "dims": [1, 3, 4, 5]},
        "scale": 0.25,
        "offset": -7,
    }
    assert "model" not in plan["inputs"][1]
    assert not _core.Qpc(path).validate()


def test_entries_that_ask_for_nothing_change_no_byte():
    plain = compiled(image_net()).read_bytes()
    same = compiled(
        image_net(),
        entry("image", Layout="NCHW", Precision="float"),
        entry("ids", Precision="int64"),
        entry("flat"),
    )
    graph = [bytes(_core.Qpc(data).elf_section("openqaic_graph")) for data in (plain, same.read_bytes())]
    assert graph[0] == graph[1]
    assert descriptor(same)[1] == json.loads(_core.Qpc(plain).network_desc_json())


def test_values_read_elsewhere_and_weights_that_are_outputs():
    """A converted output can be read by other nodes and nested graphs; an initializer can be an output."""
    branch = helper.make_graph(
        [helper.make_node("Add", ["y", "y"], ["sum"])],
        "branch",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [2, 3])],
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["y", "x"], ["gone"])],
        "other",
        [],
        [helper.make_tensor_value_info("gone", TensorProto.FLOAT, [2, 3])],
    )
    big = np.arange(600, dtype=np.float32).reshape(2, 300)
    net = model(
        [
            helper.make_node("Neg", ["x"], ["y"]),
            helper.make_node("If", ["flag"], ["z"], then_branch=branch, else_branch=other),
        ],
        [("x", "float32", [2, 3]), ("flag", "bool", [])],
        [("y", "float32", [2, 3]), ("z", "float32", [2, 3]), ("w", "float32", [2, 300])],
    )
    net.graph.initializer.append(numpy_helper.from_array(big, "w"))
    path = compiled(net, *(entry(name, Precision="float16") for name in ("x", "y", "z", "w")))
    x = np.float16([[1, 2, 3], [4, 5, 6]]) / 3
    with qaic.Session(path) as session:
        for flag, z in ((True, -2 * x), (False, -2 * x)):
            out = session.run({"x": x, "flag": flag})
            assert {array.dtype for array in out.values()} == {np.dtype(np.float16)}
            np.testing.assert_array_equal(out["y"], -x)
            np.testing.assert_array_equal(out["z"], z)
            np.testing.assert_array_equal(out["w"], big.astype(np.float16))


def test_shape_sets_follow():
    net = model(
        [helper.make_node("Neg", ["x"], ["y"])],
        [("x", "float32", ["n", 3, "h", 5])],
        [("y", "float32", ["n", 3, "h", 5])],
    )
    sets = tuple(SpecializationEntry(f"s{h}", {"n": 2, "h": h}) for h in (4, 7))
    layout = entry("x", Layout="NHWC", Precision="float16")
    path = compiled(net, layout, entry("y", Precision="mxint8"), network_specialization_config=sets)
    _, network = descriptor(path)
    shapes = [[shape["dims"] for shape in each["shapes"]] for each in network["allowed_shapes"]]
    assert shapes == [[[2, h, 5, 3], [2, 3, h, 33]] for h in (4, 7)]
    assert [shape["type"] for shape in network["allowed_shapes"][0]["shapes"]] == [1, 3]
    with qaic.Session(compiled(net, layout, network_specialization_config=sets)) as session:
        for h in (7, 4, 7):
            x = np.arange(2 * h * 15, dtype=np.float16).reshape(2, h, 5, 3)
            found = session.run({"x": x})["y"]
            np.testing.assert_array_equal(found, -x.transpose(0, 3, 1, 2).astype(np.float32))


def test_last_dim_of_blocks_must_have_one_size():
    net = model([helper.make_node("Neg", ["x"], ["y"])], [("x", "float32", ["n"])], [("y", "float32", ["n"])])
    sets = tuple(SpecializationEntry(f"s{n}", {"n": n}) for n in (4, 7))
    with pytest.raises(OptionError, match="the last dim of 'x' is not the same in all specializations"):
        compiled(net, entry("x", Precision="mxint8"), network_specialization_config=sets)


def test_state_keeps_its_new_type_on_the_device():
    both = (entry("kept", Precision="float16"), entry("kept_RetainedState", Precision="float16"))
    with qaic.Session(compiled(state_net(), *both, retained_state=True)) as session:
        x = np.full((2, 4), 0.1, np.float32)
        kept = np.zeros((2, 4), np.float16)
        for _ in range(5):
            np.testing.assert_array_equal(session.run({"x": x})["y"], kept.astype(np.float32))
            kept = (kept.astype(np.float32) + x).astype(np.float16)


@pytest.mark.parametrize("asked", ["kept_InternalRetainedState", "kept_RetainedState"])
@pytest.mark.parametrize("held", ["kept_InternalRetainedState", "kept_RetainedState"])
def test_both_spellings_of_a_state_output(asked, held):
    net = state_net()
    net.graph.output[1].name = net.graph.node[0].output[0] = held
    path = compiled(net, entry("kept", Precision="float16"), entry(asked, Precision="float16"))
    assert descriptor(path)[0][held]["io_transformed"]["type"] == 1


def test_names_that_the_model_lacks(caplog):
    caplog.set_level(logging.WARNING, "qaic.compiler")
    compiled(image_net(), entry("image", Precision="float16"), entry("imag"), entry("IDS"))
    assert "custom_io_list_file: the model has no input or output 'imag', 'IDS'" in caplog.text
    with pytest.raises(
        OptionError,
        match=r"found no name of an input or output of the model: 'imag', 'IDS'; the model has 'flat'",
    ):
        compiled(image_net(), entry("imag"), entry("IDS"))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("flat", Layout="NHWC")], ["'flat' is float32 []", "a tensor of 4 dims"]),
        ([entry("ids", Precision="float")], ["'ids' is int64 [2]", "omit Precision float"]),
        ([entry("ids", Precision="int32")], ["omit Precision int32"]),
        ([entry("image", Precision="int64")], ["float16, bfloat16, int8, mxint8", "Precision int64"]),
        ([entry("image", Precision="int8")], ["'image' is float32", "needs Scale and Offset"]),
        ([entry("image", Precision="bfloat16")], ["needs aic_hw_version=ai200"]),
        ([entry("flat", Precision="mxint8")], ["needs a last dim"]),
        (
            [entry("ids", Precision="float"), entry("flat", Layout="NHWC")],
            ["omit Precision float", "a tensor of 4 dims"],
        ),
    ],
)
def test_requests_that_contradict_the_model(entries, words):
    with pytest.raises(OptionError) as caught:
        compiled(image_net(), *entries)
    assert caught.value.code == "option.custom_io"
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([entry("kept", Precision="float16")], "would be float16 and 'kept_RetainedState'"),
        ([entry("kept_RetainedState", Precision="mxint8")], "would be float32 and 'kept_RetainedState'"),
        (
            [entry("kept", **INT8), entry("kept_RetainedState", **{**INT8, "Offset": 0})],
            "'kept' would be int8 (Scale 0.25, Offset -7) and 'kept_RetainedState', its next value, int8",
        ),
    ],
)
def test_state_and_its_next_value_must_agree(entries, word):
    with pytest.raises(OptionError) as caught:
        compiled(state_net(), *entries, retained_state=True)
    assert word in str(caught.value)
    assert "give both the same entry" in str(caught.value)


def test_old_operator_set():
    with pytest.raises(CompileError, match=r"'image' as int8: found a model of operator set 10") as caught:
        compiled(
            model(
                [helper.make_node("Neg", ["image"], ["y"])],
                [("image", "float32", [1])],
                [("y", "float32", [1])],
                opset=10,
            ),
            entry("image", **INT8),
        )
    assert caught.value.code == "compile.old_operators"


def test_integer_types_of_the_model_may_be_named():
    net = model([helper.make_node("Identity", ["x"], ["y"])], [("x", "int8", [3])], [("y", "int8", [3])])
    path = compiled(net, entry("x", Precision="int8"))
    assert descriptor(path)[0]["x"]["io_initial"]["type"] == 8
    with pytest.raises(OptionError, match="omit Scale and Offset"):
        compiled(net, entry("x", **INT8))


def test_template_is_read_back_and_changes_nothing(tmp_path):
    target = tmp_path / "new" / "io.yaml"
    net = save(tmp_path, image_net())
    with qaic.Session(net, dump_custom_io_config_template_file=str(target)) as session:
        assert session.run({"image": np.ones((1, 3, 4, 5), "f4"), "ids": [1, 2]})["flat"] == -60
    codec = CustomIoList()
    assert codec.load(codec.parse(target)) == (
        CustomIo("image", "NCHW", "float"),
        CustomIo("y", "NCHW", "float"),
        CustomIo("flat", None, "float"),
    )
    text = target.read_text(encoding="utf-8")
    assert '# - IOName: "ids"\n#   int64 [2]' in text
    assert "# Scale: 1.0" in text
    # The file is also written for a cached container. It describes the model, not its program.
    target.unlink()
    options = {"custom_io_list_file": [entry("image", Layout="NHWC")]}
    for _ in range(2):
        qaic.Session(net, dump_custom_io_config_template_file=str(target), **options)
        assert target.read_text(encoding="utf-8") == text
        target.unlink()


def test_names_of_all_kinds_survive_the_template(tmp_path):
    names = ["a b", "x: y", "- z", '"q"', "é", "#h", "on", "1.5"]
    net = model(
        [helper.make_node("Neg", [name], [f"o{number}"]) for number, name in enumerate(names)],
        [(name, "float16", [1]) for name in names],
        [(f"o{number}", "float16", [1]) for number in range(len(names))],
    )
    target = tmp_path / "io.yaml"
    compile_model(net.SerializeToString(), CompileOptions(dump_custom_io_config_template_file=target), {})
    codec = CustomIoList()
    read = codec.load(codec.parse(target))
    assert [each.name for each in read[: len(names)]] == names
    assert {each.precision for each in read} == {"float16"}


def test_file_of_a_session_and_its_refusal(tmp_path):
    file = tmp_path / "io.yaml"
    file.write_text(" - IOName: image\n   Precision: int8\n   Scale: 0.5\n   Offset: 1\n", encoding="utf-8")
    net = save(tmp_path, image_net())
    with qaic.Session(net, custom_io_list_file=file) as session:
        assert session.model_input_shape_dict["image"] == ((1, 3, 4, 5), np.dtype(np.int8))
        out = session.run({"image": np.full((1, 3, 4, 5), 5, np.int8), "ids": [0, 0]})
        assert out["flat"] == -2 * 60
    file.write_text("- IOName: image\n  Precision: int9\n", encoding="utf-8")
    with pytest.raises(OptionError, match="as Precision on line 2 in the file"):
        qaic.Session(net, custom_io_list_file=file)


def test_brain_floats_travel_as_their_bits():
    path = compiled(
        image_net(),
        entry("image", Precision="bfloat16"),
        entry("y", Precision="bfloat16"),
        aic_hw_version="ai200",
    )
    assert descriptor(path)[0]["y"]["io_transformed"]["type"] == 11
    with qaic.Session(path, allow_hw_mismatch=True) as session:
        assert session.model_output_shape_dict["y"] == ((1, 3, 4, 5), np.dtype(np.uint16))
        bits = np.full((1, 3, 4, 5), 0x3FC0, np.uint16)  # 1.5
        assert (session.run({"image": bits, "ids": [0, 0]})["y"] == 0xBFC0).all()


def test_sizes_are_checked_after_the_conversion():
    huge = model(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("ReduceMax", ["y"], ["z"], keepdims=0)],
        [("x", "float16", [1 << 15, 1 << 15])],
        [("z", "float16", [])],
    )
    with pytest.raises(CompileError, match="bytes"):
        compiled(huge, entry("x", Precision="float"))


def test_state_without_elements_cannot_be_blocks():
    with pytest.raises(OptionError, match=r"'kept' is float32 .2, 0.; Precision mxint8 needs a last dim"):
        compiled(state_net(columns=0), retained_state=True, mxint8_kv_cache=True)


def test_conflict_of_the_two_ways_to_compress_state():
    both = [entry("kept", Precision="float16"), entry("kept_RetainedState", Precision="float16")]
    with pytest.raises(OptionError, match="mxint8_kv_cache sets mxint8"):
        compiled(state_net(), *both, retained_state=True, mxint8_kv_cache=True)
