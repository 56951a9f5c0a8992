"""The requests with which a card transfers the buffers of a program cover them; an inference completes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qaic
import session_models
from flat_reader import Table
from qaic import _core
from qaic.compiler.backend.descriptor import DmaBuffers, dma_buffers, metadata
from qaic.compiler.driver import compile_model
from qaic.compiler.ir.interface import TensorSpec
from qaic.options import resolve
from qpc_support import container, program

IN, OUT = 0, 1


def requests_of(root: Table) -> list[dict]:
    """The requests, by the numbers of their fields."""
    return [
        {
            "ops": [
                {
                    "sem": op.number(0, "H"),
                    "value": op.number(1, "H"),
                    "op": op.number(2, "B"),
                    "pre": op.number(3, "B"),
                }
                for op in request.tables(0)
            ],
            "doorbells": len(request.tables(1)),
            "host": request.number(2, "Q"),
            "dev": request.number(3, "Q"),
            "size": request.number(4, "I"),
            "num": request.number(5, "H"),
            "mcid": request.number(6, "H"),
            "space": request.number(7, "B"),
            "dir": request.number(8, "B"),
            "port": request.number(9, "H"),
        }
        for request in root.tables(6)
    ]


def check(root: Table, buffers: list[tuple[int, int]]) -> None:
    """`buffers` contains the bytes and the direction of each buffer."""
    requests = requests_of(root)
    moving = [request for request in requests if request["size"]]
    assert sorted((r["num"], r["host"], r["size"], r["dir"]) for r in moving) == [
        (number, 0, size, direction) for number, (size, direction) in enumerate(buffers)
    ]
    for direction in (IN, OUT):
        numbers = [r["num"] for r in moving if r["dir"] == direction]
        assert numbers == sorted(numbers)
    assert all(
        (r["mcid"], r["doorbells"], r["space"], r["port"]) == (0, 0, 1, 100 + r["dir"]) for r in requests
    )
    end = 0
    for request in sorted(moving, key=lambda r: r["dev"]):
        assert request["dev"] % 64 == 0
        assert request["dev"] >= end
        end = request["dev"] + request["size"]
    memory = root.number(11, "Q")
    assert end <= memory <= end + 63
    states = root.numbers(4, "I")
    assert len(states) == root.number(20, "H") == 2
    play(requests, states)


def play(requests: list[dict], semaphores: list[int]) -> None:
    """Let a card execute the requests in order, twice; it computes when a semaphore shows that the inputs are
    present.

    The driver splits transfers if memory consists of pieces. It repeats the operations before a transfer for
    each piece, and executes those after the transfer once.
    """
    moved: set[int] = set()
    inputs = {r["num"] for r in requests if r["dir"] == IN and r["size"]}
    computed = 0
    for inference in (1, 2):
        moved.clear()
        for request in requests:
            for _piece in range(3 if request["size"] else 1):
                for op in request["ops"]:
                    if op["pre"]:
                        assert op["op"] == 5
                        assert semaphores[op["sem"]] >= op["value"] > 0, "no later request raises it"
            if request["dir"] == OUT:
                assert computed == inference
            moved.add(request["num"])
            for op in request["ops"]:
                if not op["pre"]:
                    semaphores[op["sem"]] += {2: 1, 3: -1}[op["op"]]
            if semaphores[0] > 0:
                semaphores[0] -= 1
                assert inputs <= moved
                computed += 1
                semaphores[1] += 1
    assert semaphores == [0, 0]


def encoded(buffers: DmaBuffers) -> Table:
    fields = metadata("n", buffers, cores=1, constants_size=0)
    return Table.root(bytes(_core.encode_metadata(json.dumps(fields))))


class Measured:
    """The settings of statistics in this test."""

    def __init__(self, size):
        self.size = size

    def buffer_bytes(self):
        return self.size


EDGES = st.lists(
    st.builds(
        lambda elem, dims: TensorSpec("e", elem, tuple(dims)),
        st.sampled_from([TensorProto.FLOAT, TensorProto.INT8, TensorProto.FLOAT16, TensorProto.INT64]),
        st.lists(st.integers(0, 70), max_size=4),
    ),
    max_size=5,
)


@given(
    EDGES, EDGES.filter(bool), st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(1, 9999)
)
def test_requests_cover_the_buffers(
    inputs, outputs, combine_in, combine_out, has_specializations, stats_bytes
):
    made = dma_buffers(
        inputs,
        outputs,
        combine_inputs=combine_in,
        combine_outputs=combine_out,
        has_specializations=has_specializations,
        stats=None if stats_bytes is None else Measured(stats_bytes),
    )
    assert all(size for size, _ in made.buffers)
    check(encoded(made), list(made.buffers))
    has_control = has_specializations or stats_bytes is not None
    assert made.control == (len(made.buffers) - 1 if has_control else None)
    if has_control:
        assert made.buffers[made.control] == (64, IN)
    for edges, places, direction in ((inputs, made.inputs, IN), (outputs, made.outputs, OUT)):
        used = sorted(
            (buffer, start, edge.nbytes) for edge, (buffer, start) in zip(edges, places, strict=True)
        )
        for index, (buffer, start, nbytes) in enumerate(used):
            size, found = made.buffers[buffer]
            assert (found, start % 64) == (direction, 0)
            room = min([after for other, after, _ in used[index + 1 :] if other == buffer], default=size)
            assert start + nbytes <= room


def test_outputs_alone_synchronize_too():
    made = dma_buffers(
        [], [TensorSpec("y", TensorProto.FLOAT, (3,))], combine_inputs=True, combine_outputs=True
    )
    root = encoded(made)
    check(root, [(64, OUT)])
    first, last = requests_of(root)
    assert (first["size"], first["dir"], last["size"]) == (0, IN, 64)


def test_more_buffers_than_can_be_numbered_have_no_requests():
    edges = [TensorSpec("e", TensorProto.INT8, (1,))] * 0x8000
    made = dma_buffers(edges, edges, combine_inputs=False, combine_outputs=False)
    assert made.metadata() == {}
    made = dma_buffers(edges, edges[1:], combine_inputs=False, combine_outputs=False)
    assert len(made.metadata()["dmaRequests"]) == 0xFFFF


@settings(max_examples=12)
@given(
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 40, 70]),
    st.sampled_from([None, [{"n": 1}, {"n": 5}]]),
    st.booleans(),
)
def test_requests_of_compiled_programs(count, combine_in, combine_out, level, sets, fp16):
    nodes = [helper.make_node("Relu", [f"x{i}"], [f"y{i}"]) for i in range(count)]
    rows = 3 if sets is None else "n"
    built = session_models.model(
        nodes,
        [(f"x{i}", "float32", [rows, 4 + i]) for i in range(count)],
        [(f"y{i}", "float32", None) for i in range(count)],
    )
    options = {
        "combine_inputs": combine_in,
        "combine_outputs": combine_out,
        "stats_level": level,
        "convert_to_fp16": fp16,
    }
    if sets is not None:
        options["network_specialization_config"] = sets
    with tempfile.TemporaryDirectory() as folder:
        model = session_models.save(Path(folder), built)
        resolved = resolve(options, options_path=None, model_is_container=False)
        path = compile_model(model, resolved.compile, resolved.set_compile, output_dir=Path(folder) / "out")
        qpc = qaic.Qpc(path)
        assert qpc.validate() == []
        found = [(m.size, m.io_type - 1) for m in qpc.buffer_mappings_dma]
        container = _core.Qpc(str(path))
        check(Table.root(bytes(container.elf_section("metadata_fb"))), found)
        plan = qpc.plan
    assert plan.get("control_buffer") == (len(found) - 1 if level or sets else None)
    copies = [
        [binding["transformseq"][0]["copy_dma_buffer"] for binding in qpc.network_descriptor[side]]
        for side in ("inputs", "outputs")
    ]
    placed = [[(copy.get("buffer_num", 0), copy.get("offset", 0)) for copy in side] for side in copies]
    planned = [[tuple(place) for place in plan["places"][side]] for side in ("inputs", "outputs")]
    assert planned == [side[:count] for side in placed]


@pytest.mark.parametrize("number", [0, 1, 9, 2**40])
def test_a_control_buffer_that_cannot_be_one_is_reported(number):
    copies = [
        {"kind": 6, "dims": [4], "copy_dma_buffer": {"dir": side, "buffer_num": side}} for side in (IN, OUT)
    ]
    tensors = [
        {"name": name, "io_initial": {"dims": [4]}, "io_transformed": {"dims": [4]}, "transformseq": [copy]}
        for name, copy in zip("xy", copies, strict=True)
    ]
    network = {
        "inputs": [{**tensors[0], "align": 4}],
        "outputs": [tensors[1]],
        "dma_buffers": [{"size": 64}, {"size": 64, "dir": 1}, {"size": 64}, {"size": 63}],
    }

    def findings(number):
        edges = {
            side: [{"name": name, "dtype": "float32", "dims": [4]}]
            for side, name in (("inputs", "x"), ("outputs", "y"))
        }
        plan = {"version": 1, "target": "cpu", "initializers": [], "control_buffer": number, **edges}
        made = container(program(network=network, plan=plan, graph=b"g"))
        return [finding.code for finding in qaic.qpc.validate(made)]

    assert findings(2) == []
    assert findings(3) == findings(number) == ["qpc.control_buffer"]
