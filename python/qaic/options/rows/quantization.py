"""Options about quantization and its calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qaic.options.codecs.enumerations import RandomInputData, Samples
from qaic.options.codecs.scalars import INT32_MAX, Enum, FilePath, Float, Int
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.spec import Effect, Flag, FlagForm, option, switch

if TYPE_CHECKING:
    import numpy as np

_SCHEMA = Enum("asymmetric", "symmetric", "symmetric_with_uint8", "symmetric_with_power2_scale")

#: Largest number of bins; each bin of each tensor is a number in the profile, and more are not useful.
_MOST_BINS = 1 << 16


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class QuantizationOptions:
    """Options about quantization and its calibration."""

    SECTION: ClassVar = "Quantization"

    external_quantization_file: InputFileContent | None = option(
        FileContent("quantization file"),
        None,
        "Quantize with ranges or parameters of another tool.",
        aliases=("external_quantization",),
        flag=Flag("external-quantization"),
    )
    quantization_schema_activations: str = option(
        _SCHEMA,
        "symmetric_with_uint8",
        "Schema that converts the range of an activation to scale and offset.",
    )
    quantization_schema_constants: str = option(
        _SCHEMA, "symmetric_with_uint8", "Schema that converts the range of a constant to scale and offset."
    )
    quantization_schema: str | None = option(_SCHEMA, None, "Schema for activations and constants.")
    quantization_calibration: str = option(
        Enum("None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"),
        "None",
        "Method that selects the range of an activation; `None` uses the whole measured range.",
    )
    percentile_calibration_value: float = option(
        Float(ge=90, le=100), 100.0, "Percentage of values that the range of `Percentile` covers."
    )
    num_histogram_bins: int = option(
        Int(ge=32, le=_MOST_BINS), 512, "Number of histogram bins of each tensor."
    )
    quantization_precision: str = option(Enum("Int8", "Int16"), "Int8", "Precision of quantized tensors.")
    quantization_precision_bias: str = option(
        Enum("Int8", "Int32"), "Int32", "Precision of the biases of quantized nodes."
    )
    enable_rowwise: bool = switch("Use one scale for each output row of constant Gemm and MatMul weights.")
    enable_channelwise: bool = switch("Use one scale for each output channel of convolution weights.")
    dump_profile: Path | None = option(
        FilePath("profile to write"),
        None,
        "Measure the ranges of tensors on samples and write them; compile in floating point.",
        Effect.FILE,
        flag=Flag(of_openqaic=None),
    )
    load_profile: InputFileContent | None = option(
        FileContent("profile"), None, "Quantize with the ranges of a profile."
    )
    convert_to_quantize: bool = switch("Measure the ranges of tensors on samples, and quantize with them.")
    profiling_threads: int | None = option(
        Int(ge=1, le=INT32_MAX),
        None,
        "Number of threads that run samples; results do not depend on it.",
        Effect.TIMING,
        in_container=False,
    )
    input_list_file: InputFileContent | None = option(
        FileContent("list of samples"),
        None,
        "List of the files of samples, one line for each sample; or an .npz file of arrays by input name, "
        "which can have a first dimension for samples.",
    )
    use_random_input_data: str | None = option(
        RandomInputData(),
        None,
        "Use random samples, uniform or gaussian; they are not suited to judge accuracy.",
        flag=Flag(form=FlagForm.OPTIONAL),
    )
    calibration_data: Iterable[Mapping[str, np.ndarray]] | None = option(
        Samples(),
        None,
        "Samples as dictionaries of arrays by input name, read one at a time; only from Python.",
        flag=None,
        ours=True,
        in_container=False,
    )
    allow_profile_mismatch: bool = switch("Accept a profile of another graph.", ours=True)
