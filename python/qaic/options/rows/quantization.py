"""Options about quantization and its calibration."""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qaic.options.codecs.enumerations import RandomInputData, Samples
from qaic.options.codecs.scalars import Enum, FilePath, Float, Int
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.spec import Documented, Effect, Flag, FlagForm, option, switch

if TYPE_CHECKING:
    import numpy as np

_SCHEMA = Enum("asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale")

#: Every bin of every tensor is a number in the profile; more than this tells nothing more.
_MOST_BINS = 1 << 16


# Only the class that is composed of the sections is made: methods of its bases would be made for nothing.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class QuantizationOptions:
    """Options about quantization and its calibration."""

    SECTION: ClassVar = "Quantization"

    external_quantization_file: InputFileContent | None = option(
        FileContent("quantization file"),
        default=None,
        summary="Quantize with ranges or parameters of another tool.",
        effect=Effect.BEHAVIOR,
        aliases=("external_quantization",),
        flag=Flag("external-quantization"),
        in_container=True,
    )
    quantization_schema_activations: str = option(
        _SCHEMA,
        default="symmetric_with_uint8",
        summary="Schema that converts the range of an activation to scale and offset.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    quantization_schema_constants: str = option(
        _SCHEMA,
        default="symmetric_with_uint8",
        summary="Schema that converts the range of a constant to scale and offset.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    quantization_schema: str | None = option(
        _SCHEMA,
        default=None,
        summary="Both schemas at once.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    quantization_calibration: str = option(
        Enum("None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"),
        default="None",
        summary="Method that selects the range of an activation; `None` uses the whole measured range.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    percentile_calibration_value: float = option(
        Float(ge=90, le=100),
        default=100.0,
        summary="Percentage of values that the range of `Percentile` covers.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    num_histogram_bins: int = option(
        Int(ge=32, le=_MOST_BINS),
        default=512,
        summary="Number of histogram bins of each tensor.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    quantization_precision: str = option(
        Enum("Int8", "Int16"),
        default="Int8",
        summary="Precision of quantized tensors.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    quantization_precision_bias: str = option(
        Enum("Int8", "Int32"),
        default="Int32",
        summary="Precision of the biases of quantized nodes.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    enable_rowwise: bool = switch(
        "Use one scale for each output row of constant Gemm and MatMul weights.",
        Effect.BEHAVIOR,
        in_container=True,
    )
    enable_channelwise: bool = switch(
        "Use one scale for each output channel of convolution weights.", Effect.BEHAVIOR, in_container=True
    )
    dump_profile: Path | None = option(
        FilePath("profile to write"),
        default=None,
        summary="Measure the ranges of tensors on samples and write them; compile in floating point.",
        effect=Effect.FILE,
    )
    load_profile: InputFileContent | None = option(
        FileContent("profile"),
        default=None,
        summary="Quantize with the ranges of a profile.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    convert_to_quantize: bool = switch(
        "Measure the ranges of tensors on samples, and quantize with them.",
        Effect.BEHAVIOR,
        in_container=True,
    )
    profiling_threads: int | None = option(
        Int(ge=1, le=2**31 - 1),
        default=None,
        summary="Threads that run samples; results do not depend on it.",
        effect=Effect.TIMING,
    )
    input_list_file: InputFileContent | None = option(
        FileContent("list of samples"),
        default=None,
        summary="List of the files of samples, one line for each sample.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    use_random_input_data: str | None = option(
        RandomInputData(),
        default=None,
        summary="Use random samples, uniform or gaussian; they do not show accuracy.",
        effect=Effect.BEHAVIOR,
        flag=Flag(form=FlagForm.OPTIONAL),
        documented=Documented.CLI,
        in_container=True,
    )
    calibration_data: Iterable[Mapping[str, np.ndarray]] | None = option(
        Samples(),
        default=None,
        summary="Samples as dictionaries of arrays by input name, read one at a time; only from Python.",
        effect=Effect.BEHAVIOR,
        flag=None,
        ours=True,
    )
    allow_profile_mismatch: bool = switch(
        "Accept a profile of another graph.", Effect.BEHAVIOR, ours=True, in_container=True
    )
