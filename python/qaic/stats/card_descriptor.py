"""Operations in the form of newer vendor SDKs: segment ``*opstatsdesc.bin``.

It is a protobuf message whose schema is not public, and none is part of this package. A caller with the
schema, a serialized ``FileDescriptorSet``, can pass it to read the segment. Fields are found by their names.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, Final, NoReturn

from qaic.errors import StatsFormatError, StatsVersionError
from qaic.qpc import Qpc
from qaic.stats.descriptor import Descriptor
from qaic.support.open_regular import read_regular

SEGMENTS: Final = "*opstatsdesc.bin"
ROOT_MESSAGE: Final = "aicopstatsdesc.OpstatsDescriptor"
#: the supported major version
MAJOR_VERSION: Final = 1

#: default thread groups of a card's core
_CARD_GROUPS: Final = ("HVX", "HMX", "DMAIssue")
_CARD_THREAD_GROUPS: Final = (0, 0, 0, 0, 1, 2)
#: most numbers per operation, because numbers may have gaps
_MAX_SPREAD: Final = 64
_SLICE: Final = re.compile(r"_slice(\d+)")


def card_descriptors(qpc: Qpc, schema: str | os.PathLike[str] | bytes) -> Iterator[Descriptor]:
    """Yield the operations of each network that the segments of a program describe.

    `schema` is a serialized ``FileDescriptorSet`` that defines ``aicopstatsdesc.OpstatsDescriptor``, or a
    file with one. Raises StatsFormatError if the schema is invalid or the segment does not follow it, and
    StatsVersionError if the segment has another major version.
    """
    segments = [segment for name, segment in qpc.segments.items() if fnmatch(name, SEGMENTS)]
    if not segments:
        return
    message_class = _message_class(schema)
    network = qpc.network_descriptor
    for segment in segments:
        message = message_class()
        try:
            message.ParseFromString(segment.data.tobytes())
        except Exception as error:  # noqa: BLE001 - the decoder's exception depends on its implementation
            _refuse(f"segment {segment.name} does not follow the schema: {error}")
        yield from _networks(message, network, segment.name)


def _message_class(schema: str | os.PathLike[str] | bytes) -> type[Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    data = schema if isinstance(schema, bytes) else read_regular(schema)
    where = "the schema" if isinstance(schema, bytes) else os.fspath(schema)
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(data)
        for file in files.file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(ROOT_MESSAGE)
    except KeyError:
        _refuse(f"{where} does not define {ROOT_MESSAGE}")
    except Exception as error:  # noqa: BLE001 - as above
        _refuse(f"{where} is not a serialized FileDescriptorSet: {error}")
    made: type[Any] = message_factory.GetMessageClass(found)
    return made


def _networks(message: Any, network: Mapping[str, Any], segment: str) -> Iterator[Descriptor]:
    major, minor = _field(message, "major_version"), _field(message, "minor_version")
    if major != MAJOR_VERSION:
        text = f"segment {segment} has version {major}.{minor}; version {MAJOR_VERSION} is supported"
        raise StatsVersionError(text, code="stats.opstats_version", context={"major": major, "minor": minor})
    metadata = _field(message, "opstats_metadata")
    details = _field(_field(metadata, "common_metadata"), "op_details")
    kinds = _texts(details, "op_kind_id_str_pairs")
    memories = _texts(details, "op_memory_id_str_pairs")
    for specialization in _repeated(metadata, "specialization_metadata"):
        name = str(_field(specialization, "name"))
        where = _SLICE.search(name)
        slice_number = int(where[1]) if where else 0
        cores = [
            {"slice": slice_number, "ops": _ops(core, kinds, memories, f"{name} core {number}")}
            for number, core in enumerate(_repeated(specialization, "core_op_name_kinds"))
        ]
        yield Descriptor.from_json(json.dumps({**_of_network(network), "network": name, "cores": cores}))


def _of_network(network: Mapping[str, Any]) -> dict[str, Any]:
    stats = network.get("stats", {})
    return {
        "version": 1,
        "batch_size": max(int(stats.get("batch_size", 1)), 1),
        "ucycles_per_ms": int(stats.get("utimer_freq_ms", 0)) or 19_200,
        "stats_level": max(int(stats.get("stats_level", 0)), 0),
        "op_stats_level": max(int(stats.get("op_stats_level", 0)), 0),
        "pmu_events": [event & 0xFFFF_FFFF for event in stats.get("pmu_events", ())],
        "groups": list(network.get("thread_group_names") or _CARD_GROUPS),
        "thread_groups": list(network.get("thread_groups") or _CARD_THREAD_GROUPS),
    }


def _ops(
    core: Any, kinds: Mapping[int, str], memories: Mapping[int, str], where: str
) -> list[dict[str, Any]]:
    """Return the operations in the order of their numbers; unused numbers are empty."""
    numbered: dict[int, dict[str, Any]] = {}
    for group, ops in enumerate(_repeated(core, "tg_op_name_kinds")):
        for op in _repeated(ops, "op_name_kinds"):
            oc = int(_field(op, "oc"))
            if oc in numbered or oc < 0:
                _refuse(f"{where}: operation {oc} is repeated or negative")
            numbered[oc] = {
                "name": str(_field(op, "name")),
                "kind": kinds.get(_field(op, "kind_id"), ""),
                "memory": memories.get(_field(op, "memory_id"), ""),
                "group": group,
                "types": "",
                "output_bytes": int(_field(op, "output_size")),
            }
    last = max(numbered, default=-1)
    if last >= _MAX_SPREAD * max(len(numbered), 1):
        _refuse(f"{where}: operation {last} of {len(numbered)}; the numbers are too far apart")
    nothing = {"name": "", "kind": "", "memory": "", "group": 0, "types": "", "output_bytes": 0}
    return [numbered.get(oc, nothing) for oc in range(last + 1)]


def _texts(details: Any, field: str) -> dict[int, str]:
    # The vendor pads some names with blanks.
    return {_field(pair, "id"): str(_field(pair, "str")).strip() for pair in _repeated(details, field)}


def _field(message: Any, name: str) -> Any:
    try:
        return getattr(message, name)
    except AttributeError:
        _refuse(f"the schema has no field {name!r} in {type(message).__name__}")


def _repeated(message: Any, name: str) -> Iterable[Any]:
    value = _field(message, name)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        _refuse(f"field {name!r} of {type(message).__name__} is not repeated in the schema")
    return value


def _refuse(text: str) -> NoReturn:
    raise StatsFormatError(text, code="stats.opstats_schema")
