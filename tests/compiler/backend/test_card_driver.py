"""Calls of the vendor's compiler, which a script of the test replaces; the script writes a container."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
from child_process import started
from qaic.cli import compile as compile_tool
from qaic.compiler import card_driver, output_folder
from qaic.compiler.backend import card_process
from qaic.compiler.driver import compile_resolved
from qaic.errors import CompileError, OptionError, QaicError
from qaic.options import resolve
from qpc_support import container, program

HELP = "-m -model -aic-hw -aic-binary-dir -convert-to-fp16 -aic-num-cores -onnx-define-symbol -v -mos"


@pytest.fixture
def model(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "s"], ["s_RetainedState"])],
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "s")],
        [helper.make_tensor_value_info("s_RetainedState", TensorProto.FLOAT, ["batch", 4])],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Write an executable that records its call and then does what the test requests."""

    def make(body="", *, name="qaic-compile", folder="sdk", help_text=HELP, announce=True):
        place = tmp_path / folder / name
        place.parent.mkdir(exist_ok=True)
        result = tmp_path / "result.qpc"
        result.write_bytes(container(program(name="made elsewhere")))
        script = f"""\
            #!{sys.executable}
            import json, os, pathlib, shutil, sys
            argv = sys.argv[1:]
            if argv == ["-h"]:
                print({help_text!r}); sys.exit()
            flags = dict(text.partition("=")[::2] for text in argv)
            with open({str(tmp_path / "calls")!r}, "a") as file:
                file.write(json.dumps(argv) + "\\n")
            out = pathlib.Path(flags.get("-aic-binary-dir", "."))
            def write():
                out.mkdir(); shutil.copy({str(result)!r}, out / "programqpc.bin")
            """
        place.write_text(textwrap.dedent(script) + (textwrap.dedent(body) or "write()\n"))
        place.chmod(0o755)
        if announce:
            monkeypatch.setenv("QAIC_SDK_COMPILER", str(place))
        return place

    return make


@pytest.fixture
def calls(tmp_path):
    def read():
        path = tmp_path / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


def build(model, **options):
    given = {"target": "card", **options}
    return compile_resolved(model, resolve(given, options_path=None, model_is_container=False))


def content(path):
    return qaic.Qpc(path).program_info.name


def test_set_options_are_passed_on_and_ours_are_not(model, fake, calls, tmp_path):
    fake()
    out = tmp_path / "out"
    path = build(
        model,
        output_dir=out,
        aic_num_cores=4,
        convert_to_fp16=True,
        retained_state=False,
        mos=2,
        strict_aic=True,
        clip_fp16_constants=True,
        num_activations=2,
        onnx_define_symbol={"batch": 2, "other": 3},
    )
    assert path == out / "programqpc.bin"
    assert content(path) == "made elsewhere"
    (argv,) = calls()
    work = next(text for text in argv if text.startswith("-aic-binary-dir="))
    assert sorted(set(argv) - {work}) == [
        "-aic-hw",
        "-aic-num-cores=4",
        "-convert-to-fp16",
        f"-m={model}",
        "-mos=2",
        "-onnx-define-symbol=batch,2",
        "-onnx-define-symbol=other,3",
    ]
    assert sorted(os.listdir(out)) == [".openqaic.json", "programqpc.bin"]  # noqa: PTH208


def test_other_results_come_along_and_replace_older_ones(model, fake, tmp_path):
    fake(
        "write(); (out / 'notes.txt').write_text('new'); (out / 'more').mkdir(); (out / 'more' / 'x').touch()"
    )
    out = tmp_path / "out"
    for content in ("old", "new"):
        build(model, output_dir=out)
        (out / "more" / "kept").touch()
        assert (out / "notes.txt").read_text() == "new"
        (out / "notes.txt").write_text(content)
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*")) == [
        *(".openqaic.json", "more", "more/kept", "more/x", "notes.txt", "programqpc.bin")
    ]


@pytest.mark.parametrize("name", ["notes.txt", "more", "more/x", "programqpc.bin"])
def test_what_the_compiler_did_not_write_is_not_replaced(model, fake, tmp_path, name):
    fake(
        "write(); (out / 'notes.txt').write_text('new'); (out / 'more').mkdir(); (out / 'more' / 'x').touch()"
    )
    place = tmp_path / "out" / name
    place.parent.mkdir(parents=True)
    content = container(program(name="mine")) if name == "programqpc.bin" else b"mine"
    place.write_bytes(content)
    with pytest.raises((OptionError, OSError)):
        build(model, output_dir=tmp_path / "out")
    assert place.read_bytes() == content
    assert not any(path.name == "programqpc.bin" and path != place for path in place.parent.iterdir())


def test_without_a_directory_the_cache_keeps_it(model, fake, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    place = fake()
    first = build(model)
    assert content(first) == "made elsewhere"
    assert build(model) == first
    assert len(calls()) == 1
    assert build(model, aic_num_cores=2) != first
    monkeypatch.setenv("QAIC_COMPILER_OPTS_UNSUPPORTED", "-deep 'two words'")
    assert build(model) != first
    assert calls()[-1][-2:] == ["-deep", "two words"]
    monkeypatch.delenv("QAIC_COMPILER_OPTS_UNSUPPORTED")
    # Another version of the compiler writes another container.
    place.write_text(place.read_text() + "\n")
    assert build(model) != first
    assert len(calls()) == 4
    assert not list((tmp_path / "cache").rglob(".card-*"))


def test_models_in_memory(model, fake, tmp_path):
    fake("import onnx; assert onnx.load(flags['-m']).graph.name == 'net'; write()")
    build(onnx.load(model), output_dir=tmp_path / "a")
    build(model.read_bytes(), output_dir=tmp_path / "b")


def test_failures_have_the_words_of_the_compiler(model, fake, tmp_path):
    fake("print('working'); sys.stderr.write('Error: bad node\\nat 7\\n' * 40); sys.exit(3)")
    out = tmp_path / "out"
    with pytest.raises(CompileError) as caught:
        build(model, output_dir=out)
    assert caught.value.code == "compile.card_compiler_failed"
    assert caught.value.context["exit_code"] == 3
    assert str(caught.value).count("Error: bad node\nat 7") == 40
    assert "working" not in str(caught.value)
    assert not out.exists()
    fake("print('said on stdout'); sys.exit(1)")
    with pytest.raises(CompileError, match="said on stdout"):
        build(model)
    fake("os.kill(os.getpid(), 9)")
    with pytest.raises(CompileError, match="signal 9 without a word"):
        build(model)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("out.mkdir()", "no programqpc.bin"),
        ("out.mkdir(); os.mkfifo(out / 'programqpc.bin')", "it is a pipe"),
        ("write(); (out / 'programqpc.bin').write_bytes(b'nothing')", "not a container"),
    ],
)
def test_what_is_no_container_takes_no_place(model, fake, tmp_path, body, found):
    fake(body)
    out = tmp_path / "out"
    out.mkdir()
    output_folder.record(out, ["programqpc.bin"])
    (out / "programqpc.bin").write_bytes(b"older")
    with pytest.raises(CompileError, match=found) as caught:
        build(model, output_dir=out)
    assert caught.value.code == "compile.card_compiler_result"
    assert (out / "programqpc.bin").read_bytes() == b"older"
    assert len(list(out.iterdir())) == 2


def test_what_the_compiler_prints_is_logged_as_it_comes(model, fake, caplog):
    fake("print('one'); print(); sys.stderr.write('two\\n'); os.write(1, b'three \\xff\\n'); write()")
    with caplog.at_level(logging.INFO, "qaic.compiler.card"):
        build(model)
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "qaic.compiler.card"]
    assert ("INFO", "one") in said
    assert ("WARNING", "two") in said
    assert len(said) == 3


def test_options_that_the_help_does_not_list_are_warned_of(model, fake, caplog):
    fake()
    build(model, ols=2, enable_rowwise=True, aic_num_cores=2, verbose=3)
    (text,) = [r.getMessage() for r in caplog.records if "does not list" in r.getMessage()]
    assert text.endswith((": -ols, -enable-rowwise", ": -enable-rowwise, -ols"))
    caplog.clear()
    fake(help_text="")
    build(model, ols=2)
    assert "does not list" not in caplog.text


def test_unknown_options_are_forwarded_when_allowed(model, fake, calls, caplog):
    fake()
    build(model, allow_unknown_options=True, brand_new_switch=True, brand_new_value="7", off=False)
    (argv,) = calls()
    assert {"-brand-new-switch", "-brand-new-value=7"} < set(argv)
    assert "-off" not in argv
    assert "-brand-new-switch" in caplog.text
    with pytest.raises(TypeError):
        build(model, brand_new_switch=True)


def test_options_without_a_flag(model, fake, caplog):
    fake()
    build(model, direct_api=True)
    assert "not passed on: direct_api" in caplog.text
    with pytest.raises(OptionError, match="input_list_file"):
        build(model, calibration_data=[], convert_to_quantize=True)
    archive = model.with_name("samples.npz")
    np.savez(archive, x=np.zeros(4, np.float32))
    with pytest.raises(
        OptionError, match="input_list_file: the vendor's compiler reads samples from raw files"
    ):
        build(model, input_list_file=archive, convert_to_quantize=True)


def test_files_are_passed_on_and_content_becomes_files(model, fake, calls, tmp_path):
    fake(
        """
        import json
        path = flags["-network-specialization-config"]
        (out.parent.parent / "seen.json").write_text(open(path).read())
        write()
        """
    )
    out = tmp_path / "out"
    build(model, output_dir=out, network_specialization_config=[{"batch": 1}, {"batch": 2}])
    assert json.loads((out / "seen.json").read_text()) == {
        "specializations": [
            {"name": "Graph_0", "symbols": {"batch": "1"}},
            {"name": "Graph_1", "symbols": {"batch": "2"}},
        ]
    }
    mine = tmp_path / "mine.json"
    mine.write_text('{"specializations": [{"batch": "4"}]}')
    build(model, output_dir=out, network_specialization_config=mine)
    assert f"-network-specialization-config={mine}" in calls()[-1]


def test_compilers_that_know_only_flat_specializations(model, fake, calls, tmp_path, caplog):
    fake(
        """
        held = json.load(open(flags["-network-specialization-config"]))
        if "symbols" in held["specializations"][0]:
            sys.stderr.write("Error: invalid symbol 'name' in specializations\\n"); sys.exit(1)
        assert held == {"specializations": [{"batch": "1"}, {"batch": "2"}]}, held
        write()
        """
    )
    out = tmp_path / "out"
    entries = [{"name": "A", "symbols": {"batch": 1}}, {"name": "B", "symbols": {"batch": 2}}]
    build(model, output_dir=out, network_specialization_config=entries)
    assert len(calls()) == 2
    assert "does not read names" in caplog.text


def test_state_in_mxint8_is_a_precision_of_tensors(model, fake, caplog):
    fake(
        """
        import yaml
        assert "-mxint8-kv-cache" not in flags
        entries = yaml.safe_load(open(flags["-custom-IO-list-file"]))
        assert entries == [
            {"IOName": "x", "Precision": "float16"},
            {"IOName": "s", "Precision": "mxint8"},
            {"IOName": "s_RetainedState", "Precision": "mxint8"},
        ], entries
        write()
        """
    )
    edges = [{"IOName": "x", "Precision": "float16"}]
    build(model, mxint8_kv_cache=True, retained_state=True, custom_io_list_file=edges)
    assert "not passed on" not in caplog.text


def test_other_content_from_python_becomes_files(model, fake, tmp_path):
    fake(
        """
        import yaml
        assert yaml.safe_load(open(flags["-node-precision-info"])) == {
            "FP16NodeInstanceNames": ["a: b", "on"], "FP32NodeInstanceNames": ["12"]}
        held = json.load(open(flags["-mdp-load-partition-config"]))
        assert held["partitions"][0]["devices"] == [{"deviceId": 0, "numCores": 1}], held
        write()
        """
    )
    nodes = {"FP16NodeInstanceNames": ["a: b", "on"], "FP32NodeInstanceNames": ["12"]}
    partitions = {"partitions": [{"name": "P", "devices": [{"deviceId": 0, "numCores": 1}]}]}
    build(model, node_precision_info_file=nodes, mdp_load_partition_config=partitions)


def test_compilers_that_end_after_a_dump_are_run_again(model, fake, calls, tmp_path):
    fake(
        """
        if "-dump-profile" in flags:
            open(flags["-dump-profile"], "w").write("profile")
        else:
            write()
        """
    )
    profile = tmp_path / "profile.yaml"
    assert content(build(model, dump_profile=profile, output_dir=tmp_path / "out")) == "made elsewhere"
    assert profile.read_text() == "profile"
    assert ["-dump-profile" in " ".join(argv) for argv in calls()] == [True, False]
    # The tool stops after the error, as the vendor's tool does.
    argv = [f"-m={model}", "--target=card", f"-dump-profile={tmp_path / 'second.yaml'}"]
    assert compile_tool.main(argv) == 0
    assert len(calls()) == 3


def test_older_tool_gets_the_flag_not_to_run(model, fake, calls):
    fake(name="qaic-exec")
    build(model)
    assert calls()[0][-1] == "-compile-only"


# --- search for the compiler


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    monkeypatch.delenv("QAIC_SDK_COMPILER", raising=False)
    monkeypatch.setattr(card_driver, "PRODUCT_FOLDER", tmp_path / "opt")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


@pytest.mark.usefixtures("nowhere")
def test_the_order_of_the_places(fake, tmp_path, monkeypatch):
    on_path = fake(folder="path", name="qaic-exec", announce=False)
    assert card_driver.find_compiler() == on_path
    newer = fake(folder="path", announce=False)
    assert card_driver.find_compiler() == newer
    product = fake(folder="opt", announce=False)
    assert card_driver.find_compiler() == product
    named = fake(folder="else", name="compiler-7")
    assert card_driver.find_compiler() == named


@pytest.mark.usefixtures("nowhere")
def test_the_places_are_listed_when_there_is_none(tmp_path, model, capsys):
    with pytest.raises(CompileError) as caught:
        card_driver.find_compiler()
    assert caught.value.code == "compile.card_compiler_missing"
    for place in ("QAIC_SDK_COMPILER", str(tmp_path / "opt"), str(tmp_path / "path")):
        assert place in str(caught.value)
    assert compile_tool.main([f"-m={model}", "--target", "card", f"-aic-binary-dir={tmp_path / 'out'}"]) == 1
    assert "expected the vendor's compiler" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    "start", ["from qaic.cli.entry import qaic_compile", 'exec python -P -m qaic.cli.compile "$@"']
)
def test_our_own_script_is_never_it(tmp_path, start, monkeypatch):
    ours = tmp_path / "path" / "qaic-compile"
    ours.parent.mkdir()
    ours.write_text(f"#!/bin/sh\n{start}\n")
    ours.chmod(0o755)
    with pytest.raises(CompileError, match="no qaic-compile or qaic-exec of the vendor"):
        card_driver.find_compiler()
    monkeypatch.setenv("QAIC_SDK_COMPILER", str(ours))
    with pytest.raises(CompileError, match="a script of openqaic"):
        card_driver.find_compiler()


@pytest.mark.parametrize("kind", ["missing", "folder", "not executable"])
def test_a_wrong_variable_is_not_passed_over(kind, tmp_path, monkeypatch, fake):
    place = tmp_path / "compiler"
    if kind == "folder":
        place.mkdir()
    elif kind == "not executable":
        place.write_text("")
    fake(folder="path", announce=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("QAIC_SDK_COMPILER", str(place))
    with pytest.raises(CompileError, match=f"QAIC_SDK_COMPILER={place}"):
        card_driver.find_compiler()


# --- through Session and the tools


def test_the_tool_shows_the_output_of_the_compiler(model, fake, tmp_path, capsys):
    fake("print('Compiling...'); sys.stderr.write('careful\\n'); write()")
    out = tmp_path / "out"
    argv = [f"-m={model}", "-aic-hw", "-aic-hw-version=ai100", "-target=card", f"-aic-binary-dir={out}"]
    assert compile_tool.main(argv) == 0
    printed = capsys.readouterr()
    assert "compiling for the card, 1 core" in printed.out
    assert "Compiling..." in printed.out.splitlines()
    assert "careful" in printed.err.splitlines()
    # The result of the vendor's compiler can be replaced by another result of it.
    assert compile_tool.main(argv) == 0
    # A program for the CPU does not replace one for a card.
    assert compile_tool.main([f"-m={model}", "-onnx-define-symbol=batch,1", f"-aic-binary-dir={out}"]) == 2


def test_a_session_compiles_and_cannot_load(model, fake, tmp_path, monkeypatch):
    # A virtual card refuses the program before it loads anything.
    monkeypatch.setenv("QAIC_DEVICE", "cpu")
    fake()
    session = qaic.Session(model, target="card", output_dir=tmp_path / "out")
    assert content(tmp_path / "out" / "programqpc.bin") == "made elsewhere"
    with pytest.raises(QaicError, match="card"):
        session.setup()


def test_qaic_compile_returns_the_container(model, fake):
    fake()
    assert qaic.compile(model, target="card").target == "card"


def test_ctrl_c_ends_the_compiler_and_its_children(model, fake, tmp_path):
    """A child of the compiler holds a pipe that the test reads; the end of the pipe shows that no child is
    left.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fake(
        f"""
        import subprocess, signal, threading
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (out.parent / "half-written").touch()
        subprocess.Popen([sys.executable, "-c",
            "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "f = open({str(pipe)!r}, 'w'); f.write('up'); f.flush(); threading.Event().wait(600); "
            "f.write('alive')"])
        threading.Event().wait(600)
        """
    )
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "qaic.cli.compile",
        f"-m={model}",
        "-target=card",
        f"-aic-binary-dir={out}",
    ]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with started(command, text=True, **pipes) as child, pipe.open() as held:
        assert held.read(2) == "up"
        child.send_signal(signal.SIGINT)
        assert child.communicate()[1].endswith("error: interrupted\n")
        assert child.returncode == 130
        # This read blocks until every process that held the pipe has ended.
        assert held.read() == ""
    assert not out.exists()


def test_ctrl_c_while_the_compiler_is_started_ends_it(monkeypatch):
    # Regression: the signal came when the program ran but `Popen` had not returned, and the program kept
    # running.
    children = []
    popen = card_process.subprocess.Popen

    def interrupted(*given, **named):
        children.append(popen(*given, **named))
        os.kill(os.getpid(), signal.SIGINT)
        return children[-1]

    monkeypatch.setattr(card_process.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        card_process.run(["sleep", "600"])
    assert children[0].poll() == -signal.SIGTERM
