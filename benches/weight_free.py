"""Measure the costs of compiling a model without weights, compared with copying its checkpoint.

python benches/weight_free.py                    4 GB, four kinds, some minutes; needs 13 GB of disk space
python benches/weight_free.py --gigabytes 1      a short run

The files are created in the folder for temporary files (TMPDIR) and removed. The budget is for memory other
than pages of files, which the system can reclaim.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from python import checkpoints
from python.harness import machine
from python.harness.row import HEADER, Row, table
from python.harness.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_BYTES = 500e6

#: Variant -> type in the checkpoint, type of the inputs, options.
_KINDS = {
    "float16 as it is": ("F16", "float16", {}),
    "float16 with mxfp6_matmul": ("F16", "float16", {"convert_to_fp16": True, "mxfp6_matmul": True}),
    "bfloat16 for inputs of float16": ("BF16", "float16", {}),
    "float32 with convert_to_fp16": ("F32", "float32", {"convert_to_fp16": True}),
}


def rows(gigabytes: float) -> Iterator[Row]:
    """Create, compile, copy and remove a checkpoint of each kind."""
    for title, (stored, declared, options) in _KINDS.items():
        with tempfile.TemporaryDirectory(prefix="openqaic-bench-checkpoint-") as name:
            folder = Path(name)
            cache, copy = folder / "cache", folder / "copy"
            cache.mkdir()
            copy.mkdir()
            path, files = checkpoints.write_checkpoint(folder, int(gigabytes * 1e9), stored, declared)
            total = sum(file.stat().st_size for file in files)
            found = checkpoints.watched(Path(__file__), path, cache, options)
            copying = checkpoints.copied(files, copy)
        label = f"{title}, {total / 1e9:.2f} GB"
        yield Row(
            f"{label}: compile",
            Spread.of([found["seconds"]], "s"),
            (("copying the checkpoint", Spread.of([copying], "s")),),
            Spread.of([found["seconds"] / copying], "x"),
        )
        yield Row(
            f"{label}: peak memory that is no page of a file",
            Spread.of([found["anonymous"]], "B"),
            budget=f"< {_LIMIT_BYTES / 1e6:.0f} MB",
            met=found["anonymous"] < _LIMIT_BYTES,
        )
        yield Row(f"{label}: peak memory with pages of files (VmHWM)", Spread.of([found["peak"]], "B"))
        yield Row(f"{label}: the same model again", Spread.of([found["again"]], "s"))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the checkpoint (default 4)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(checkpoints.compile_checkpoint(**json.loads(arguments.measure))))
        return
    for line in table(["", ""], [list(fact) for fact in machine.facts()]):
        print(line)
    print()
    for line in table(HEADER, [row.cells() for row in rows(arguments.gigabytes)]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
