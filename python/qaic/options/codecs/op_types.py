"""Names of operator kinds: those of ONNX and those of the card's compiler."""

from __future__ import annotations

from typing import Final

#: Names that the card's compiler gives to operators in its messages, in lower case, and what ONNX calls them.
KIND_ALIASES: Final[dict[str, str]] = {
    "adaptiveavgpool": "GlobalAveragePool",
    "avgpool": "AveragePool",
    "batchedadd": "Add",
    "batchedmul": "Mul",
    "batchedreduceadd": "ReduceSum",
    "batchedreducemax": "ReduceMax",
    "batchedreducemean": "ReduceMean",
    "batchedreducemin": "ReduceMin",
    "batchedreduceprod": "ReduceProd",
    "batchedreducesumsquare": "ReduceSumSquare",
    "batchmatmul": "MatMul",
    "broadcast": "Expand",
    "channelwisequantizedconvolution": "Conv",
    "cmpeq": "Equal",
    "cmplt": "Less",
    "cmplte": "LessOrEqual",
    "convertto": "Cast",
    "convolution": "Conv",
    "convolution3d": "Conv",
    "dequantize": "DequantizeLinear",
    "fmod": "Mod",
    "fullyconnected": "Gemm",
    "localresponsenormalization": "LRN",
    "modulo": "Mod",
    "quantize": "QuantizeLinear",
    "resizebilinear": "Resize",
    "resizenearest": "Resize",
    "rmsnorm": "RMSNormalization",
    "rowwisequantizedfullyconnected": "Gemm",
    "select": "Where",
}


def operator_kind(name: str) -> str:
    """Return the name that ONNX has for a kind of operators; a name of ONNX, or of nothing, is kept."""
    return KIND_ALIASES.get(name.lower(), name)
