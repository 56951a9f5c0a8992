"""Captures from numpy records in the form that reports read, without encoded bytes."""

import json
from dataclasses import dataclass, field

import numpy as np

from qaic.stats.layouts import Run
from qaic.stats.reports.capture import Capture


# This table is written here; the decoder has its own copy.
def _dtype(fields):
    """`"core <u2, slice <u2"` as a packed structure."""
    return np.dtype([tuple(field.split()) for field in fields.split(",")])


CORE = _dtype(
    "core <u2, slice <u2, flags <u4, start_u <u8, end_u <u8, pcycles <u8,"
    "ddr_read_bytes <u8, ddr_write_bytes <u8, mc_read_bytes <u8, mc_write_bytes <u8"
)
THREAD = _dtype(
    "core <u2, thread u1, engine u1, flags <u4, start_u <u8, end_u <u8, pcycles <u8,"
    "act_start_u <u8, act_end_u <u8, act_pcycles <u8, first_op <u4, op_count <u4"
)
PORT = _dtype(
    "core <u2, thread u1, direction u1, port <u2, flags <u2, wait_u <u8, first_ring_u <u8, last_ring_u <u8"
)
OP = _dtype(
    "oc <u4, core <u2, thread u1, kflags u1, start_u <u8, dur_u <u4, sync_u <u4, barrier_u <u4,"
    "flags <u2, iter <u2, pcycles <u8, out_bytes <u8"
)

HVX, HMX, DMA, CPU = 0, 1, 2, 16
MHZ = 1_000_000
#: Threads of a card's core: four HVX, one HMX, one for DMA.
CARD_GROUPS = ("HVX", "HMX", "DMAIssue")
CARD_THREADS = (0, 0, 0, 0, 1, 2)


@dataclass
class Program:
    """A descriptor under construction."""

    network: str = "QAicGraph"
    groups: tuple = ("CPU",)
    thread_groups: tuple = (0,)
    cores: list = field(default_factory=list)

    def op(self, core, name, kind, *, group=0, memory="HOST", types="float", output_bytes=0, **more):
        """Add an operation; return its number on this core."""
        while len(self.cores) <= core:
            self.cores.append([])
        ops = self.cores[core]
        oc = len(ops)
        ops.append(
            {
                "name": f"{name}/__{oc}", "kind": kind, "group": group, "memory": memory,
                "types": types, "output_bytes": output_bytes, **more,
            }
        )  # fmt: skip
        return oc

    @property
    def compiled(self):
        return self

    def to_json(self):
        described = {
            "version": 1,
            "network": self.network,
            "groups": list(self.groups),
            "thread_groups": list(self.thread_groups),
            "cores": [{"slice": 0, "ops": ops} for ops in self.cores],
        }
        return json.dumps(described)


def records(dtype, rows):
    made = np.zeros(len(rows), dtype)
    for place, row in enumerate(rows):
        for name, value in row.items():
            made[place][name] = value
    return made


def run_facts(**changed):
    facts = {
        "stats_level": 70, "op_stats_level": 70, "cores": 1, "threads_per_core": 1, "batch_size": 1,
        "ucycle_hz": MHZ, "epoch_utc_ns": 0, "inference": 0, "program": 0, "activation": 0, "flags": 1,
        "device": 2, "device_name": "test", "specialization": 0,
    }  # fmt: skip
    return Run(**{**facts, **changed})


@dataclass
class Buffer:
    """A stats buffer as arrays."""

    run: Run
    cores: np.ndarray
    threads: np.ndarray
    ops: np.ndarray
    ports: np.ndarray
    meta: dict
    descriptor: object

    def check(self):
        """Return without an error, because the records are valid."""

    def advise_unneeded(self, section, start, stop):
        """Do nothing, because the arrays are not a file."""


def buffer(
    program, executions, *, span=None, cores=None, threads=None, ports=(), meta=None, engines=None, **run
):
    """A buffer of one device.

    `executions`: for each (core, thread), the records of its operations, `oc`, `start_u`, `dur_u` and others.
    One tick is a microsecond unless `ucycle_hz` is set. `span`: start and end of every core and thread.
    `engines`: one for each thread.
    """
    flat, thread_rows = [], []
    span = span or (
        0,
        max((op["start_u"] + op["dur_u"] for ops in executions.values() for op in ops), default=0),
    )
    engines = engines or {HVX: HVX, 1: HVX, 2: HVX, 3: HVX, 4: HMX, 5: DMA}
    for (core, thread), ops in sorted(executions.items()):
        in_order = sorted(ops, key=lambda op: op["start_u"])
        facts = {"start_u": span[0], "end_u": span[1], **(threads or {}).get((core, thread), {})}
        if len(program.groups if program else ()) == 1:
            facts.setdefault("engine", CPU)
        facts.setdefault("engine", engines.get(thread, CPU))
        thread_rows.append(
            {"core": core, "thread": thread, "first_op": len(flat), "op_count": len(in_order), **facts}
        )
        flat += [{"core": core, "thread": thread, "kflags": 1, **op} for op in in_order]
    core_rows = [
        {"core": core, "start_u": span[0], "end_u": span[1], **(cores or {}).get(core, {})}
        for core in sorted({core for core, _ in executions})
    ]
    return Buffer(
        run_facts(cores=len(core_rows), **run),
        records(CORE, core_rows),
        records(THREAD, thread_rows),
        records(OP, flat),
        records(PORT, list(ports)),
        dict(meta or {}),
        program,
    )


def cpu_program(kinds):
    """A program of the CPU device: one operation per (node, kind)."""
    program = Program()
    for node, kind in kinds:
        program.op(0, node, kind)
    return program


def in_row(durations, *, start=0, gap=0, ocs=None, **more):
    """Executions, one after another."""
    made = []
    for place, duration in enumerate(durations):
        oc = place if ocs is None else ocs[place]
        made.append({"oc": oc, "start_u": start, "dur_u": duration, **more})
        start += duration + gap
    return made


def capture(*buffers, **more):
    return Capture(buffers, **more)
