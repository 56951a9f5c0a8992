"""The option that partitions a program for several devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from qaic.options.codecs.scalars import Codec, Enum, Int, Json, ListOf, Str, ValueMismatchError, remark
from qaic.options.files.parsed_file import JsonFile
from qaic.options.names import unknown_keys
from qaic.support.text import format_value

T = TypeVar("T")

#: most devices that can reach each other's memory
_MOST_PEERS = 16

_Object = Mapping[object, object]


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that run on a group of devices; more than one device share the work on each node."""

    name: str
    devices: tuple[int, ...]
    #: of each device; None if the file does not state it
    cores: tuple[int | None, ...]
    #: None leaves the choice to the compiler
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Connection:
    """How a group of devices exchanges data: ``p2p`` or ``host``."""

    devices: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """A program over several devices, whose ids are 0 to ``devices - 1``."""

    partitions: tuple[Partition, ...]
    connections: tuple[Connection, ...]

    @property
    def devices(self) -> int:
        """Number of devices the program needs."""
        return sum(len(partition.devices) for partition in self.partitions)


class Partitions(JsonFile[PartitionConfig]):
    """A multi-device partition file; from Python also its content."""

    def __init__(self) -> None:
        self._ids = ListOf(Int(ge=0))
        self._cores = Int(ge=1)
        self._kind = Enum("p2p", "host")
        self._text = Str()

    expected = (
        "the path of a JSON file with "
        '{"partitions": [{"name": "Partition0", "devices": [{"deviceId": 0, "numCores": 16}]}]}'
    )

    def content(self, value: object) -> PartitionConfig:
        if isinstance(value, PartitionConfig):
            return value
        top = _object(value, {"partitions"}, {"connections"}, "the partition file")
        partitions = tuple(
            self._partition(item, number)
            for number, item in enumerate(_list(top["partitions"], "partitions"))
        )
        if not partitions:
            raise ValueMismatchError("at least one partition", "none")
        _unique("partition name", [partition.name for partition in partitions])
        ids = [device for partition in partitions for device in partition.devices]
        _unique("deviceId", ids)
        if sorted(ids) != list(range(len(ids))):
            raise ValueMismatchError(f"the deviceIds 0 to {len(ids) - 1}", ", ".join(map(str, sorted(ids))))
        _unique("node", [node for partition in partitions for node in partition.nodes or ()])
        given = _list(top.get("connections", ()), "connections")
        connections = tuple(self._connection(item, number, len(ids)) for number, item in enumerate(given))
        return PartitionConfig(partitions, connections)

    def to_json(self, value: PartitionConfig) -> Json:
        partitions: list[Json] = []
        for partition in value.partitions:
            devices: list[Json] = []
            for device, cores in zip(partition.devices, partition.cores, strict=True):
                described: dict[str, Json] = {"deviceId": device}
                if cores is not None:
                    described["numCores"] = cores
                devices.append(described)
            entry: dict[str, Json] = {"name": partition.name, "devices": devices}
            if partition.nodes is not None:
                entry["nodeList"] = list(partition.nodes)
            partitions.append(entry)
        connections: list[Json] = [
            {"devices": list(connection.devices), "type": connection.kind} for connection in value.connections
        ]
        return {"connections": connections, "partitions": partitions}

    def _partition(self, item: object, number: int) -> Partition:
        place = f"partition {number}"
        given = _object(item, {"name", "devices"}, {"nodeList"}, place)
        devices, cores = [], []
        for device in _list(given["devices"], f"the devices of {place}"):
            held = _object(device, {"deviceId"}, {"numCores"}, f"a device of {place}")
            devices.append(_typed(Int(ge=0), held["deviceId"], f"the deviceId in {place}"))
            cores.append(
                _typed(self._cores, held["numCores"], f"numCores in {place}") if "numCores" in held else None
            )
        if not devices:
            raise ValueMismatchError(f"at least one device in {place}", "none")
        nodes = None
        if "nodeList" in given:
            nodes = tuple(
                _typed(self._text, node, f"a node of {place}")
                for node in _list(given["nodeList"], f"nodeList of {place}")
            )
        return Partition(
            _typed(self._text, given["name"], f"the name of {place}"), tuple(devices), tuple(cores), nodes
        )

    def _connection(self, item: object, number: int, count: int) -> Connection:
        place = f"connection {number}"
        given = _object(item, {"devices", "type"}, set(), place)
        devices = _typed(self._ids, given["devices"], f"the devices of {place}")
        kind = _typed(self._kind, given["type"], f"the type of {place}")
        _unique(f"device of {place}", devices)
        unknown = [device for device in devices if device >= count]
        if unknown:
            raise ValueMismatchError(f"devices of the partitions in {place}", f"the deviceId {unknown[0]}")
        if kind == "p2p" and len(devices) > _MOST_PEERS:
            raise ValueMismatchError(f"at most {_MOST_PEERS} devices in {place}", f"{len(devices)}")
        return Connection(devices, kind)


def _typed(codec: Codec[T], value: object, what: str) -> T:
    try:
        return codec.parse(value)
    except ValueMismatchError as error:
        raise ValueMismatchError(f"{error.expected} as {what}", error.found) from None


def _object(value: object, needed: set[str], allowed: set[str], what: str) -> _Object:
    if not isinstance(value, Mapping):
        raise ValueMismatchError(f"an object as {what}", format_value(value))
    missing = sorted(needed - value.keys())
    if missing:
        raise ValueMismatchError(f"the key {format_value(missing[0])} in {what}", "none")
    remark(unknown_keys(value, sorted(needed | allowed)), what)
    return value


def _list(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise ValueMismatchError(f"a list as {what}", format_value(value))
    return value


def _unique(what: str, values: Sequence[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueMismatchError(f"each {what} once", f"{format_value(value)} twice")
        seen.add(value)
