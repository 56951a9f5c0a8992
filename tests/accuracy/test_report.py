"""Reports: formats, files, and errors about invalid arguments."""

import json
import re
import shlex
import sys

import numpy as np
import onnx
import pytest
import yaml

import accuracy_models as models
import qaic
import session_models
from qaic import accuracy
from qaic.accuracy import comparison
from qaic.cli import console, openqaic
from qaic.errors import InputError, OptionError, StateError


@pytest.fixture(scope="module")
def report():
    model, samples, _ = models.overflowing((1,))
    return accuracy.compare(model, to="fp16,mxfp6", samples=samples)


def test_every_result_is_compared_or_counted_with_a_reason():
    """A shape is an integer, and the result of the convolution rounds together with that of Relu."""
    model = session_models.model(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            onnx.helper.make_node("Relu", ["c"], ["r"], name="relu"),
            onnx.helper.make_node("Shape", ["r"], ["s"]),
            onnx.helper.make_node("Neg", ["r"], ["y"]),
        ],
        [("x", "float32", [1, 3, 4, 4])],
        [("y", "float32", [1, 2, 4, 4]), ("s", "int64", [4])],
        {"w": np.ones((2, 3, 1, 1), np.float32)},
    )
    (found,) = accuracy.compare(model, to="int8", samples="random").precisions
    assert "int8: 2 of 4 results of nodes compared (1 in float32, 1 in int8), " in [*found.sentences()][-1]
    assert any("first offender for random inputs is Relu r" in line for line in found.sentences())
    assert [*found.sentences()][-1].endswith(
        "; not compared: 1 inside fused operations, 1 constants or results of other types."
    )
    assert found.own_names == ["conv + relu", None]


def test_rows_are_in_the_order_of_the_graph(report):
    rows = report["fp16"].nodes
    assert rows["name"].tolist()[:6] == ["wide0", "square0", "sum0", "mean0", "deviation0", "y0"]
    assert set(report.nodes["to"]) == {"fp16", "mxfp6"}
    with pytest.raises(KeyError):
        report["int4"]


def test_text(report):
    text = str(report)
    assert "fp16: output y3 is wrong" in text
    assert "first offender is Mul square1: overflow" in text
    assert re.search(r"square1 +overflow +Mul +float16 .*not finite", text)
    assert "-999" not in text
    assert repr(report) == "<AccuracyReport model: fp16 wrong, mxfp6 equal>"


def test_json(report, tmp_path):
    content = json.loads(report.write_json(tmp_path / "accuracy.json").read_text())
    found = {item["to"]: item for item in content["precisions"]}
    assert found["fp16"]["first_offender"]["name"] == "square1"
    row = next(row for row in found["fp16"]["nodes"] if row["name"] == "square1")
    assert row["own_sqnr_db"] == "-inf"
    assert row["reason"] == "overflow"
    assert found["fp16"]["outputs"][0]["name"] == "y3"


def test_page(report, tmp_path):
    page = report.page(tmp_path / "page.html").read_text()
    assert page.index("first offender is Mul square1") < page.index("<svg") < page.index('data-table="nodes"')
    engine = qaic._core.engine_info()[1]
    assert (
        f"float32 compared with fp16, mxfp6 \u00b7 openqaic {qaic.__version__} \u00b7 onnxruntime {engine}"
        in page
    )
    assert "http://" not in page.replace("http://www.w3.org", "")
    # Two curves, and the values of the ten nodes with the largest loss; MXFP6 rounds nothing in this model.
    assert page.count("<svg") == 2 + 10
    assert "<section" in report._repr_html_() or "verdict" in report._repr_html_()
    with pytest.raises(InputError, match=r"ends in \.html"):
        report.page(tmp_path / "page.png")


def test_overlay(report, tmp_path):
    content = json.loads(report.write_overlay(tmp_path / "overlay.json").read_text())
    assert content.keys() == {"results", "thresholds"}
    assert all(value.keys() == {"value"} for value in content["results"].values())
    limits = [item["value"] for item in content["thresholds"]]
    assert limits == sorted(limits)
    assert max(value["value"] for value in content["results"].values()) <= limits[-1]
    assert {"square1", "y3"} <= content["results"].keys() <= set(report["fp16"].nodes["name"])
    results = content["results"]
    assert results["square1"]["value"] == 0
    assert 40 < results["square0"]["value"] <= 80


def test_pandas(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(StateError, match="pip install pandas"):
        report.to_pandas()


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("fp61", r"did you mean fp16\?"),
        ((), "expected names of precisions"),
        (3, "found 3"),
        ("int4", "'int4'"),
    ],
)
def test_wrong_precisions(to, message):
    model, samples, _ = models.overflowing(())
    with pytest.raises(OptionError, match=message):
        accuracy.compare(model, to=to, samples=samples)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "found no samples"),
        ({"x": 1}, "found type dict"),
        ([3], "found type int as sample 1"),
        ([{"z": np.zeros((4, 16), np.float32)}], "unknown input 'z'"),
        ([{"x": np.zeros((4, 17), np.float32)}], r"shape \[4, 17\]"),
        ("nowhere.npz", "which does not exist"),
    ],
)
def test_wrong_samples(samples, message):
    model, _, _ = models.overflowing(())
    with pytest.raises(OptionError, match=message):
        accuracy.compare(model, to="fp16", samples=samples)


def test_forms_of_samples(tmp_path):
    model, samples, _ = models.overflowing((1,))
    expected = accuracy.compare(model, to="fp16", samples=iter(samples))["fp16"]
    stacked = tmp_path / "samples.npz"
    np.savez(stacked, x=np.stack([sample["x"] for sample in samples]))
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = []
    for at, sample in enumerate(samples):
        np.savez(folder / f"{at}.npz", **sample)
        sample["x"].tofile(tmp_path / f"{at}.raw")
        lines.append(str(tmp_path / f"{at}.raw"))
    (tmp_path / "list.txt").write_text("\n".join(lines))
    for given in (stacked, folder, tmp_path / "list.txt"):
        found = accuracy.compare(model, to="fp16", samples=given)["fp16"]
        assert found.samples == len(samples)
        assert found.outputs == expected.outputs
    assert accuracy.compare(model, to="fp16", samples=samples[:1])["fp16"].samples == 1
    # All precisions read the same samples, which also calibrate integers.
    integers = accuracy.compare(model, to="int8", samples=samples)["int8"]
    for given in (stacked, folder):
        assert accuracy.compare(model, to="int8", samples=given)["int8"].outputs == integers.outputs
    assert accuracy.compare(model, to="int8", samples="random")["int8"].samples == 8


def test_options_of_integers_are_meant_for_integers(caplog):
    """Without integers among the precisions, a warning reports that options for integers have no effect."""
    model, samples = models.convolutional()
    fine = {"enable_channelwise": True, "quantization_calibration": "MSE", "calibration_data": samples}
    report = accuracy.compare(model, to="fp16,int8,mxfp6+fp16", samples=samples, **fine)
    assert not [
        record for record in caplog.records if "no effect" in record.message or "observed" in record.message
    ]
    alone = accuracy.compare(model, to="int8", samples=samples, **fine)
    assert report["int8"].nodes["own_sqnr_db"].tolist() == alone.nodes["own_sqnr_db"].tolist()
    accuracy.compare(model, to="fp16", samples=samples, **fine)
    assert "have no effect without convert_to_quantize" in caplog.text


def test_options_that_change_the_border(tmp_path):
    model, samples, _ = models.overflowing(())
    entry = [{"IOName": "x", "Precision": "float16"}]
    with pytest.raises(OptionError, match="custom_io_list_file: accuracy compares"):
        accuracy.compare(model, to="fp16", samples=samples, custom_io_list_file=entry)


@pytest.fixture
def files(tmp_path):
    model, samples, _ = models.overflowing((1,))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    np.savez(tmp_path / "samples.npz", x=np.stack([sample["x"] for sample in samples]))
    return tmp_path


def run(files, *more):
    argv = [
        "accuracy",
        str(files / "model.onnx"),
        "--to",
        "fp16",
        "--samples",
        str(files / "samples.npz"),
        *more,
    ]
    return console.run(openqaic.tool, argv)


def test_command(files, capsys):
    page, data = files / "page.html", files / "accuracy.json"
    assert run(files, "-o", str(page), "--json", str(data), "--overlay", str(files / "overlay.json")) == 0
    shown = capsys.readouterr()
    assert "Mul square1: overflow" in shown.out
    assert str(page) in shown.err
    assert json.loads(data.read_text())["model"] == "model.onnx"


FIND = "accuracy --to fp16 --samples samples.npz --target sqnr>=40 --find lists.yaml"
FIND_ONE = FIND.replace("lists", "lists-fp16")
IN_FLOAT32 = ["--keep-original-precision-for-nodes", "Mul,ReduceSum,Sqrt"]


@pytest.mark.parametrize(
    ("to", "options", "steps"),
    [
        ("fp16", [], [f"next: {FIND}"]),
        ("mxfp6", [], ["next: bench --mxfp6-matmul"]),
        (
            "fp16,mxfp6",
            ["-o", "page.html"],
            [
                f"next, for fp16: {FIND_ONE}",
                "next, for mxfp6: bench --mxfp6-matmul",
            ],
        ),
        ("fp16", IN_FLOAT32, [f"next: bench --convert-to-fp16 {'='.join(IN_FLOAT32)}"]),
        # The samples of the comparison calibrate the program.
        (
            "int16",
            IN_FLOAT32,
            [
                f"next: bench {'='.join(IN_FLOAT32)} --quantization-precision=Int16 --convert-to-quantize "
                "--input-list-file=samples.npz"
            ],
        ),
        # Options for integers apply only to integers.
        (
            "fp16,int8",
            ["--quantization-calibration", "MSE"],
            [
                f"next, for fp16: {FIND_ONE}",
                "next, for int8: accuracy --quantization-calibration=MSE --to int8 --samples samples.npz "
                "--target sqnr>=40 --find lists-int8.yaml",
            ],
        ),
        ("fp16", ["--json", "-"], []),
    ],
)
def test_the_next_step_fits_the_outcome(files, capsys, monkeypatch, to, options, steps):
    """A good precision leads to its speed, another one to a fix, with the options of the user."""
    monkeypatch.chdir(files)
    arguments = ["accuracy", "model.onnx", "--to", to, "--samples", "samples.npz", *options]
    assert console.run(openqaic.tool, arguments) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next")]
    assert [" ".join(shlex.split(line)) for line in found] == [
        step.replace(": accuracy", ": openqaic accuracy model.onnx").replace(
            ": bench", ": openqaic bench model.onnx"
        )
        for step in steps
    ]


def test_the_next_step_reads_no_samples_again(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    read = []
    (files / "folder").mkdir()
    (files / "samples.npz").rename(files / "folder" / "samples.npz")
    archived = comparison._archived
    monkeypatch.setattr(comparison, "_archived", lambda *of: read.append(of) or archived(*of))
    # No option names the files of a folder.
    arguments = ["accuracy", "model.onnx", "--to", "int16", "--samples", "folder", *IN_FLOAT32]
    assert console.run(openqaic.tool, arguments) == 0
    assert "next: openqaic accuracy model.onnx" in capsys.readouterr().out
    assert len(read) == 1


def test_command_searches(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("QAIC_CACHE_DIR", str(files / "cache"))
    target = files / "precision.yaml"
    assert run(files, "--target", "sqnr>=40", "--find", str(target)) == 0
    shown = capsys.readouterr().out
    assert "4 of 24 operations stay in float32" in shown
    assert "square1" in target.read_text()
    step = shown.splitlines()[-1].removeprefix("next: ")
    assert console.run(openqaic.tool, shlex.split(step)[1:]) == 0
    assert qaic.Qpc(next((files / "cache").rglob("programqpc.bin"))).options["convert_to_fp16"] is True


def test_a_search_in_integers_prints_the_command_that_compiles_with_its_samples(files, capsys, monkeypatch):
    """Regression: samples in an .npz file had only a call in Python."""
    monkeypatch.chdir(files)
    words = ["--to", "int8", "--samples", "samples.npz", "--target", "sqnr>=30", "--find", "lists.yaml"]
    assert console.run(openqaic.tool, ["accuracy", "model.onnx", *words, *IN_FLOAT32]) == 0
    step = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ")
    assert "--input-list-file=samples.npz" in step
    assert console.run(openqaic.tool, shlex.split(step)[1:]) == 0
    assert qaic.Qpc(files / "program").options["convert_to_quantize"] is True


def test_command_takes_compile_options_as_other_commands_do(files, capsys):
    """Nodes that overflow do not overflow in float32, which a file or an option for their kind selects."""
    lists = files / "lists.yaml"
    lists.write_text("FP32NodeInstanceNames: [square1, sum1, mean1, deviation1]\n")
    settings = files / "options.yaml"
    settings.write_text(f"node_precision_info_file: {lists}\n")
    for options, is_good in (
        ([], False),
        ([f"--node-precision-info={lists}"], True),
        ([f"-node-precision-info={lists}"], True),
        (["--options-path", str(settings)], True),
        (["--keep-original-precision-for-nodes", "Mul,ReduceSum,Sqrt"], True),
    ):
        assert run(files, *options) == 0
        assert ("output y3 is good" in capsys.readouterr().out) is is_good
    assert run(files, "--onnx-define-symbol", "batch,2", "--onnx-define-symbol=length,3", "-v") == 0


def test_a_search_keeps_the_lists_it_was_given(files):
    target = files / "precision.yaml"
    lists = {"FP32NodeInstanceNames": ["square1", "normal0"], "FP16NodeInstanceNames": ["mean0"]}
    (files / "lists.yaml").write_text(yaml.safe_dump(lists))
    assert (
        run(
            files,
            "--target",
            "sqnr>=40",
            "--find",
            str(target),
            f"--node-precision-info={files / 'lists.yaml'}",
        )
        == 0
    )
    found = yaml.safe_load(target.read_text())
    assert {"square1", "normal0", "mean1"} <= set(found["FP32NodeInstanceNames"])
    assert found["FP16NodeInstanceNames"] == ["mean0"]


def test_command_with_wrong_arguments(files, capsys):
    assert run(files, "--find", "x.yaml") == console.USAGE
    assert run(files, "--aic-num-cores", "many") == console.USAGE
    for wrong in (["--aic-num-cores"], ["--no-such-option=1"], ["--tokens", "0"]):
        with pytest.raises(SystemExit, match=str(console.USAGE)):
            run(files, *wrong)
    assert not (files / "x.yaml").exists()


def test_a_compilation_that_must_overflow_names_the_command(tmp_path):
    model, samples, _ = models.overflowing((1,))
    profile = tmp_path / "profile.yaml"
    qaic.compile(model, dump_profile=profile, calibration_data=samples)
    found = qaic.compile(
        model, load_profile=profile, convert_to_fp16=True, execute_nodes_in_fp16=["Mul", "ReduceSum"]
    ).diagnostics
    (warning,) = [item for item in found if item.code == "float16.calibrated_overflow"]
    assert set(warning.nodes) == {"square1", "sum1", "mean1"}
    assert "openqaic accuracy" in warning.message
    large = np.array(1e6, np.float32)
    model = models.model_of([models.node("Add", "x c", "y")], {"x": [1, 4]}, {"y": [1, 4]}, {"c": large})
    found = qaic.compile(model, convert_to_fp16=True, clip_fp16_constants=False).diagnostics
    assert [("openqaic accuracy" in item.message, item.nodes) for item in found] == [(True, ("c",))]


@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
def test_a_head_of_one_node_whose_scores_vanish_is_wrong(op_type):
    rng = np.random.default_rng(3)
    # Scores are computed from inputs that are too small for the scale of all inputs.
    weight = rng.standard_normal((7, 16)).astype(np.float32)
    weight[:4] *= 50
    weight[:4, 8:] = weight[4:, :8] = 0
    shape, attributes = [1, 16], {}
    if op_type == "Conv":
        shape, weight = [1, 16, 2, 2], weight[..., None, None]
    elif op_type == "Gemm":
        attributes = {"transB": 1}
    else:
        weight = weight.T
    model = models.model_of(
        [models.node(op_type, "x w", "y", **attributes)],
        {"x": shape},
        {"y": [1, 7, *shape[2:]]},
        {"w": weight},
    )
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(6)]
    for sample in samples:
        sample["x"][:, 8:] *= 1e-3
    report = accuracy.compare(model, to="int8", samples=samples, enable_channelwise=True)["int8"]
    (output,) = report.outputs
    assert output.sqnr_db > 35
    assert output.worst_channel.is_dead
    assert (output.worst_channel.axis, output.worst_channel.index >= 4) == (1, True)
    assert "output y is wrong" in " ".join(report.sentences())


def test_a_search_that_keeps_everything_does_not_propose_the_precision(files, capsys, monkeypatch):
    """Regression: the next command quantized a model of which no node was left to quantize."""
    monkeypatch.chdir(files)
    constants = {"w": np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)}
    nodes = [models.node("MatMul", "x w", "product"), models.node("Tanh", "product", "y")]
    small = models.model_of(nodes, {"x": [4, 16]}, {"y": [4, 16]}, constants)
    (files / "model.onnx").write_bytes(small.SerializeToString())
    search = ["--samples", "samples.npz", "--find", "lists.yaml", "--aic-num-cores", "2"]
    for to, target, expected in (
        ("int8", "sqnr>=100", "accuracy model.onnx --aic-num-cores=2 --to fp16 --samples samples.npz"),
        ("fp16", "sqnr>=120", "bench model.onnx --aic-num-cores=2"),
    ):
        words = ["accuracy", "model.onnx", "--to", to, "--target", target, *search, "--json", "plan.json"]
        assert console.run(openqaic.tool, words) == 0
        shown = capsys.readouterr()
        plan = json.loads((files / "plan.json").read_text())
        assert plan["operations"] == plan["of"]
        assert f"no operation is left in {to}" in shown.out
        assert shown.out.splitlines()[-1].startswith(f"next: openqaic {expected}")
        assert "quantize" not in shown.out


def test_results_come_before_the_next_step(files, monkeypatch):
    """Regression: a search printed the next command before the file that the command reads."""
    printed = []
    monkeypatch.setattr(console, "print_text", lambda text, **_: printed.append(text))
    target = files / "lists.yaml"
    assert run(files, "--target", "sqnr>=40", "--find", str(target), "--json", str(files / "plan.json")) == 0
    kinds = [line.split()[0] for line in printed]
    assert kinds.index("wrote") < [line.startswith(("next:", "to use it")) for line in printed].index(True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "page.html"], "-o and --find exclude each other"),
        (["--overlay", "overlay.json"], "--overlay and --find exclude each other"),
        (["--against", "outputs"], "--against and --find exclude each other"),
    ],
)
def test_a_search_refuses_options_of_a_comparison(files, capsys, monkeypatch, options, message):
    """Regression: the files were not written, without a message."""
    monkeypatch.chdir(files)
    assert run(files, "--target", "sqnr>=40", "--find", "lists.yaml", *options) == console.USAGE
    assert message in capsys.readouterr().err
    assert not (files / "lists.yaml").exists()


def test_a_comparison_refuses_options_of_a_search(files, capsys):
    assert run(files, "--keep", "fp32") == console.USAGE
    assert "--keep needs --find" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["fp16", "int8"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", None),
        ("nowhere", None),
        ("list.txt", "missing.raw"),
        ("list.txt", "x.npy"),
        ("list.txt", "a,,b"),
        ("list.txt", ""),
        ("list.txt", "y:=x.npy"),
        ("array.npz", None),
    ],
)
def test_errors_about_samples_name_the_option_that_was_given(files, capsys, monkeypatch, to, name, content):
    """Regression: errors named --input-list-file, and the types of Python."""
    monkeypatch.chdir(files)
    np.save("x.npy", np.zeros((3, 3), np.float32))
    (files / "array.npz").write_bytes((files / "x.npy").read_bytes())
    if content is not None:
        (files / name).write_text(content)
    words = ["accuracy", "model.onnx", "--to", to, "--samples", name]
    assert console.run(openqaic.tool, words) == console.USAGE
    message = capsys.readouterr().err
    assert message.startswith("error: --samples")
    for term in ("input-list", "input_list", "iterable", "dictionar", "protocol", "samples:="):
        assert term not in message
    # The list that calibrates keeps the name of its option.
    (files / "calibration.txt").write_text("missing.raw")
    words = [*words[:-1], "random", "--input-list-file", "calibration.txt"]
    assert console.run(openqaic.tool, words) == (console.USAGE if to == "int8" else 0)
    assert ("error: --input-list-file" in capsys.readouterr().err) is (to == "int8")
