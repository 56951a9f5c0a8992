"""The data path of a card's container: bindings, DMA requests, semaphores, cores, segments.

The program of the cores is machine code; the container has no graph of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qaic.page.graph import Coloring, DrawnGraph, DrawnNode
from qaic.qpc import BufferMapping, Qpc
from qaic.report import Column, Table, columns_of
from qaic.support.text import counted

_SEMAPHORE_OPERATIONS: Final = (
    "nothing", "set", "add", "subtract", "wait until equal", "wait until at least", "wait and take",
)  # fmt: skip
#: operations that wait for a semaphore; the others change it
_WAITS: Final = frozenset({4, 5, 6})
_ADDRESS_SPACES: Final = ("multicast to the cores", "DDR", "DDR, shared")
_CODE: Final = "network.elf"
_CONSTANTS: Final = "constants.bin"


def drawn_card(qpc: Qpc) -> tuple[DrawnGraph, list[Table]]:
    """Draw a container, and list the drawn parts. Raises QpcError if a part is damaged."""
    metadata = qpc.metadata
    fields = {} if metadata is None else metadata.fields
    requests: Sequence[Mapping[str, Any]] = fields.get("dmaRequests", ())
    picture = _Picture()
    info = qpc.program_info
    inputs = [one for one in info.buffer_mappings if one.io_type == 1]
    outputs = [one for one in info.buffer_mappings if one.io_type != 1]
    network = qpc.network_descriptor
    for binding in inputs:
        picture.add(("binding", binding.index), binding.name, "input", _binding_facts(binding))
    for name in (_CODE, _CONSTANTS):
        if name in qpc.segments:
            picture.add(("segment", name), name, "segment", [("bytes", f"{qpc.segments[name].size:,}")])
    _add_buffers(picture, network, ways=(0,))
    initial = fields.get("semaphoreInitState", ())
    # Nodes are in an order in which arrows point forward, because the layout counts only such arrows.
    first = _first_waited_for(requests)
    _add_semaphores(picture, initial, first)
    _add_requests(picture, requests, ways=(0,))
    _add_semaphores(picture, initial, set(range(len(initial))) - first)
    cores = info.num_cores
    mask_facts = [("cores", str(cores)), ("DMA multicasts", str(info.num_mc_id))]
    picture.add(("cores", 0), counted(cores, "core"), "cores", mask_facts)
    _add_requests(picture, requests, ways=(1,))
    _add_buffers(picture, network, ways=(1,))
    for binding in outputs:
        picture.add(("binding", binding.index), binding.name, "output", _binding_facts(binding))
    _add_arrows(picture, network, requests, inputs, outputs)
    graph = DrawnGraph(
        picture.nodes,
        picture.edges,
        [Coloring("part", [node.kind for node in picture.nodes])],
        ["The container describes the transfers. The computation is machine code in network.elf."],
    )
    tables = [
        _bindings_table([*inputs, *outputs]),
        _requests_table(requests),
        _semaphores_table(initial, requests),
        _cores_table(info.num_cores, fields),
        _segments_table(qpc),
    ]
    return graph, tables


class _Picture:
    """The nodes by kind, and the arrows between them."""

    def __init__(self) -> None:
        self.nodes: list[DrawnNode] = []
        self.edges: list[tuple[int, int, str]] = []
        self._places: dict[tuple[str, object], int] = {}

    def add(self, key: tuple[str, object], name: str, kind: str, facts: list[tuple[str, str]]) -> None:
        self._places[key] = len(self.nodes)
        # A slash in a name must not create a group.
        self.nodes.append(DrawnNode(name.replace("/", "\u2215"), kind, facts))

    def link(self, begin: tuple[str, object], end: tuple[str, object], value: str) -> None:
        """Draw an arrow, unless a damaged container does not contain one of its ends."""
        if begin in self._places and end in self._places:
            self.edges.append((self._places[begin], self._places[end], value))


def _binding_facts(binding: BufferMapping) -> list[tuple[str, str]]:
    return [
        ("binding", str(binding.index)),
        ("bytes", f"{binding.size:,}"),
        ("type", binding.data_type.name.lower()),
    ]


def _add_buffers(picture: _Picture, network: Mapping[str, Any], *, ways: tuple[int, ...]) -> None:
    for number, buffer in enumerate(network.get("dma_buffers", ())):
        if buffer.get("dir", 0) in ways:
            facts = [("bytes", f"{buffer.get('size', 0):,}")]
            picture.add(("buffer", number), f"DMA buffer {number}", "DMA buffer", facts)


def _first_waited_for(requests: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the semaphores that inbound requests wait for and do not change."""
    waited: set[int] = set()
    changed: set[int] = set()
    for request in requests:
        if request["inOut"] == 0:
            for one in request["semaphoreOps"]:
                (waited if one["semOp"] in _WAITS else changed).add(one["semNum"])
    return waited - changed


def _add_semaphores(picture: _Picture, initial: Sequence[int], numbers: set[int]) -> None:
    for number, value in enumerate(initial):
        if number in numbers:
            facts = [("initial value", str(value))]
            picture.add(("semaphore", number), f"semaphore {number}", "semaphore", facts)


def _add_requests(picture: _Picture, requests: Sequence[Mapping[str, Any]], *, ways: tuple[int, ...]) -> None:
    for number, request in enumerate(requests):
        if request["inOut"] not in ways:
            continue
        facts = [
            ("bytes", f"{request['size']:,}"),
            ("to" if request["inOut"] == 0 else "from", _place_text(request)),
            *(("semaphore", _semaphore_text(one)) for one in request["semaphoreOps"]),
            *(("doorbell", _doorbell_text(one)) for one in request["doorbellOps"]),
        ]
        picture.add(("request", number), f"DMA request {number}", "DMA request", facts)


def _add_arrows(
    picture: _Picture,
    network: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    inputs: Sequence[BufferMapping],
    outputs: Sequence[BufferMapping],
) -> None:
    cores = ("cores", 0)
    for mappings, side in ((inputs, "inputs"), (outputs, "outputs")):
        for mapping, described in zip(mappings, network.get(side, ()), strict=False):
            for number in _buffers_of(described):
                ends = (("binding", mapping.index), ("buffer", number))
                picture.link(*(ends if side == "inputs" else ends[::-1]), mapping.name)
    for number, request in enumerate(requests):
        ends = (("buffer", request["num"]), ("request", number))
        size = f"{request['size']:,} bytes"
        if request["inOut"] == 0:
            picture.link(*ends, size)
            picture.link(("request", number), cores, _place_text(request))
        else:
            picture.link(cores, ("request", number), _place_text(request))
            picture.link(*ends[::-1], size)
        for one in request["semaphoreOps"]:
            semaphore = ("semaphore", one["semNum"])
            waits = one["semOp"] in _WAITS
            begin, end = (semaphore, ("request", number)) if waits else (("request", number), semaphore)
            picture.link(begin, end, _semaphore_text(one))
    for name in (_CODE, _CONSTANTS):
        picture.link(("segment", name), cores, name)


def _buffers_of(described: Mapping[str, Any]) -> list[int]:
    """Return the DMA buffers that the transforms of an input or output copy to or from."""
    copies = (one.get("copy_dma_buffer") for one in described.get("transformseq", ()))
    return list(dict.fromkeys(copy.get("buffer_num", 0) for copy in copies if copy is not None))


def _place_text(request: Mapping[str, Any]) -> str:
    space = request["devAddrSpace"]
    where = _ADDRESS_SPACES[space] if space < len(_ADDRESS_SPACES) else f"address space {space}"
    multicast = f" {request['mcId']}" if space == 0 else ""
    return f"{where}{multicast} at {request['devOffset']:#x}"


def _semaphore_text(operation: Mapping[str, Any]) -> str:
    code = operation["semOp"]
    name = _SEMAPHORE_OPERATIONS[code] if code < len(_SEMAPHORE_OPERATIONS) else f"operation {code}"
    when = "before the transfer" if operation["preOrPost"] else "after the transfer"
    return f"{operation['semNum']}: {name} {operation['semValue']}, {when}"


def _doorbell_text(operation: Mapping[str, Any]) -> str:
    bits = 8 << operation["size"] if operation["size"] <= 2 else operation["size"]
    return f"{bits} bits, {operation['data']} at {operation['offset']:#x}"


def _bindings_table(bindings: Sequence[BufferMapping]) -> Table:
    columns = columns_of("binding:int | name | way | type | size:bytes")
    rows = [
        (one.index, one.name, one.io_type.name.lower(), one.data_type.name.lower(), one.size)
        for one in bindings
    ]
    return Table("bindings", "Bindings", columns, list(rows))


def _requests_table(requests: Sequence[Mapping[str, Any]]) -> Table:
    columns = columns_of(
        "request:int | way | DMA buffer:int | at:int | size:bytes | on the card | semaphores | doorbells"
    )
    rows = [
        (
            number,
            "in" if request["inOut"] == 0 else "out",
            request["num"],
            request["hostOffset"],
            request["size"],
            _place_text(request),
            "; ".join(map(_semaphore_text, request["semaphoreOps"])) or None,
            "; ".join(map(_doorbell_text, request["doorbellOps"])) or None,
        )
        for number, request in enumerate(requests)
    ]
    note = None if rows else "The container has no metadata, or it lists none."
    return Table("requests", "DMA requests", columns, list(rows), note)


def _semaphores_table(initial: Sequence[int], requests: Sequence[Mapping[str, Any]]) -> Table:
    uses: dict[int, dict[bool, list[str]]] = {}
    for number, request in enumerate(requests):
        for one in request["semaphoreOps"]:
            found = uses.setdefault(one["semNum"], {True: [], False: []})
            found[one["semOp"] in _WAITS].append(str(number))
    columns = columns_of("semaphore:int | initial value:int | changed by requests | waited for by requests")
    rows = []
    for number, value in enumerate(initial):
        found = uses.get(number, {True: [], False: []})
        rows.append((number, value, ", ".join(found[False]) or None, ", ".join(found[True]) or None))
    note = None if rows else "The container has no metadata, or it lists none."
    return Table("semaphores", "Semaphores", columns, list(rows), note)


def _cores_table(count: int, fields: Mapping[str, Any]) -> Table:
    tables = fields.get("nspMulticastTables", ())
    mappings = fields.get("constantMappings", ())
    columns = (Column("core", kind="int"), Column("sends to cores"), Column("constants", "bytes", "bytes"))
    rows = []
    for core in range(count):
        entries = tables[core]["multicastEntries"] if core < len(tables) else ()
        masks = dict.fromkeys(_cores_of(entry["mask"]) for entry in entries)
        constants = sum(one["size"] for one in mappings if one["coreMask"] >> core & 1)
        rows.append((core, "; ".join(masks) or None, constants))
    threads = fields.get("threadDescriptors", ())
    note = f"{counted(len(threads), 'thread')} on each core" if threads else None
    return Table("cores", "Cores", columns, list(rows), note)


def _cores_of(mask: int) -> str:
    return ", ".join(str(core) for core in range(mask.bit_length()) if mask >> core & 1)


def _segments_table(qpc: Qpc) -> Table:
    columns = (Column("segment"), Column("size", "bytes", "bytes"), Column("start", kind="int"))
    rows = [(one.name, one.size, one.start) for one in qpc.segments.values()]
    return Table("segments", "Segments", columns, list(rows))
