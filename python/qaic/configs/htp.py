"""Configurations of the HTP back end, kept as data.

Fields have no definitions and no defaults here: the JSON file contains exactly the given keywords. Two names
differ in the JSON file, and one graph of the file may represent several configurations.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from qaic.configs.base import OpenModel


class HtpGraphConfig(OpenModel):
    """Options of one graph, for example ``name="graph_A", optimization_type=3``."""


class HtpContextConfig(OpenModel):
    """Options of a context, for example ``weight_sharing_enabled=True``."""


class HtpDeviceConfig(OpenModel):
    """Options of a device, for example ``soc_model=43, cores=[{"core_id": 0}]``."""


class HtpMemoryConfig(OpenModel):
    """Options of memory, for example ``mem_type="shared_buffer"``."""


class HtpGroupContextConfig(OpenModel):
    """Options of a group of contexts, for example ``share_resources=True``."""


#: Section of the JSON file -> class.
SECTIONS: dict[str, type[OpenModel]] = {
    "context": HtpContextConfig,
    "graphs": HtpGraphConfig,
    "devices": HtpDeviceConfig,
    "memory": HtpMemoryConfig,
    "groupContext": HtpGroupContextConfig,
}

#: Name in Python -> key in the JSON file, if they differ.
_GRAPH_KEYS = {"optimization_type": "O", "vtcm_size_in_mb": "vtcm_mb"}
_GRAPH_NAMES = {key: name for name, key in _GRAPH_KEYS.items()}


def graphs_to_json(graphs: Sequence[OpenModel]) -> list[dict[str, Any]]:
    """Return the entries of the section ``graphs``; neighbors that differ only in their names share one."""
    entries: list[dict[str, Any]] = []
    split = [_graph_to_json(graph.as_given()) for graph in graphs]
    for (is_named, options), alike in groupby(split, key=lambda pair: (pair[0] is not None, pair[1])):
        names = [name for name, _ in alike]
        if is_named:
            entries.append({"graph_names": names, **options})
        else:
            # Graphs without a name are not merged, because the number of graphs would be lost.
            entries += [dict(options) for _ in names]
    return entries


def graphs_from_json(entries: Sequence[Mapping[str, Any]], kind: type[OpenModel]) -> list[OpenModel]:
    """Return one configuration per graph name; an entry without names is one configuration."""
    graphs: list[OpenModel] = []
    for entry in entries:
        names = entry.get("graph_names")
        options = {_GRAPH_NAMES.get(key, key): value for key, value in entry.items()}
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            del options["graph_names"]
            graphs += [kind(**{"name": name, **options}) for name in names]
        else:
            graphs.append(kind(**options))
    return graphs


def _graph_to_json(given: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Split a graph's options into its name and the rest, under the keys of the file."""
    # A given list of names does not change.
    name = given.pop("name", None) if "graph_names" not in given else None
    return name, {_GRAPH_KEYS.get(key, key): value for key, value in given.items()}


def list_options(sections: Mapping[str, type[OpenModel]] = SECTIONS) -> None:
    """Print the sections of a configuration, one per line: class and the place in the JSON file.

    Options inside sections are not listed: every keyword is accepted and written as given.
    """
    for section, kind in sections.items():
        sys.stdout.write(f"{kind.__name__}: section {section!r}, any options\n")
