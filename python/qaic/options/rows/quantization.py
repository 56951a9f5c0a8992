"""Options about quantization and its calibration."""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qaic.options.codecs.enumerations import RandomInputData, Samples
from qaic.options.codecs.scalars import Bool, Enum, FilePath, Float, Int
from qaic.options.files.file_content import FileContent, InputFileContent
from qaic.options.spec import Documented, Effect, Flag, FlagForm, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
        summary="Quantize with ranges or parameters that another tool has written.",
        effect=Effect.BEHAVIOR,
        aliases=("external_quantization",),
        flag=Flag("external-quantization"),
        in_container=True,
    )
    quantization_schema_activations: str = option(
        _SCHEMA,
        default="symmetric_with_uint8",
        summary="How the range of an activation becomes a scale and an offset.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    quantization_schema_constants: str = option(
        _SCHEMA,
        default="symmetric_with_uint8",
        summary="How the range of a constant becomes a scale and an offset.",
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
        summary="How the range of an activation is chosen from what was seen; `None` takes all of it.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    percentile_calibration_value: float = option(
        Float(ge=90, le=100),
        default=100.0,
        summary="Share of the values, in percent, that the range of `Percentile` covers.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    num_histogram_bins: int = option(
        Int(ge=32, le=_MOST_BINS),
        default=512,
        summary="Bins of the histogram of each tensor.",
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
    enable_rowwise: bool = option(
        Bool(),
        default=False,
        summary="Quantize each output row of constant Gemm and MatMul weights on its own.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    enable_channelwise: bool = option(
        Bool(),
        default=False,
        summary="Quantize each output channel of convolution weights on its own.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    dump_profile: Path | None = option(
        FilePath("profile to write"),
        default=None,
        summary="Observe the ranges of tensors on samples, write them to a file, and compile without them.",
        effect=Effect.FILE,
    )
    load_profile: InputFileContent | None = option(
        FileContent("profile"),
        default=None,
        summary="Quantize with the ranges of a file.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    convert_to_quantize: bool = option(
        Bool(),
        default=False,
        summary="Observe the ranges of tensors on samples and quantize with them.",
        effect=Effect.BEHAVIOR,
        in_container=True,
    )
    profiling_threads: int | None = option(
        Int(ge=1, le=2**31 - 1),
        default=None,
        summary="Threads that run samples; the results do not depend on their number.",
        effect=Effect.TIMING,
    )
    input_list_file: InputFileContent | None = option(
        FileContent("list of samples"),
        default=None,
        summary="Files of the samples, a line for each sample.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    use_random_input_data: str | None = option(
        RandomInputData(),
        default=None,
        summary="Random samples, uniform or gaussian: for a first look, not for accuracy.",
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
    allow_profile_mismatch: bool = option(
        Bool(),
        default=False,
        summary="Use a profile that was made with another graph.",
        effect=Effect.BEHAVIOR,
        ours=True,
        in_container=True,
    )
