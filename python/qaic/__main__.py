"""Front door: ``python -m qaic info | demo | plot | accuracy | shims | transcript``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from qaic import __version__
from qaic.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> console.Parser:
    parser = console.Parser(prog="python -m qaic", description="Open user-space stack for Cloud AI 100.")
    parser.add_argument("--version", action="version", version=f"openqaic {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, the engine found, devices and free cores")
    info.add_argument("--json", action="store_true", help="print JSON")
    demo = commands.add_parser("demo", help="compile a real model and classify files with it")
    demo.add_argument(
        "paths", nargs="*", metavar="PATH", help="files or folders; default: the present folder"
    )
    demo.add_argument("--limit", type=int, default=12, help="files shown one by one (default %(default)s)")
    plot = commands.add_parser("plot", help="draw a latency report, a trace, a stats buffer or metrics")
    plot.add_argument("file", metavar="FILE", help="what was measured; its kind is seen from its content")
    plot.add_argument(
        "-o", "--output", metavar="OUT", help="picture, .html or .png; without it figures in the terminal"
    )
    plot.add_argument("-q", "--qpc", metavar="QPC", help="the program that a stats buffer is of")
    commands.add_parser("accuracy", help="compare a model in reduced precision with float32, node by node")
    shims = commands.add_parser("shims", help="lay the tools at the vendor's paths, or take them away")
    shims.add_argument("action", choices=("install", "remove"))
    shims.add_argument(
        "--prefix", default="/opt/qti-aic", metavar="DIR", help="root of the paths (default %(default)s)"
    )
    transcript = commands.add_parser("transcript", help="show or compare recorded system calls of cards")
    actions = transcript.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("show", help="list the calls")
    listed.add_argument("file", metavar="FILE", help="what QAIC_KMD_TRANSCRIPT wrote")
    difference = actions.add_parser("diff", help="compare the calls: 0 same, 1 different, 2 trouble")
    difference.add_argument("a", metavar="A", help="a transcript")
    difference.add_argument("b", metavar="B", help="another")
    difference.add_argument(
        "--lrt",
        action="store_true",
        help="B is the open runtime's: leave out what it is known to do otherwise",
    )
    return parser


def _front_door(argv: Sequence[str]) -> int:
    if argv[:1] == ["accuracy"]:
        from qaic.cli.accuracy import accuracy

        return accuracy(argv[1:], "python -m qaic accuracy")
    arguments = _parser().parse_args(argv)
    if arguments.command == "info":
        from qaic.cli.info import info

        return info(as_json=arguments.json)
    if arguments.command == "plot":
        from qaic.cli.plot import plot

        return plot(arguments.file, output=arguments.output, qpc=arguments.qpc)
    if arguments.command == "shims":
        from qaic.cli import shims

        return (
            shims.install(arguments.prefix)
            if arguments.action == "install"
            else shims.remove(arguments.prefix)
        )
    if arguments.command == "transcript":
        from qaic.cli import transcript

        if arguments.action == "show":
            return transcript.show_calls(arguments.file)
        return transcript.diff(arguments.a, arguments.b, lrt=arguments.lrt)
    from qaic.cli.demo import demo

    return demo(arguments.paths, shown=arguments.limit)


if __name__ == "__main__":
    sys.exit(console.run(_front_door, None))
