"""Which kind of work an operation is: one table for the kinds of the card and those of the CPU engine.

The categories are those of cards, so that files of both devices can be compared.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

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

#: in the order in which reports list them
CATEGORIES: Final = (
    COMPUTE, DEQUANTIZE, MOVEMENT, CONVERT, NORMALIZE, ELEMENTWISE,
    SYNC, BARRIER, SEMAPHORE, FLUSH, CONTROL, OTHER,
)  # fmt: skip

#: what is no work of the model
BOOKKEEPING: Final = frozenset({SEMAPHORE, FLUSH})

# The first expression that matches decides. Kinds are compared in lower case: those of the card have `aic` in
# front, those of the engine are operator names, with `Fused`, `QLinear` and the like around them.
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
            r"(fused|q|qlinear|dynamicquantize|transposed?|trans|sparseto\w*)?(gemm|matmul|gemmfloat8)\w*",
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
        (r"\w*scatter\w*|embedlayer\w*|compress|nonzero|onehot|upsample|resize|copy", MOVEMENT),
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
    """Category of an operation's kind; ``other`` of one that no rule knows. The set of kinds is open."""
    name = kind.strip().lower()
    return next((category for rule, category in _RULES if rule.fullmatch(name)), OTHER)
