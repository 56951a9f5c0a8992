"""Image classifiers of the measured table, from their public definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forecast.architectures.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CLASSES = 1000


@dataclass(frozen=True)
class _Map:
    """A feature map: its value and number of channels."""

    value: str
    channels: int


class _Writer:
    def __init__(self, name: str, size: int) -> None:
        self.graph = Graph(name)
        self._size = size
        self.image = _Map(self.graph.input("input", (1, 3, size, size)), 3)

    def conv(
        self, x: _Map, channels: int, kernel: int, stride: int = 1, *, groups: int = 1, act: str = "Relu",
        padding: int | None = None,
    ) -> _Map:  # fmt: skip
        """Add a convolution whose weights contain the batch normalization, and an activation."""
        pad = kernel // 2 if padding is None else padding
        value = self.graph.add(
            "Conv", x.value, self.graph.weight(channels, x.channels // groups, kernel, kernel),
            self.graph.weight(channels), kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups,
            pads=[pad] * 4,
        )  # fmt: skip
        return self.activate(_Map(value, channels), act)

    def activate(self, x: _Map, act: str) -> _Map:
        if act == "Silu":
            return _Map(self.graph.add("Mul", x.value, self.graph.add("Sigmoid", x.value)), x.channels)
        return _Map(self.graph.add(act, x.value), x.channels) if act else x

    def norm(self, x: _Map) -> _Map:
        """Add a separate batch normalization."""
        parts = [self.graph.weight(x.channels) for _ in range(4)]
        return _Map(self.graph.add("BatchNormalization", x.value, *parts), x.channels)

    def plus(self, a: _Map, b: _Map, act: str = "") -> _Map:
        return self.activate(_Map(self.graph.add("Add", a.value, b.value), a.channels), act)

    def pool(
        self, x: _Map, kernel: int, stride: int, kind: str = "MaxPool", pad: int = 0, ceil: int = 0
    ) -> _Map:
        value = self.graph.add(
            kind, x.value, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=ceil
        )
        return _Map(value, x.channels)

    def join(self, *parts: _Map) -> _Map:
        value = self.graph.add("Concat", *(part.value for part in parts), axis=1)
        return _Map(value, sum(part.channels for part in parts))

    def squeeze(self, x: _Map, channels: int, act: str, gate: str) -> _Map:
        """Scale the channels by the output of two small layers on their means."""
        mean = _Map(self.graph.add("GlobalAveragePool", x.value), x.channels)
        gates = self.conv(self.conv(mean, channels, 1, act=act), x.channels, 1, act=gate)
        return _Map(self.graph.add("Mul", x.value, gates.value), x.channels)

    def means(self, x: _Map) -> _Map:
        value = self.graph.add("GlobalAveragePool", x.value)
        return _Map(self.graph.add("Flatten", value, axis=1), x.channels)

    def linear(self, x: _Map, channels: int, act: str = "") -> _Map:
        value = self.graph.add(
            "Gemm", x.value, self.graph.weight(channels, x.channels), self.graph.weight(channels), transB=1
        )
        return self.activate(_Map(value, channels), act)

    def finish(self, x: _Map) -> Graph:
        self.graph.output(x.value, (1, x.channels))
        return self.graph


def _divisible(value: float, by: int = 8) -> int:
    rounded = max(by, int(value + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * value else rounded


def _resnet(
    w: _Writer, depths: Sequence[int], *, is_basic: bool = False, groups: int = 1, width: int = 64
) -> _Map:
    x = w.pool(w.conv(w.image, 64, 7, 2), 3, 2, pad=1)
    for stage, depth in enumerate(depths):
        planes = 64 << stage
        inner = planes * width // 64 * groups
        out = planes if is_basic else planes * 4
        for block in range(depth):
            stride = 2 if stage and not block else 1
            short = x if x.channels == out and stride == 1 else w.conv(x, out, 1, stride, act="")
            if is_basic:
                y = w.conv(w.conv(x, planes, 3, stride), planes, 3, act="")
            else:
                y = w.conv(w.conv(x, inner, 1), inner, 3, stride, groups=groups)
                y = w.conv(y, out, 1, act="")
            x = w.plus(y, short, "Relu")
    return w.linear(w.means(x), _CLASSES)


def _vgg(w: _Writer, stages: Sequence[int]) -> _Map:
    x = w.image
    for channels, depth in zip((64, 128, 256, 512, 512), stages, strict=True):
        for _ in range(depth):
            x = w.conv(x, channels, 3)
        x = w.pool(x, 2, 2)
    x = _Map(w.graph.add("Flatten", x.value, axis=1), 512 * 7 * 7)
    return w.linear(w.linear(w.linear(x, 4096, "Relu"), 4096, "Relu"), _CLASSES)


def _densenet(w: _Writer, growth: int, first: int, blocks: Sequence[int]) -> _Map:
    x = w.pool(w.conv(w.image, first, 7, 2), 3, 2, pad=1)
    for number, depth in enumerate(blocks):
        for _ in range(depth):
            y = w.conv(w.activate(w.norm(x), "Relu"), 4 * growth, 1)
            x = w.join(x, w.conv(y, growth, 3, act=""))
        x = w.activate(w.norm(x), "Relu")
        if number < len(blocks) - 1:
            x = w.pool(w.conv(x, x.channels // 2, 1, act=""), 2, 2, "AveragePool")
    return w.linear(w.means(x), _CLASSES)


def _inverted(
    w: _Writer,
    x: _Map,
    inner: int,
    out: int,
    kernel: int,
    stride: int,
    act: str,
    squeeze: tuple[int, str, str] | None,
) -> _Map:
    """Add an inverted residual block: widen, convolve each channel, narrow."""
    y = x if inner == x.channels else w.conv(x, inner, 1, act=act)
    y = w.conv(y, inner, kernel, stride, groups=inner, act=act)
    if squeeze is not None:
        y = w.squeeze(y, *squeeze)
    y = w.conv(y, out, 1, act="")
    return w.plus(y, x) if stride == 1 and x.channels == out else y


def _mnasnet(w: _Writer, alpha: float) -> _Map:
    first, second, *widths = (_divisible(channels * alpha) for channels in (32, 16, 24, 40, 80, 96, 192, 320))
    x = w.conv(w.conv(w.image, first, 3, 2), first, 3, groups=first)
    x = w.conv(x, second, 1, act="")
    stages = ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1))
    for out, (kernel, stride, factor, depth) in zip(widths, stages, strict=True):
        for block in range(depth):
            x = _inverted(w, x, x.channels * factor, out, kernel, 1 if block else stride, "Relu", None)
    return w.linear(w.means(w.conv(x, 1280, 1)), _CLASSES)


#: Kernel, inner channels, output channels, squeezes, activation, stride.
_LARGE_V3 = (
    (3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2), (3, 72, 24, 0, "Relu", 1),
    (5, 72, 40, 1, "Relu", 2),
    (5, 120, 40, 1, "Relu", 1), (5, 120, 40, 1, "Relu", 1), (3, 240, 80, 0, "HardSwish", 2),
    (3, 200, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1),
    (3, 480, 112, 1, "HardSwish", 1), (3, 672, 112, 1, "HardSwish", 1), (5, 672, 160, 1, "HardSwish", 2),
    (5, 960, 160, 1, "HardSwish", 1), (5, 960, 160, 1, "HardSwish", 1),
)  # fmt: skip
_SMALL_V3 = (
    (3, 16, 16, 1, "Relu", 2), (3, 72, 24, 0, "Relu", 2), (3, 88, 24, 0, "Relu", 1),
    (5, 96, 40, 1, "HardSwish", 2), (5, 240, 40, 1, "HardSwish", 1), (5, 240, 40, 1, "HardSwish", 1),
    (5, 120, 48, 1, "HardSwish", 1), (5, 144, 48, 1, "HardSwish", 1), (5, 288, 96, 1, "HardSwish", 2),
    (5, 576, 96, 1, "HardSwish", 1), (5, 576, 96, 1, "HardSwish", 1),
)  # fmt: skip


def _mobilenet(w: _Writer, blocks: Sequence[tuple[int, int, int, int, str, int]], last: int) -> _Map:
    x = w.conv(w.image, 16, 3, 2, act="HardSwish")
    for kernel, inner, out, squeezes, act, stride in blocks:
        squeeze = (_divisible(inner / 4), "Relu", "HardSigmoid") if squeezes else None
        x = _inverted(w, x, inner, out, kernel, stride, act, squeeze)
    x = w.conv(x, 6 * x.channels, 1, act="HardSwish")
    return w.linear(w.linear(w.means(x), last, "HardSwish"), _CLASSES)


#: Factor, kernel, stride, output channels, depth.
_EFFICIENT = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def _efficientnet(w: _Writer, width: float, depth: float) -> _Map:
    x = w.conv(w.image, _divisible(32 * width), 3, 2, act="Silu")
    for factor, kernel, stride, channels, repeats in _EFFICIENT:
        out = _divisible(channels * width)
        for block in range(math.ceil(repeats * depth)):
            squeeze = (max(1, x.channels // 4), "Silu", "Sigmoid")
            inner = x.channels * factor
            x = _inverted(w, x, inner, out, kernel, 1 if block else stride, "Silu", squeeze)
    return w.linear(w.means(w.conv(x, 4 * x.channels, 1, act="Silu")), _CLASSES)


#: Fuses, factor, stride, output channels, depth.
_V2 = {
    "s": (
        (1, 1, 1, 24, 2), (1, 4, 2, 48, 4), (1, 4, 2, 64, 4), (0, 4, 2, 128, 6), (0, 6, 1, 160, 9),
        (0, 6, 2, 256, 15),
    ),
    "m": (
        (1, 1, 1, 24, 3), (1, 4, 2, 48, 5), (1, 4, 2, 80, 5), (0, 4, 2, 160, 7), (0, 6, 1, 176, 14),
        (0, 6, 2, 304, 18), (0, 6, 1, 512, 5),
    ),
    "l": (
        (1, 1, 1, 32, 4), (1, 4, 2, 64, 7), (1, 4, 2, 96, 7), (0, 4, 2, 192, 10), (0, 6, 1, 224, 19),
        (0, 6, 2, 384, 25), (0, 6, 1, 640, 7),
    ),
}  # fmt: skip


def _efficientnet_v2(w: _Writer, size: str) -> _Map:
    stages = _V2[size]
    x = w.conv(w.image, stages[0][3], 3, 2, act="Silu")
    for fuses, factor, stride, out, depth in stages:
        for block in range(depth):
            step = 1 if block else stride
            inner = x.channels * factor
            if not fuses:
                x = _inverted(w, x, inner, out, 3, step, "Silu", (max(1, x.channels // 4), "Silu", "Sigmoid"))
                continue
            y = w.conv(x, out if factor == 1 else inner, 3, step, act="Silu")
            y = y if factor == 1 else w.conv(y, out, 1, act="")
            x = w.plus(y, x) if step == 1 and x.channels == out else y
    return w.linear(w.means(w.conv(x, 1280, 1, act="Silu")), _CLASSES)


def _shuffled(w: _Writer, *halves: _Map) -> _Map:
    """Interleave the channels of two halves; the sizes of the map do not change."""
    x = w.join(*halves)
    graph = w.graph
    wide = graph.add("Reshape", x.value, graph.integers(1, 2, x.channels // 2, -1))
    flat = graph.add("Reshape", graph.add("Transpose", wide, perm=[0, 2, 1, 3]), graph.integers(1, -1, 1))
    return _Map(flat, x.channels)


def _shufflenet(w: _Writer, widths: Sequence[int]) -> _Map:
    graph = w.graph
    x = w.pool(w.conv(w.image, 24, 3, 2), 3, 2, pad=1)
    side = 56
    for out, depth in zip(widths, (4, 8, 4), strict=True):
        half = out // 2
        side //= 2
        for block in range(depth):
            if block:
                parts = graph.add_all("Split", x.value, outputs=2, axis=1)
                kept, y = (_Map(part, half) for part in parts)
            else:
                kept = w.conv(w.conv(x, x.channels, 3, 2, groups=x.channels, act=""), half, 1)
                y = x
            stride = 1 if block else 2
            y = w.conv(w.conv(y, half, 1), half, 3, stride, groups=half, act="")
            mixed = _shuffled(w, kept, w.conv(y, half, 1))
            x = _Map(graph.add("Reshape", mixed.value, graph.integers(1, out, side, side)), out)
    return w.linear(w.means(w.conv(x, 1024, 1)), _CLASSES)


def _squeezenet(w: _Writer) -> _Map:
    x = w.pool(w.conv(w.image, 64, 3, 2, padding=0), 3, 2, ceil=1)
    for number, (inner, half) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        if number in {2, 4}:
            x = w.pool(x, 3, 2, ceil=1)
        y = w.conv(x, inner, 1)
        x = w.join(w.conv(y, half, 1), w.conv(y, half, 3))
    return w.means(w.conv(x, _CLASSES, 1))


def _vit(w: _Writer, layers: int, hidden: int, heads: int, patch: int, size: int) -> _Map:
    graph = w.graph
    side = size // patch
    tokens, inner = side * side + 1, hidden // heads
    x = w.conv(w.image, hidden, patch, patch, act="", padding=0)
    flat = graph.add("Reshape", x.value, graph.integers(1, hidden, side * side))
    value = graph.add(
        "Concat", graph.weight(1, 1, hidden), graph.add("Transpose", flat, perm=[0, 2, 1]), axis=1
    )
    value = graph.add("Add", value, graph.weight(1, tokens, hidden))

    def norm(value: str) -> str:
        return graph.add("LayerNormalization", value, graph.weight(hidden), graph.weight(hidden), axis=-1)

    def linear(value: str, inputs: int, outputs: int) -> str:
        return graph.add(
            "Add", graph.add("MatMul", value, graph.weight(inputs, outputs)), graph.weight(outputs)
        )

    for _ in range(layers):
        query, key, values = graph.add_all(
            "Split", linear(norm(value), hidden, 3 * hidden), outputs=3, axis=2
        )
        split = graph.integers(1, tokens, heads, inner)
        query, values = (
            graph.add("Transpose", graph.add("Reshape", one, split), perm=[0, 2, 1, 3])
            for one in (query, values)
        )
        key = graph.add("Transpose", graph.add("Reshape", key, split), perm=[0, 2, 3, 1])
        scores = graph.add("Mul", graph.add("MatMul", query, key), graph.number(1 / math.sqrt(inner)))
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        mixed = graph.add(
            "Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), graph.integers(1, tokens, hidden)
        )
        value = graph.add("Add", value, linear(mixed, hidden, hidden))
        up = linear(norm(value), hidden, 4 * hidden)
        curve = graph.add("Erf", graph.add("Div", up, graph.number(math.sqrt(2))))
        gelu = graph.add(
            "Mul", graph.add("Mul", up, graph.add("Add", curve, graph.number(1.0))), graph.number(0.5)
        )
        value = graph.add("Add", value, linear(gelu, 4 * hidden, hidden))
    first = graph.add("Gather", norm(value), graph.add("Squeeze", graph.integers(0)), axis=1)
    return w.linear(_Map(first, hidden), _CLASSES)


#: Name in the measured table -> function that writes the classifier.
CLASSIFIERS: dict[str, Callable[[_Writer, int], _Map]] = {
    "densenet161": lambda w, _: _densenet(w, 48, 96, (6, 12, 36, 24)),
    "densenet169": lambda w, _: _densenet(w, 32, 64, (6, 12, 32, 32)),
    "densenet201": lambda w, _: _densenet(w, 32, 64, (6, 12, 48, 32)),
    "efficientnet_b1": lambda w, _: _efficientnet(w, 1.0, 1.1),
    "efficientnet_b4": lambda w, _: _efficientnet(w, 1.4, 1.8),
    "efficientnet_b5": lambda w, _: _efficientnet(w, 1.6, 2.2),
    "efficientnet_b6": lambda w, _: _efficientnet(w, 1.8, 2.6),
    "efficientnet_v2_l": lambda w, _: _efficientnet_v2(w, "l"),
    "efficientnet_v2_m": lambda w, _: _efficientnet_v2(w, "m"),
    "efficientnet_v2_s": lambda w, _: _efficientnet_v2(w, "s"),
    "mnasnet1_0": lambda w, _: _mnasnet(w, 1.0),
    "mnasnet1_3": lambda w, _: _mnasnet(w, 1.3),
    "mobilenet_v3_large": lambda w, _: _mobilenet(w, _LARGE_V3, 1280),
    "mobilenet_v3_small": lambda w, _: _mobilenet(w, _SMALL_V3, 1024),
    "resnet18": lambda w, _: _resnet(w, (2, 2, 2, 2), is_basic=True),
    "resnet50": lambda w, _: _resnet(w, (3, 4, 6, 3)),
    "resnet101": lambda w, _: _resnet(w, (3, 4, 23, 3)),
    "resnet152": lambda w, _: _resnet(w, (3, 8, 36, 3)),
    "resnext101_32x8d": lambda w, _: _resnet(w, (3, 4, 23, 3), groups=32, width=8),
    "resnext101_64x4d": lambda w, _: _resnet(w, (3, 4, 23, 3), groups=64, width=4),
    "wide_resnet50_2": lambda w, _: _resnet(w, (3, 4, 6, 3), width=128),
    "shufflenet_v2_x1_0": lambda w, _: _shufflenet(w, (116, 232, 464)),
    "shufflenet_v2_x1_5": lambda w, _: _shufflenet(w, (176, 352, 704)),
    "squeezenet1_1": lambda w, _: _squeezenet(w),
    "vgg11": lambda w, _: _vgg(w, (1, 1, 2, 2, 2)),
    "vgg13": lambda w, _: _vgg(w, (2, 2, 2, 2, 2)),
    "vgg13_bn": lambda w, _: _vgg(w, (2, 2, 2, 2, 2)),
    "vgg16": lambda w, _: _vgg(w, (2, 2, 3, 3, 3)),
    "vgg16_bn": lambda w, _: _vgg(w, (2, 2, 3, 3, 3)),
    "vgg19": lambda w, _: _vgg(w, (2, 2, 4, 4, 4)),
    "vgg19_bn": lambda w, _: _vgg(w, (2, 2, 4, 4, 4)),
    "vit_b_16": lambda w, size: _vit(w, 12, 768, 12, 16, size),
}


def classifier(model: str, size: int) -> Graph:
    """Write the graph of a classifier for one image."""
    writer = _Writer(model, size)
    return writer.finish(CLASSIFIERS[model](writer, size))
