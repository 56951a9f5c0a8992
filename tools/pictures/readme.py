"""Draw the pictures of the README from real runs: ``make pictures``.

python tools/pictures/readme.py    writes docs/images/terminal.svg and report.png, and their contents without
                                   figures to shown.json, which a test compares with the current code

The commands run in a terminal of 100 columns, as their reader types them, on a model that comes with onnx.
Chromium takes the picture of the page.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
COLUMNS, LINES = 100, 40
COMMANDS = (
    "openqaic compile shufflenet.onnx -o fp16 --convert-to-fp16",
    "openqaic bench shufflenet.onnx --beside onnxruntime --seconds 1 --streams 1,2",
    "openqaic profile shufflenet.onnx -o report.html",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def run_in_terminal(command: str, folder: Path) -> str:
    """Run a command in a terminal and return its output, with colors."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        command.split(), cwd=folder, stdin=side, stdout=side, stderr=side, env=environment
    )
    os.close(side)
    shown = bytearray()
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    if process.wait() != 0:
        sys.exit(f"{command}: exit code {process.returncode}\n{shown.decode(errors='replace')}")
    return shown.decode()


def last_state(shown: str) -> str:
    """Remove the states of a line that were drawn again (progress)."""
    lines = (
        line.rsplit("\r", 1)[-1].removeprefix("\x1b[2K").removeprefix("\x1b[K")
        for line in shown.replace("\r\n", "\n").split("\n")
    )
    return "\n".join(lines).strip("\n")


def draw_terminal(texts: dict[str, str], target: Path) -> None:
    """Draw commands and their output."""
    # Imported here, because the test of these pictures does not draw.
    from rich.console import Console
    from rich.text import Text

    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for command, shown in texts.items():
            console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
            console.print(Text.from_ansi(shown))
            console.print()
        drawn = console.export_svg(title="openqaic")
    # The fonts of another host are not embedded.
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


def draw_page(page: Path, target: Path) -> None:
    """Take a picture of the first screen of a page."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no chromium: `make browser` installs it as root on Debian")
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--window-size=1280,900", f"--screenshot={target}", page.as_uri()],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def run_commands(folder: Path) -> dict[str, str]:
    """Run the commands in a folder and return the output of each."""
    model = resources.files("onnx") / "backend" / "test" / "data" / "light" / "light_shufflenet.onnx"
    (folder / "shufflenet.onnx").write_bytes(model.read_bytes())
    os.environ["QAIC_CACHE_DIR"] = str(folder / "cache")
    return {command: last_state(run_in_terminal(command, folder)) for command in COMMANDS}


def shown(texts: dict[str, str]) -> dict[str, object]:
    """Return the contents of the pictures without figures and verdicts, which differ from run to run."""
    lines = {
        command: [
            " ".join(
                re.sub(r"\x1b\[[0-9;]*m|/\S+|[\d.,]+( ?(us|ms|s|[KMG]iB|MB|bytes|%)\b)?", "", line).split()
            )
            for line in text.splitlines()
        ]
        for command, text in texts.items()
    }
    # The verdict depends on the slowest operation in this run; these files draw the page.
    lines[COMMANDS[-1]] = lines[COMMANDS[-1]][-1:]
    sources = sorted(
        path for suffix in ("js", "css") for path in (ROOT / "python/qaic/page").rglob(f"*.{suffix}")
    )
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return {"terminal": lines, "page": digest}


def main() -> None:
    """Run all commands and draw the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = run_commands(folder)
        draw_terminal(texts, IMAGES / "terminal.svg")
        draw_page(folder / "report.html", IMAGES / "report.png")
    (IMAGES / "shown.json").write_text(json.dumps(shown(texts), indent=1) + "\n")


if __name__ == "__main__":
    main()
