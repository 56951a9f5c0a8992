"""Cost of resolving the options of one session."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .harness.row import Row
from .harness.spread import Spread
from .harness.worker import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .harness.effort import Effort

_LIMIT_S = 0.001

# Files as large as those of public samples.
_OPTIONS = {
    "aic_num_cores": 14,
    "convert_to_fp16": True,
    "onnx_define_symbol": [("batch", 1), ("seq", 128)],
    "mos": 1,
    "ols": 1,
    "multicast_weights": True,
    "stats_batchsize": 1,
    "allocator_dealloc_delay": 1,
    "num_activations": 2,
    "set_size": 4,
}

_YAML = """\
aic_num_cores: 14
convert-to-fp16: true
onnx_define_symbol: {batch: 1, seq: 128}
mos: 1
ols: 1
multicast-weights: true
stats-batchsize: 1
num_activations: 2
set_size: 4
"""

_FLAGS = [
    "-m=model.onnx",
    "-aic-hw",
    "-aic-hw-version=2.0",
    "-aic-num-cores=14",
    "-convert-to-fp16",
    "-onnx-define-symbol=batch,1",
    "-onnx-define-symbol=seq,128",
    "-mos=1",
    "-ols=1",
    "-multicast-weights",
    "-aic-binary-dir=qpc",
]


def resolving(folder: str, batches: int, seconds: float) -> dict[str, list[float]]:
    """Resolve one set of options in its forms, in turns (in a worker)."""
    from qaic.options import resolve
    from qaic.options.argv import read_argv

    from .harness.timing import in_turns

    file = Path(folder, "options.yaml")
    file.write_text(_YAML)

    def flags() -> object:
        return resolve({}, options_path=None, model_is_container=False, flags=read_argv(_FLAGS))

    return in_turns(
        {
            "keywords": partial(resolve, _OPTIONS, options_path=None, model_is_container=False),
            "flags": flags,
            "file": partial(resolve, {}, options_path=file, model_is_container=False),
        },
        batches,
        seconds,
    )


def option_rows(folder: str, effort: Effort) -> Iterator[Row]:
    """Rows of the group `options`."""
    results = measure("resolving", folder=folder, batches=effort.batches, seconds=effort.batch_s)
    spreads = {name: Spread.of(values, "s") for name, values in results.items()}
    for name, title in (
        ("keywords", f"{len(_OPTIONS)} keyword arguments"),
        ("flags", f"{len(_FLAGS)} flags of a command line"),
    ):
        yield Row(title, spreads[name], budget="<= 1 ms", met=spreads[name].median <= _LIMIT_S)
    yield Row(f"a YAML file of {len(_YAML.splitlines())} lines, read each time", spreads["file"])
