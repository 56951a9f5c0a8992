"""Int8 and int16 quantization of the float graph as Q/DQ pairs.

The compiler decides every scale, offset and stored integer itself; the engine only fuses what it finds into
integer kernels, so that results do not depend on which of them it has (docs/reference/precision.md).
"""
