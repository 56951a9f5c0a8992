"""Containers with invalid plans of stored weights cause an error, or give the numbers that the plan
describes.

The container of a real program gets another plan, graph, constants and input. A reader of plans in numpy,
written from docs/reference/cpu-program.md, computes the expected result. Each container is opened in a child
process with limited memory, so a crash or a large allocation fails the test.
"""

import atexit
import base64
import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import child_process
import qaic
import qpc_support
from compiler_oracle import info, model_of, node
from qaic import _core

EXPERTS, COLUMNS, LENGTH, ENTRIES = 3, 4, 40, 2
ROWS = EXPERTS * COLUMNS
#: Form -> bytes of 32 elements.
FORMS = {
    "float32": 128,
    "float16": 64,
    "bfloat16": 64,
    "mxfp6_e2m3": 25,
    "mxint8": 33,
    "int8": 32,
    "uint4": 16,
}
DENSE = ("float32", "float16", "bfloat16")
QUANTIZED = ("int8", "uint4")
#: Element types of tensors.
DTYPES = (*DENSE, "uint8", "int8", "bool")
ENTRIES_OF_STATE, GROUPS, CONTEXT, ATTENDED = 2, 2, 6, 4
#: Element types of inputs.
FLOAT, UINT8, INT64, HALF = 1, 2, 7, 10
NUMPY = {FLOAT: "float32", UINT8: "uint8", INT64: "int64", HALF: "float16"}


def attended(elem_type, width):
    """Inputs and result of `AttendedRows` with three rows, for a type of the state."""
    state = (elem_type, [ENTRIES_OF_STATE, GROUPS, CONTEXT, width])
    more = {"length": (INT64, [1]), "tuples": (INT64, [3, 3]), "rows": (FLOAT, [3, LENGTH])}
    return {"state": state, **more}, [ENTRIES_OF_STATE, GROUPS, ATTENDED, LENGTH]


#: Operator, or the type of its state -> inputs with their types and dims, and the dims of the result.
INTERFACES = {
    "StoredMatMul": ({"x": (FLOAT, [ENTRIES, LENGTH])}, [ENTRIES, ROWS]),
    "StoredExperts": (
        {"x": (FLOAT, [ENTRIES, 1, LENGTH]), "i": (INT64, [ENTRIES])},
        [ENTRIES, 1, COLUMNS],
    ),
    "StoredGather": ({"i": (INT64, [ENTRIES])}, [ENTRIES, LENGTH]),
    "Elementwise": (
        {"a": (FLOAT, [2, 3, LENGTH]), "b": (FLOAT, [3, 1]), "c": (FLOAT, [LENGTH]), "d": (FLOAT, [2, 1, 1])},
        [2, 3, LENGTH],
    ),
    "float32": attended(FLOAT, LENGTH),
    "float16": attended(HALF, LENGTH),
    "mxint8": attended(UINT8, 2 * 33),
}
#: Sizes that overflow, or that no container of a few kilobytes has.
HUGE = (1 << 31, 1 << 33, 1 << 62, (1 << 63) - 1)

WORKER = """
import base64, json, resource, sys
import numpy as np
import qaic
from qaic.cli.stored_weights import stored_weights
from qaic.errors import QaicError

def attempt(call):
    try:
        return call()
    except QaicError as error:
        assert error.code and str(error).strip(), repr(error)
        return {"error": f"{error.code}: {error}"}

def inference(path, feeds):
    with qaic.Session(path) as session:
        result = session.run(feeds)["y"]
    return {"dims": result.shape, "numbers": base64.b64encode(result.tobytes()).decode()}

first = True
for line in sys.stdin:
    given = json.loads(line)
    feeds = {name: np.array(value, dtype) for name, (dtype, value) in given["feeds"].items()}
    answer = attempt(lambda: inference(given["path"], feeds))
    findings = qaic.qpc.validate(given["path"])
    answer["findings"] = [finding.code for finding in findings if finding.severity == "error"]
    attempt(lambda: stored_weights(qaic.Qpc(given["path"])))
    attempt(lambda: [shown.shape for shown in qaic.Qpc(given["path"]).initializers.values()])
    print(json.dumps(answer), flush=True)
    if first:
        first = False
        status = open("/proc/self/status").read()
        held = next(int(one.split()[1]) for one in status.splitlines() if one.startswith("VmData:")) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (held + (256 << 20), -1))
"""


class Worker:
    """A process that opens containers; a new process replaces it when it ends."""

    def __init__(self, stack):
        self.stack, self.process = stack, None

    def ask(self, question):
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-c", WORKER]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            environment = {**os.environ, "QAIC_DEVICE": "cpu"}
            self.process = self.stack.enter_context(child_process.started(command, env=environment, **pipes))
        print(json.dumps(question), file=self.process.stdin, flush=True)
        # The process writes one line for each request, so the text needs no buffer here.
        if not select.select([self.process.stdout], [], [], child_process.WATCHDOG_S)[0]:
            self.process.kill()
            self.process.wait()
            pytest.fail(f"the process answers nothing to {question}")
        answer = self.process.stdout.readline()
        assert answer, f"the process ended with {self.process.wait()}"
        return json.loads(answer)


@pytest.fixture(scope="module")
def worker():
    with contextlib.ExitStack() as stack:
        yield Worker(stack)


@functools.cache
def folder():
    made = tempfile.TemporaryDirectory(prefix="openqaic-test-")
    atexit.register(made.cleanup)
    return Path(made.name)


@functools.cache
def program(key):
    """The container of a program with the inputs and the output of an interface."""
    inputs, result = INTERFACES[key]
    constants = [("w", np.ones((LENGTH, ROWS), np.float32)), ("shape", np.array(result))]
    nodes, last = [], "w"
    for name in inputs:
        nodes.append(node("Cast", [name], [f"{name}_f"], to=FLOAT))
        nodes.append(node("ReduceSum", [f"{name}_f"], [f"{name}_s"], keepdims=0))
        nodes.append(node("Mul", [f"{name}_s", last], [f"{name}_p"]))
        last = f"{name}_p"
    nodes += [node("ReduceSum", [last], ["t"], keepdims=0), node("Expand", ["t", "shape"], ["y"])]
    described = [info(name, dims, elem_type) for name, (elem_type, dims) in inputs.items()]
    proto = model_of(nodes, described, [info("y", result)], constants)
    return qaic.compile(proto, output_dir=folder() / key)


def forge(key, operator, attributes, plan, constants):
    """Write the container of a program with one operator of the device, another plan and other constants."""
    original = qaic.Qpc(program(key).path)
    graph = onnx.load_from_string(original.graph.tobytes())
    del graph.graph.node[:], graph.graph.initializer[:]
    made = helper.make_node(operator, [*INTERFACES[key][0]], ["y"], domain="com.openqaic", **attributes)
    graph.graph.node.append(made)
    graph.opset_import.append(helper.make_opsetid("com.openqaic", 1))
    sections = [
        ("metadata_fb", bytes(original._core.elf_section("metadata_fb"))),
        ("openqaic_graph", graph.SerializeToString()),
        ("openqaic_plan", json.dumps(original.plan | plan).encode()),
    ]
    size = len(constants)
    payloads = {
        "network.elf": bytes(_core.encode_elf(sections)),
        "constants.bin": constants,
        "constantsdesc.bin": size.to_bytes(8, "little") + bytes(16),
    }
    segments = [
        (
            name,
            payloads.get(name, segment.data.tobytes()),
            size if name == "constants.bin" else segment.offset,
        )
        for name, segment in original.segments.items()
        if not name.endswith(".crc")
    ]
    path = folder() / "lie.bin"
    path.write_bytes(qpc_support.container(segments, alignment=64))
    return str(path)


def numbers_of(answer):
    data = base64.b64decode(answer["numbers"])
    return np.frombuffer(data, np.float32).reshape(answer["dims"])


@dataclass
class Lie:
    """A container: its operator, the contents of the plan and the graph, the constants, and the input."""

    operator: str
    entry: dict
    constants: bytes
    attributes: dict
    indices: list
    version: int = 4
    own: list | None = None
    more: list = field(default_factory=list)

    def feeds(self):
        inputs, _ = INTERFACES[self.operator]
        feeds = {}
        if "x" in inputs:
            numbers = np.random.default_rng(1).standard_normal(inputs["x"][1]).astype(np.float32)
            feeds["x"] = ("float32", numbers.tolist())
        if "i" in inputs:
            feeds["i"] = ("int64", self.indices)
        return feeds

    def write(self):
        own = [self.operator] if self.own is None else self.own
        plan = {"version": self.version, "own_operators": own, "initializers": [self.entry, *self.more]}
        return forge(self.operator, self.operator, self.attributes, plan, self.constants)


def whole(value, least=0):
    return isinstance(value, int) and not isinstance(value, bool) and least <= value


def matrix(lie, entry=None):
    """The matrix that an entry of a plan describes, as float64; None if it describes none."""
    entry = lie.entry if entry is None else entry
    dims, layout, group = entry.get("dims"), entry.get("layout"), entry.get("group", 0)
    form = entry["dtype"] if entry.get("encoding") is None else entry["encoding"]
    together = {"rows": 1, "tiles": 4}.get(layout if isinstance(layout, str) else "")
    if not isinstance(dims, list) or len(dims) != 2 or not all(map(whole, dims)) or together is None:
        return None
    if form not in FORMS or entry["dtype"] not in DTYPES or not whole(group):
        return None
    if form in QUANTIZED and group and (group % 32 or group & (group - 1)):
        return None
    offset, size = entry.get("offset"), entry.get("size")
    if not whole(offset) or not whole(size) or offset % 64 or offset + size > len(lie.constants):
        return None
    rows, length = dims
    held, units = -(-rows // together) * together, -(-length // 32)
    groups = 0
    if form in QUANTIZED:
        groups = -(-units // (group // 32)) if group else min(units, 1)
    if size != held * (units * FORMS[form] + 5 * groups):
        return None
    data = np.frombuffer(lie.constants, np.uint8)[offset : offset + size]

    def in_order(part, count):
        return part.reshape(held // together, count, together, -1).swapaxes(1, 2).reshape(held, count, -1)

    if not size:
        return (
            np.zeros((rows, length))
            if rows * length == 0 and rows < 1 << 20 and length < 1 << 20
            else "empty"
        )
    code_bytes = held * units * FORMS[form]
    codes = in_order(data[:code_bytes], units)
    if form in DENSE:
        dtype = ml_dtypes.bfloat16 if form == "bfloat16" else np.dtype(form)
        numbers = np.ascontiguousarray(codes).view(dtype).astype(np.float64)
    elif form in {"mxfp6_e2m3", "mxint8"}:
        powers = np.exp2(codes[:, :, :1].astype(np.float64) - 127)
        if form == "mxint8":
            elements = np.ascontiguousarray(codes[:, :, 1:]).view(np.int8) / 64
        else:
            bits = np.unpackbits(codes[:, :, 1:], axis=2, bitorder="little").reshape(held, units, 32, 6)
            sixes = np.packbits(bits, axis=3, bitorder="little")[..., 0]
            elements = sixes.view(ml_dtypes.float6_e2m3fn).astype(np.float64)
        numbers = elements * powers
    else:
        behind = data[code_bytes:]
        scales = in_order(behind[: 4 * held * groups], groups)
        scales = np.ascontiguousarray(scales).view(np.float32)[..., 0].astype(np.float64)
        zeros = in_order(behind[4 * held * groups :], groups).view(np.int8)[..., 0].astype(np.float64)
        elements = codes.view(np.int8) if form == "int8" else np.stack([codes & 15, codes >> 4], axis=-1)
        numbers = elements.reshape(held, units, 32).astype(np.float64)
        at = np.arange(units) // (group // 32) if group else np.zeros(units, int)
        numbers = (numbers - zeros[:, at, None]) * scales[:, at, None]
    return numbers.reshape(held, -1)[:rows, :length]


def agrees(lie):
    """Return True if every weight of a plan has the size of its form, and a name and bytes of its own."""
    entries = [lie.entry, *lie.more]
    if any(matrix(lie, entry) is None for entry in entries):
        return False
    ends = sorted((entry["offset"], entry["offset"] + entry["size"]) for entry in entries if entry["size"])
    is_apart = all(end <= start for (_, end), (start, _) in pairwise(ends))
    return is_apart and len({entry["name"] for entry in entries}) == len(entries)


def expected(lie):
    """The result and its error bound, or None for an error."""
    weight, attributes = matrix(lie), lie.attributes
    if not agrees(lie) or lie.version not in range(1, 5) or lie.own not in (None, [lie.operator]):
        return None
    if weight is None or isinstance(weight, str) or attributes.get("weight") != lie.entry.get("name"):
        return None
    inputs, dims = INTERFACES[lie.operator]
    if lie.operator != "StoredGather" and attributes.get("rounding") not in (1, 10, 16):
        return None
    x = np.array(lie.feeds()["x"][1], np.float32).astype(np.float64) if "x" in inputs else None
    if x is not None and x.shape[-1] != weight.shape[1]:
        return None
    if lie.operator == "StoredMatMul":
        found, size = x @ weight.T, np.abs(x) @ np.abs(weight).T
    else:
        count = attributes["experts"] if lie.operator == "StoredExperts" else len(weight)
        if (
            count <= 0
            or len(weight) % count
            or (lie.operator == "StoredExperts" and len(weight) // count % 4)
        ):
            return None
        if not all(-count <= index < count for index in lie.indices):
            return None
        if lie.operator == "StoredGather":
            found = weight[lie.indices]
            size = np.abs(found)
        else:
            chosen = weight.reshape(count, -1, weight.shape[1])[lie.indices].swapaxes(1, 2)
            found, size = x @ chosen, np.abs(x) @ np.abs(chosen)
    if list(found.shape) != dims:
        return None
    steps = {1: 0, 10: 2.0**-10, 16: 2.0**-7}[attributes.get("rounding", 1)]
    return found, 2e-6 * size + steps * np.abs(found) + (2.0**-24 if steps else 0)


def payload(form, group, seed):
    """Random bytes of a matrix whose numbers are finite and of ordinary size."""
    rng = np.random.default_rng(seed)
    units = -(-LENGTH // 32)
    if form in DENSE:
        dtype = ml_dtypes.bfloat16 if form == "bfloat16" else np.dtype(form)
        return rng.standard_normal((ROWS, units * 32)).astype(dtype).tobytes()
    codes = rng.integers(0, 256, (ROWS * units, FORMS[form]), np.uint8)
    if form not in QUANTIZED:
        codes[:, 0] = rng.integers(122, 130, len(codes))
        return codes.tobytes()
    groups = ROWS * (-(-units // (group // 32)) if group else 1)
    scales = rng.uniform(0.01, 0.1, groups).astype("<f4")
    return codes.tobytes() + scales.tobytes() + rng.integers(0, 256, groups, np.uint8).tobytes()


numbers = st.sampled_from(
    [0, 1, 2, 4, 10, ROWS, 32, 33, LENGTH, 64, 65, -1, *HUGE, -(1 << 63), 1 << 64, 1.5, "12", None]
)
CHANGES = {
    "name": st.sampled_from(["v", "", "w\0", 3]),
    "dims": st.one_of(
        st.lists(numbers, max_size=4),
        st.permutations([0, 1 << 62]),
        st.tuples(st.sampled_from([*range(8, 14), 16]), st.sampled_from([*range(32, 66), 96])).map(list),
    ),
    "offset": st.sampled_from([1, 32, 63, 64, 128, 1 << 40, *HUGE, (1 << 64) - 64, -64, None, "0"]),
    "size": st.one_of(numbers, st.integers(0, 8192)),
    "layout": st.sampled_from(["rows", "tiles", "", "piles", "Tiles", 3, None]),
    "encoding": st.sampled_from([*FORMS, "zip", "", "uint8", 3, None]),
    "dtype": st.sampled_from([*DENSE, "uint8", "int8", "uint4", "bool", "string", "", 3, None]),
    "group": st.sampled_from(
        [1, 31, 32, 33, 48, 64, 96, 128, 1 << 32, 1 << 63, (1 << 63) + 32, -32, "32", None]
    ),
}
ATTRIBUTES = {
    "weight": st.sampled_from(["v", "", "y"]),
    "rounding": st.sampled_from([0, 1, 10, 16, 11, -1, 1 << 32, (1 << 63) - 1]),
    "experts": st.sampled_from([-1, 0, 1, 2, EXPERTS, 4, 6, ROWS, 13, (1 << 63) - 1, -(1 << 63)]),
    "chosen": st.sampled_from([-1, 0, 1, ENTRIES, (1 << 63) - 1, -(1 << 63)]),
}


@st.composite
def lies(draw):
    form, operator = (
        draw(st.sampled_from([*FORMS])),
        draw(st.sampled_from(["StoredMatMul", "StoredExperts", "StoredGather"])),
    )
    layout = draw(st.sampled_from(["rows", "tiles"]))
    group = draw(st.sampled_from([0, 32, 64, 128])) if form in QUANTIZED else 0
    data = payload(form, group, draw(st.integers(0, 3)))
    entry = {"name": "w", "dtype": form if form in DENSE else "float32", "dims": [ROWS, LENGTH], "offset": 0}
    entry |= {"size": len(data), "layout": layout}
    entry |= ({} if form in DENSE else {"encoding": form, "axis": 1}) | ({"group": group} if group else {})
    attributes = {"weight": "w"}
    if operator != "StoredGather":
        attributes["rounding"] = 1
    count = ROWS
    if operator == "StoredExperts":
        attributes |= {"experts": EXPERTS, "chosen": ENTRIES}
        count = EXPERTS
    places = st.integers(-count, count - 1)
    lie = Lie(operator, entry, data + bytes(128), attributes, draw(st.lists(places, min_size=2, max_size=2)))
    for change in draw(
        st.lists(st.sampled_from([*CHANGES, "graph", "cut", "index", "other", "plan"]), max_size=3)
    ):
        if change in CHANGES:
            entry[change] = draw(CHANGES[change])
        elif change == "graph":
            name = draw(st.sampled_from([*ATTRIBUTES.keys() & attributes.keys()]))
            attributes[name] = draw(ATTRIBUTES[name])
        elif change == "cut":
            lie.constants = lie.constants[: draw(st.integers(0, len(lie.constants)))]
        elif change == "index":
            outside = st.sampled_from([-count - 1, count, -(1 << 63), (1 << 63) - 1, 1 << 32, -(1 << 31)])
            lie.indices[draw(st.integers(0, 1))] = draw(st.one_of(outside, places))
        elif change == "other":
            # Bytes or a name that two weights share, or an additional weight.
            place = draw(st.sampled_from([0, -(-len(data) // 64) * 64]))
            lie.constants = lie.constants.ljust(place + len(data), b"\0")
            lie.more.append(entry | {"name": draw(st.sampled_from(["w", "v"])), "offset": place})
        else:
            lie.version = draw(st.sampled_from([0, 3, 4, 5, 1 << 63]))
            lie.own = draw(st.sampled_from([None, [], ["StoredPiles"]]))
    return lie


@given(lies())
def test_container_gives_an_error_or_the_numbers_of_its_plan(worker, lie):
    answer = worker.ask({"path": lie.write(), "feeds": lie.feeds()})
    meant = expected(lie)
    if lie.entry.get("layout") is not None and not agrees(lie):
        assert answer["findings"], answer
    if meant is None:
        assert "error" in answer, answer
        return
    assert "error" not in answer, answer
    found = numbers_of(answer)
    result, bound = meant
    assert (np.abs(found - result) <= bound).all()
    assert answer["findings"] == []


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
#: ONNX type -> type to which the device rounds.
ROUNDINGS = {1: np.float32, 10: np.float16, 16: ml_dtypes.bfloat16}


def computed(words, operands, rounding):
    """Compute an expression in postfix notation; None if it is none, or reads too many operands."""
    operands, waiting = list(operands), []
    for word in words:
        if word in {"read", "rotate"} and operands:
            waiting.append(operands.pop(0))
            if word == "rotate":
                if waiting[-1].shape[-1] != LENGTH:
                    return None
                first, second = np.split(waiting.pop(), 2, axis=-1)
                waiting.append(np.concatenate([-second, first], axis=-1))
            continue
        count = {"round": 1, **dict.fromkeys(ARITHMETIC, 2)}.get(word, 0)
        if not 0 < count <= len(waiting):
            return None
        used = [waiting.pop() for _ in range(count)][::-1]
        with np.errstate(all="ignore"):
            result = used[0] if word == "round" else ARITHMETIC[word](*used)
            waiting.append(result.astype(ROUNDINGS[rounding]).astype(np.float32))
    return waiting[0] if len(waiting) == 1 else None


@given(
    st.one_of(
        st.lists(st.sampled_from(["read", "read", "rotate", "round", *ARITHMETIC, "abs", "2"]), max_size=9),
        st.permutations(["read", "round", "rotate", "read", "rotate", *ARITHMETIC]).map(
            lambda words: words[:8]
        ),
        st.sampled_from(
            [
                "read read mul read read add div",
                "rotate read mul rotate sub",
                "read read read read sub mul add round",
            ]
        ).map(str.split),
    ),
    st.sampled_from([1, 10, 16, 10, 16, 11, -1]),
    st.integers(0, 3),
)
def test_elementwise_steps_are_an_error_or_the_numbers_of_the_expression(worker, words, rounding, seed):
    rng = np.random.default_rng(seed)
    inputs, _ = INTERFACES["Elementwise"]
    values = {name: rng.standard_normal(dims).astype(np.float32) * 99 for name, (_, dims) in inputs.items()}
    feeds = {name: ("float32", value.tolist()) for name, value in values.items()}
    plan = {"version": 4, "own_operators": ["Elementwise"], "initializers": []}
    attributes = {"steps": " ".join(words), "rounding": rounding}
    answer = worker.ask(
        {"path": forge("Elementwise", "Elementwise", attributes, plan, bytes(64)), "feeds": feeds}
    )
    expected = computed(words, values.values(), rounding) if rounding in ROUNDINGS else None
    if expected is None:
        assert "error" in answer, answer
        return
    assert "error" not in answer, answer
    np.testing.assert_array_equal(numbers_of(answer), expected)


outside = st.sampled_from([-1, CONTEXT, 1 << 31, -(1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63)])


@given(
    st.sampled_from(["float32", "float16", "mxint8"]),
    st.one_of(st.just(ATTENDED), st.integers(0, CONTEXT), outside),
    st.lists(
        st.tuples(*[st.one_of(st.integers(0, 1), outside)] * 2, st.integers(0, CONTEXT)),
        min_size=3,
        max_size=3,
    ),
    st.sampled_from([{}, {"rounding": 1}, {"rounding": 10}, {"rounding": -(1 << 63)}]),
    st.integers(0, 3),
)
def test_attended_rows_are_an_error_or_those_of_the_state(worker, key, length, tuples, attributes, seed):
    rng = np.random.default_rng(seed)
    inputs, dims = INTERFACES[key]
    elem_type, state_dims = inputs["state"]
    if key == "mxint8":
        blocks = rng.integers(0, 256, (*state_dims[:3], 2, 33), np.uint8)
        blocks[..., 0] = rng.integers(120, 132, blocks.shape[:-1])
        state, elements = blocks.reshape(state_dims), blocks[..., 1:].copy().view(np.int8) / 64
        shown = (elements * np.exp2(blocks[..., :1].astype(float) - 127)).reshape(*state_dims[:3], 64)[
            ..., :LENGTH
        ]
    else:
        state = shown = rng.standard_normal(state_dims).astype(NUMPY[elem_type])
    rows = rng.standard_normal((3, LENGTH)).astype(np.float32)
    values = {"state": state, "length": [length], "tuples": tuples, "rows": rows}
    feeds = {name: (NUMPY[inputs[name][0]], np.array(value).tolist()) for name, value in values.items()}
    plan = {"version": 4, "own_operators": ["AttendedRows"], "initializers": []}
    answer = worker.ask({"path": forge(key, "AttendedRows", attributes, plan, bytes(64)), "feeds": feeds})
    if length != dims[2]:
        assert "error" in answer, answer
        return
    assert "error" not in answer, answer
    result = shown.astype(np.float32)
    if attributes.get("rounding") == 10:
        result = result.astype(np.float16).astype(np.float32)
    for (entry, group, slot), row in zip(tuples, rows, strict=True):
        if 0 <= entry < ENTRIES_OF_STATE and 0 <= group < GROUPS and 0 <= slot < CONTEXT:
            result[entry, group, slot] = row
    np.testing.assert_array_equal(numbers_of(answer), result[:, :, :length])


@given(st.integers(1, 3), st.integers(1, 2), st.lists(st.integers(-EXPERTS, EXPERTS - 1), max_size=4))
def test_experts_of_any_batch_are_an_error_or_the_products(worker, entries, rows, chosen):
    key = f"experts {entries} {rows} {len(chosen)}"
    dims = [len(chosen) if entries == 1 else entries, rows, COLUMNS]
    INTERFACES[key] = {"x": (FLOAT, [entries, rows, LENGTH]), "i": (INT64, [len(chosen)])}, dims
    weights = np.random.default_rng(1).standard_normal((ROWS, 64)).astype(np.float16)
    weights[:, LENGTH:] = 0
    entry = {"name": "w", "dtype": "float16", "dims": [ROWS, LENGTH], "layout": "rows", "offset": 0}
    plan = {
        "version": 4,
        "own_operators": ["StoredExperts"],
        "initializers": [entry | {"size": weights.nbytes}],
    }
    attributes = {"weight": "w", "experts": EXPERTS, "rounding": 1}
    x = np.random.default_rng(2).standard_normal((entries, rows, LENGTH)).astype(np.float32)
    feeds = {"x": ("float32", x.tolist()), "i": ("int64", chosen)}
    path = forge(key, "StoredExperts", attributes, plan, weights.tobytes())
    answer = worker.ask({"path": path, "feeds": feeds})
    if entries != 1 and len(chosen) not in (1, entries):
        assert f"{len(chosen)} indices of experts for {entries} entries" in answer["error"]
        return
    matrices = weights[:, :LENGTH].astype(np.float32).reshape(EXPERTS, COLUMNS, LENGTH)[chosen].swapaxes(1, 2)
    np.testing.assert_allclose(numbers_of(answer), x @ matrices, rtol=1e-5, atol=1e-5)
