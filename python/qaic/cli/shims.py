"""``openqaic shims install | remove``: installs and removes the tools at the vendor's paths.

Scripts call ``/opt/qti-aic/exec/qaic-runner`` and interpret ``/opt/qti-aic/tools/qaic-util`` as
a sign of an installed SDK. A shim is a short script that starts the tool with the interpreter that installed
it. Other files are never replaced or removed.
"""

import argparse
import importlib.util
import json
import shlex
import sys
from pathlib import Path

from qaic.cli.console import FAILURE, SUCCESS, Parser, print_line, print_message
from qaic.cli.openqaic.arguments import set_examples
from qaic.support.atomic_io import write_replacing

VENDOR_PREFIX = "/opt/qti-aic"
#: path below the prefix -> module of the tool
_TOOLS = {
    "exec/qaic-compile": "qaic.cli.compile",
    "exec/qaic-exec": "qaic.cli.compile_and_run",
    "exec/qaic-runner": "qaic.cli.runner",
    "exec/qaic-opstats": "qaic.cli.opstats",
    "tools/qaic-util": "qaic.cli.util",
    "tools/qaic-qpc": "qaic.cli.qpc",
}
_ACTIONS = ("install", "remove")
_MARK = "# A shim of openqaic; `python -m qaic shims remove` takes it away."
#: number of bytes at the start of a script that are searched for the mark of a shim
_LONGEST_HEAD_BYTES = 200
#: file that lists the created folders; `remove` keeps all others
_RECORD = ".openqaic-shims.json"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=_ACTIONS, metavar="|".join(_ACTIONS))
    parser.add_argument(
        "--prefix", default=VENDOR_PREFIX, metavar="DIR", help="root of the paths (default: %(default)s)"
    )
    set_examples(parser, "sudo openqaic shims install", "openqaic shims install --prefix /tmp/qti-aic")


def run(arguments: argparse.Namespace) -> int:
    """Install or remove the shims. Returns the exit code."""
    return install(arguments.prefix) if arguments.action == "install" else remove(arguments.prefix)


def install(prefix: str) -> int:
    """Install all shims, or none. Returns the exit code."""
    root = Path(prefix).absolute()
    tools = {place: module for place, module in _TOOLS.items() if importlib.util.find_spec(module)}
    foreign = [root / place for place in tools if _occupied(root / place)]
    if foreign:
        for path in foreign:
            print_message("error", f"{path} exists and is not a shim of openqaic")
        print_message(
            "hint", "nothing was installed; move these files, or select another root with --prefix DIR"
        )
        return FAILURE
    made: list[Path] = []
    before: dict[Path, bytes | None] = {}
    try:
        for place in tools:
            folder = (root / place).parent
            for parent in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
                parent.mkdir()
                made.append(parent)
        text = json.dumps({"folders": list(dict.fromkeys([*_recorded(root), *map(str, made)]))}, indent=2)
        _replace(root / _RECORD, f"{text}\n".encode(), 0o644)
        for place, module in tools.items():
            path = root / place
            before[path] = path.read_bytes() if path.exists() else None
            _replace(path, _script(module), 0o755)
    except OSError as error:
        _undo(before, root, made)
        return _explain(error, root, "install")
    except BaseException:
        _undo(before, root, made)
        raise
    for place in tools:
        print_line(f"installed {root / place}")
    for place in _TOOLS.keys() - tools.keys():
        print_message("note", f"{Path(place).name} is not in this version and was skipped")
    return SUCCESS


def remove(prefix: str) -> int:
    """Remove all shims, and the empty folders that were created for them. Returns the exit code."""
    root = Path(prefix).absolute()
    shims = [root / place for place in _TOOLS if _is_shim(root / place)]
    try:
        for path in shims:
            path.unlink()
            print_line(f"removed {path}")
        _remove_folders(root)
    except OSError as error:
        return _explain(error, root, "remove")
    if not shims:
        print_line(f"found no shim under {root}")
    for path in (root / place for place in _TOOLS):
        if _occupied(path):
            print_message("note", f"{path} is not a shim of openqaic and was not removed")
    return SUCCESS


def _script(module: str) -> bytes:
    # -P: a folder `qaic` in the current directory must not hide the package.
    code = f"import sys; from qaic.cli.entry import run; sys.exit(run('{module}'))"
    return f'#!/bin/sh\n{_MARK}\nexec {shlex.quote(sys.executable)} -P -c "{code}" "$@"\n'.encode()


def _is_shim(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(_LONGEST_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(f"#!/bin/sh\n{_MARK}\n".encode())


def _occupied(path: Path) -> bool:
    """Return True if a file or link that is not a shim exists, even if the target of the link is missing."""
    return (path.is_symlink() or path.exists()) and not _is_shim(path)


def _replace(path: Path, content: bytes, mode: int) -> None:
    # A process that starts the tool during the replacement gets the old or the new script.
    def write(aside: Path) -> None:
        aside.write_bytes(content)
        aside.chmod(mode)

    write_replacing(path, write)


def _recorded(root: Path) -> list[str]:
    try:
        record = json.loads((root / _RECORD).read_text(encoding="utf-8"))
        folders = record["folders"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [folder for folder in folders if isinstance(folder, str)] if isinstance(folders, list) else []


def _remove_folders(root: Path) -> None:
    ours = {root, *root.parents, *((root / place).parent for place in _TOOLS)}
    folders = [Path(folder) for folder in _recorded(root)]
    (root / _RECORD).unlink(missing_ok=True)
    # Other programs may have changed the record, so only folders of shims are removed.
    for folder in sorted(set(folders) & ours, key=lambda path: len(path.parts), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _undo(before: dict[Path, bytes | None], root: Path, made: list[Path]) -> None:
    """Restore the state before the installation. Prints an OSError, so that the caller can raise its own."""
    try:
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            elif path.read_bytes() != content:
                _replace(path, content, 0o755)
        if made:
            if root in made:
                (root / _RECORD).unlink(missing_ok=True)
            for folder in reversed(made):
                if not any(folder.iterdir()):
                    folder.rmdir()
    except OSError as error:
        print_message("error", f"{error.filename}: {error.strerror}; the installation is incomplete")


def _explain(error: OSError, root: Path, what: str) -> int:
    print_message("error", f"{error.filename}: {error.strerror}")
    if isinstance(error, PermissionError):
        print_message(
            "hint",
            f"sudo {sys.executable} -m qaic shims {what} --prefix {root}, or another root with --prefix DIR",
        )
    return FAILURE
