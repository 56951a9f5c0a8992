"""Recipes for exports of networks, and the inputs for which torch computes the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

#: One call of a network: name of an ONNX input -> tensor.
Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One set of inputs for which torch computes the outputs.

    Attributes
    ----------
    name : str
        Name of the case, unique in its recipe.
    inputs : Mapping[str, torch.Tensor]
        Name of an ONNX input -> its value.
    symbols : Mapping[str, int]
        Sizes of the symbolic dimensions in this case; empty if shapes are fixed.
    """

    name: str
    inputs: Inputs
    symbols: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """One file to export.

    Attributes
    ----------
    name : str
        Name of the file without its suffix.
    network : torch.nn.Module
        Network in evaluation mode. Its parameters in order are the ONNX inputs.
    cases : Sequence[Case]
        Inputs; if `traced` is not set, the first case is also the example that is traced.
    opset : int
        Version of the ONNX operator set.
    dynamic_shapes : mapping or None
        Argument of `torch.export`: parameter -> axis -> name or `torch.export.Dim`.
    output_names : Sequence[str]
        Names of the ONNX outputs.
    input_names : Sequence[str] or None
        Names of the ONNX inputs if they differ from the parameters, as in nested lists.
    translations : Mapping
        Operator of torch -> function of onnxscript that represents it.
    optimize : bool
        True if the exporter folds constants and removes unused nodes.
    external_data : bool
        True if weights are written to a separate file next to the model.
    pack : callable
        Creates the keyword arguments of `network` from the inputs of a case.
    traced : Inputs or None
        Example to trace, if tracing would treat sizes of every case as constants.
    layers : Sequence[type[torch.nn.Module]]
        Classes whose instances become ONNX functions.
    inlined : bool
        True if all functions are expanded, as in onnxscript 0.7 and newer.
    traces : bool
        True if nodes keep the exporter's records of their origin, which are longer than the nodes.
    """

    name: str
    network: torch.nn.Module
    cases: Sequence[Case]
    opset: int
    output_names: Sequence[str]
    dynamic_shapes: Mapping[str, Any] | None = None
    input_names: Sequence[str] | None = None
    translations: Mapping[Any, Any] = field(default_factory=dict)
    optimize: bool = True
    external_data: bool = False
    pack: Any = dict
    traced: Inputs | None = None
    layers: Sequence[type[torch.nn.Module]] = ()
    inlined: bool = False
    traces: bool = True


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Draw normal numbers that depend only on the seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(seed: int, limit: int, *shape: int) -> torch.Tensor:
    """Draw int64 numbers from 0 to `limit` - 1 that depend only on the seed."""
    return torch.randint(limit, shape, generator=torch.Generator().manual_seed(seed))


def seeded(network: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Set all floating-point parameters and buffers to values that the seed determines; evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(
            {**dict(network.named_parameters()), **dict(network.named_buffers())}.items()
        ):
            if not tensor.is_floating_point():
                continue
            drawn = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                drawn = drawn.abs() + 0.5
            elif tensor.dim() > 1:
                drawn = drawn * (tensor.numel() / tensor.shape[0]) ** -0.5
            else:
                drawn = drawn * 0.1 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
            tensor.copy_(drawn)
    return network.eval()
