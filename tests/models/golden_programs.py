"""Programs whose containers are compared byte by byte with those of earlier versions of the compiler.

Each case is a model and options; together, the cases send every family of options through every pass. Ranges
come from files or from numbers that are exact in float32. Operations are listed only for models without
convolutions, because the engine adapts the layout of convolutions to the processor. The digest of a part
shows which part has changed: the graph for the engine, the weights, the plan, the descriptors, files or
messages.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
from contextlib import contextmanager
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

import calibration_models
import decoder_model
import qaic
import session_models
import weight_free_models
from qaic import _core
from qaic.support.program_names import DIAGNOSTICS_SECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
DYNAMO = TESTS / "data" / "dynamo"
GOLDEN = TESTS / "data" / "golden"
#: Packages whose versions affect the bytes: shape inference, serialization, the engine's graph of a program.
PACKAGES = ("onnx", "onnxruntime", "protobuf")


def versions() -> dict[str, str]:
    """Return the versions for which the digests are valid."""
    return {name: metadata.version(name) for name in PACKAGES}


def zoo(name: str) -> Path:
    """Return a model of the onnx package; its weights are computed, so the model is small."""
    return Path(str(resources.files("onnx"))) / "backend/test/data/light" / f"light_{name}.onnx"


def dynamo(name: str) -> Path:
    return DYNAMO / f"{name}.onnx"


def sets(name: str) -> dict[str, object]:
    """Return the option that fixes the sizes of an export."""
    cases = json.loads((DYNAMO / "exports.json").read_text())[name]["cases"].values()
    found = list({json.dumps(case): case for case in cases}.values())
    if len(found) == 1:
        return {"onnx_define_symbol": list(found[0].items())}
    entries = [{"name": f"set{at}", "symbols": sizes} for at, sizes in enumerate(found)]
    return {"network_specialization_config": entries}


def ranges(model: Path | onnx.ModelProto, folder: Path) -> dict[str, object]:
    """Write a profile with a range for every value of a model, which the name of the value determines."""
    found = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    names = [value.name for value in found.graph.input]
    names += [name for node in found.graph.node for name in node.output if name]
    entries = []
    for name in dict.fromkeys(names):
        high = 1 + hashlib.sha256(name.encode()).digest()[0] / 32
        low = -high * (hashlib.sha256(name.encode()).digest()[1] % 3) / 2
        entries.append(
            f"- NodeOutputName: '{name}'\n  Min: {low}\n  Max: {high}\n  Histogram: [ 1, 2, 3, 2 ]\n"
        )
    path = folder / "ranges.yaml"
    head = "---\nGlowToolsVersion: '2021'\n...\n---\nGraphPreLowerHash: 0x00000000000000ab\n...\n---\n"
    path.write_text(head + "".join(entries) + "...\n")
    return {"load_profile": str(path), "allow_profile_mismatch": True}


def whole_numbers() -> onnx.ModelProto:
    """Return a convolutional model whose sums are exact in any order."""
    made = calibration_models.convolutional()
    for tensor in made.graph.initializer:
        values = np.rint(4 * onnx.numpy_helper.to_array(tensor)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return made


def whole_samples() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(7)
    return [{"x": generator.integers(-8, 9, (1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def attention_and_norms() -> onnx.ModelProto:
    """Return a perceptron with an expanded Gelu and LayerNormalization, a table and a transposed weight."""
    node = onnx.helper.make_node
    generator = np.random.default_rng(3)

    def matrix(*shape: int) -> np.ndarray:
        return generator.integers(-64, 65, shape).astype(np.float32) / 32

    nodes = [
        node("Gather", ["table", "ids"], ["e"], name="embed"),
        node("Transpose", ["w1"], ["w1t"], perm=[1, 0], name="turn"),
        node("MatMul", ["e", "w1t"], ["m1"], name="up"),
        node("Add", ["m1", "b1"], ["a1"], name="up_bias"),
        node("Div", ["a1", "root2"], ["d"]),
        node("Erf", ["d"], ["f"]),
        node("Add", ["f", "one"], ["g"]),
        node("Mul", ["a1", "g"], ["h"]),
        node("Mul", ["h", "half"], ["gelu"]),
        node("MatMul", ["gelu", "w2"], ["m2"], name="down"),
        node("Add", ["m2", "e"], ["r"], name="residual"),
        node("ReduceMean", ["r"], ["mean"], axes=[-1]),
        node("Sub", ["r", "mean"], ["c"]),
        node("Pow", ["c", "two"], ["sq"]),
        node("ReduceMean", ["sq"], ["var"], axes=[-1]),
        node("Add", ["var", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", ["c", "sd"], ["n"]),
        node("Mul", ["n", "scale"], ["ns"]),
        node("Add", ["ns", "shift"], ["nb"]),
        node("Split", ["nb"], ["left", "right"], axis=-1),
        node("Concat", ["right", "left"], ["swapped"], axis=-1),
        node("Softmax", ["swapped"], ["s"], axis=-1),
        node("MaxPool", ["s"], ["p"], kernel_shape=[1], name="pool"),
        node("Where", ["mask", "p", "far"], ["y"], name="hide"),
    ]
    constants = {
        "table": matrix(50, 16),
        "w1": matrix(32, 16),
        "b1": matrix(32),
        "root2": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "w2": matrix(32, 16),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "scale": matrix(16),
        "shift": matrix(16),
        "far": np.float32(-1e30),
        "mask": (np.arange(16) % 3 > 0).reshape(1, 1, 16),
    }
    return session_models.model(nodes, [("ids", "int64", [2, 6])], [("y", "float32", [2, 6, 16])], constants)


def normalized_picture(opset: int = 17) -> onnx.ModelProto:
    """Return convolutions with batch normalization, some nodes in float16, and a nested graph."""
    node = onnx.helper.make_node
    generator = np.random.default_rng(5)

    def array(*shape: int) -> np.ndarray:
        return generator.integers(-64, 65, shape).astype(np.float32) / 64

    def branch(name: str, operator: str) -> onnx.GraphProto:
        return onnx.helper.make_graph(
            [node(operator, ["n2"], [f"{name}_out"])],
            name,
            [],
            [session_models.value(f"{name}_out", "float32", [1, 4, 8, 8])],
        )

    norms = ("s1", "o1", "m1", "v1"), ("s2", "o2", "m2", "v2")
    nodes = [
        node("Conv", ["x", "k1", "c1"], ["conv1"], pads=[1] * 4, name="first"),
        node("BatchNormalization", ["conv1", *norms[0]], ["n1"], name="norm_first"),
        node("Relu", ["n1"], ["r1"]),
        node("ConvTranspose", ["r1", "k2"], ["conv2"], name="second"),
        node("BatchNormalization", ["conv2", *norms[1]], ["n2"]),
        node("ReduceMax", ["n2"], ["top"], keepdims=0),
        node("Greater", ["top", "zero"], ["hot"]),
        node("If", ["hot"], ["chosen"], then_branch=branch("then", "Sin"), else_branch=branch("else", "Cos")),
        node("Cast", ["chosen"], ["chosen_half"], to=onnx.TensorProto.FLOAT16),
        node("Mul", ["chosen_half", "gain_half"], ["gained_half"], name="island"),
        node("Cast", ["gained_half"], ["gained"], to=onnx.TensorProto.FLOAT),
        node("Clip", ["gained", "zero", "six"], ["clipped"]),
        node("Add", ["clipped", "huge"], ["y"]),
    ]
    constants = {
        "k1": array(4, 3, 3, 3),
        "c1": array(4),
        "k2": array(4, 4, 1, 1),
        "zero": np.float32(0),
        "six": np.float32(6),
        "huge": np.array([1e5, 1, 2, 3, 4, 5, 6, 7], np.float32),
        "gain_half": np.float16(1.5),
        **{name: array(4) for names in norms for name in names[:3]},
        **{names[3]: np.abs(array(4)) + 1 for names in norms},
    }
    return session_models.model(
        nodes, [("x", "float32", [1, 3, 8, 8])], [("y", "float32", [1, 4, 8, 8])], constants, opset
    )


def magika() -> Path:
    """Return the model of the extra `demo`."""
    return next(Path(str(resources.files("magika"))).rglob("model.onnx"))


def example(folder: Path, *flags: str) -> Path:
    """Write a model of the guides."""
    from runpy import run_path

    module = run_path(str(TESTS.parent / "examples" / "make_model.py"))
    graph = module["decoder"]() if flags else module["dense"]()
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return session_models.save(folder, made, "example.onnx")


def partitions(*lists: list[str]) -> dict[str, object]:
    return {
        "partitions": [
            {"name": f"P{at}", "nodeList": nodes, "devices": [{"deviceId": at, "numCores": 2}]}
            for at, nodes in enumerate(lists)
        ],
        "connections": [{"devices": list(range(len(lists))), "type": "p2p"}],
    }


def encodings(folder: Path) -> str:
    """Write encodings in another tool's format for `whole_numbers`."""

    def entry(scale: float, offset: int, bits: int = 8) -> dict[str, object]:
        top = offset + 2**bits - 1
        limits = {"min": scale * offset, "max": scale * top}
        return {
            "bitwidth": bits,
            "dtype": "int",
            "is_symmetric": "False",
            "scale": scale,
            "offset": offset,
            **limits,
        }

    held = {
        "activation_encodings": {"x": [entry(0.5, -100)], "c": [entry(0.25, -128)], "g": [entry(0.5, 0)]},
        "param_encodings": {"w": [entry(0.125 * (1 + at), -128) for at in range(8)]},
    }
    path = folder / "encodings.json"
    path.write_text(json.dumps(held))
    return str(path)


def tables(folder: Path) -> str:
    path = folder / "tables.zip"
    values = np.arange(50 * 16, dtype=np.float32).reshape(50, 16) / 64
    np.save(folder / "table.npy", values)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("table.npy"), (folder / "table.npy").read_bytes())
    return str(path)


def _decoder(**more: object) -> onnx.ModelProto:
    return decoder_model.decoder(decoder_model.Sizes(**more))


#: One program: model, options; the folder receives files.
Program = tuple["Path | onnx.ModelProto", dict[str, object]]
STATEFUL = {"retained_state": True}


def _quantized(model: Path | onnx.ModelProto, folder: Path, **options: object) -> Program:
    return model, ranges(model, folder) | options


def _measured(**options: object) -> Callable[[Path], Program]:
    taken = {"convert_to_quantize": True, "calibration_data": whole_samples()}
    return lambda folder: (whole_numbers(), taken | options)


PROGRAMS: dict[str, Callable[[Path], Program]] = {
    # models of the onnx package
    "squeezenet-float": lambda folder: (zoo("squeezenet"), {}),
    "resnet50-fp16": lambda folder: (zoo("resnet50"), {"convert_to_fp16": True}),
    "shufflenet-quantized": lambda folder: _quantized(zoo("shufflenet"), folder),
    "zfnet512-ports": lambda folder: (zoo("zfnet512"), {"stats_level": 50}),
    "alexnet-outputs": lambda folder: (
        zoo("bvlc_alexnet"),
        {"output_node_names": ["r22"], "extra_output_tensors": ["r3"]},
    ),
    "inception-reports": lambda folder: (
        zoo("inception_v1"),
        {"aic_perf_warnings": True, "aic_perf_metrics": True, "convert_to_fp16": True},
    ),
    # exports of torch
    "encoder-functions-fp16": lambda folder: (
        dynamo("encoder-functions"),
        sets("encoder-functions") | {"convert_to_fp16": True},
    ),
    "encoder-quantized": lambda folder: _quantized(
        dynamo("encoder-opset20"), folder, **sets("encoder-opset20")
    ),
    "encoder-expanded": lambda folder: (
        dynamo("encoder-functions"),
        sets("encoder-functions") | {"always_expand_onnx_functions": True},
    ),
    "decoder-slots-mxfp6": lambda folder: (
        dynamo("decoder-slots"),
        sets("decoder-slots") | STATEFUL | {"mxfp6_matmul": True, "mxint8_kv_cache": True},
    ),
    "decoder-functions-operations": lambda folder: (
        dynamo("decoder-functions"),
        sets("decoder-functions") | STATEFUL | {"stats_level": 70, "convert_to_fp16": True},
    ),
    "decoder-float16": lambda folder: (
        dynamo("decoder-float16"),
        sets("decoder-float16") | STATEFUL | {"split_retained_state_io": True},
    ),
    "picture-sets": lambda folder: (dynamo("picture"), sets("picture") | {"convert_to_fp16": True}),
    "branches-fp16": lambda folder: (dynamo("branches"), sets("branches") | {"convert_to_fp16": True}),
    "recurrence-fp16": lambda folder: (dynamo("recurrence"), {"convert_to_fp16": True}),
    "packed-weights": lambda folder: (
        dynamo("packed-weights"),
        sets("packed-weights") | {"convert_to_fp16": True},
    ),
    "block-weights": lambda folder: (dynamo("block-weights"), sets("block-weights")),
    "channel-weights": lambda folder: (
        dynamo("channel-weights"),
        sets("channel-weights") | {"stats_level": 70},
    ),
    "perceptron-bfloat16-ai200": lambda folder: (
        dynamo("perceptron-bfloat16"),
        sets("perceptron-bfloat16") | {"aic_hw_version": "ai200"},
    ),
    "perceptron-bfloat16-ai100": lambda folder: (dynamo("perceptron-bfloat16"), sets("perceptron-bfloat16")),
    "perceptron-external-data": lambda folder: (
        dynamo("perceptron-opset20"),
        sets("perceptron-opset20") | {"mxfp6_matmul": True, "convert_to_fp16": True},
    ),
    "perceptron-any-size": lambda folder: (
        dynamo("perceptron-opset18"),
        {"dynamic_shape_input": ["features"], "onnx_define_symbol": {"batch": 8}},
    ),
    "norms-fp16": lambda folder: (dynamo("norms-opset18"), sets("norms-opset18") | {"convert_to_fp16": True}),
    "indexing": lambda folder: (dynamo("indexing"), sets("indexing")),
    "growing-caches": lambda folder: (dynamo("growing-caches-opset18"), sets("growing-caches-opset18")),
    # exports in the form of exporters for the card
    "decoder-card-fp16": lambda folder: (
        _decoder(),
        {
            "network_specialization_config": decoder_model.specializations(),
            "convert_to_fp16": True,
            "mxfp6_matmul": True,
            "aic_num_cores": 4,
            **STATEFUL,
        },
    ),
    "decoder-card-custom-io": lambda folder: (
        _decoder(slots=True, layer_functions=True),
        {
            "network_specialization_config": decoder_model.specializations(slots=4),
            "convert_to_fp16": True,
            "custom_io_list_file": [
                {"IOName": f"past_{kind}.{at}", "Precision": "mxint8"}
                for at in (0, 1)
                for kind in ("key", "value")
            ]
            + [
                {"IOName": f"past_{kind}.{at}_RetainedState", "Precision": "mxint8"}
                for at in (0, 1)
                for kind in ("key", "value")
            ],
            **STATEFUL,
        },
    ),
    "decoder-card-float16-operations": lambda folder: (
        _decoder(elem_type=onnx.TensorProto.FLOAT16, window=8),
        {"network_specialization_config": decoder_model.specializations(), "stats_level": 70, **STATEFUL},
    ),
    "weight-free": lambda folder: (weight_free_models.export(folder, shards=2), {"convert_to_fp16": True}),
    # small models
    "dense-partitions": lambda folder: (
        attention_and_norms(),
        {
            "mdp_load_partition_config": partitions(["embed", "up", "up_bias"], ["down", "residual"]),
            "allow_mxint8_mdp_io": True,
            "convert_to_fp16": True,
        },
    ),
    "dense-partition-template": lambda folder: (
        attention_and_norms(),
        {"mdp_dump_partition_config": str(folder / "template.json"), "convert_to_fp16": True},
    ),
    "example-dense-layout": lambda folder: (
        example(folder),
        {
            "custom_io_list_file": [
                {"IOName": "x", "Precision": "int8", "Scale": 0.125, "Offset": 3},
                {"IOName": "y", "Precision": "float16"},
            ],
            "dump_custom_io_config_template_file": str(folder / "io.yaml"),
            "batchsize": 4,
            "combine_inputs": False,
            "combine_outputs": False,
            "qpc_crc": True,
            "io_crc": True,
        },
    ),
    "example-decoder": lambda folder: (
        example(folder, "--decoder"),
        {"onnx_define_symbol": {"seq_len": 1, "ctx_len": 16}, "all_intermediate_outputs": True},
    ),
    "text-quantized": lambda folder: _quantized(attention_and_norms(), folder, enable_rowwise=True),
    "text-quantized-int16": lambda folder: _quantized(
        attention_and_norms(),
        folder,
        quantization_precision="Int16",
        quantization_schema="asymmetric",
        quantization_precision_bias="Int8",
        stats_level=70,
    ),
    "text-tables": lambda folder: (
        attention_and_norms(),
        {"load_embedding_tables": tables(folder), "dump_embedding_tables": str(folder / "dumped.zip")},
    ),
    "text-node-precision": lambda folder: (
        attention_and_norms(),
        {
            "node_precision_info_file": {
                "FP16NodeInstanceNames": ["m1", "m2"],
                "FP32NodeInstanceNames": ["s"],
            },
            "mxfp6_matmul": True,
            "exclude_mxfp6_matmul": ["up"],
        },
    ),
    "text-mixed": lambda folder: _quantized(
        attention_and_norms(),
        folder,
        execute_nodes_in_fp16=["Softmax", "Add"],
        keep_original_precision_for_nodes=["Where"],
        convert_to_fp16=True,
    ),
    "normalized-fp16": lambda folder: (
        normalized_picture(),
        {"convert_to_fp16": True, "clip_fp16_constants": False},
    ),
    "normalized-some-fp16": lambda folder: (
        normalized_picture(),
        {"execute_nodes_in_fp16": ["Conv", "BatchNormalization"]},
    ),
    "normalized-as-it-is": lambda folder: (normalized_picture(), {}),
    "normalized-quantized": lambda folder: _quantized(
        normalized_picture(), folder, enable_channelwise=True, quantization_schema_constants="symmetric"
    ),
    "measured": _measured(enable_channelwise=True),
    "measured-percentile": _measured(
        quantization_calibration="Percentile", percentile_calibration_value=99.0
    ),
    "measured-layout": _measured(
        custom_io_list_file=[
            {"IOName": "x", "Layout": "NHWC", "Precision": "int8", "Scale": 0.5, "Offset": 2}
        ]
    ),
    "dumped-profile": lambda folder: (
        whole_numbers(),
        {
            "dump_profile": str(folder / "profile.yaml"),
            "calibration_data": whole_samples(),
            "convert_to_fp16": True,
        },
    ),
    "encodings": lambda folder: (whole_numbers(), {"external_quantization_file": encodings(folder)}),
    "magika-float": lambda folder: (magika(), {"stats_level": 50, "batchsize": 1}),
    "magika-fp16": lambda folder: (magika(), {"convert_to_fp16": True, "batchsize": 2}),
    "magika-quantized": lambda folder: _quantized(magika(), folder, enable_rowwise=True, batchsize=1),
}


class _Messages(logging.Handler):
    """Collects warnings and reports, without the folder of the test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self.folder = str(folder)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace(self.folder, "FOLDER")
        self.lines.append(f"{record.levelname} {record.name} {text}")


@contextmanager
def _messages(folder: Path) -> Iterator[_Messages]:
    handler, logger = _Messages(folder), logging.getLogger("qaic")
    level = logger.level
    # An assignment would not clear the levels that loggers cache.
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _digest(data: object) -> str:
    raw = data if isinstance(data, bytes) else bytes(memoryview(data))
    return hashlib.sha256(raw).hexdigest()[:24]


def digests(name: str, folder: Path) -> dict[str, str]:
    """Compile a program and return the digest of every written part."""
    model, options = PROGRAMS[name](folder)
    given = set(folder.rglob("*"))
    with _messages(folder) as messages:
        qpc = qaic.compile(model if isinstance(model, onnx.ModelProto) else str(model), **options)
    core = _core.Qpc(os.fspath(qpc.path))
    # A release writes its own number into the plan; the digest must not depend on it.
    plan = json.loads(bytes(core.elf_section("openqaic_plan")))
    del plan["producer"]
    found = {
        "plan": _digest(json.dumps(plan, sort_keys=True).encode()),
        "graph": _digest(core.elf_section("openqaic_graph")),
        "messages": _digest("\n".join(messages.lines).encode()),
    }
    said = core.elf_section(DIAGNOSTICS_SECTION)
    if said is not None:
        # A path would make the bytes specific to one machine.
        assert str(folder) not in bytes(said).decode()
        found["diagnostics"] = _digest(said)
    for segment, entry in qpc.segments.items():
        # Both segments contain the plan.
        if segment not in {"network.elf", "openqaic.crc"}:
            found[segment] = _digest(entry.data)
    for file in sorted(set(folder.rglob("*")) - given):
        if file.is_file() and file.suffix != ".npy":
            found[f"file {file.relative_to(folder)}"] = _digest(_without_times(file))
    return found


def _without_times(file: Path) -> bytes:
    if file.suffix != ".zip":
        version = qaic.__version__
        return file.read_bytes().replace(version.encode(), b"VERSION")
    with zipfile.ZipFile(file) as archive:
        return b"".join(name.encode() + archive.read(name) for name in sorted(archive.namelist()))
