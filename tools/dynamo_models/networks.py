"""Networks without attention: layers of all kinds, indexing, control flow, narrow floats."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from dynamo_models.recipe import Case, Recipe, integers, normal, seeded


class Perceptron(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12, 24)
        self.down = nn.Linear(24, 5)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.down(F.gelu(self.up(features))), dim=-1)


class NarrowPerceptron(Perceptron):
    """Two linear layers in bfloat16, between float32 inputs and outputs."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return super().forward(features.to(self.up.weight.dtype)).to(features.dtype)


class Picture(nn.Module):
    """Convolutions with normalization, pooling and resizing; classifies a picture and marks its pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(6)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.point = nn.Conv2d(6, 8, 1)
        self.group_norm = nn.GroupNorm(2, 8)
        self.widen = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.stem_norm(self.stem(image))), 2)
        x = F.silu(self.group_norm(self.point(self.depth(x))))
        classes = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        pixels = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        pixels = F.pad(self.widen(F.avg_pool2d(pixels, 2)), (1, 1, 1, 1), mode="reflect")
        return classes, F.interpolate(pixels, size=image.shape[-2:], mode="nearest")


class Norms(nn.Module):
    """An embedding, with the normalizations and activations of language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(19, 8)
        self.rms_norm = nn.RMSNorm(8, eps=1e-5)
        self.gate = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8, bias=False)
        self.layer_norm = nn.LayerNorm(8)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens)
        gated = self.down(F.gelu(self.gate(self.rms_norm(x)), approximate="tanh"))
        x = self.layer_norm(x + gated)
        return F.log_softmax(x @ self.embedding.weight.T, dim=-1), F.mish(x).sum(1)


class Indexing(nn.Module):
    """Reads and writes of parts of tensors, in the ways of torch."""

    def forward(
        self, table: torch.Tensor, rows: torch.Tensor, updates: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        batch = torch.arange(rows.shape[0])[:, None]
        read = table[batch, rows]
        written = table.index_put((batch, rows), updates)
        best, places = torch.topk(table.sum(-1), 2)
        mask = torch.arange(table.shape[1])[None] < rows.max(-1, keepdim=True).values
        kept = torch.where(mask[..., None], table, torch.zeros((), dtype=table.dtype))
        counts = F.one_hot(rows, 7).cumsum(1)
        picked = torch.gather(table, 2, rows[:, :, None] % table.shape[2])
        parts = torch.cat([table[:, ::2, -3:], table.flip(1)[:, : (table.shape[1] + 1) // 2, :3]], dim=-1)
        return read, written, best, places, kept, counts, picked, parts


class Branches(nn.Module):
    """A selection between two computations by the values of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Linear(6, 4)
        self.far = nn.Linear(6, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        def near(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.near(x))

        def far(x: torch.Tensor) -> torch.Tensor:
            return self.far(x).relu() - 1.0

        return torch.cond(features.sum() > 0, near, far, (features,)) * 2.0


class Recurrence(nn.Module):
    """A scan over the rows of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 6)
        self.again = nn.Linear(6, 6, bias=False)

    def forward(self, rows: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from torch._higher_order_ops.scan import scan

        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            following = torch.tanh(row + self.again(carry))
            return following, following * 2.0

        return scan(step, state, self.into(rows), dim=0)


def recipes() -> list[Recipe]:
    """List the exports of this file."""
    batch = {"features": {0: "batch"}}
    made = [
        Recipe(
            f"perceptron-opset{opset}",
            seeded(Perceptron(), 1),
            [Case(f"batch{n}", {"features": normal(n, n, 12)}, {"batch": n}) for n in (3, 1, 8)],
            opset,
            ["classes"],
            batch,
            external_data=opset == 20,
        )
        for opset in (18, 20, 23)
    ]
    made.append(_picture())
    made += [_norms(opset) for opset in (18, 23)]
    made.append(_indexing())
    made.append(
        Recipe(
            "branches",
            seeded(Branches(), 5),
            [
                Case("near", {"features": normal(6, 3, 6).abs()}, {"batch": 3}),
                Case("far", {"features": -normal(7, 5, 6).abs()}, {"batch": 5}),
            ],
            18,
            ["mixed"],
            batch,
        )
    )
    made.append(
        Recipe(
            "recurrence",
            seeded(Recurrence(), 8),
            [Case("rows7", {"rows": normal(9, 7, 2, 5), "state": normal(10, 2, 6)})],
            18,
            ["state_after", "outputs"],
        )
    )
    for dtype, network, edges in (
        (torch.float16, Perceptron(), torch.float16),
        (torch.bfloat16, NarrowPerceptron(), torch.float32),
    ):
        made.append(
            Recipe(
                f"perceptron-{str(dtype).removeprefix('torch.')}",
                seeded(network, 1).to(dtype),
                [
                    Case(f"batch{n}", {"features": normal(n, n, 12, dtype=edges)}, {"batch": n})
                    for n in (3, 1)
                ],
                18,
                ["classes"],
                batch,
            )
        )
    return made


def _picture() -> Recipe:
    """Sides that are multiples of four, which the exporter writes as an expression of a symbol."""
    height, width = Dim("height4", min=2, max=64), Dim("width4", min=2, max=64)
    cases = [
        Case(
            f"{h}x{w}",
            {"image": normal(h + w, n, 3, h, w)},
            {"batch": n, "height4": h // 4, "width4": w // 4},
        )
        for n, h, w in ((2, 16, 24), (1, 32, 12))
    ]
    return Recipe(
        "picture",
        seeded(Picture(), 2),
        cases,
        18,
        ["classes", "pixels"],
        {"image": {0: "batch", 2: 4 * height, 3: 4 * width}},
    )


def _norms(opset: int) -> Recipe:
    cases = [
        Case(f"{n}x{length}", {"tokens": integers(n, 19, n, length)}, {"batch": n, "length": length})
        for n, length in ((2, 7), (1, 1))
    ]
    return Recipe(
        f"norms-opset{opset}",
        seeded(Norms(), 3),
        cases,
        opset,
        ["scores", "summary"],
        {"tokens": {0: "batch", 1: "length"}},
    )


def _indexing() -> Recipe:
    cases = []
    for n, height, length in ((2, 6, 3), (3, 5, 2)):
        rows = torch.stack(
            [
                torch.randperm(height, generator=torch.Generator().manual_seed(n + i))[:length]
                for i in range(n)
            ]
        )
        cases.append(
            Case(
                f"{n}x{height}x{length}",
                {"table": normal(4, n, height, 4), "rows": rows, "updates": normal(5, n, length, 4)},
                {"batch": n, "height": height, "length": length},
            )
        )
    return Recipe(
        "indexing",
        Indexing().eval(),
        cases,
        18,
        ["read", "written", "best", "places", "kept", "counts", "picked", "parts"],
        {
            "table": {0: "batch", 1: "height"},
            "rows": {0: "batch", 1: "length"},
            "updates": {0: "batch", 1: "length"},
        },
    )
