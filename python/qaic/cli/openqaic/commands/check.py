"""``openqaic check MODEL``: forecasts support, fit and speed on a card, and the best options."""

import argparse
from pathlib import Path

from qaic.cli.console import FAILURE, SUCCESS, Parser, in_flags, print_json, print_line, print_reports
from qaic.cli.log import logged
from qaic.cli.openqaic.arguments import add_json, add_model, count, set_examples
from qaic.cli.openqaic.compile_options import add_compile_options, keyword_options
from qaic.cli.openqaic.program import check_page, wrote
from qaic.model_path import open_model


def add_arguments(parser: Parser) -> None:
    add_model(parser, may_be_container=False)
    parser.add_argument(
        "--precision",
        default="fp16",
        help="fp16, int8, int16, mxfp6 or fp32; + combines several (default: fp16)",
    )
    parser.add_argument("--card", default="standard", help="standard, pro or ultra (default: standard)")
    parser.add_argument("--cards", type=count, default=1, metavar="N", help="number of cards (default: 1)")
    parser.add_argument(
        "-a", "--num-activations", type=count, metavar="N", help="instances (default: as many as fit)"
    )
    parser.add_argument(
        "-S", "--set-size", type=count, metavar="N", help="inferences in flight per instance (default: best)"
    )
    parser.add_argument(
        "--samples", metavar="PATH", help="inputs to judge the precision, as for openqaic accuracy"
    )
    parser.add_argument(
        "--measured",
        metavar="RUNS.csv",
        help="runs on a card, a CSV file with the columns cores, instances, batch, set_size, "
        "inferences_per_s and latency_ms",
    )
    parser.add_argument("-o", "--output", metavar="PAGE.html", type=Path, help="write an HTML page")
    add_json(parser)
    add_compile_options(parser)
    set_examples(
        parser,
        "openqaic check model.onnx",
        "openqaic check model.onnx --shape 1x3x224x224 -o check.html",
        "openqaic check model.onnx --aic-num-cores 2 --batchsize 8 -a 7 --json",
        "openqaic check model.onnx --measured runs.csv",
        "openqaic check decoder.onnx --precision mxfp6+fp16 --card ultra",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, and show the sections; a model that does not compile is a failure."""
    from qaic.forecast import check
    from qaic.forecast.report import write_page

    run_options = {name: getattr(arguments, name) for name in ("num_activations", "set_size")}
    options = {**keyword_options(arguments), **run_options}
    read = [name for name in (arguments.model, arguments.samples, arguments.measured) if name is not None]
    check_page(arguments.output, read=read)
    with logged(prints_json=arguments.json) as set_verbosity:
        set_verbosity(int(str(options.get("verbose", 0))))
        report = check(
            open_model(arguments.model),
            precision=arguments.precision,
            card=arguments.card,
            cards=arguments.cards,
            samples=arguments.samples,
            measured=arguments.measured,
            **options,
        )
    reports = [section.report for section in report.sections]
    if arguments.output is not None:
        write_page(report.checked, in_flags(reports), arguments.output)
    if arguments.json:
        print_json(report.to_json())
    else:
        print_reports(reports)
        if arguments.output is not None:
            print_line(wrote(arguments.output, "; a browser opens it"))
    return SUCCESS if report.compiles else FAILURE
