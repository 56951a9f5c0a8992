"""Cores, engines and threads of a buffer, compared with its records."""

import json

import numpy as np
import pytest
from hypothesis import given

import qaic.stats
import stats_buffers
from qaic import _core


def opened(run, sections, facts):
    descriptor = qaic.stats.Descriptor.from_json(json.dumps(facts))
    encoded = _core.encode_stats(run, sections, descriptor.fingerprint)
    return qaic.stats.open(encoded, qpc=descriptor)


@given(stats_buffers.contents())
def test_every_execution_belongs_to_one_thread_of_one_engine(made):
    run, sections, facts = made
    buffer = opened(run, sections, facts)
    threads = [thread for core in buffer.model.cores for engine in core.engines for thread in engine.threads]
    assert len(threads) == len(buffer.threads)
    assert sum(len(thread.ops) for thread in threads) == len(buffer.ops)
    for core in buffer.model.cores:
        assert all((engine.ops["core"] == core.number).all() for engine in core.engines)
        assert sum(len(engine.ops) for engine in core.engines) == (buffer.ops["core"] == core.number).sum()
        for engine in core.engines:
            assert engine.name in facts["groups"]
            for thread in engine.threads:
                assert facts["groups"][facts["thread_groups"][thread.number]] == engine.name
                described = facts["cores"][core.number]["ops"]
                assert list(thread.kinds) == [described[oc]["kind"] for oc in thread.ops["oc"]]
                assert list(thread.names) == [described[oc]["name"] for oc in thread.ops["oc"]]


@given(stats_buffers.contents())
def test_what_is_not_valid_is_none(made):
    buffer = opened(*made)
    for core, record in zip(buffer.model.cores, buffer.cores, strict=True):
        flags = int(record["flags"])
        assert core.ddr_bytes == (
            (record["ddr_read_bytes"], record["ddr_write_bytes"]) if flags & 1 else None
        )
        assert core.pcycles == (record["pcycles"] if flags & 4 else None)


def test_the_operations_of_one_thread_are_a_view():
    buffer = qaic.stats.open(stats_buffers.even_buffer(10, cores=2))
    engine = buffer.model.core(1).engine("CPU")
    assert np.shares_memory(engine.ops, buffer.ops)
    assert list(engine.threads[0].kinds) == [str(oc) for oc in engine.ops["oc"]]
    with pytest.raises(KeyError):
        buffer.model.core(2)
    with pytest.raises(KeyError):
        buffer.model.core(0).engine("HMX")
