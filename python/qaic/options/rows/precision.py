"""Options about the precision of computation and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qaic.options.codecs.scalars import ListOf, Str
from qaic.options.files.node_precision import NodePrecision, NodePrecisionLists
from qaic.options.spec import AicField, Flag, JsonForm, option, switch


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PrecisionOptions:
    """Options about the precision of computation and weights."""

    SECTION: ClassVar = "Precision"

    convert_to_fp16: bool = switch(
        "Compute floating-point nodes in float16, and store weights as float16.",
        aic=AicField(default=True, json_key="compiler_convert_to_FP16"),
    )
    clip_fp16_constants: bool = switch(
        "Clip constants beyond the range of float16; if false, they become infinite.", default=True, ours=True
    )
    execute_nodes_in_fp16: tuple[str, ...] = option(
        ListOf(Str()), (), "Operators whose nodes all compute in float16."
    )
    node_precision_info_file: NodePrecision | None = option(
        NodePrecisionLists(),
        None,
        "Nodes, by output name, that compute in float16 or float32.",
        aliases=("node_precision_info",),
        flag=Flag("node-precision-info"),
    )
    keep_original_precision_for_nodes: tuple[str, ...] = option(
        ListOf(Str()), (), "Operators that keep the precision of the model."
    )
    mxfp6_matmul: bool = switch(
        "Store constant weights of matrix products in the 6-bit block format MXFP6.",
        aliases=("mxfp6",),
        aic=AicField(default=False, name="mxfp6_matmul_weights"),
    )
    exclude_mxfp6_matmul: tuple[str, ...] = option(
        ListOf(Str(), spaces=True),
        (),
        "Matrix products, by node or output name, whose weights do not change.",
        aic=AicField("", form=JsonForm.SPACED),
    )
    allow_mxint8_mdp_io: bool = switch(
        "Round floats that pass between partitions to the 8-bit block format MXINT8.",
        aic=AicField(default=False, name="mxint8_mdp_io"),
    )
    mxint8_kv_cache: bool = switch(
        "Keep retained state in the 8-bit block format MXINT8.", flag=Flag(ours=True)
    )
