"""Networks with attention: an encoder with a mask, and a step of a decoder whose caches grow."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from dynamo_models.recipe import Case, Inputs, Recipe, integers, normal, seeded

HIDDEN, HEADS = 8, 2


class EncoderLayer(nn.Module):
    """Attention of all positions that are not masked, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.projections = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.output = nn.Linear(HIDDEN, HIDDEN)
        self.feed_norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        parts = self.projections(self.attention_norm(x)).unflatten(-1, (3, HEADS, HIDDEN // HEADS))
        query, key, value = (parts[:, :, part].transpose(1, 2) for part in range(3))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.feed_norm(x))))


class Encoder(nn.Module):
    """Two layers over tokens; the second output is the mean of the tokens that are not masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, HIDDEN)
        self.places = nn.Embedding(32, HIDDEN)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        visible = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, visible)
        x = self.norm(x)
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        return x, (x * weights).sum(1) / weights.sum(1).clamp(min=1.0)


class GrowingCaches(nn.Module):
    """One layer of grouped causal attention; the returned cache is longer than the given one."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, HIDDEN // HEADS, bias=False)
        self.value = nn.Linear(HIDDEN, HIDDEN // HEADS, bias=False)

    def forward(
        self, rows: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query = self.query(rows).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        keys = torch.cat([past_key, self.key(rows).unsqueeze(1)], dim=2)
        values = torch.cat([past_value, self.value(rows).unsqueeze(1)], dim=2)
        places = torch.arange(keys.shape[2])
        visible = places[None] <= places[past_key.shape[2] :, None]
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(-2), keys, values


def recipes() -> list[Recipe]:
    """List the exports of this file."""
    shapes = {name: {0: "batch_size", 1: "seq_len"} for name in ("input_ids", "attention_mask")}
    made = [
        Recipe(
            name,
            seeded(Encoder(), 11),
            [_tokens(2, 9), _tokens(3, 16), _tokens(1, 1)],
            opset,
            ["rows", "mean"],
            shapes,
            layers=layers,
            optimize=not layers,
            traces=opset == 23,
        )
        for name, opset, layers in (
            ("encoder-opset18", 18, ()),
            ("encoder-opset20", 20, ()),
            ("encoder-opset23", 23, ()),
            # The exporter keeps functions only in the operator set to which it translates.
            ("encoder-functions", 18, (EncoderLayer,)),
        )
    ]
    made += [
        Recipe(
            f"growing-caches-opset{opset}",
            seeded(GrowingCaches(), 12),
            [_growing(4, 5), _growing(9, 1)],
            opset,
            ["mixed", "keys", "values"],
            {
                "rows": {1: "seq_len"},
                "past_key": {2: "past_len"},
                "past_value": {2: "past_len"},
            },
        )
        for opset in (18, 23)
    ]
    return made


def _tokens(batch: int, length: int) -> Case:
    """Tokens; each sequence has one unmasked token less than the previous one."""
    counts = (length - torch.arange(batch)).clamp(min=1)
    inputs: Inputs = {
        "input_ids": integers(length, 23, batch, length),
        "attention_mask": (torch.arange(length)[None] < counts[:, None]).long(),
    }
    return Case(f"{batch}x{length}", inputs, {"batch_size": batch, "seq_len": length})


def _growing(past: int, length: int) -> Case:
    inputs = {
        "rows": normal(1, 1, length, HIDDEN),
        "past_key": normal(2, 1, 1, past, HIDDEN // HEADS),
        "past_value": normal(3, 1, 1, past, HIDDEN // HEADS),
    }
    return Case(f"{past}+{length}", inputs, {"past_len": past, "seq_len": length})
