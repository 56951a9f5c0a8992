"""Files for the vendor's compiler, for options whose content comes from Python.

A user's file is passed on unchanged, because the user knows the format of the installed compiler.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

from qaic.options.codecs.scalars import Json
from qaic.options.files.custom_io import CustomIo, fields_of
from qaic.options.files.node_precision import NodePrecision
from qaic.options.files.partitions import Partitions
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.resolution import ResolvedOptions
from qaic.options.table import CompileOptions
from qaic.support.program_names import RETAINED_STATE_SUFFIX


def write_files(resolved: ResolvedOptions, folder: Path) -> dict[str, Path]:
    """Write the files of a compilation.

    Returns their paths by the names of the options. The folder exists.
    """
    options = resolved.compile
    contents: dict[str, str] = {}
    if options.network_specialization_config:
        contents["network_specialization_config"] = specializations_text(
            options.network_specialization_config
        )
    if options.mdp_load_partition_config is not None:
        contents["mdp_load_partition_config"] = _json(Partitions().to_json(options.mdp_load_partition_config))
    if options.custom_io_list_file:
        contents["custom_io_list_file"] = custom_io_text(options.custom_io_list_file)
    if options.node_precision_info_file is not None:
        contents["node_precision_info_file"] = node_precision_text(options.node_precision_info_file)
    files = {}
    for name, text in contents.items():
        if not isinstance(resolved.as_given.get(name), Path):
            suffix = "yaml" if name in {"custom_io_list_file", "node_precision_info_file"} else "json"
            files[name] = folder / f"{name}.{suffix}"
            files[name].write_text(text, encoding="utf-8")
    return files


def specializations_text(entries: Sequence[SpecializationEntry], *, flat: bool = False) -> str:
    """Write sets of sizes: with names, or flat, the form of older compilers."""
    listed: list[Json] = []
    for entry in entries:
        # Existing files write numbers as text.
        symbols: dict[str, Json] = {name: str(size) for name, size in entry.symbols.items()}
        listed.append(symbols if flat else {"name": entry.name, "symbols": symbols})
    return _json({"specializations": listed})


def custom_io_text(entries: Iterable[CustomIo]) -> str:
    """Write a custom I/O file."""
    lines = []
    for entry in entries:
        fields = fields_of(entry) | {"IOName": json.dumps(entry.name, ensure_ascii=False)}
        # Existing files indent by one space.
        lines.append(" - " + "\n   ".join(f"{key}: {value}" for key, value in fields.items()) + "\n")
    return "\n".join(lines)


def node_precision_text(lists: NodePrecision) -> str:
    """Write a node precision file."""
    parts = []
    for key, names in (("FP16NodeInstanceNames", lists.fp16), ("FP32NodeInstanceNames", lists.fp32)):
        if names:
            # A JSON list is a YAML list.
            parts.append(f"{key}: {json.dumps(list(names), ensure_ascii=False)}\n")
    return "".join(parts)


def with_state_precision(options: CompileOptions, graph: onnx.GraphProto) -> tuple[CustomIo, ...]:
    """Add the precision ``mxint8`` of retained state to the entries of a custom I/O file.

    The vendor's compiler has no flag for `mxint8_kv_cache`: it is requested for each tensor.
    """
    entries = {entry.name: entry for entry in options.custom_io_list_file or ()}
    for output in graph.output:
        if not output.name.endswith(RETAINED_STATE_SUFFIX):
            continue
        for name in (output.name.removesuffix(RETAINED_STATE_SUFFIX), output.name):
            given = entries.get(name)
            if given is None:
                entries[name] = CustomIo(name, precision="mxint8")
            elif given.precision is None:
                entries[name] = CustomIo(name, given.layout, "mxint8", given.scale, given.offset)
    return tuple(entries.values())


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
