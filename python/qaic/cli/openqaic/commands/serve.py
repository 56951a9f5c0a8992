"""``openqaic serve PATH...``: answer requests for models over HTTP and gRPC."""

import argparse
import resource
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from qaic.cli.console import SUCCESS, Parser, print_line
from qaic.cli.openqaic.arguments import count, positive, set_examples
from qaic.errors import StateError

if TYPE_CHECKING:
    from qaic.serving.server import Server

_MEBIBYTE = 1 << 20
_MOST_PORT = 65535
#: file descriptors that are not for connections
_OTHER_FILES = 64


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="a Triton model repository, a container, a folder of containers, or an ONNX model",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--http", metavar="PORT", type=_port, default=8000, help="HTTP port, or no for none (default: 8000)"
    )
    parser.add_argument(
        "--grpc", metavar="PORT", type=_port, default=8001, help="gRPC port, or no for none (default: 8001)"
    )
    parser.add_argument(
        "--drain", metavar="SECONDS", type=positive, default=30.0, help="time limit of shutdown (default: 30)"
    )
    parser.add_argument(
        "--max-body", metavar="MIB", type=count, default=64, help="largest request body (default: 64)"
    )
    parser.add_argument(
        "--body-timeout",
        metavar="SECONDS",
        type=positive,
        default=30.0,
        help="time to receive a body (default: 30)",
    )
    parser.add_argument(
        "--max-memory",
        metavar="MIB",
        type=count,
        default=256,
        help="memory for all requests and responses (default: 256)",
    )
    parser.add_argument("--model-control", action="store_true", help="let clients load and unload models")
    parser.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="additional name of this server in requests; repeatable",
    )
    parser.add_argument("--access-log", action="store_true", help="log each HTTP request")
    set_examples(
        parser,
        "openqaic serve model.onnx",
        "openqaic serve model_repository --host 0.0.0.0 --http 8000 --grpc no",
        "openqaic serve resnet/programqpc.bin bert/programqpc.bin",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from qaic.serving import server_class
    from qaic.serving.limits import Limits

    server_type = server_class()
    from qaic.serving.server import log_to_stderr

    log_to_stderr(access=arguments.access_log)
    # A connection needs a file descriptor, and the usual limit of 1,024 exists for programs with select.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most <= _OTHER_FILES:
        raise StateError(
            f"this process may open {most} files; the server needs {_OTHER_FILES}, and one per connection",
            code="serving.open_files",
            hints=("raise the limit of the shell or service, for example with ulimit -Hn 4160",),
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = server_type(
        arguments.paths,
        host=arguments.host,
        http_port=arguments.http,
        grpc_port=arguments.grpc,
        drain_s=arguments.drain,
        limits=Limits(
            max_body_bytes=arguments.max_body * _MEBIBYTE,
            memory_bytes=arguments.max_memory * _MEBIBYTE,
            body_timeout_s=arguments.body_timeout,
            max_connections=min(Limits().max_connections, max(1, most - _OTHER_FILES)),
            model_control=arguments.model_control,
            allowed_hosts=frozenset(name.lower() for name in arguments.allowed_host),
        ),
        access_log=arguments.access_log,
    )
    server.run(lambda ready: _announce(ready, arguments.host))
    return SUCCESS


def _announce(server: "Server", host: str) -> None:
    where = f"[{host}]" if ":" in host else host
    addresses = []
    if server.http_port is not None:
        addresses.append(f"http://{where}:{server.http_port}")
    if server.grpc_port is not None:
        addresses.append(f"grpc://{where}:{server.grpc_port}")
    print_line(f"serving on {' and '.join(addresses)}", flush=True)
    if server.http_port is not None and server.models:
        model = f"{addresses[0]}/v2/models/{quote(server.models[0], safe='')}"
        print_line(f"next, for the inputs of a model: {shlex.join(['curl', model])}", flush=True)


def _port(text: str) -> int | None:
    if text == "no":
        return None
    if not (text.isascii() and text.isdigit() and int(text[:10]) <= _MOST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: expected 0 to {_MOST_PORT}, or 'no'")
    return int(text)
