"""Models with weights in a checkpoint: every form of the description, and every location of the files."""

import json
import os
import shutil
import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

import qaic
import safetensors_files
import weight_free_models as models
from compiler_oracle import info, model_of, node, run, whole
from lowered_program import lower_program
from qaic.cli.compile import main
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import content_digest as digest
from qaic.compiler.frontend.files import onnx_file
from qaic.compiler.frontend.files.weight_spec import parse_weight_spec
from qaic.compiler.ir.constants.float16_weights import Overflows, converted_floats
from qaic.compiler.ir.constants.weights import read_all
from qaic.errors import CompileError
from qaic.options.table import CompileOptions

IDS = np.arange(8, dtype=np.int64).reshape(1, 8)
FLOATS = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@pytest.fixture
def weights():
    return models.arrays()


def answer(path):
    return qaic.Session(path).run({"input_ids": IDS})["logits"]


def container(path, folder):
    qaic.compile(path, output_dir=folder)
    return (folder / "programqpc.bin").read_bytes()


def opened(path):
    with onnx_file.open_model(path) as source:
        return {name: (weight.elem_type, read_all(weight.source)) for name, weight in source.weights.items()}


def refused(path, text, code="external_data"):
    with pytest.raises(CompileError, match=text) as caught:
        onnx_file.open_model(path)
    assert caught.value.code == f"compile.{code}"
    assert len(str(caught.value)) < 2000


# --- properties of a program ---------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_program_has_the_weights_and_no_inputs_for_them(tmp_path, weights, shards):
    path = models.export(tmp_path, weights, shards=shards)
    session = qaic.Session(path)
    assert session.model_input_shape_dict.keys() == {"input_ids"}
    found = session.run({"input_ids": IDS})["logits"]
    np.testing.assert_allclose(found, models.logits(weights, IDS), rtol=1e-4, atol=1e-5)


def test_weights_are_read_from_the_checkpoint_and_small_ones_are_in_the_graph(tmp_path, weights):
    with onnx_file.open_model(models.export(tmp_path, weights)) as source:
        assert [file.path.name for file in source.files] == [
            "LlamaForCausalLM.onnx",
            "model_0000.safetensors",
        ]
        assert len(source.proto_bytes) < 3000
        assert source.weights.keys() == (weights.keys() | {"lm_head.weight"}) - {"model.norm.weight"}
        for name, weight in source.weights.items():
            assert (
                read_all(weight.source) == weights.get(name, weights["model.embed_tokens.weight"]).tobytes()
            )
        (small,) = source.parse().graph.initializer
        assert small.name == "model.norm.weight"
        assert small.raw_data == weights["model.norm.weight"].tobytes()


def test_container_does_not_tell_where_the_weights_were(tmp_path):
    content = container(models.export(tmp_path), tmp_path / "qpc")
    assert models.KEY.encode() not in content
    assert b"checkpoints" not in content


def test_same_checkpoint_elsewhere_gives_the_same_container(tmp_path):
    contents = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        contents.append(container(models.export(folder), folder / "qpc"))
    assert contents[0] == contents[1]


def test_weights_of_any_size_are_streamed(tmp_path):
    """A sparse file replaces a checkpoint that is larger than memory."""
    dims = [1 << 14, 1 << 21]
    header = {"w": {"dtype": "F16", "shape": dims, "data_offsets": [0, 1 << 36]}}
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors_files.encoded(header, b""))
    os.truncate(file, file.stat().st_size + (1 << 36))
    half = TensorProto.FLOAT16
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    inputs = [info("x", [1, 1 << 21], half), info("w", dims, half)]
    model = model_of(nodes, inputs, [info("y", [1, 1 << 14], half)])
    path = tmp_path / "model.onnx"
    models.embed(model, models.spec(["model.safetensors"], {"w": (0, "w")}))
    path.write_bytes(model.SerializeToString())
    with onnx_file.open_model(path) as source:
        program = lower_program(source, CompileOptions(convert_to_fp16=True), Progress("test"))
    assert [weight.source.nbytes for weight in program.weights.values()] == [1 << 36]


def test_weights_in_blocks_take_no_memory_of_their_size(tmp_path):
    """A linear layer transposes its weight in the graph, so blocks follow the stored rows."""
    dims = [1 << 12, 1 << 12]
    header = {"w": {"dtype": "F16", "shape": dims, "data_offsets": [0, 1 << 25]}}
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors_files.encoded(header, bytes(1 << 25)))
    half = TensorProto.FLOAT16
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    inputs = [info("x", [1, 1 << 12], half), info("w", dims, half)]
    model = model_of(nodes, inputs, [info("y", [1, 1 << 12], half)])
    path = tmp_path / "model.onnx"
    models.embed(model, models.spec(["model.safetensors"], {"w": (0, "w")}))
    path.write_bytes(model.SerializeToString())
    options = CompileOptions(convert_to_fp16=True, mxfp6_matmul=True)
    with onnx_file.open_model(path) as source:
        (weight,) = lower_program(source, options, Progress("test")).weights.values()
        assert weight.blocks is not None
        tracemalloc.start()
        try:
            assert sum(len(piece) for piece in weight.source.chunks()) == (1 << 24) * 25 // 32
            assert tracemalloc.get_traced_memory()[1] < 1 << 23
        finally:
            tracemalloc.stop()


# --- forms of the description --------------------------------------------------------------------------


def legacy_paths(document):
    document["files"] = [entry["path"] for entry in document["files"]]


def legacy_key(document):
    document["checkpoint_files"] = [entry["path"] for entry in document.pop("files")]
    document["version"] = 1


def no_version(document):
    del document["version"]


def paths_in_places(document):
    paths = [entry["path"] for entry in document.pop("files")]
    for entry in document["inputs"]:
        entry["location"]["file"] = paths[entry["location"]["file"]]


def more_in_places(document):
    for entry in document["inputs"]:
        entry["location"]["type"] = "safetensors"
        entry["kind"] = "parameter"


def entries_without_place(document):
    document["inputs"] += [{"name": "rotary.inv_freq"}, {"name": "mask", "location": None}]


@pytest.mark.parametrize(
    "change",
    [
        legacy_paths,
        legacy_key,
        no_version,
        paths_in_places,
        more_in_places,
        entries_without_place,
    ],
)
def test_every_form_of_the_description_is_read(tmp_path, weights, change):
    plain = opened(models.export(tmp_path, weights, shards=2))
    files = [f"tiny-qeff-prepared-float32/model_000{index}.safetensors" for index in range(2)]
    prepared = tmp_path / "checkpoints" / "tiny-qeff-prepared-float32"
    document = models.spec(files, models.places(weights, 2), prepared)
    change(document)
    path = tmp_path / "export" / "model.onnx"
    path.write_bytes(models.embed(models.graph(), document).SerializeToString())
    assert opened(path) == plain


def test_description_of_nothing_is_no_matter(tmp_path):
    path = tmp_path / "model.onnx"
    document = models.spec([], {}) | {"inputs": [{"name": "mask"}]}
    path.write_bytes(models.embed(models.graph(), document).SerializeToString())
    with onnx_file.open_model(path) as source:
        assert source.weights == {}


GOOD = {"name": "model.norm.weight", "location": {"file": 0, "key": "model.norm.weight"}}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "values are nested too deeply"),
        ('{"version": 5, "version": 4}', "the key 'version' occurs twice"),
        ("[]", r"found \[\], expected a JSON object"),
        ({"version": 6}, "'version' of .*: found 6, expected at most 5"),
        ({"version": 0}, "found 0"),
        ({"version": "5"}, "found '5'"),
        ({"version": True}, "found True"),
        ({"version": None}, "found None"),
        ({"model_id": 3}, "'model_id' of"),
        ({"files": {}}, "'files' of"),
        ({"files": [3]}, r"'files\[0\]' of"),
        ({"files": [{"path": 3, "format": "safetensors"}]}, r"'files\[0\]' of"),
        ({"files": [{"path": "x", "format": "bin"}]}, "found format 'bin', expected 'safetensors'"),
        ({"inputs": None}, "'inputs' of"),
        ({"inputs": [3]}, r"'inputs\[0\]' of"),
        ({"inputs": [{"location": GOOD["location"]}]}, "expected an object with a name"),
        ({"inputs": [GOOD, GOOD]}, "'model.norm.weight' a second time"),
        ({"inputs": [GOOD | {"location": "x"}]}, "found location 'x'"),
        ({"inputs": [GOOD | {"location": {"file": 0}}]}, "expected an object with file and key"),
        ({"inputs": [GOOD | {"location": {"file": 1, "key": "a"}}]}, "found file 1, expected .* 1 file"),
        ({"inputs": [GOOD | {"location": {"file": -1, "key": "a"}}]}, "found file -1"),
        ({"inputs": [GOOD | {"location": {"file": True, "key": "a"}}]}, "found file True"),
        ({"inputs": [GOOD | {"location": {"key": "a"}}]}, "found file None"),
        ({"inputs": [GOOD | {"name": "other"}]}, "input 'other' .*: found no input of the graph"),
        ({"inputs": [GOOD | {"name": "x" * 900}]}, "found no input of the graph"),
        ({"inputs": [GOOD | {"name": "\ud800"}]}, r"input '\\ud800' .* found no input of the graph"),
    ],
)
def test_description_that_makes_no_sense_is_refused(tmp_path, change, text):
    path = models.export(tmp_path)
    model = onnx.load(path)
    (entry,) = model.metadata_props
    entry.value = change if isinstance(change, str) else json.dumps(json.loads(entry.value) | change)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CompileError, match=text) as caught:
        onnx_file.open_model(path)
    assert caught.value.code == "compile.weight_spec"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(value=json_values, data=st.data())
def test_any_value_anywhere_in_a_description_is_read_or_refused(value, data):
    document = models.spec(["a", "b"], {"x": (0, "k"), "y": (1, "l")})
    node = document
    while True:
        place = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[place], dict | list) or data.draw(st.booleans()):
            break
        node = node[place]
    node[place] = value
    found = refusal = None
    try:
        found = parse_weight_spec(json.dumps(document).encode())
    except CompileError as error:
        refusal = error
    if found is None:
        assert refusal.code == "compile.weight_spec"
        assert len(str(refusal)) < 1000
    else:
        names = {"x", "y"} | ({value} if isinstance(value, str) else set())
        assert {place.input_name for place in found.places} <= names
        assert all(isinstance(text, str) for place in found.places for text in (place.file, place.key))


def test_two_descriptions_are_refused(tmp_path):
    path = models.export(tmp_path)
    path.write_bytes(models.embed(onnx.load(path), "{}").SerializeToString())
    refused(path, "found 2 entries", "weight_spec")


def test_weight_that_has_a_value_in_the_model_is_refused(tmp_path, weights):
    path = models.export(tmp_path)
    model = onnx.load(path)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(weights["model.norm.weight"], "model.norm.weight")
    )
    path.write_bytes(model.SerializeToString())
    refused(path, "'model.norm.weight' .* found an initializer of that name", "weight_spec")


def test_model_in_memory_is_refused(tmp_path):
    content = models.export(tmp_path).read_bytes()
    for model in (content, onnx.load_from_string(content)):
        with pytest.raises(CompileError, match="found a checkpoint, but the model is not a file"):
            qaic.compile(model)


# --- locations of the files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model_id", ["/etc", "/", "", "../checkpoints", "~/x", "{}", "{}/tiny-qeff-prepared-float32"]
)
def test_folder_that_the_model_names_is_not_searched(tmp_path, weights, model_id):
    path = models.export(tmp_path, weights, model_id=model_id.format(tmp_path / "checkpoints"))
    (tmp_path / "export" / "tiny-qeff-prepared-float32").unlink()
    refused(path, f"no file .* in '{tmp_path}/export', expected")


def test_files_beside_the_model_and_of_the_linked_checkpoint_are_found(tmp_path, weights):
    path = models.export(tmp_path, weights)
    expected = opened(path)
    link = tmp_path / "export" / "tiny-qeff-prepared-float32"
    link.unlink()
    shutil.move(tmp_path / "checkpoints" / "tiny-qeff-prepared-float32", link)
    assert opened(path) == expected  # next to the model


def test_folder_of_the_environment_comes_first(tmp_path, monkeypatch):
    path = models.export(tmp_path, models.arrays(0))
    other = models.arrays(1)
    safetensors_files.write(
        tmp_path / "root" / "tiny-qeff-prepared-float32" / "model_0000.safetensors", other
    )
    name = "model.embed_tokens.weight"
    assert opened(path)[name][1] == models.arrays(0)[name].tobytes()
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", str(tmp_path / "root"))
    assert opened(path)[name][1] == other[name].tobytes()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", "~/root")
    assert opened(path)[name][1] == other[name].tobytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", "root")
    assert opened(path)[name][1] == other[name].tobytes()
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", str(tmp_path / "nothing"))
    assert opened(path)[name][1] == models.arrays(0)[name].tobytes()


def test_checkpoint_named_by_a_relative_path_is_found_from_there(tmp_path, weights, monkeypatch):
    path = models.export(tmp_path, weights, model_id="checkpoints/tiny-qeff-prepared-float32")
    link = tmp_path / "export" / "tiny-qeff-prepared-float32"
    link.unlink()
    # The exporter creates a link that points to itself.
    link.symlink_to(link.name)
    refused(path, "no file 'tiny-qeff-prepared-float32/model_0000.safetensors' in .*export'")
    link.unlink()
    link.symlink_to(tmp_path / "checkpoints" / link.name)
    refused(path, "a link to")
    monkeypatch.chdir(tmp_path)
    assert opened(path).keys() >= {"lm_head.weight"}


def test_cache_of_a_model_hub_is_followed(tmp_path, weights):
    """Every file is a link from the folder of a snapshot to a folder of blobs."""
    hub = tmp_path / "hub" / "models--org--tiny"
    snapshot = hub / "snapshots" / "0a1b2c"
    snapshot.mkdir(parents=True)
    safetensors_files.write(hub / "blobs" / "9f8e", weights)
    (snapshot / "model.safetensors").symlink_to("../../blobs/9f8e")
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "0a1b2c").symlink_to(snapshot)
    path = folder / "model.onnx"
    document = models.spec(["0a1b2c/model.safetensors"], models.places(weights), snapshot)
    path.write_bytes(models.embed(models.graph(), document).SerializeToString())
    assert opened(path)["lm_head.weight"][1] == weights["model.embed_tokens.weight"].tobytes()
    (snapshot / "model.safetensors").unlink()
    shutil.move(hub / "blobs" / "9f8e", tmp_path / "elsewhere")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    refused(path, "a link to .*elsewhere'")


def with_file(tmp_path, file, model_id=""):
    path = models.export(tmp_path)
    model = onnx.load(path)
    document = models.spec([file], models.places(models.arrays()), model_id)
    model.metadata_props[0].value = json.dumps(document)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("file", ["../checkpoints/x", "a/../../x", "..", "", "a\0b"])
def test_paths_that_climb_are_refused(tmp_path, file):
    refused(with_file(tmp_path, file), "expected a path without")


def test_absolute_path_is_for_a_folder_that_is_named(tmp_path, monkeypatch):
    file = tmp_path / "checkpoints" / "tiny-qeff-prepared-float32" / "model_0000.safetensors"
    path = with_file(tmp_path, str(file))
    refused(path, f"a link to '{file}', expected a file in '{tmp_path}/export'")
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", str(tmp_path / "checkpoints"))
    assert opened(path).keys() >= {"lm_head.weight"}


def test_link_that_leads_out_of_all_folders_is_refused(tmp_path):
    path = with_file(tmp_path, "tiny-qeff-prepared-float32/model_0000.safetensors")
    refused(path, "a link to .*checkpoints/tiny-qeff-prepared-float32/model_0000.safetensors'")


@pytest.mark.parametrize("file", ["missing.safetensors", "x" * 5000, "LlamaForCausalLM.onnx/x", "\ud800"])
def test_missing_file_is_refused_with_the_folders_that_were_searched(tmp_path, monkeypatch, file):
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", str(tmp_path / "root"))
    path = with_file(tmp_path, file, tmp_path / "checkpoints")
    with pytest.raises(CompileError, match=f"in '{tmp_path}/root', '{tmp_path}/export', expected") as caught:
        onnx_file.open_model(path)
    assert "AIC_EXTERNAL_DATA_ROOT" in caught.value.hints[0]


def test_folder_and_other_formats_in_place_of_a_file(tmp_path):
    with pytest.raises(IsADirectoryError):
        onnx_file.open_model(with_file(tmp_path, ".", tmp_path))
    refused(with_file(tmp_path, "LlamaForCausalLM.onnx"), "a header of", "safetensors")


# --- types and shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", sorted(FLOATS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_become_what_the_input_declares(tmp_path, dtype, stored):
    weights = models.arrays(dtype=FLOATS[stored])
    path = models.export(tmp_path, weights, dtype)
    for name, (elem_type, data) in opened(path).items():
        assert elem_type == models.ELEM_TYPES[dtype]
        assert data == weights.get(name, weights["model.embed_tokens.weight"]).astype(dtype).tobytes()
    wide = {name: array.astype(dtype) for name, array in weights.items()}
    np.testing.assert_allclose(answer(path), models.logits(wide, IDS), rtol=3e-2, atol=2e-3)


@given(
    values=st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=50),
    stored=st.sampled_from(sorted(FLOATS)),
    wanted=st.sampled_from(sorted(FLOATS)),
    pieces=st.integers(1, 9),
)
def test_conversion_is_that_of_numpy_whatever_the_pieces(values, stored, wanted, pieces):
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.float32(values).astype(FLOATS[stored])
        expected = array.astype(FLOATS[wanted])
        if stored == "BF16":
            expected = array.astype(np.float32).astype(FLOATS[wanted])
    data = array.tobytes()

    class Pieces:
        nbytes = len(data)

        def chunks(self):
            return (data[start : start + pieces] for start in range(0, len(data), pieces))

    codes = {"F32": 1, "F64": 11, "F16": 10, "BF16": 16}
    overflows = Overflows(clip=False)
    source = converted_floats(Pieces(), codes[stored], codes[wanted], "w", overflows)
    assert source.nbytes == expected.nbytes
    found = np.frombuffer(read_all(source), FLOATS[wanted])
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    lost = np.isinf(expected.astype(np.float64)) & np.isfinite(array.astype(np.float64))
    assert sum(overflows.counts.values()) == (np.count_nonzero(lost) if wanted == "F16" else 0)


def test_warning_counts_values_that_the_input_cannot_hold_each_time(tmp_path, caplog):
    weights = models.arrays(dtype=np.float32)
    weights["model.embed_tokens.weight"][3, 4] = 1e6
    path = models.export(tmp_path, weights, "float16")
    for _ in range(2):
        caplog.clear()
        qaic.Session(path)
        # The head has the same values as the embedding.
        assert "found 2 values of the checkpoint beyond the range of float16" in caplog.text


@pytest.mark.parametrize(
    ("dtype", "elem_type"),
    [("I8", 3), ("U8", 2), ("I32", 6), ("I64", 7), ("U16", 4), ("BOOL", 9), ("F8_E4M3", 17), ("F8_E5M2", 19)],
)
@pytest.mark.parametrize("count", [5, 2000])
def test_other_types_are_taken_as_they_are(tmp_path, dtype, elem_type, count):
    array = (np.arange(count) % 2).astype(safetensors_files.DTYPES[dtype])
    safetensors_files.write(tmp_path / "model.safetensors", {"k": array})
    model = model_of(
        [node("Cast", ["w"], ["f"], to=1), node("Add", ["x", "f"], ["y"])],
        [info("x", [count]), info("w", [count], elem_type)],
        [info("y", [count])],
        opset=19,
    )
    path = tmp_path / "model.onnx"
    models.embed(model, models.spec(["model.safetensors"], {"w": (0, "k")}))
    path.write_bytes(model.SerializeToString())
    with onnx_file.open_model(path) as source:
        program = lower_program(source, CompileOptions(), Progress("test"))
        found = run(whole(program), {"x": np.zeros(count, np.float32)})["y"]
    np.testing.assert_array_equal(found, np.arange(count) % 2)


def test_small_weight_may_be_a_shape(tmp_path):
    safetensors_files.write(tmp_path / "model.safetensors", {"shape": np.int64([3, 2])})
    model = model_of(
        [node("Reshape", ["x", "s"], ["y"])],
        [info("x", [2, 3]), info("s", [2], TensorProto.INT64)],
        [info("y", None)],
    )
    models.embed(model, models.spec(["model.safetensors"], {"s": (0, "shape")}))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with onnx_file.open_model(path) as source:
        (output,) = lower_program(source, CompileOptions(), Progress("test")).outputs
    assert output.dims == (3, 2)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros(models.HIDDEN, np.int32), "found type I32 of tensor .*, expected float32"),
        (np.zeros(models.HIDDEN, np.bool_), "found type BOOL"),
        (np.zeros(models.HIDDEN + 1, np.float32), r"found shape \[25\] of tensor .*, expected \[24\]"),
        (np.zeros((1, models.HIDDEN), np.float32), r"found shape \[1, 24\]"),
        (None, "found no tensor 'model.norm.weight' in .*, expected one of its 3 tensors"),
    ],
)
def test_tensor_that_does_not_fit_its_input_is_refused(tmp_path, weights, array, text):
    path = models.export(tmp_path, weights)
    name = "model.norm.weight"
    weights = {key: array if key == name else kept for key, kept in weights.items()}
    if array is None:
        del weights[name]
    file = tmp_path / "checkpoints" / "tiny-qeff-prepared-float32" / "model_0000.safetensors"
    safetensors_files.write(file, weights)
    refused(path, text)


@pytest.mark.parametrize("shape", [None, ["rows", "columns"], ["rows", models.HIDDEN], [-1, -1]])
def test_shape_that_the_input_leaves_open_is_that_of_the_tensor(tmp_path, weights, shape):
    path = models.export(tmp_path, weights)
    model = onnx.load(path)
    (entry,) = (entry for entry in model.graph.input if entry.name == "lm_head.weight")
    entry.CopyFrom(info("lm_head.weight", shape))
    path.write_bytes(model.SerializeToString())
    np.testing.assert_allclose(answer(path), models.logits(weights, IDS), rtol=1e-4, atol=1e-5)


def test_input_that_is_no_tensor_is_refused(tmp_path):
    path = models.export(tmp_path)
    model = onnx.load(path)
    (entry,) = (entry for entry in model.graph.input if entry.name == "lm_head.weight")
    entry.CopyFrom(onnx.helper.make_tensor_sequence_value_info("lm_head.weight", 1, None))
    path.write_bytes(model.SerializeToString())
    refused(path, "'lm_head.weight' .*: found a type other than a tensor", "weight_spec")


# --- the cache, and files that change -------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch):
    """Count the hashed files; the age of a file does not affect the cache."""
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    calls = []
    inner = digest.files_digest
    monkeypatch.setattr(digest, "files_digest", lambda files: calls.append(1) or inner(files))
    return calls


def test_changed_checkpoint_is_compiled_again_and_an_unchanged_one_is_not_hashed(tmp_path, hashed):
    path = models.export(tmp_path, models.arrays(0))
    first = answer(path)
    np.testing.assert_array_equal(answer(path), first)
    assert len(hashed) == 1
    models.export(tmp_path, models.arrays(1))
    np.testing.assert_allclose(answer(path), models.logits(models.arrays(1), IDS), rtol=1e-4, atol=1e-5)
    assert len(hashed) == 2


def test_other_files_under_the_same_names_are_compiled_again(tmp_path, monkeypatch, hashed):
    path = models.export(tmp_path, models.arrays(0))
    answers = [models.logits(models.arrays(seed), IDS) for seed in range(4)]

    def check(seed):
        np.testing.assert_allclose(answer(path), answers[seed], rtol=1e-4, atol=1e-5)

    check(0)
    name = "tiny-qeff-prepared-float32"
    # The link next to the model points to another folder.
    link = tmp_path / "export" / name
    safetensors_files.write(tmp_path / "export" / "other" / "model_0000.safetensors", models.arrays(1))
    link.unlink()
    link.symlink_to("other")
    check(1)
    # A folder that is searched first is listed, and the file is added to it later.
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", str(root))
    check(1)
    safetensors_files.write(root / name / "model_0000.safetensors", models.arrays(2))
    check(2)
    # The same relative path means another folder if the working directory differs.
    monkeypatch.setenv("AIC_EXTERNAL_DATA_ROOT", "here")
    for seed, folder in ((2, "a"), (3, "b")):
        safetensors_files.write(
            tmp_path / folder / "here" / name / "model_0000.safetensors", models.arrays(seed)
        )
        monkeypatch.chdir(tmp_path / folder)
        check(seed)
    monkeypatch.delenv("AIC_EXTERNAL_DATA_ROOT")
    check(1)


def test_external_data_behind_a_changed_link_is_compiled_again(tmp_path, hashed):
    arrays = [np.full(600, value, np.float32) for value in (1, 2)]
    for array in arrays:
        (tmp_path / f"{array[0]:.0f}.data").write_bytes(array.tobytes())
    tensor = TensorProto(name="w", data_type=1, dims=[600], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.data")
    model = model_of([node("Add", ["x", "w"], ["y"])], [info("x", [600])], [info("y", [600])], [tensor])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for array in arrays:
        (tmp_path / "w.data").unlink(missing_ok=True)
        (tmp_path / "w.data").symlink_to(f"{array[0]:.0f}.data")
        for _ in range(2):
            found = qaic.Session(path).run({"x": np.zeros(600, np.float32)})["y"]
            np.testing.assert_array_equal(found, array)
    assert len(hashed) == 2


def test_checkpoint_that_is_cut_off_while_it_is_read_leaves_nothing(tmp_path, monkeypatch):
    path = models.export(tmp_path)
    file = tmp_path / "checkpoints" / "tiny-qeff-prepared-float32" / "model_0000.safetensors"
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    inner = digest.files_digest

    def cut(files):
        found = inner(files)
        os.truncate(file, 5000)
        return found

    monkeypatch.setattr(digest, "files_digest", cut)
    with pytest.raises(
        CompileError,
        match=r"model_0000\.safetensors.*found 5000 bytes, expected \d+ bytes as when it was opened",
    ) as caught:
        qaic.compile(path, output_dir=tmp_path / "qpc")
    assert caught.value.code == "compile.model_changed"
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    assert not list(tmp_path.rglob("programqpc.bin"))


def test_checkpoint_that_is_written_to_while_it_is_read_leaves_nothing(tmp_path, monkeypatch):
    path = models.export(tmp_path)
    file = tmp_path / "checkpoints" / "tiny-qeff-prepared-float32" / "model_0000.safetensors"
    inner = digest.files_digest

    def change(files):
        found = inner(files)
        models.export(tmp_path, models.arrays(1))
        os.utime(file, (1, 1))
        return found

    monkeypatch.setattr(digest, "files_digest", change)
    with pytest.raises(CompileError, match="another content than when it was opened"):
        qaic.compile(path, output_dir=tmp_path / "qpc")
    assert not list(tmp_path.rglob("programqpc.bin"))


def test_the_tool_says_what_is_missing(tmp_path, capsys):
    path = with_file(tmp_path, "missing.safetensors")
    assert main([f"-m={path}", f"-aic-binary-dir={tmp_path / 'qpc'}"]) == 1
    err = capsys.readouterr().err
    assert "error: weights of input 'model.embed_tokens.weight': found no file 'missing.safetensors'" in err
    assert "hint: set AIC_EXTERNAL_DATA_ROOT to the folder" in err
    assert not (tmp_path / "qpc").exists()
