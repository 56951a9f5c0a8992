"""Captures and names for tests of pages."""

import base64
import json
import re
import zlib

import numpy as np

import stats_captures as made
from qaic.stats.reports import Capture

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" autofocus onfocus="alert(1)',
    "' onload='alert(1)",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\u202egnp.exe",
    "a\0b",
    "\ud800",
    "\u2028",
    "名前 🚀",
]


def carried_graph(page, at=-1):
    """Return a graph of a page; the last one is the graph of the program."""
    data = re.search(r'id="graph-data">([^<]*)<', page.read_text()).group(1)
    return json.loads(zlib.decompress(base64.b64decode(data)))[at]


def one_op(name="/l0/MatMul", kind="FusedGemm"):
    program = made.cpu_program([(name, kind)])
    ops = [{"oc": 0, "start_u": 100, "dur_u": 50, "flags": 64, "out_bytes": 256}]
    return Capture([made.buffer(program, {(0, 0): ops}, device=1)])


def card():
    program = made.Program(groups=made.CARD_GROUPS, thread_groups=made.CARD_THREADS)
    for core in (0, 1):
        for kind, group in (("elementadd", 0), ("aicconvolutiond32", 1), ("aiccopytovtcm", 2)):
            program.op(core, f"/layers.0/{kind}", kind, group=group, output_bytes=2048)
    executions = {
        (core, thread): [
            {"oc": made.CARD_THREADS[thread], "start_u": 100 + 50 * turn + core, "dur_u": 30 + turn}
            for turn in range(5)
        ]
        for core in (0, 1)
        for thread in range(6)
    }
    return Capture(
        [made.buffer(program, executions, span=(90, 400), inference=number) for number in (4, 9)],
    )


def crowd(count):
    program = made.cpu_program([("/a", "Gemm"), ("/b", "Relu")])
    rng = np.random.default_rng(1)
    ops = np.zeros(count, made.OP)
    ops["oc"] = np.arange(count) % 2
    ops["kflags"], ops["dur_u"] = 1, rng.integers(1, 9, count)
    ops["dur_u"][::1000] = 5000
    ops["start_u"] = np.cumsum(ops["dur_u"] + 1) - ops["dur_u"]
    end = int(ops["start_u"][-1] + ops["dur_u"][-1])
    buffer = made.buffer(program, {(0, 0): []}, span=(0, end), device=1)
    buffer.ops = ops
    buffer.threads["op_count"] = count
    return Capture([buffer])
