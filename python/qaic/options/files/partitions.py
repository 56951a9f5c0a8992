"""The option that partitions a program for several devices."""

from collections.abc import Sequence
from dataclasses import dataclass

from qaic.options.codecs.scalars import Enum, Int, Json, ListOf, Str, ValueMismatchError
from qaic.options.files.parsed_file import JsonFile, list_of, object_of
from qaic.support.text import format_value

#: most devices that can reach each other's memory
_MOST_PEERS = 16

_ID, _CORES, _KIND, _TEXT = Int(ge=0), Int(ge=1), Enum("p2p", "host"), Str()
_IDS = ListOf(_ID)


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that run on a group of devices; several devices share the work of each node."""

    name: str
    devices: tuple[int, ...]
    #: number of cores of each device; None if the file does not contain it
    cores: tuple[int | None, ...]
    #: nodes of the partition; None if the compiler selects them
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Connection:
    """Method with which a group of devices exchanges data: ``p2p`` or ``host``."""

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
    """A multi-device partition file; in Python, also its content."""

    expected = (
        "the path of a JSON file with "
        '{"partitions": [{"name": "Partition0", "devices": [{"deviceId": 0, "numCores": 16}]}]}'
    )

    def content(self, value: object) -> PartitionConfig:
        if isinstance(value, PartitionConfig):
            return value
        top = object_of(value, {"partitions"}, {"connections"}, "the partition file")
        partitions = tuple(
            self._partition(item, number)
            for number, item in enumerate(list_of(top["partitions"], "partitions"))
        )
        if not partitions:
            raise ValueMismatchError("at least one partition", "none")
        _unique("partition name", [partition.name for partition in partitions])
        ids = [device for partition in partitions for device in partition.devices]
        _unique("deviceId", ids)
        if sorted(ids) != list(range(len(ids))):
            raise ValueMismatchError(f"the deviceIds 0 to {len(ids) - 1}", ", ".join(map(str, sorted(ids))))
        _unique("node", [node for partition in partitions for node in partition.nodes or ()])
        given = list_of(top.get("connections", ()), "connections")
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
        given = object_of(item, {"name", "devices"}, {"nodeList"}, place)
        devices, cores = [], []
        for device in list_of(given["devices"], f"the devices of {place}"):
            held = object_of(device, {"deviceId"}, {"numCores"}, f"a device of {place}")
            devices.append(_ID.parse_part(held["deviceId"], f"as the deviceId in {place}"))
            cores.append(
                _CORES.parse_part(held["numCores"], f"as numCores in {place}") if "numCores" in held else None
            )
        if not devices:
            raise ValueMismatchError(f"at least one device in {place}", "none")
        nodes = None
        if "nodeList" in given:
            nodes = tuple(
                _TEXT.parse_part(node, f"as a node of {place}")
                for node in list_of(given["nodeList"], f"nodeList of {place}")
            )
        return Partition(
            _TEXT.parse_part(given["name"], f"as the name of {place}"), tuple(devices), tuple(cores), nodes
        )

    def _connection(self, item: object, number: int, count: int) -> Connection:
        place = f"connection {number}"
        given = object_of(item, {"devices", "type"}, set(), place)
        devices = _IDS.parse_part(given["devices"], f"as the devices of {place}")
        kind = _KIND.parse_part(given["type"], f"as the type of {place}")
        _unique(f"device of {place}", devices)
        unknown = [device for device in devices if device >= count]
        if unknown:
            raise ValueMismatchError(f"devices of the partitions in {place}", f"the deviceId {unknown[0]}")
        if kind == "p2p" and len(devices) > _MOST_PEERS:
            raise ValueMismatchError(f"at most {_MOST_PEERS} devices in {place}", f"{len(devices)}")
        return Connection(devices, kind)


def _unique(what: str, values: Sequence[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueMismatchError(f"each {what} once", f"{format_value(value)} twice")
        seen.add(value)
