"""The life of a server, from the start to the stop."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import printed_steps
import qaic
import serving_support as support
import session_models
from child_process import ignoring
from qaic.cli import console, openqaic

X = np.ones((1, 16), np.float32)


@pytest.fixture
def onnx_file(tmp_path):
    return session_models.save(tmp_path, session_models.affine(support.WIDTH, support.BATCH), "small.onnx")


def test_an_onnx_file(onnx_file):
    with support.serving(onnx_file) as server:
        status, answer = server.infer(X, "small")
        assert status == 200
        assert np.float32(answer["outputs"][0]["data"]).tobytes() == support.expected(X).tobytes()
        assert server.ask("GET", "/v2/health/ready") == (200, {"ready": True})
        assert server.end() == 0
        lines = [json.loads(line) for line in server.log]
        assert any("ready" in line["message"] for line in lines)
        assert {"time", "level", "logger", "message"} <= lines[0].keys()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_command_shows_a_model(onnx_file):
    with support.serving(onnx_file) as server:
        (command,) = printed_steps.commands_of(server.process.stdout.readline().removesuffix("\n"))
        environment = {"PATH": os.environ["PATH"]}  # without proxies
        done = subprocess.run(
            shlex.split(command), check=True, capture_output=True, text=True, env=environment
        )
        assert json.loads(done.stdout)["name"] == "small"


def test_containers_and_a_folder_of_them(onnx_file, tmp_path):
    container = qaic.compile(onnx_file)
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    shutil.copy(container, folder / "one.qpc")
    shutil.copy(container, folder / "inner" / "programqpc.bin")
    (folder / "readme.txt").write_text("no container")
    alone = tmp_path / "alone.qpc"
    shutil.copy(container, alone)
    with support.serving(folder, alone) as server:
        _, index = server.ask("POST", "/v2/repository/index")
        assert [(row["name"], row["state"]) for row in index] == [
            ("alone", "READY"),
            ("inner", "READY"),
            ("one", "READY"),
        ]
        assert server.end(signal.SIGINT) == 0


def test_a_server_that_starts_with_sigint_ignored_keeps_ignoring_it(onnx_file):
    with support.serving(onnx_file, before=ignoring(signal.SIGINT)) as server:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        (ignored,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
        assert ignored >> signal.SIGINT - 1 & 1
        server.process.send_signal(signal.SIGINT)
        assert server.ask("GET", "/v2/health/ready") == (200, {"ready": True})
        assert server.end() == 0


def test_versions_follow_the_policy(tmp_path):
    for version in (1, 2, 3):
        support.add_model(
            tmp_path,
            "affine",
            session_models.affine(4, version),
            version=version,
            more="version_policy: { specific: { versions: [1, 3] } }",
        )
    with support.serving(tmp_path) as server:
        for version, status in ((1, 200), (2, 404), (3, 200)):
            assert server.ask("GET", f"/v2/models/affine/versions/{version}")[0] == status
        _, metadata = server.ask("GET", "/v2/models/affine")
        assert metadata["versions"] == ["1", "3"]
        _, config = server.ask("GET", "/v2/models/affine/config")
        assert config["max_batch_size"] == 3
        _, statistics = server.ask("GET", "/v2/models/affine/versions/1/stats")
        assert [one["version"] for one in statistics["model_stats"]] == ["1"]


def test_a_new_version_comes_and_a_broken_one_does_not_harm(tmp_path):
    support.add_model(tmp_path, "affine", session_models.affine(4, 2))
    with support.serving(tmp_path, arguments=["--model-control"]) as server:
        support.add_model(tmp_path, "affine", session_models.affine(4, 4), version=2)
        assert server.ask("POST", "/v2/repository/models/affine/load") == (200, {})
        assert server.ask("GET", "/v2/models/affine")[1]["versions"] == ["2"]
        (tmp_path / "affine" / "config.pbtxt").write_text("}")
        status, answer = server.ask("POST", "/v2/repository/models/affine/load")
        assert (status, "config.pbtxt is not a model configuration" in answer["error"]) == (400, True)
        assert server.infer(np.ones((1, 4), np.float32))[0] == 200
        support.add_model(tmp_path, "later", session_models.affine(4, 2))
        assert server.ask("POST", "/v2/repository/models/later/load")[0] == 200
        assert server.infer(np.ones((1, 4), np.float32), "later")[0] == 200


def test_what_has_no_effect_is_said(tmp_path):
    support.add_model(
        tmp_path,
        "affine",
        session_models.affine(4, 2),
        more="model_warmup [ { name: 'w' } ]\nfield_of_tomorrow: 3\nmax_batch_size: 0",
    )
    with support.serving(tmp_path) as server:
        assert server.infer(np.ones((1, 4), np.float32))[0] == 400
        assert server.infer(np.ones((2, 4), np.float32))[0] == 200
        assert server.end() == 0
        log = "".join(server.log)
        assert "field_of_tomorrow" in log
        assert "model_warmup" in log


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ("max_batch_size: 3", "max_batch_size 3; the container has 2"),
        ("input [ { name: 'z' } ]", "input 'z' does not exist"),
        ("input [ { name: 'x' data_type: TYPE_INT8 dims: [4] } ]", "has the type INT8; the program has FP32"),
        (
            "input [ { name: 'x' data_type: TYPE_FP32 dims: [5] } ]",
            r"has the dims [5]; the program has [2, 4]",
        ),
        (
            "input [ { name: 'x' data_type: TYPE_FP32 dims: [2, 2] reshape: { shape: [4] } } ]",
            "remove reshape and write dims: [4]",
        ),
        ("parameters [ { key: 'set_size' value: { string_value: 'many' } } ]", "'set_size' is 'many'"),
        ("instance_group [ { kind: KIND_GPU } ]", "KIND_GPU; KIND_MODEL is expected"),
        ("backend: 'qaic'", 'should not have multiple "backend" fields'),
        ("parameters [ { key: 'device_id' value: { string_value: '77' } } ]", "device 77 does not exist"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path, more, part):
    support.add_model(tmp_path, "affine", session_models.affine(4, 2), more=more)
    done = refused(tmp_path)
    assert part in done.stderr
    assert done.returncode in (1, 2, 3)


def refused(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "qaic", "serve", *map(str, arguments), "--http", "0", "--grpc", "0"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_paths_that_cannot_be_served(tmp_path):
    assert "No such file" in refused(tmp_path / "none.onnx").stderr
    (tmp_path / "text.txt").write_text("x")
    assert "neither a program container" in refused(tmp_path / "text.txt").stderr
    for folder in ("a", "b"):
        support.add_model(tmp_path / folder, "same", session_models.affine(4, 2))
    assert "have the same name 'same'" in refused(tmp_path / "a", tmp_path / "b").stderr


def test_too_few_files_are_refused_before_any_work(onnx_file):
    few = ["sh", "-c", 'ulimit -n 12; exec "$@"', "sh"]
    done = subprocess.run(
        [*few, sys.executable, "-m", "qaic", "serve", str(onnx_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, 70)
    assert done.stderr.startswith("error: this process may open 12 files; the server needs 64")


def test_a_port_that_is_taken(onnx_file):
    with support.serving(onnx_file) as server:
        for option, port in (("--http", server.http_port), ("--grpc", server.grpc_port)):
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "qaic", "serve", str(onnx_file)),
                    *("--grpc" if option == "--http" else "--http", "no", option, str(port)),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 1
            assert str(port) in done.stderr


def test_no_client_controls_models_unless_that_is_asked_for(onnx_file):
    with support.serving(onnx_file) as server:
        status, answer = server.ask("POST", "/v2/repository/models/small/unload")
        assert status == 403
        assert "without model control" in answer["error"]
        assert server.infer(X, "small")[0] == 200


def refusal(capfd, *argv):
    """Return the exit code of a server that cannot start, and the lines for its user."""
    code = console.run(openqaic.tool, ["serve", *map(str, argv)])
    return code, [line for line in capfd.readouterr().err.splitlines() if line.startswith(("error", "hint"))]


def test_options_of_the_compiler_are_those_of_another_command(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session_models.save(tmp_path, session_models.model_of_open_batch(), "open.onnx")
    code, lines = refusal(capfd, "open.onnx")
    assert code == 1
    (command,) = (command for line in lines for command in printed_steps.commands_of(line))
    assert command.startswith("openqaic compile open.onnx -o open --shape=")
    assert console.run(openqaic.tool, shlex.split(command)[1:]) == 0
    with support.serving(tmp_path / "open") as server:
        assert server.ask("GET", "/v2/models/open/ready")[0] == 200


@pytest.mark.parametrize(("protocol", "other"), [("http", "grpc"), ("grpc", "http")])
def test_a_port_in_use_is_an_error_with_a_fix(onnx_file, capfd, protocol, other):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        code, (error, hint) = refusal(capfd, onnx_file, f"--{protocol}", port, f"--{other}", 0)
    assert code == 1
    assert error.count("127.0.0.1") == 1
    assert error.startswith(f"error: 127.0.0.1:{port} cannot be opened: ")
    assert error.endswith(" [serving.port]")
    assert f"--{protocol} 0 " in hint


def test_a_server_without_a_port_is_refused(onnx_file, capfd):
    code, (error, *_) = refusal(capfd, onnx_file, "--http", "no", "--grpc", "no")
    assert code == 2
    assert error.endswith(" [serving.port]")
