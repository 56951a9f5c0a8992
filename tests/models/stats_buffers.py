"""Stats buffers of any shape, built with the writer."""

import json

import numpy as np
from hypothesis import strategies as st

from qaic import _core
from qaic.stats import RECORDS

CPU = 16


def run_facts(cores=1, threads_per_core=1, **others):
    return {
        "cores": cores,
        "threads_per_core": threads_per_core,
        "stats_level": 70,
        "op_stats_level": 70,
        "batch_size": 1,
        "ucycle_hz": 19_200_000,
        "device": 1,
        "flags": 1,
        **others,
    }


def descriptor_facts(ops_per_core, groups=("CPU",), thread_groups=(0,), network="net", **others):
    """Return the content of `opstatsdesc.open`; operation i of a core has group i modulo the number of
    groups.
    """
    return {
        "version": 1,
        "network": network,
        "batch_size": 1,
        "ucycles_per_ms": 19_200,
        "stats_level": 70,
        "op_stats_level": 70,
        "groups": list(groups),
        "thread_groups": list(thread_groups),
        "cores": [
            {
                "slice": 0,
                "ops": [
                    {
                        "name": f"/layer.{oc}/MatMul/__{oc}",
                        "nodes": [f"/layer.{oc}/MatMul"],
                        "kind": ("MatMul", "Add", "Relu")[oc % 3],
                        "group": oc % len(groups),
                        "memory": "HOST",
                        "types": "float",
                        "shape": "[1 x 16]",
                        "output_bytes": 64 * (oc + 1),
                        "deps": [{"core": core, "oc": oc - 1, "data": True}] if oc else [],
                    }
                    for oc in range(count)
                ],
            }
            for core, count in enumerate(ops_per_core)
        ],
        **others,
    }


def descriptor_json(*args, **keywords):
    return json.dumps(descriptor_facts(*args, **keywords), sort_keys=True).encode()


def even_sections(ops_per_thread, cores=1, threads=1, descriptor_ops=1000, start=1_000_000):
    """CORE, THREAD and OP of threads that each run one operation after another, 2 ticks long and 3 ticks
    apart.
    """
    count = cores * threads * ops_per_thread
    span = 3 * ops_per_thread
    core = np.zeros(cores, RECORDS["CORE"])
    core["core"] = np.arange(cores)
    core["start_u"], core["end_u"] = start, start + span
    thread = np.zeros(cores * threads, RECORDS["THREAD"])
    thread["core"] = np.repeat(np.arange(cores), threads)
    thread["thread"] = np.tile(np.arange(threads), cores)
    thread["engine"] = CPU
    thread["start_u"], thread["end_u"] = start, start + span
    thread["first_op"] = np.arange(cores * threads) * ops_per_thread
    thread["op_count"] = ops_per_thread
    op = np.zeros(count, RECORDS["OP"])
    order = np.tile(np.arange(ops_per_thread), cores * threads)
    op["oc"] = order % descriptor_ops
    op["core"] = np.repeat(thread["core"], ops_per_thread)
    op["thread"] = np.repeat(thread["thread"], ops_per_thread)
    op["kflags"] = 1
    op["start_u"] = start + order.astype(np.uint64) * 3
    op["dur_u"] = 2
    return {"CORE": core, "THREAD": thread, "OP": op}


def even_buffer(ops_per_thread, cores=1, threads=1, fingerprint=None, meta=b"{}", **others):
    sections = {**even_sections(ops_per_thread, cores, threads, **others), "META": meta}
    return _core.encode_stats(run_facts(cores, threads), sections, fingerprint)


@st.composite
def contents(draw, max_ops=12):
    """(run, sections, descriptor facts) of an inference that follows every rule."""
    cores, threads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    groups = draw(st.integers(1, threads))
    thread_groups = [*range(groups), *(draw(st.integers(0, groups - 1)) for _ in range(threads - groups))]
    ops_per_core = [draw(st.integers(groups, 8)) for _ in range(cores)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    start = draw(st.integers(2**20, 2**40))
    core = np.zeros(cores, RECORDS["CORE"])
    core["core"] = np.arange(cores)
    core["start_u"] = start
    core["flags"] = rng.integers(0, 8, cores)
    core["pcycles"] = rng.integers(0, 2**40, cores)
    core["ddr_read_bytes"] = rng.integers(0, 2**40, cores)
    thread = np.zeros(cores * threads, RECORDS["THREAD"])
    pieces = []
    first = 0
    for index in range(cores * threads):
        core_number, thread_number = divmod(index, threads)
        mine = [oc for oc in range(ops_per_core[core_number]) if oc % groups == thread_groups[thread_number]]
        count = draw(st.integers(0, max_ops)) if mine else 0
        op = np.zeros(count, RECORDS["OP"])
        op["oc"] = rng.choice(mine, count) if mine else 0
        op["core"], op["thread"], op["kflags"] = core_number, thread_number, 1
        gaps, op["dur_u"] = rng.integers(0, 1000, count), rng.integers(0, 5000, count)
        op["start_u"] = start + np.cumsum(gaps + np.r_[0, op["dur_u"][:-1]].astype(np.int64)) if count else 0
        op["sync_u"] = np.minimum(gaps, rng.integers(0, 1000, count))
        op["flags"] = rng.integers(0, 16, count) << 3
        op["pcycles"] = rng.integers(0, 2**33, count)
        op["out_bytes"] = rng.integers(0, 2**33, count)
        op["iter"] = rng.integers(0, 4, count)
        ends = int((op["start_u"] + op["dur_u"]).max()) if count else start
        thread[index]["core"], thread[index]["thread"], thread[index]["engine"] = (
            core_number,
            thread_number,
            rng.choice([0, 1, 2, 3, 16]),
        )
        thread[index]["start_u"], thread[index]["end_u"] = start, ends
        thread[index]["first_op"], thread[index]["op_count"] = first, count
        first += count
        pieces.append(op)
    core["end_u"] = thread["end_u"].max()
    sections = {"CORE": core, "THREAD": thread}
    if draw(st.booleans()):
        port = np.zeros(draw(st.integers(0, 4)), RECORDS["PORT"])
        port["core"], port["port"] = rng.integers(0, cores, len(port)), 100
        port["wait_u"] = rng.integers(0, 1000, len(port))
        sections["PORT"] = port
    sections["OP"] = np.concatenate(pieces)
    if draw(st.booleans()):
        events = np.zeros(1, RECORDS["PMU_EVENTS"])
        events["event"][0, :3] = [0x3F, 0x70, 0x200]
        values = np.zeros(cores * threads, RECORDS["PMU"])
        values["core"], values["thread"], values["valid_count"] = thread["core"], thread["thread"], 3
        values["value"] = rng.integers(0, 2**40, values["value"].shape)
        sections |= {"PMU_EVENTS": events, "PMU": values}
    if draw(st.booleans()):
        sections["META"] = json.dumps({"producer": draw(st.text(max_size=8))}).encode()
    facts = descriptor_facts(ops_per_core, [f"G{n}" for n in range(groups)], thread_groups)
    return run_facts(cores, threads, inference=draw(st.integers(0, 2**64 - 1))), sections, facts
