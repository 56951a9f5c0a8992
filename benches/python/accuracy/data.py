"""Samples for the accuracy report: lines of text and files, independent of the location of the packages."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SEED = 4
_TEXT = """
lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore
magna aliqua Price Total Invoice Order Date Street Number Account Balance Open Close Left Right North South
"""
_WORDS = _TEXT.split()
#: Height and width of a line of text, as the recognizer requires.
LINE = (48, 320)


def text_lines(count: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Texts and noisy pictures of the texts: float32 of shape (1, 3, 48, 320), from -1 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    random = np.random.default_rng(_SEED)
    height, width = LINE
    for _ in range(count):
        font = ImageFont.load_default(size=int(random.integers(22, 34)))
        text = str(random.choice(_WORDS))
        while True:
            more = str(random.choice(_WORDS)) if random.random() < 0.7 else str(random.integers(0, 10_000))
            if font.getlength(f"{text} {more}") > width - 24:
                break
            text = f"{text} {more}"
        paper, ink = int(random.integers(170, 256)), int(random.integers(0, 90))
        picture = Image.new("RGB", (width, height), (paper, paper, int(random.integers(170, 256))))
        place = (int(random.integers(2, 16)), int(random.integers(2, 10)))
        ImageDraw.Draw(picture).text(place, text, (ink, int(random.integers(0, 90)), ink), font)
        pixels = np.asarray(picture, np.float32) + random.normal(0, random.uniform(0, 12), (height, width, 3))
        pixels = np.clip(pixels, 0, 255).astype(np.float32) / np.float32(127.5) - 1
        yield text, np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def contents(count: int) -> Iterator[tuple[str, bytes]]:
    """Kind and content of files: those of the standard library, and generated files of many formats."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for pattern in (
            "*.py",
            "*/*.py",
            "*/__pycache__/*.pyc",
            "lib-dynload/*.so",
            "*/*.txt",
            "**/*.c",
            "**/*.h",
        )
        for path in stdlib.glob(pattern)
        if "site-packages" not in path.parts and path.stat().st_size > 64
    )
    random = np.random.default_rng(_SEED)
    makers = list(_MAKERS.items())
    for index in range(count):
        if index % 3 == 0:
            path = files[int(random.integers(len(files)))]
            yield path.suffix[1:], path.read_bytes()
        else:
            kind, make = makers[index % len(makers)]
            yield kind, make(random)


def _table(random: np.random.Generator) -> list[list[object]]:
    rows = int(random.integers(5, 60))
    return [
        [index, str(random.choice(_WORDS)), round(float(random.normal(100, 30)), 2)] for index in range(rows)
    ]


def _sentence(random: np.random.Generator) -> str:
    return (
        " ".join(str(word) for word in random.choice(_WORDS, int(random.integers(4, 14)))).capitalize() + "."
    )


def _json(random: np.random.Generator) -> bytes:
    rows = [{"id": row[0], "name": row[1], "value": row[2]} for row in _table(random)]
    return json.dumps({"rows": rows}, indent=int(random.integers(0, 3)) or None).encode()


def _csv(random: np.random.Generator) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([["id", "name", "value"], *_table(random)])
    return text.getvalue().encode()


def _xml(random: np.random.Generator) -> bytes:
    rows = "".join(
        f'  <row id="{i}"><name>{n}</name><value>{v}</value></row>\n' for i, n, v in _table(random)
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<rows>\n{rows}</rows>\n'.encode()


def _html(random: np.random.Generator) -> bytes:
    body = "".join(f"<p>{_sentence(random)}</p>\n" for _ in range(int(random.integers(3, 20))))
    return f"<!DOCTYPE html>\n<html><head><title>Rows</title></head>\n<body>\n{body}</body></html>\n".encode()


def _markdown(random: np.random.Generator) -> bytes:
    parts = [f"## {_sentence(random)}\n\n{_sentence(random)}\n\n- {_sentence(random)}\n" for _ in range(8)]
    return ("# Notes\n\n" + "\n".join(parts)).encode()


def _ini(random: np.random.Generator) -> bytes:
    return "\n".join(f"[section{i}]\n{n} = {v}\n" for i, n, v in _table(random)).encode()


def _yaml(random: np.random.Generator) -> bytes:
    return (
        "rows:\n" + "".join(f"  - id: {i}\n    name: {n}\n    value: {v}\n" for i, n, v in _table(random))
    ).encode()


def _c(random: np.random.Generator) -> bytes:
    functions = "\n".join(
        f"static double {n}_{i}(double x)\n{{\n    return x * {v} + {i};\n}}\n" for i, n, v in _table(random)
    )
    includes = '#include <stdio.h>\n#include "rows.h"\n'
    return f"{includes}\n{functions}\nint main(void)\n{{\n    return 0;\n}}\n".encode()


def _javascript(random: np.random.Generator) -> bytes:
    lines = "\n".join(f"  const {n}{i} = rows.map((x) => x * {v});" for i, n, v in _table(random))
    return (
        f"'use strict';\nconst fs = require('fs');\nfunction main(rows) {{\n{lines}\n}}\nmain([]);\n".encode()
    )


def _shell(random: np.random.Generator) -> bytes:
    lines = "\n".join(f'echo "{n}" >> "$OUT"; test {i} -lt 5 || exit 1' for i, n, _ in _table(random))
    return f"#!/bin/sh\nset -e\nOUT=$1\n{lines}\n".encode()


def _sql(random: np.random.Generator) -> bytes:
    rows = "\n".join(f"INSERT INTO orders VALUES ({i}, '{n}', {v});" for i, n, v in _table(random))
    return f"CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, value REAL);\n{rows}\n".encode()


def _gzip(random: np.random.Generator) -> bytes:
    return gzip.compress(_json(random), mtime=0)


def _zip(random: np.random.Generator) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(4):
            archive.writestr(zipfile.ZipInfo(f"rows{index}.csv"), _csv(random))
    return stream.getvalue()


def _tar(random: np.random.Generator) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        data = _xml(random)
        entry = tarfile.TarInfo("rows.xml")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def _picture(kind: str, random: np.random.Generator) -> bytes:
    from PIL import Image

    waves = np.add.outer(
        np.sin(np.arange(64) / random.uniform(2, 9)), np.cos(np.arange(96) / random.uniform(2, 9))
    )
    pixels = np.stack([waves * random.uniform(20, 60) + 128 for _ in range(3)], -1).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


_MAKERS = {
    "json": _json,
    "csv": _csv,
    "xml": _xml,
    "html": _html,
    "markdown": _markdown,
    "ini": _ini,
    "yaml": _yaml,
    "c": _c,
    "javascript": _javascript,
    "shell": _shell,
    "sql": _sql,
    "gzip": _gzip,
    "zip": _zip,
    "tar": _tar,
    **{kind: lambda random, kind=kind: _picture(kind, random) for kind in ("png", "jpeg", "bmp", "gif")},
}
