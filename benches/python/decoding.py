"""One token of a decoder through ``qaicrt``, in the way of clients for language models."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .harness.row import Row
from .harness.spread import Spread, ratios
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx
    from numpy.typing import NDArray

    from .harness.effort import Effort

LAYERS = 32
_HEADS, _WIDTH, _CONTEXT, _VOCABULARY = 2, 16, 64, 256
_HIDDEN = _HEADS * _WIDTH
_CHUNK = 8
_OPSET = 17
_TOKENS_PER_BATCH = 200
_BUDGET, _LIMIT_S = "<= 200 µs", 200e-6
_STEPS = ("set", "setData", "enqueue", "wait", "get")
_THEIRS = "onnxruntime"


def _caches() -> list[str]:
    return [f"past_{kind}.{layer}" for layer in range(LAYERS) for kind in ("key", "value")]


def decoder() -> onnx.ModelProto:
    """Build a decoder whose caches are inputs and outputs; tokens write rows at their positions."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, NDArray[np.generic]] = {
        "places_of_row": np.int64([1, 1, -1, 1]),
        "rows_of_cache": np.int64([1, _HEADS, 1, _WIDTH]),
        "split": np.int64([0, 0, _HEADS, _WIDTH]),
        "join": np.int64([0, 0, _HIDDEN]),
        "column": np.int64([-1, 1]),
        "slots": np.arange(_CONTEXT),
        "scale": np.float32(_WIDTH**-0.5),
        "masked": np.float32(-1e4),
        "embedding": rng.standard_normal((_VOCABULARY, _HIDDEN)),
        "head": rng.standard_normal((_HIDDEN, _VOCABULARY)),
    }

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def dense(source: str, name: str) -> str:
        weights[f"w_{name}"] = rng.standard_normal((_HIDDEN, _HIDDEN)) * _HIDDEN**-0.5
        return node("MatMul", [source, f"w_{name}"], name)

    node("Reshape", ["position_ids", "places_of_row"], "places")
    node("Expand", ["places", "rows_of_cache"], "places_of_all")
    node("Reshape", ["position_ids", "column"], "positions")
    node("Greater", ["slots", "positions"], "hidden")
    x = node("Gather", ["embedding", "input_ids"], "x.0")
    for layer in range(LAYERS):
        parts = {}
        for part in ("query", "key", "value"):
            name = f"{part}.{layer}"
            rows = node("Reshape", [dense(x, name), "split"], f"{name}.rows")
            parts[part] = node("Transpose", [rows], f"{name}.heads", perm=[0, 2, 1, 3])
        for part in ("key", "value"):
            past = f"past_{part}.{layer}"
            written = ["places_of_all", parts[part]]
            parts[part] = node("ScatterElements", [past, *written], f"{past}_RetainedState", axis=2)
        keys = node("Transpose", [parts["key"]], f"keys.{layer}", perm=[0, 1, 3, 2])
        scores = node("MatMul", [parts["query"], keys], f"products.{layer}")
        scores = node("Mul", [scores, "scale"], f"scores.{layer}")
        scores = node("Where", ["hidden", "masked", scores], f"seen.{layer}")
        shares = node("Softmax", [scores], f"shares.{layer}", axis=-1)
        mixed = node("MatMul", [shares, parts["value"]], f"mixed.{layer}")
        mixed = node("Transpose", [mixed], f"mixed_rows.{layer}", perm=[0, 2, 1, 3])
        mixed = node("Reshape", [mixed, "join"], f"joined.{layer}")
        bent = node("Tanh", [dense(mixed, f"output.{layer}")], f"bent.{layer}")
        x = node("Add", [x, bent], f"x.{layer + 1}")
    node("MatMul", [x, "head"], "logits")

    def value(name: str, kind: int, shape: list[object]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    cache: list[object] = [1, _HEADS, _CONTEXT, _WIDTH]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            *(value(name, TensorProto.INT64, [1, "seq_len"]) for name in ("input_ids", "position_ids")),
            *(value(name, TensorProto.FLOAT, cache) for name in _caches()),
        ],
        [
            value("logits", TensorProto.FLOAT, [1, "seq_len", _VOCABULARY]),
            *(value(f"{name}_RetainedState", TensorProto.FLOAT, cache) for name in _caches()),
        ],
        [
            numpy_helper.from_array(array if array.dtype == np.int64 else array.astype(np.float32), name)
            for name, array in ((name, np.asarray(array)) for name, array in weights.items())
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _compiled(model: onnx.ModelProto, folder: Path) -> str:
    from qaic.compiler.driver import compile_model
    from qaic.options import resolve

    given = {
        "network_specialization_config": [
            {"name": name, "symbols": {"seq_len": str(rows)}}
            for name, rows in (("Prefill", _CHUNK), ("Decode", 1))
        ],
        "retained_state": True,
        "aic_num_cores": 1,
    }
    found = resolve(given, options_path=None, model_is_container=False)
    return str(compile_model(model, found.compile, found.set_compile, output_dir=folder / "decoder").parent)


class Client:
    """A program as used by a client for language models: a buffer and dims for every binding, by name.

    Every token passes all buffers; the buffers of caches are empty, and each input is a new buffer.
    """

    def __init__(self, path: str) -> None:
        import qaicrt

        self._qaicrt = qaicrt
        context = qaicrt.Context()
        self.queue = qaicrt.Queue(context, 0)
        qpc = qaicrt.Qpc(path)
        properties = qaicrt.QAicProgramProperties()
        properties.dataPathTimeoutMs = 60_000
        program = qaicrt.Program(context, None, qpc, properties)
        for status in (program.load(), program.activate()):
            self.check(status)
        self.exec_obj = qaicrt.ExecObj(context, program)
        mappings = qpc.getBufferMappings()
        self.index = {mapping.bufferName: mapping.index for mapping in mappings}
        self.outputs = [name for name in self.index if name == "logits" or name.endswith("_RetainedState")]
        self.buffers = [qaicrt.QBuffer(bytes(mapping.size)) for mapping in mappings]
        self.dims = qaicrt.BufferDimensionsVecRef([(1, [mapping.size]) for mapping in mappings])
        self.set({name: np.array([]) for name in self.index if name.startswith("past_")})
        self.set({"logits": np.zeros((1, 1, _VOCABULARY), np.float32)})

    def check(self, status: object) -> None:
        """End the measurement unless a call succeeded."""
        if status != self._qaicrt.QStatus.QS_SUCCESS:
            raise SystemExit(f"a call of qaicrt answered {status}")

    def set(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Replace the buffers of bindings."""
        for name, array in arrays.items():
            index = self.index[name]
            self.buffers[index] = self._qaicrt.QBuffer(array.tobytes())
            self.dims[index] = (array.itemsize, array.shape)

    def get(self) -> dict[str, NDArray[np.float32]]:
        """Return the outputs that were not omitted."""
        status, buffers = self.exec_obj.getData()
        self.check(status)
        found = {}
        for name in self.outputs:
            index = self.index[name]
            if self.buffers[index].size:
                data = np.frombuffer(bytes(buffers[index]), np.float32)
                found[name] = data.reshape(self.dims[index][1])
        return found

    def token(self, token: int, position: int, times: list[float]) -> NDArray[np.float32]:
        """Return the logits after a token; `times` receives the time of each step."""
        clock = time.perf_counter
        times.append(clock())
        self.set({"input_ids": np.array([[token]]), "position_ids": np.array([[position]])})
        times.append(clock())
        self.check(self.exec_obj.setData(self.buffers, self.dims))
        times.append(clock())
        self.check(self.queue.enqueue(self.exec_obj))
        times.append(clock())
        self.check(self.exec_obj.waitForCompletion())
        times.append(clock())
        logits = self.get()["logits"]
        times.append(clock())
        return logits


def decode_steps(folder: str, batches: int) -> dict[str, list[float]]:
    """Measure tokens of both sides, in seconds per token and step, one mean for each batch (in a worker).

    The mean, unlike the median, includes the times at which the thread loses its CPU.
    """
    import onnxruntime

    model = decoder()
    client = Client(_compiled(model, Path(folder)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    engine = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    empty = {name: np.zeros((1, _HEADS, _CONTEXT, _WIDTH), np.float32) for name in _caches()}
    caches = dict(empty)

    def theirs(token: int, position: int) -> NDArray[np.float32]:
        feeds = {"input_ids": np.array([[token]]), "position_ids": np.array([[position]])}
        logits, *written = engine.run(None, feeds | caches)
        caches.update(zip(_caches(), written, strict=True))
        return logits

    tokens = np.random.default_rng(1).integers(0, _VOCABULARY, _CONTEXT)
    for position, token in enumerate(tokens):
        found, expected = client.token(int(token), position, []), theirs(int(token), position)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    results: dict[str, list[float]] = {name: [] for name in (*_STEPS, _THEIRS)}
    gc.collect()
    gc.disable()
    for _ in range(batches):
        times: list[list[float]] = []
        for number in range(_TOKENS_PER_BATCH):
            times.append([])
            client.token(int(tokens[number % _CONTEXT]), number % _CONTEXT, times[-1])
        steps = np.diff(np.array(times), axis=1).mean(axis=0)
        for name, taken in zip(_STEPS, steps, strict=True):
            results[name].append(float(taken))
        started = time.perf_counter()
        for number in range(_TOKENS_PER_BATCH):
            theirs(int(tokens[number % _CONTEXT]), number % _CONTEXT)
        results[_THEIRS].append((time.perf_counter() - started) / _TOKENS_PER_BATCH)
    return results


def decode_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `decoding`."""
    measured = measure("decode_steps", folder=folder, batches=effort.batches)
    enqueue = Spread.of(measured["enqueue"], "s")
    yield Row("`enqueue`", enqueue, budget=_BUDGET, met=enqueue.median <= _LIMIT_S)
    steps = zip(*(measured[name] for name in ("set", "setData", "enqueue")), strict=True)
    submit = Spread.of([sum(parts) for parts in steps], "s")
    title = "new buffers for two inputs, `setData` of all 132, `enqueue`"
    yield Row(title, submit, budget=_BUDGET, met=submit.median <= _LIMIT_S)
    yield Row("`getData` and the logits as an array", Spread.of(measured["get"], "s"))
    yield Row("`waitForCompletion`", Spread.of(measured["wait"], "s"))
    whole = [sum(parts) for parts in zip(*(measured[name] for name in _STEPS), strict=True)]
    beside = (("caches in and out", Spread.of(measured[_THEIRS], "s")),)
    ratio = ratios(whole, measured[_THEIRS])
    yield Row("a token", Spread.of(whole, "s"), beside, ratio)
