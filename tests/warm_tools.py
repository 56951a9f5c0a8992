"""Commands of the package that start as copies of a process with many imported modules.

Imports take most of the time of a short command. A command in the folder passes its arguments, variables,
folder and streams to the server; the server forks, and the copy runs the command.
"""

import ast
import contextlib
import gc
import os
import pkgutil
import shlex
import socket
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import qaic
from child_process import started

#: Modules that need more than the package itself.
_OTHER_PACKAGES = ("qaic.ray", "qaic.serving")

_CLIENT = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"0"], [0, 1, 2])
    server.sendall(repr((sys.argv[1:], os.getcwd(), dict(os.environ))).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(9) or 99))
"""


@contextlib.contextmanager
def installed(folder, root):
    """Put the commands of the package and `python` into a folder until the end of the block."""
    address = str(folder / "server")
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    client = folder / "client.py"
    client.write_text(_CLIENT.format(address=address))
    # A line `#!` cannot name an interpreter whose path contains a space.
    python = f"#!/bin/sh\nexec {shlex.quote(sys.executable)}"
    for name in scripts:
        (folder / name).write_text(f'{python} -IS {shlex.quote(str(client))} "$0" "$@"\n')
    (folder / "python").write_text(f'{python} "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    code = f"import sys, warm_tools; sys.exit(warm_tools.serve({address!r}, {scripts!r}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout.readline()
        yield


def serve(address, scripts):
    """Fork for each command, and return the command's result in the copy.

    Only the copies import the engine, because it starts threads at its import.
    """
    for module in pkgutil.walk_packages(qaic.__path__, "qaic."):
        if not module.name.startswith(_OTHER_PACKAGES) and not module.name.endswith(".__main__"):
            import_module(module.name)
    assert "onnxruntime" not in sys.modules
    modules = {name: place.split(":") for name, place in scripts.items()}
    functions = {name: getattr(import_module(module), name_) for name, (module, name_) in modules.items()}
    # At its end, a copy would visit, and therefore copy, all objects, which takes longer than most commands.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    command = os.fork()
    if command:
        _, status = os.waitpid(command, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    with connection.makefile() as request:
        sys.argv, folder, variables = ast.literal_eval(request.read())
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    return functions[Path(sys.argv[0]).name]()
