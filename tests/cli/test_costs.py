"""The costs of commands grow linearly with the model. The tests count calls, so time has no effect."""

import ast
import cProfile
import gc
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from qaic.accuracy.comparison import compile_options_of
from qaic.accuracy.instrument import FIELDS
from qaic.accuracy.prepared import prepared
from qaic.accuracy.samples import Samples
from qaic.cli.openqaic import main
from qaic.cli.openqaic.commands import profile as profile_command
from qaic.cli.openqaic.program import measured
from qaic.compiler.backend import qpc_writer
from qaic.stats.reports.capture import Capture
from stats_captures import Buffer

#: The first run includes imports and files that are read once; the tests measure the other runs.
LENGTHS = (8, 500, 1_000, 5_000)
OPERATORS = ("Mul", "Relu", "Add", "Sigmoid")


def write_chain(folder, length):
    """Write a model with this number of nodes in a chain."""
    names = ["x", *(f"v{number}" for number in range(1, length)), "y"]
    nodes = [
        helper.make_node(
            OPERATORS[at % 4],
            [names[at], "c"] if at % 2 == 0 else [names[at]],
            [names[at + 1]],
            name=f"n{at}",
        )
        for at in range(length)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.ones(8, np.float32), "c")])
    path = folder / f"chain{length}.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def calls_of(*words):
    """Return the number of functions that a command calls, and of garbage collections that its objects cause.

    Comprehensions over graphs call no function, but create objects.
    """
    profile = cProfile.Profile()
    # Exclude functions of other tests that garbage collections call.
    others = gc.callbacks[:]
    gc.callbacks.clear()
    collections = gc.get_stats()[0]["collections"]
    profile.enable()
    code = main([str(word) for word in words])
    profile.disable()
    collections = gc.get_stats()[0]["collections"] - collections
    gc.callbacks.extend(others)
    assert code == 0, words
    return np.array([sum(entry.callcount for entry in profile.getstats()), collections])


def assert_linear(lengths, calls):
    """Each additional node costs as much as the earlier ones; the cost without nodes is excluded."""
    _, small, medium, large = lengths
    _, few, some, many = calls
    # Loads and waits can differ by one call per node.
    first, last = (some - few) / (medium - small), (many - some) / (large - medium)
    assert (last <= 1.1 * first + 1).all(), f"calls and collections a node: {first}, then {last}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiled chains, and the number of calls for the compilation of each."""
    folder = tmp_path_factory.mktemp("chains")
    places = [folder / str(length) for length in LENGTHS]
    calls = [
        calls_of("compile", write_chain(folder, length), "-o", place)
        for length, place in zip(LENGTHS, places, strict=True)
    ]
    return places, calls


def test_compiling_five_thousand_nodes(programs):
    assert_linear(LENGTHS, programs[1])


@pytest.mark.parametrize(
    "words",
    [
        ("run", "{0}"),
        ("inspect", "{0}", "nodes"),
        ("inspect", "{0}", "tensors"),
        ("inspect", "{0}", "fit"),
        ("inspect", "{0}", "graph", "-o", "{1}.html"),
        ("diff", "{0}", "{0}"),
    ],
    ids=" ".join,
)
def test_five_thousand_nodes(programs, tmp_path, words):
    calls = [
        calls_of(*(word.format(place, tmp_path / place.name) for word in words)) for place in programs[0]
    ]
    assert_linear(LENGTHS, calls)


def with_even_durations(capture):
    """Return measurements in which each operation takes one unit of time, because the advice depends on
    durations.
    """
    buffers = []
    for buffer in capture.buffers:
        cores, threads, ops = (np.array(part) for part in (buffer.cores, buffer.threads, buffer.ops))
        ops["start_u"], ops["dur_u"] = np.arange(len(ops)), 1
        for part in (cores, threads):
            part["start_u"], part["end_u"] = 0, len(ops)
        buffers.append(Buffer(buffer.run, cores, threads, ops, buffer.ports, buffer.meta, buffer.descriptor))
    return Capture(buffers, name=capture.name)


@pytest.mark.parametrize("words", [("check",), ("accuracy", "--to", "fp16"), ("profile",)], ids=" ".join)
def test_commands_that_compile_twice_or_more(tmp_path, monkeypatch, words):
    monkeypatch.setattr(
        profile_command, "measured", lambda *given, **more: with_even_durations(measured(*given, **more))
    )
    # Each model is new, so none is in the cache. The smallest model is not the first one: long tables use
    # other code, which is imported once.
    lengths = (81, 20, 40, 80)
    calls = [calls_of(words[0], write_chain(tmp_path, length), *words[1:]) for length in lengths]
    assert_linear(lengths, calls)


def test_nodes_that_observe_a_value(tmp_path, monkeypatch):
    """The engine takes as long for each observer node as for each node of the model."""
    sizes = {}
    write = qpc_writer.write_unchecked

    def counted(path, model, options):
        sizes[length] = len(model.proto.graph.node)
        write(path, model, options)

    monkeypatch.setattr("qaic.accuracy.prepared.write_unchecked", counted)
    for length in (40, 80):
        path = write_chain(tmp_path, length)
        options = compile_options_of(path, "fp16", Samples("random"), None, {})
        with prepared(path, options, "counting") as source:
            twin, _ = source.write_instrumented(tmp_path / f"{length}.bin")
        assert len(twin.nodes) == length * 3 // 4
    # Three of four nodes of the model are observed, because a product and its sum are rounded once.
    assert (sizes[80] - sizes[40]) / 30 <= 3 * len(FIELDS)


@pytest.mark.parametrize("code", ["device.bussy", "no" * 5000, "\U0001f600" * 500])
def test_explaining_an_unknown_code(code, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        parse = mock.Mock(wraps=ast.parse)
        patch.setattr(ast, "parse", parse)
        main(["explain", "device.busy"])
    # No source of the package is parsed.
    parse.assert_not_called()
    known, _ = calls_of("explain", "device.busy")
    profile = cProfile.Profile()
    profile.enable()
    assert main(["explain", code]) == 2
    profile.disable()
    # The search for similar codes compares hundreds of codes.
    assert sum(entry.callcount for entry in profile.getstats()) < known + 300_000
    assert len(capsys.readouterr().err) < 300


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("openqaic", "--help"),
        ("openqaic", "--version"),
        ("openqaic", "cache dir"),
        ("openqaic", "devices"),
        ("opstats", "--help"),
        ("qpc", "--help"),
        ("runner", "--help"),
        ("util", "--version"),
    ],
)
def test_short_answers_load_no_libraries(tool, words):
    code = (
        f"import sys\nfrom qaic.cli.{tool} import main\n"
        f"try:\n    main({words.split()!r})\nexcept SystemExit:\n    pass\n"
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, loaded = done.stdout.splitlines()
    assert loaded.startswith("loaded ")
    assert {*loaded.split()}.isdisjoint({"numpy", "onnx", "yaml", "qaic.options.table", "qaic.stats.reports"})
