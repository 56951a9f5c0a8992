"""The element type of every value of a model, per graph, from shape inference."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias, TypeVar, cast

import onnx

from qaic.compiler.ir.graph_edits import describe_value, set_shape
from qaic.compiler.ir.graph_walk import all_graphs

#: most elements of a list, and of another dimension, that inference evaluates
_LONGEST_LIST: Final = 1 << 14
_LONGEST_DIM: Final = 1 << 22


ShapesInSets: TypeAlias = Callable[[str], tuple[tuple[int, ...], ...]]
#: dims of a tensor, with None for an unknown size
Dims: TypeAlias = tuple[int | None, ...]
#: like `ShapesInSets`, for values of nested graphs
DimsInSets: TypeAlias = Callable[[str], tuple[Dims, ...]]


@dataclass(frozen=True, slots=True)
class Added:
    """The element type of a value that a rewriting added, and the value with its shape; "" for a scalar."""

    elem_type: int
    like: str
    #: the result that the value was before, if the rewriting moved its node
    original: str = ""


@dataclass
class ValueInfo:
    """Known facts about values, by name."""

    types: dict[str, int]
    #: the model with types and shapes, once for each set of shapes
    specialized: Sequence[onnx.ModelProto] = ()
    #: float32 values that were float16 or bfloat16 in the model -> that type
    narrow: dict[str, int] = field(default_factory=dict)
    #: values that were renamed -> their name in the model
    original: dict[str, str] = field(default_factory=dict)
    #: added nodes, by first result, that pass values on; options about precision do not apply to them
    transparent: set[str] = field(default_factory=set)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of values of the main graph whose dims are all known; -1 where sets of shapes differ.

        They are collected at the first request of a pass; a float32 model compiles without them.
        """
        return common_shapes(self.specialized) if self.specialized else {}

    def learn(self, value: onnx.ValueInfoProto) -> None:
        """Record the type and shape of a value as it is declared now."""
        self.types[value.name], dims = type_and_dims(value)
        if value.name in self.shapes:
            self.shapes[value.name] = tuple(-1 if dim is None else dim for dim in dims or ())

    def add(self, equals: Mapping[str, str]) -> None:
        """Record added values, each with the value whose type it has."""
        self.types.update((new, self.types[name]) for new, name in equals.items() if name in self.types)

    def copy(self) -> "ValueInfo":
        """Copy the facts known so far."""
        twin = ValueInfo(dict(self.types), (), dict(self.narrow), dict(self.original), set(self.transparent))
        twin.shapes = dict(self.shapes)
        return twin


def collect_types(inferred: onnx.ModelProto) -> dict[str, int]:
    """Map the name of every tensor to its ONNX element type.

    Names are unique among nested graphs that are visible to each other. Two branches may use one name for
    different values. If their types differ, the name is omitted, so that neither value changes.
    """
    types: dict[str, int] = {}
    mixed: set[str] = set()

    for graph in all_graphs(inferred.graph):
        values = (
            # The type of a value that is not a tensor reads as 0.
            (value.name, value.type.tensor_type.elem_type)
            for value in chain(graph.input, graph.output, graph.value_info)
        )
        constants = chain(graph.initializer, (sparse.values for sparse in graph.sparse_initializer))
        for name, elem_type in chain(values, ((tensor.name, tensor.data_type) for tensor in constants)):
            if elem_type and types.setdefault(name, elem_type) != elem_type:
                mixed.add(name)
    for name in mixed:
        del types[name]
    return types


def untyped_values(graph: onnx.GraphProto) -> list[str]:
    """List the outputs of a graph's nodes that have no declared tensor type."""
    typed = {
        value.name for value in chain(graph.output, graph.value_info) if value.type.tensor_type.elem_type
    }
    made = chain.from_iterable(node.output[:] for node in graph.node)
    return [name for name in made if name and name not in typed]


def common_shapes(specialized: Sequence[onnx.ModelProto]) -> dict[str, tuple[int, ...]]:
    """Map the name of every tensor whose dims are known in every model to the common dims.

    A dimension that differs is -1; a tensor whose rank differs is omitted.
    """
    if len(specialized) == 1:
        return collect_shapes(specialized[0])
    return {
        name: tuple(column[0] if len({*column}) == 1 else -1 for column in zip(*shapes, strict=True))
        for name, shapes in _joined(collect_shapes, specialized).items()
        if len({*map(len, shapes)}) == 1
    }


def collect_shapes(inferred: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Map the name of every tensor of the main graph whose dims are all known to its shape."""
    graph = inferred.graph
    shapes: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        dims = known_dims(value)
        if dims is not None:
            shapes[value.name] = dims
    return shapes


def shapes_in(*inferred: onnx.ModelProto) -> ShapesInSets:
    """Return a function that finds the shapes of a value in several models; () if one is unknown."""
    return _in_sets(collect_shapes, inferred)


def dims_in(*inferred: onnx.ModelProto) -> DimsInSets:
    """Return a function that finds the dims of a value in several models; () if the rank is unknown."""
    return _in_sets(declared_dims, inferred)


_Dims = TypeVar("_Dims")


def _in_sets(
    collect: Callable[[onnx.ModelProto], Mapping[str, _Dims]], inferred: Sequence[onnx.ModelProto]
) -> Callable[[str], tuple[_Dims, ...]]:
    collected = functools.cache(lambda: _joined(collect, inferred))
    return lambda name: collected().get(name, ())


def _joined(
    collect: Callable[[onnx.ModelProto], Mapping[str, _Dims]], inferred: Sequence[onnx.ModelProto]
) -> dict[str, tuple[_Dims, ...]]:
    """Map each value that all models contain to its dims in them."""
    first, *others = [collect(specialized_model) for specialized_model in inferred] or [{}]
    shared = (name for name in first if all(name in known for known in others))
    return {name: (first[name], *[known[name] for known in others]) for name in shared}


def declared_dims(inferred: onnx.ModelProto) -> dict[str, Dims]:
    """Map the name of every tensor whose rank is declared to its dims, nested graphs included."""
    dims: dict[str, Dims] = {}
    for graph in all_graphs(inferred.graph):
        dims |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            _, declared = type_and_dims(value)
            if declared is not None:
                dims[value.name] = declared
    return dims


def type_and_dims(value: onnx.ValueInfoProto) -> tuple[int, Dims | None]:
    """Return the element type and the dims of a tensor, with None for unknown sizes.

    They are 0 and None if they are unknown, and for values of other kinds.
    """
    return _parsed(value.type.SerializeToString())


# Many values of a model share a type. Reading the fields of each takes several times as long.
@functools.lru_cache(4096)
def _parsed(content: bytes) -> tuple[int, Dims | None]:
    tensor = onnx.TypeProto.FromString(content).tensor_type
    dims = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return tensor.elem_type, tuple(dims) if tensor.HasField("shape") else None


def agree(dims: Dims | None, others: Dims | None) -> bool:
    """Return False if two shapes cannot be those of one tensor; a size below 0 is unknown."""
    if dims is None or others is None or dims == others:
        return True
    pairs = [(a, b) for a, b in zip(dims, others, strict=False) if a is not None and b is not None]
    return len(dims) == len(others) and all(a == b or min(a, b) < 0 for a, b in pairs)


def known_dims(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """Return the dims of a tensor; None if one is unknown, or the value is not a tensor."""
    _, dims = type_and_dims(value)
    return None if dims is None or None in dims else cast("tuple[int, ...]", dims)


def is_open(value: onnx.ValueInfoProto) -> bool:
    """Return True if a value is a tensor, and one of its dims is unknown."""
    return value.type.HasField("tensor_type") and known_dims(value) is None


def may_follow_values(inferred: onnx.ModelProto) -> bool:
    """Return True if onnx may evaluate values, which takes an object for each element of a list."""
    graph = inferred.graph
    found = {type_and_dims(value)[1] or () for value in (*graph.input, *graph.value_info)}
    return all(
        (size or 0) <= (_LONGEST_LIST if len(sizes) == 1 else _LONGEST_DIM)
        for sizes in found
        for size in sizes
    )


def describe_added(specialized_model: onnx.ModelProto, added: Mapping[str, Added]) -> None:
    """Declare the types and shapes of values that were added to an inferred model."""
    shapes = {"": (), **declared_dims(specialized_model)}
    for graph in all_graphs(specialized_model.graph):
        for name in [name for node in graph.node for name in node.output if name in added]:
            value = describe_value(graph, name)
            value.type.tensor_type.elem_type = added[name].elem_type
            if added[name].like in shapes:
                set_shape(value, shapes[added[name].like])
