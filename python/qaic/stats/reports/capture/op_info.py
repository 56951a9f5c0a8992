"""The compiler's description of a program's operations, as columns: one entry per operation.

Operation ``oc`` of core ``c`` has the number ``base[c] + oc``. Sums by kind, node or layer are then one
``np.bincount`` over these columns.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

COMPUTE: Final = "matrix"
DEQUANTIZE: Final = "dequantize"
MOVEMENT: Final = "movement"
CONVERT: Final = "format convert"
NORMALIZE: Final = "normalize"
ELEMENTWISE: Final = "elementwise"
SYNC: Final = "sync"
BARRIER: Final = "barrier"
SEMAPHORE: Final = "semaphore"
FLUSH: Final = "stats flush"
CONTROL: Final = "control"
OTHER: Final = "other"

#: categories in the order of reports
CATEGORIES: Final = (
    COMPUTE, DEQUANTIZE, MOVEMENT, CONVERT, NORMALIZE, ELEMENTWISE,
    SYNC, BARRIER, SEMAPHORE, FLUSH, CONTROL, OTHER,
)  # fmt: skip

#: categories of work that does not belong to the model
BOOKKEEPING: Final = frozenset({SEMAPHORE, FLUSH})

# The first matching expression selects the category. Kinds are compared in lower case. Kinds of the card
# begin with `aic`; kinds of the engine are operator names with additions such as `Fused` and `QLinear`.
_RULES: Final = tuple(
    (re.compile(expression), category)
    for expression, category in (
        (r"aicendcyclestats", FLUSH),
        (r"aic(input|output)semaphore\w*", SEMAPHORE),
        (r"sync( .*)?", SYNC),
        (r"barrier( .*)?", BARRIER),
        (r"(block)?dequantize\w*", DEQUANTIZE),
        (r"aicconvolution\w*|aic(batched)?matmul\w*|aicfullyconnected\w*", COMPUTE),
        (r"aicconvert\w*d32|aicconvert\w*|convertto", CONVERT),
        (r"aiccopy\w*|aicmulticast\w*|aicgather\w*|aicscatter\w*|aicmmap|aicmunmap", MOVEMENT),
        (r"aictranspose\w*|aicreshape\w*", CONVERT),
        (r"aic\w*(softmax|norm|normalization)\w*", NORMALIZE),
        (r"aic\w*splat|element\w+|cumsum|aicbroadcast\w*|aicbatchedreduce\w*|aicreduce\w*", ELEMENTWISE),
        # Operator names of the CPU engine.
        (
            r"(fused|stored|q|qlinear|dynamicquantize|transposed?|trans|sparseto\w*)?(gemm|matmul|gemmfloat8)\w*",
            COMPUTE,
        ),
        (r"matmul\w*|\w*fusedmatmul|einsum|gemmfastgelu", COMPUTE),
        (r"(nhwc|nchwc|fused|nhwcfused|qlinear)?conv(transpose|integer)?\w*", COMPUTE),
        (
            r"(qordered|packed|decoder|longformer|groupquery|sparse|multihead|maskedmultihead|q)?\w*attention",
            COMPUTE,
        ),
        (r"(dynamicquantize)?(lstm|gru|rnn)|\w*moe|deformconv|stft|dft", COMPUTE),
        (r"(dynamic)?quantize(linear|withorder)?|cast|castlike|reorder(input|output)", CONVERT),
        (r"transpose|depthtospace|spacetodepth|(un)?squeeze|reshape|flatten|qlineartranspose", CONVERT),
        (
            r"\w*(layernormalization|normalization|softmax|layernorm|groupnorm)|lrn|\w*lpnorm\w*|hardmax",
            NORMALIZE,
        ),
        (r"memcpy\w*|identity|(qlinear)?concat\w*|split\w*|slice|pad|tile|expand|\w*gather\w*", MOVEMENT),
        (r"\w*scatter\w*|embedlayer\w*|compress|nonzero|onehot|upsample|resize|copy|attendedrows", MOVEMENT),
        (r"if|loop|scan|sequence\w*|optional\w*|callback", CONTROL),
        (r"constant|constantofshape|shape|size|range|random\w*|bernoulli|multinomial|eyelike", OTHER),
        (
            r"(qlinear|fused)?(add|sub|mul|div|mod|pow|max|min|sum|mean|neg|abs|exp|log|sqrt|reciprocal|floor|ceil"
            r"|round|sign|erf|clip|where|not|and|or|xor|equal|less|greater|lessorequal|greaterorequal|isnan|isinf"
            r"|relu|leakyrelu|elu|selu|celu|prelu|thresholdedrelu|sigmoid|hardsigmoid|hardswish|swish|mish|tanh|silu"
            r"|softplus|softsign|shrink|sin|cos|tan|asin|acos|atan|sinh|cosh|asinh|acosh|atanh|bitwise\w*|bitshift"
            r"|cumsum|trilu|det|averagepool|maxpool|globalaveragepool|globalmaxpool|lppool|globallppool|argmax|argmin"
            r"|topk|unique|rotaryembedding|quickgelu|gelu|fastgelu|biasgelu|biasadd|biasdropout|dropout"
            r"|gridsample|roialign|maxroipool|nonmaxsuppression|imagescaler|crop|reversesequence)",
            ELEMENTWISE,
        ),
        (r"(qlinear)?(reduce\w+|\w*pool)|\w*gelu\w*|qlinear\w+|elementwise\w*", ELEMENTWISE),
    )
)


@lru_cache(maxsize=4096)
def category_of(kind: str) -> str:
    """Return the category of a kind of operations; ``other`` if no rule matches, because the set is open."""
    name = kind.strip().lower()
    return next((category for rule, category in _RULES if rule.fullmatch(name)), OTHER)


_LOWERED: Final = re.compile(r"/__\d+$")


def node_path(op_name: str) -> str:
    """Return the path of the node of an operation: the last token without ``/__<number>``."""
    tokens = op_name.split()
    return _LOWERED.sub("", tokens[-1]) if tokens else ""


@dataclass(frozen=True)
class Coded:
    """A column of repeated texts: distinct texts, and an index for each entry."""

    codes: NDArray[np.int64]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, texts: Iterable[str], values: Iterable[str] = ()) -> "Coded":
        """Encode texts; ``values`` come first among the distinct ones."""
        known = {value: place for place, value in enumerate(values)}
        codes = [known.setdefault(text, len(known)) for text in texts]
        return cls(np.array(codes, np.int64), tuple(known))

    @classmethod
    def joined(cls, *columns: "Coded") -> "Coded":
        """Column of the distinct tuples of several columns."""
        combined = np.zeros(len(columns[0].codes), np.int64)
        for column in columns:
            combined = combined * max(1, len(column.values)) + column.codes
        _, places, codes = np.unique(combined, return_index=True, return_inverse=True)
        texts = [[column.values[code] for code in column.codes[places]] for column in columns]
        return cls(codes.reshape(-1), tuple(zip(*texts, strict=True)))

    def __getitem__(self, entry: int) -> Any:
        return self.values[self.codes[entry]]

    def sums(self, weights: NDArray[Any]) -> NDArray[np.float64]:
        """Sum of the weights per distinct text."""
        return np.bincount(self.codes, weights, minlength=len(self.values)).astype(np.float64, copy=False)


@dataclass(frozen=True)
class Transfer:
    """One side of a transfer between devices."""

    op: int
    description: str
    transaction: str


class OpInfo:
    """Operations of a program.

    `descriptor` is the parsed JSON of the descriptor; without one, numbers are names. `counts` is the
    smallest possible number of operations of each core, from the buffer.
    """

    def __init__(self, descriptor: dict[str, Any] | None, counts: Sequence[int]) -> None:
        described = descriptor or {}
        cores = [core.get("ops", []) for core in described.get("cores", [])]
        cores += [[] for _ in range(len(counts) - len(cores))]
        for core, count in zip(cores, counts, strict=False):
            core += [{"name": f"op{oc}", "kind": "unknown"} for oc in range(len(core), count)]
        self._ops: list[dict[str, Any]] = [op for core in cores for op in core]
        sizes = [len(core) for core in cores]
        #: number of each core's first operation
        self.base = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self.network: str = described.get("network", "")
        #: names of the thread groups
        self.groups: tuple[str, ...] = tuple(described.get("groups", ()))
        #: group of each thread of a core
        self.thread_groups: tuple[int, ...] = tuple(described.get("thread_groups", ()))
        self.pmu_events: tuple[int, ...] = tuple(described.get("pmu_events", ()))
        #: names of the operations, with their suffix
        self.names = self._texts("name")
        #: memories and types of the operands
        self.memories, self.types = Coded.of(self._texts("memory")), Coded.of(self._texts("types"))
        #: precisions of operations on a card; "" if the compiler does not state one
        self.precisions = Coded.of(self._texts("precision"))
        #: cores of the operations
        self.cores = np.repeat(np.arange(len(self.base) - 1), np.diff(self.base))
        #: bytes of the outputs; 0 if the shapes are known only at run time
        self.output_bytes = self._numbers("output_bytes")
        #: number of multiply-accumulate operations; 0 if unknown
        self.macs = self._numbers("macs")
        #: bytes of the constants that are read
        self.constant_bytes = self._numbers("constant_bytes")
        #: true if the descriptor contains the dependencies of operations
        self.has_dependencies = any(op.get("deps") for op in self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def _texts(self, key: str) -> list[str]:
        return [op.get(key, "") for op in self._ops]

    def _numbers(self, key: str) -> NDArray[np.float64]:
        return np.array([op.get(key, 0) for op in self._ops], np.float64)

    @cached_property
    def kinds(self) -> Coded:
        """Kinds, without trailing blanks."""
        return Coded.of(kind.strip() for kind in self._texts("kind"))

    @cached_property
    def categories(self) -> Coded:
        """Categories of the kinds."""
        known = Coded.of((category_of(kind) for kind in self.kinds.values), CATEGORIES)
        return Coded(known.codes[self.kinds.codes], known.values)

    @cached_property
    def node_kinds(self) -> Coded:
        """Kinds of the nodes: operations that convert for a node have the kind of what the node computes."""
        kinds = [self.kinds[op] for op in range(len(self))]
        ranks = [2 if kind == "Cast" else int(category_of(kind) == CONVERT) for kind in kinds]
        computing: dict[str, tuple[int, str]] = {}
        for path, rank, kind in zip(self.paths, ranks, kinds, strict=True):
            if rank < computing.get(path, (3, ""))[0]:
                computing[path] = rank, kind
        return Coded.of(
            computing[path][1] if rank else kind
            for path, rank, kind in zip(self.paths, ranks, kinds, strict=True)
        )

    @cached_property
    def is_bookkeeping(self) -> NDArray[np.bool_]:
        """True for operations that are no work of the model."""
        codes = [place for place, category in enumerate(self.categories.values) if category in BOOKKEEPING]
        return np.isin(self.categories.codes, codes)

    def of_core(self, core: int) -> slice:
        """Return the numbers of the operations of a core; empty for a core that has none."""
        known = core + 1 < len(self.base)
        return slice(*map(int, self.base[core : core + 2])) if known else slice(0, 0)

    @cached_property
    def engines(self) -> Coded:
        """Thread groups that issue the operations."""
        names = self.groups
        place = (op.get("group", 0) for op in self._ops)
        return Coded.of((names[group] if group < len(names) else f"group{group}" for group in place), names)

    @cached_property
    def nodes(self) -> Coded:
        """Nodes of the user's model from the compiler, or else the path in the name of the operation."""
        return Coded.of(" + ".join(nodes) for nodes in self.node_sets)

    @cached_property
    def paths(self) -> list[str]:
        """Paths of nodes in the names of the operations."""
        return [node_path(op.get("name", "")) for op in self._ops]

    @cached_property
    def node_sets(self) -> list[tuple[str, ...]]:
        """Nodes of the user's model that each operation computes, one or more."""
        return [tuple(op.get("nodes", ())) or (path,) for op, path in zip(self._ops, self.paths, strict=True)]

    def shape(self, op: int) -> str:
        """Shape of an operation's output."""
        return str(self._ops[op].get("shape", ""))

    def producers(self, op: int, *, data_only: bool = False) -> list[int]:
        """Operations that must end before this operation starts."""
        deps = self._ops[op].get("deps", ())
        sizes = np.diff(self.base)
        return [
            int(self.base[dep["core"]]) + dep["oc"]
            for dep in deps
            if (dep["data"] or not data_only) and dep["core"] < len(sizes) and dep["oc"] < sizes[dep["core"]]
        ]

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Sides of transfers between devices."""
        sides = ((place, op.get("transfer")) for place, op in enumerate(self._ops))
        return [
            Transfer(place, str(side["port_description"]), str(side["transaction"]))
            for place, side in sides
            if side
        ]


def op_info_of(json_text: str | None, counts: Sequence[int]) -> OpInfo:
    """Columns of a descriptor in JSON."""
    return OpInfo(json.loads(json_text) if json_text is not None else None, counts)
