"""Messages contain the fix: the similar name, all missing parts, or the expected kind of file."""

import shlex

import pytest
from onnx import helper

import qaic
from qaic.cli.compile import main as compile_tool
from qaic.cli.openqaic import main as openqaic
from qaic.cli.runner import main as runner_tool
from qaic.errors import CompileError, UnknownOptionError
from session_models import affine, model, save


@pytest.fixture
def path(tmp_path):
    return save(tmp_path, affine())


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("fp16", "convert_to_fp16"),
        ("float16", "convert_to_fp16"),
        ("int8", "convert_to_quantize"),
        ("precision", "convert_to_fp16 or convert_to_quantize or mxfp6_matmul"),
        ("dtype", "convert_to_fp16 or convert_to_quantize or mxfp6_matmul"),
        ("batch_size", "batchsize"),
        ("num_cores", "aic_num_cores"),
        ("device", "dev_id"),
        ("providers", "dev_id"),
    ],
)
def test_words_of_other_runtimes_name_the_option(path, key, meant):
    with pytest.raises(UnknownOptionError) as caught:
        qaic.Session(path, **{key: 1})
    assert caught.value.message == f"unknown option {key}; did you mean {meant}?"


def test_all_open_dimensions_are_listed_with_a_line_to_paste(tmp_path):
    shapes = {"x": ["batch", "seq"], "z": ["batch", "2*width"]}
    built = model(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["v"])],
        [(name, "float32", shape) for name, shape in shapes.items()],
        [("y", "float32", shapes["x"]), ("v", "float32", shapes["z"])],
    )
    with pytest.raises(CompileError) as caught:
        qaic.Session(save(tmp_path, built))
    (hint,) = caught.value.hints
    assert hint.endswith("onnx_define_symbol={'batch': 1, 'seq': 128, 'width': 224}")
    assert "-onnx-define-symbol" not in hint
    qaic.compile(tmp_path / "model.onnx", onnx_define_symbol={"batch": 1, "seq": 128, "width": 224})


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_tools_give_flags_to_paste(tmp_path, capsys, dashes):
    shape = ["batch", "long seq"]
    built = model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", "float32", shape)], [("y", "float32", shape)]
    )
    path = save(tmp_path, built)
    start = {"-": [f"-m={path}", f"-aic-binary-dir={tmp_path / 'out'}"], "--": ["compile", str(path)]}[dashes]
    tool = {"-": compile_tool, "--": openqaic}[dashes]
    assert tool(start) == 1
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hint: ")]
    assert "onnx_define_symbol" not in hint
    flags = shlex.split(hint.partition("e.g. ")[2])
    symbols = ["-onnx-define-symbol=batch,1", "-onnx-define-symbol=long seq,128"]
    assert flags == {"-": symbols, "--": ["--shape=x:1x128"]}[dashes]
    assert tool([*start, *flags]) == 0


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("fp16", ["convert-to-fp16"]),
        ("precision", ["convert-to-fp16", "convert-to-quantize", "mxfp6-matmul"]),
        ("dtype", ["convert-to-fp16", "convert-to-quantize", "mxfp6-matmul"]),
        ("batch_size", ["batchsize"]),
        ("batch-size", ["batchsize"]),
        ("num_cores", ["aic-num-cores"]),
    ],
)
def test_tools_name_the_flag_that_a_word_of_other_runtimes_means(path, capsys, word, meant, dashes):
    flag = f"{dashes}{word}"
    if dashes == "-":
        assert compile_tool([f"-m={path}", flag, f"-aic-binary-dir={path.parent / 'out'}"]) == 2
    else:
        with pytest.raises(SystemExit):
            openqaic(["compile", str(path), flag])
    names = " or ".join(f"{dashes}{name}" for name in meant)
    assert f"error: unknown option {flag}; did you mean {names}?" in capsys.readouterr().err


@pytest.mark.parametrize("size", [40, 100, 150])
def test_a_model_that_is_cut_off_is_called_so(path, tmp_path, size):
    cut = tmp_path / "cut.onnx"
    content = path.read_bytes()
    assert len(content) > size
    cut.write_bytes(content[:size])
    with pytest.raises(CompileError, match=r"a whole ONNX model") as caught:
        qaic.Session(cut)
    assert "the file is truncated; copy or download it again" in caught.value.hints[0]


@pytest.mark.parametrize("name", ["modle.onnx", "model.onx", "Model.onnx"])
def test_a_missing_file_names_the_nearest(path, name, capsys):
    for made in (qaic.Session, qaic.compile):
        with pytest.raises(FileNotFoundError, match=r"did you mean .*model\.onnx\?") as caught:
            made(path.with_name(name))
        assert caught.value.filename == str(path.with_name(name))
    assert compile_tool([f"-m={path.with_name(name)}", f"-aic-binary-dir={path.parent / 'out'}"]) == 1
    assert runner_tool(["-t", str(path.with_name(name))]) == 1
    errors = capsys.readouterr().err
    assert errors.count(f"No such file or directory; did you mean {path}?") == 2
    with pytest.raises(FileNotFoundError) as caught:
        qaic.Session(path.with_name("else.bin"))
    assert "did you mean" not in str(caught.value)


def test_a_model_given_to_the_runner_names_the_compiler(path, capsys):
    assert runner_tool(["-t", str(path)]) == 1
    errors = capsys.readouterr().err
    assert f"error: {path} is a model; a compiled container is expected" in errors
    assert f"hint: `qaic-compile -m={path} -aic-binary-dir=qpc` compiles it" in errors


@pytest.mark.virtual_card("the test needs a machine without cards")
def test_no_card_is_called_so(path, monkeypatch, capsys):
    program = qaic.compile(path).path
    monkeypatch.setenv("QAIC_DEVICE", "kmd")
    monkeypatch.delenv("QAIC_KMD_EMULATE", raising=False)
    assert runner_tool(["-t", str(program)]) == 3
    errors = capsys.readouterr().err
    assert "error: no device was found [device.not_found]" in errors
    assert "QS_NODEV" not in errors
    assert "QAIC_KMD=emu emulates a card, and QAIC_DEVICE=cpu runs programs on the host" in errors
