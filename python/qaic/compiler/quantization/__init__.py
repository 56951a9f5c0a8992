"""Int8 and int16 quantization of the float graph as Q/DQ pairs.

The compiler determines every scale, offset and stored integer. The engine only fuses these pairs into integer
kernels, so results do not depend on its set of kernels (docs/reference/precision.md).
"""
