"""Names of values inside functions, and their names after functions are expanded.

The body of a function exists once and is expanded at every call, where its values get other names. Files that
name values use the model before expansion: they contain names from bodies, or the same names with the calls
as prefix. These forms represent a value ``o`` of the body of a function ``F``:

* ``o``: that value in every call;
``call/o``: that value in one call, where ``call`` is the name of the call, after those of the calls around
it. ``call/n`` with the name of the node that computes the value has the same meaning;
* ``F_2_o`` and ``Graph_F_2_o``: that value in the third call of ``F``, in the order of the expanded graph.

A value of a body that the compiler rewrites represents the results of the call.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from qaic.compiler.ir.graph_walk import all_nodes

#: name of a function, number of a call and name of a value
_INSTANCE: Final = re.compile(r"_([0-9]{1,9})_(.+)", re.DOTALL)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a function in an expanded graph; the graph itself is a call without a function."""

    #: its name, with those of the calls around it as prefix
    path: str = ""
    function: str = ""
    #: number of earlier calls of the function
    number: int = 0
    nodes: Sequence[onnx.NodeProto] = ()
    parent: "Call | None" = None
    #: result of the function -> its name in the caller
    results: Mapping[str, str] = field(default_factory=dict)
    #: value of the body -> its name in the expanded graph
    values: dict[str, str] = field(default_factory=dict)

    def bind(self, value: str, name: str) -> None:
        """Add the name of a value, which may also be a result of the call."""
        at: Call | None = self
        while at is not None and value:
            at.values[value] = name
            value = at.results.get(value, "")
            at = at.parent


@dataclass(slots=True)
class _Index:
    """Index of all names."""

    values: dict[str, dict[str, None]] = field(default_factory=dict)
    paths: dict[str, dict[str, None]] = field(default_factory=dict)
    instances: dict[tuple[str, int, str], str] = field(default_factory=dict)
    #: results of calls inside other calls, by function
    results: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    #: value -> path of the call that computes it, and its name in the body
    places: dict[str, tuple[str, str]] = field(default_factory=dict)


class InlinedNames:
    """Finds the values of an expanded model by the names that they, or their calls, had before.

    No function of the model is changed yet.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._own = {name for node in all_nodes(model.graph.node) for name in node.output if name}
        self._bodies = {
            (function.domain, function.name): {
                name for node in all_nodes(function.node) for name in node.output if name
            }
            for function in model.functions
        }
        #: results of the calls in the graph itself, by function
        self._results: dict[tuple[str, str], list[str]] = {}
        for node in all_nodes(model.graph.node) if self._bodies else ():
            if (node.domain, node.op_type) in self._bodies:
                self._results.setdefault((node.domain, node.op_type), []).extend(filter(None, node.output))
        self._calls: list[Call] = []
        self._index: _Index | None = None

    def learn(self, calls: Iterable[Call]) -> None:
        """Add the calls of an expanded graph."""
        self._calls = [*self._calls, *calls]
        self._index = None

    def find(self, name: str) -> list[str]:
        """List the values of the expanded graph with a name; empty if there are none.

        The name of a removed value is found, although the graph does not contain it.
        """
        found = dict.fromkeys([name] if name in self._own else ())
        index = self._indexed()
        found |= index.values.get(name, {}) | index.paths.get(name, {})
        if not found:
            found |= dict.fromkeys(self._of_instance(name))
        if not found:
            found |= dict.fromkeys(self._of_rewritten(name))
        return list(found)

    def in_body(self, value: str) -> tuple[str, str] | None:
        """Return the path of the call that computes a value, and its name in the function's body.

        Returns None for a value of the model's own graph. The name in the body means it in every call.
        """
        return None if value in self._own else self._indexed().places.get(value)

    def titles(self, name: str) -> dict[str, str]:
        """Map the values that a name represents to names that an output can have: its own, or ``call/o``."""
        found = {value: value for value in self.find(name)}
        if name in self._indexed().paths:
            return {value: value if value in self._own or len(found) > 1 else name for value in found}
        for call in self._calls:
            value = call.values.get(name)
            if call.path and value in found and value not in self._own:
                found[value] = f"{call.path}/{name}"
        return found

    def rename(self, given: Mapping[str, str]) -> None:
        """Record new names of values of the expanded graph."""
        for call in self._calls:
            for inner, value in call.values.items():
                call.values[inner] = given.get(value, value)
        self._index = None

    def known(self) -> Iterator[str]:
        """Yield names that `find` accepts, for messages."""
        yield from self._own
        yield from self._indexed().values

    def _indexed(self) -> _Index:
        if self._index is None:
            self._index = _Index()
            for call in self._calls:
                self._add(call, self._index)
        return self._index

    def _add(self, call: Call, index: _Index) -> None:
        if not call.path:
            return
        for inner, value in call.values.items():
            index.values.setdefault(inner, {})[value] = None
            index.paths.setdefault(f"{call.path}/{inner}", {})[value] = None
            index.instances[call.function, call.number, inner] = value
            index.places.setdefault(value, (call.path, inner))
        for node in call.nodes:
            held = {call.values[name]: None for name in node.output if name in call.values}
            if (node.domain, node.op_type) in self._bodies:
                index.results.setdefault((node.domain, node.op_type), []).extend(held)
            if node.name and held:
                index.paths.setdefault(f"{call.path}/{node.name}", {}).update(held)

    def _of_instance(self, name: str) -> Iterator[str]:
        """Yield the value that a function name with a number means."""
        for _, function in self._bodies:
            start = name.find(function)
            while start >= 0:
                behind = _INSTANCE.fullmatch(name, start + len(function))
                if behind is not None and (start == 0 or name[start - 1] == "_"):
                    value = self._indexed().instances.get((function, int(behind[1]), behind[2]))
                    if value is not None:
                        yield value
                start = name.find(function, start + 1)

    def _of_rewritten(self, name: str) -> Iterator[str]:
        """Yield the results of the calls of functions whose bodies had a value of this name."""
        for function, names in self._bodies.items():
            if name in names:
                yield from self._results.get(function, ())
                yield from self._indexed().results.get(function, ())


def calls_in(graph: onnx.GraphProto, pairs: Iterable[tuple[onnx.NodeProto, Call]]) -> list[Call]:
    """Bind the values of calls to their names in an expanded graph.

    `pairs` are the original node of each node, and the call whose body it belongs to. Returns every call,
    after the graph itself.
    """
    calls: dict[Call, None] = {}
    for node, (origin, call) in zip(graph.node, pairs, strict=True):
        at: Call | None = call
        while at is not None and at not in calls:
            calls[at] = None
            at = at.parent
        _bind(call, origin, node)
    numbers: Counter[str] = Counter()
    for call in calls:
        call.number = numbers[call.function]
        numbers[call.function] += 1
    return list(calls)


def _bind(call: Call, origin: onnx.NodeProto, node: onnx.NodeProto) -> None:
    """Bind the results of a node, and of the nodes nested in it where their structure is the same."""
    before, after = list(all_nodes([origin])), list(all_nodes([node]))
    if [item.op_type for item in before] != [item.op_type for item in after]:
        before, after = [origin], [node]
    for old, new in zip(before, after, strict=True):
        for value, name in zip(old.output, new.output, strict=False):
            if value:
                call.bind(value, name)
