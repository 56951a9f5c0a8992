"""``openqaic inspect MODEL [nodes | tensors | graph | fit]``: shows a program."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qaic import _core
from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_text, text_width
from qaic.cli.graph_model import read_graph
from qaic.cli.openqaic import program_graph
from qaic.cli.openqaic.arguments import add_json, add_model, set_examples
from qaic.cli.openqaic.compile_options import add_compile_options, next_command, next_view
from qaic.cli.openqaic.drawn_program import check_output, write_graph
from qaic.cli.openqaic.program import STATS_LEVEL, check_output_file, check_page, open_program, wrote
from qaic.cli.qpc.facts import facts
from qaic.cli.qpc.text import info_text, stored_weights_text
from qaic.cli.stored_weights import bandwidth_limit, stored_weights
from qaic.errors import OptionError
from qaic.qpc import Qpc
from qaic.report import Column
from qaic.report.text import facts_text, rows_text
from qaic.support.program_names import RETAINED_STATE_SUFFIX
from qaic.support.text import bytes_text, counted, duration, three_digits

_VIEWS: Final = ("nodes", "tensors", "graph", "fit")


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    parser.add_argument(
        "view",
        nargs="?",
        choices=_VIEWS,
        metavar="|".join(_VIEWS),
        help="part to show (default: target, options, inputs and outputs, constants, segments)",
    )
    parser.add_argument(
        "--onnx", metavar="OUT.onnx", type=Path, help="write the graph with its weights as one ONNX file"
    )
    parser.add_argument("-o", "--output", metavar="GRAPH.html", type=Path, help="page for the drawn graph")
    parser.add_argument(
        "--color",
        choices=("precision", "time"),
        help="coloring of the graph; time runs inferences with random inputs (default: precision)",
    )
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic inspect model.onnx nodes --convert-to-fp16",
        "openqaic inspect program/programqpc.bin",
        "openqaic inspect program/programqpc.bin nodes",
        "openqaic inspect program/programqpc.bin tensors --json",
        "openqaic inspect model.onnx graph -o graph.html --color time",
        "openqaic inspect program/programqpc.bin fit",
        "openqaic inspect program/programqpc.bin --onnx graph.onnx",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the requested part."""
    if arguments.onnx is not None and arguments.view is not None:
        raise OptionError(
            f"--onnx and the view {arguments.view} exclude each other: --onnx writes the whole graph",
            code="inspect.output",
        )
    if arguments.view == "graph":
        return _draw_graph(arguments)
    if arguments.color is not None:
        raise OptionError(f"--color {arguments.color} needs the view graph", code="inspect.output")
    if arguments.output is not None:
        check_page(arguments.output, read=[arguments.model])
        raise OptionError(
            f"-o {arguments.output} needs the view graph",
            code="inspect.output",
            hints=(f"`{next_command('inspect', arguments, 'graph', '-o', str(arguments.output))}` draws it",),
        )
    check_output_file("--onnx", arguments.onnx, read=[arguments.model])
    program = open_program(arguments)
    qpc = Qpc(program.path)
    if arguments.onnx is not None:
        return _write_onnx(qpc, arguments)
    if arguments.view is None:
        described = facts(qpc)
        if arguments.json:
            print_json(described)
        else:
            print_text(info_text(described))
            view = next_view(qpc, str(program.path))
            if program.model is not None:
                # The path of a container in the cache is long.
                view = next_command("inspect", arguments, "nodes")
            print_line(f"next: {view}")
        return SUCCESS
    if arguments.view == "fit":
        return _show_fit(qpc, as_json=arguments.json)
    graph = program_graph.with_shapes(read_graph(qpc))
    rows = program_graph.nodes(graph) if arguments.view == "nodes" else program_graph.tensors(graph, qpc)
    if arguments.json:
        print_json(rows)
        return SUCCESS
    shown, remark = program_graph.without_conversions(rows) if arguments.view == "nodes" else (rows, "")
    if shown:
        columns = [_column(name, [row[name] for row in shown]) for name in shown[0]]
        cells = [[_cell(value) for value in row.values()] for row in shown]
        print_text(rows_text(columns, cells, text_width() if sys.stdout.isatty() else None, "--json"))
    if remark:
        print_line(f"{remark}; --json lists all nodes")
    split = program_graph.precision_split(shown) if arguments.view == "nodes" else ""
    print_line(counted(len(shown), arguments.view.removesuffix("s")) + (f": {split}" if split else ""))
    return SUCCESS


def _draw_graph(arguments: argparse.Namespace) -> int:
    output = check_output(arguments.output, next_command("inspect", arguments, "graph"))
    check_page(output, read=[arguments.model])
    timed = arguments.color == "time"
    program = open_program(arguments, stats_level=STATS_LEVEL if timed else None)
    graph = write_graph(
        Qpc(program.path), output, title=arguments.model.stem, timed=timed, model=program.model
    )
    if arguments.json:
        found = {"nodes": len(graph.nodes), "edges": len(graph.edges)}
        print_json({"path": str(output), "bytes": output.stat().st_size, **found})
    else:
        print_line(wrote(output, f", {counted(len(graph.nodes), 'node')}; a browser opens it"))
    return SUCCESS


def _show_fit(qpc: Qpc, *, as_json: bool) -> int:
    found = program_fit(qpc, _core.Context().devices())
    weights = found["weights"]
    limit = bandwidth_limit(qpc, weights["read_bytes"]) if weights and weights["read_bytes"] else None
    if weights is not None:
        weights["limit"] = limit
    if as_json:
        print_json(found)
        return SUCCESS
    count = found["devices"]
    where = "" if count == 1 else f" on each of {count} devices"
    memory = [f"{bytes_text(found['memory_bytes'])}{where} per activation"]
    if found["constants_bytes"]:
        memory.append(f"of which {bytes_text(found['constants_bytes'])} are constants")
    if found["state_bytes"]:
        memory.append(f"{bytes_text(found['state_bytes'])} are retained between inferences")
    if weights is not None:
        memory.append(stored_weights_text(weights))
    pairs = [("cores", f"{found['cores']}{where}"), *zip(["memory", *[""] * 3], memory, strict=False)]
    if limit is not None:
        threads = counted(limit["threads"], "thread")
        speed = three_digits(limit["bytes_per_second"] / 1e9)
        least = f"{duration(limit['seconds'] * 1e6)} per inference"
        pairs.append(("limit", f"{least}: {threads} of this machine read {speed} GB/s (measured)"))
    print_text(facts_text(pairs))
    if found["fits"]:
        columns = "device:int | name | activations that fit:int | now:int | limited by"
        print_text(rows_text(columns, [list(row.values()) for row in found["fits"]]))
    else:
        print_line("no device to compare with; `openqaic info` shows the reason")
    return SUCCESS


def _write_onnx(qpc: Qpc, arguments: argparse.Namespace) -> int:
    program_graph.write_self_contained(qpc, arguments.onnx)
    if arguments.json:
        print_json({"path": str(arguments.onnx), "bytes": arguments.onnx.stat().st_size})
    else:
        print_line(wrote(arguments.onnx, "; onnxruntime and Netron open it"))
    return SUCCESS


def _column(name: str, values: Sequence[object]) -> Column:
    """Return the column of a fact of nodes or tensors; numbers have a kind."""
    kinds = {type(value) for value in values} - {type(None)}
    return Column(
        name, kind="int" if kinds == {int} else "float" if kinds and kinds <= {int, float} else "text"
    )


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


_MIB = 1 << 20


def program_fit(qpc: Qpc, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the needs of a program with `devices`, in the form of ``openqaic devices --json``.

    Returns ``cores`` and ``memory_bytes`` of one activation on each of its ``devices``; the parts
    ``constants_bytes`` and ``state_bytes`` (retained between inferences) of the memory; the ``weights`` that
    are read in the mapped file, as from `stored_weights`; and a row for each device in ``fits``: the
    ``activations`` that fit on the empty device, those that fit ``now``, and the limit, ``limited_by``.
    Raises StateError if the container contains a slice for each of several devices.
    """
    program_graph.check_program(qpc)
    info, constants = qpc.program_info, qpc.constants
    plan = qpc.plan or {}
    needed = {"cores": max(1, info.num_cores), "memory": -(-info.total_required_memory // _MIB)}
    return {
        "cores": needed["cores"],
        "devices": plan.get("devices", 1),
        "memory_bytes": info.total_required_memory,
        "constants_bytes": sum(
            0 if part is None else part.nbytes for part in (constants.static, constants.dynamic)
        ),
        "state_bytes": _state_bytes(qpc),
        "weights": stored_weights(qpc),
        "fits": [_fits(needed, device) for device in devices],
    }


def _state_bytes(qpc: Qpc) -> int:
    """Return the bytes of retained state, whose outputs are recognized by name."""
    outputs = facts(qpc)["outputs"]
    return sum(output["bytes"] or 0 for output in outputs if output["name"].endswith(RETAINED_STATE_SUFFIX))


def _fits(needed: Mapping[str, int], device: Mapping[str, Any]) -> dict[str, Any]:
    """Count activations of one program on one device."""
    total = {"cores": device["nsp_total"], "memory": device["dram_total_mb"]}
    free = {"cores": device["nsp_free"], "memory": device["dram_free_mb"]}
    most = {name: total[name] // amount for name, amount in needed.items() if amount}
    return {
        "device": device["id"],
        "name": device["name"],
        "activations": min(most.values()),
        "now": min(free[name] // amount for name, amount in needed.items() if amount),
        "limited_by": min(most, key=most.__getitem__),
    }
