"""Writes the operation tables of the measured models: ``PYTHONPATH=tools python -m forecast.build_tables``.

The networks are written from their public definitions, without weights. The compiler infers the shapes of all
values. The command takes a minute and downloads nothing.
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

from forecast.architectures.language import ENCODERS, encoder
from forecast.architectures.vision import classifier
from forecast.measured import ROWS, TABLES, table_key, to_json
from qaic.forecast.analysis import analyze
from qaic.options.table import CompileOptions


def main() -> None:
    """Write the file."""
    with ROWS.open(newline="") as file:
        rows = {table_key(row): row for row in csv.DictReader(file)}
    lines = []
    for key, row in sorted(rows.items()):
        name, size = row["model"], int(row["size"])
        graph = encoder(name, row["task"], size) if name in ENCODERS else classifier(name, size)
        with tempfile.TemporaryDirectory() as folder:
            table = analyze(graph.save(Path(folder)), CompileOptions()).sets[0].table
        lines.append(f"{json.dumps(key)}: {json.dumps(to_json(table), separators=(',', ':'))}")
    TABLES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
