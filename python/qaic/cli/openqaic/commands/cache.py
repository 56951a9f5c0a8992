"""``openqaic cache dir | list | prune | clear``: shows and removes compiled programs."""

import argparse
import datetime as dt
from typing import Final

from qaic.cli.console import SUCCESS, Parser, print_json, print_line, print_text
from qaic.cli.openqaic.arguments import add_json, set_examples
from qaic.errors import OptionConflictError, OptionError
from qaic.report.text import rows_text
from qaic.support.text import bytes_text, counted

_ACTIONS: Final = ("dir", "list", "prune", "clear")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "action",
        choices=_ACTIONS,
        metavar="|".join(_ACTIONS),
        help="print the folder; list programs; remove the least recently used programs; remove all programs",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        metavar="SIZE",
        help="for prune: largest total size, such as 500M (default: QAIC_CACHE_LIMIT)",
    )
    add_json(parser)
    set_examples(
        parser,
        "openqaic cache list",
        "openqaic cache prune --limit 2G",
        "QAIC_CACHE_LIMIT=20G openqaic compile model.onnx  # limits this cache",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; files that a process is using stay."""
    from qaic.compiler.cache import cache_folder
    from qaic.compiler.cache_contents import entries, remove_leftovers, shrink, size_limit

    folder = cache_folder()
    if arguments.limit is not None and arguments.action != "prune":
        raise OptionConflictError(f"--limit needs prune, found {arguments.action}", code="cache.limit")
    if arguments.action == "dir":
        if arguments.json:
            print_json({"folder": str(folder)})
        else:
            print_line(str(folder))
        return SUCCESS
    before = entries(folder)
    if arguments.action == "list":
        if arguments.json:
            print_json(
                [
                    {"path": str(entry.path), "bytes": entry.nbytes, "used_ns": entry.used_ns}
                    for entry in before
                ]
            )
            return SUCCESS
        if before:
            rows = [[entry.nbytes, _time(entry.used_ns), entry.path] for entry in before]
            print_text(rows_text("size:bytes | last used | program", rows))
        print_line(
            f"{counted(len(before), 'program')}, {bytes_text(sum(one.nbytes for one in before))} in {folder}"
        )
        return SUCCESS
    limit = 0 if arguments.action == "clear" else arguments.limit
    if limit is None and (limit := size_limit()) is None:
        raise OptionError(
            "prune needs the size to keep: --limit SIZE, such as 2G, or QAIC_CACHE_LIMIT is expected",
            code="cache.limit",
            hints=("`openqaic cache clear` removes all programs",),
        )
    remove_leftovers(folder)
    freed = shrink(folder, limit)
    after = entries(folder)
    if arguments.json:
        print_json({"removed": len(before) - len(after), "freed_bytes": freed, "kept": len(after)})
        return SUCCESS
    kept = sum(entry.nbytes for entry in after)
    print_line(
        f"removed {counted(len(before) - len(after), 'program')}, {bytes_text(freed)}; "
        f"{counted(len(after), 'program')}, {bytes_text(kept)} remain in {folder}"
    )
    return SUCCESS


def _limit(text: str) -> int:
    from qaic.compiler.cache_contents import parse_size

    size = parse_size(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; a size such as 500M or 20G is expected")
    return size


def _time(used_ns: int) -> str:
    return dt.datetime.fromtimestamp(used_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M")
