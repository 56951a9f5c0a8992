"""``qaic.check`` and ``openqaic check``: sections, JSON, pages, and refusals."""

import html
import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import decoder_model
import qaic
import session_models
from guide_blocks import python_of
from qaic.cli.openqaic import main
from qaic.compiler.reports.perf_metrics import WeightCounts
from qaic.errors import InputError, OptionConflictError, OptionError
from qaic.forecast.calibration import read
from qaic.forecast.configurations import Fixed
from qaic.forecast.memory import memory_of
from qaic.forecast.speed import CARDS, Card
from qaic.options.argv import read_argv, with_flags

HEADER = "cores,instances,batch,set_size,inferences_per_s,latency_ms\n"


def model_of(*nodes, largest=1.0, dims=("n", 64)):
    weight = np.full((64, 64), 0.01, np.float32)
    weight[0, 0] = largest
    return session_models.model(
        list(nodes) or [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        [("x", TensorProto.FLOAT, dims)],
        [("y", TensorProto.FLOAT, (dims[0], 64))],
        {"w": weight},
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    path.write_bytes(model_of(dims=(1, 64)).SerializeToString())
    return path


@pytest.fixture
def runs(tmp_path):
    def write(text):
        path = tmp_path / "runs.csv"
        path.write_text(text)
        return path

    return write


def test_every_section_has_a_verdict_sentences_and_a_line(model):
    found = qaic.check(model).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["compiles"], found["precision"], found["card"], found["cards"]) == (
        True,
        "fp16",
        "standard",
        1,
    )
    found = found["sections"]
    for name in ("operators", "memory", "precision", "speed", "help"):
        assert found[name]["verdict"] in {"yes", "no", "perhaps", "forecast", "unknown"}
        assert found[name]["sentences"]
        assert all(
            shlex.split(line)[0] in {"openqaic", "qaic-runner"} for line in found[name]["next"].values()
        )
    for objective in ("throughput", "latency", "balanced"):
        for row in found["speed"][objective]:
            assert row["samples_per_s_90"][0] < row["samples_per_s"] < row["samples_per_s_90"][1]
            assert row["latency_s_90"][0] < row["latency_s"] < row["latency_s_90"][1]
            assert row["cores"] * row["instances"] <= 14


def test_texts_name_types_and_lines_name_precisions(model):
    sections = {section.report.name: str(section.report) for section in qaic.check(model).sections}
    assert "weights in float16" in sections["memory"]
    assert "--to fp16" in sections["precision"]


@pytest.mark.parametrize(
    "fixed",
    [
        {},
        {"set_size": 2},
        {"num_activations": 3},
        {"aic_num_cores": 2, "num_activations": 7, "batchsize": 4},
        {"aic_num_cores": 1, "num_activations": 1, "batchsize": 1, "set_size": 1},
    ],
)
def test_the_lines_of_a_configuration_contain_all_of_it(model, fixed):
    """Regression: no line contained the instances and the set size, and equal lines had three purposes."""
    speed = qaic.check(model, **fixed).to_json()["sections"]["speed"]
    expected = {
        tuple(speed[objective][0][name] for name in ("cores", "batch", "instances", "set_size"))
        for objective in ("throughput", "latency", "balanced")
    }
    found = {}
    for purpose, line in speed["next"].items():
        words = shlex.split(line)
        goal = purpose.partition("for ")[2]
        if words[0] == "qaic-runner":
            folder, instances, set_size = words[2::2]
            assert (folder, goal) in {key[:2] for key in found}
            cores, batch = found.pop((folder, goal))
            found[folder, goal] = (cores, batch, int(instances), int(set_size))
        else:
            given = {option.name: option.value for option in read_argv([w for w in words if "=" in w])}
            found[words[4], goal] = (int(given["aic_num_cores"]), int(given.get("batchsize", 1)))
    assert sorted(found.values()) == sorted(expected)


@pytest.mark.parametrize("changed", ["batchsize", "set_size"])
def test_a_suggested_setting_is_checked_with_the_others(model, changed):
    """Regression: the line for a larger set size was a compilation without a set size."""
    fixed = {"aic_num_cores": 2, "num_activations": 7, "batchsize": 1, "set_size": 1}
    changes = qaic.check(model, **fixed).to_json()["sections"]["help"]["changes"]
    flags = {"aic_num_cores": "--aic-num-cores=2", "num_activations": "-a 7", "batchsize": "--batchsize=1"}
    flags |= {"set_size": "-S 1"}
    title = {"batchsize": "a larger batch", "set_size": "a larger set size"}[changed]
    (change,) = [one for one in changes if one["change"].startswith(title)]
    number = change["change"].partition("(")[2].rstrip(")")
    flags[changed] = flags[changed].replace("1", number)
    for flag in flags.values():
        assert f" {flag}" in change["line"]


def test_lines_run_as_they_are_printed(model, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    found = qaic.check(model).to_json()["sections"]
    for line in (found["speed"]["throughput"][0]["compile"], found["operators"]["next"][""]):
        assert main(shlex.split(line)[1:]) == 0
    assert main(["check", str(model), "--json"]) == 0
    capfd.readouterr()


@pytest.mark.parametrize("sizes", [{"onnx_define_symbol": {"n": 1}}, {"model_inputs": "x:1x64"}])
def test_a_line_with_a_batch_gives_its_symbol_no_other_size(tmp_path, capfd, sizes):
    path = tmp_path / "open.onnx"
    path.write_bytes(model_of(dims=("n", 64)).SerializeToString())
    found = qaic.check(path, **sizes).to_json()["sections"]
    lines = {
        line
        for name in ("throughput", "latency")
        for line in (row["compile"] for row in found["speed"][name])
    }
    assert any("--batchsize" in line or ":16x64" in line for line in lines)
    for line in lines:
        assert main(shlex.split(line.replace("-o program", f"-o {tmp_path / 'program'}"))[1:]) == 0
    capfd.readouterr()


def test_int8_is_not_advised_where_it_is_used(model):
    for options in ({"precision": "int8"}, {"precision": "int8", "convert_to_fp16": True}):
        lines = qaic.check(model, **options).to_json()["sections"]["help"]["next"]
        assert not any("int8 (" in what for what in lines)


def test_open_sizes_are_not_called_refused_operators(tmp_path):
    path = tmp_path / "open.onnx"
    path.write_bytes(model_of(dims=("n", 64)).SerializeToString())
    section = qaic.check(path).to_json()["sections"]["operators"]
    assert section["verdict"] == "unknown"
    assert "examples" in section["sentences"][-1]


def test_the_example_of_the_guide_forecasts_one_configuration(model, monkeypatch):
    (block,) = python_of("docs/guide/check.md")
    monkeypatch.chdir(model.parent)
    names = {}
    exec(block, names)
    assert names["low"] < names["samples_per_s"] < names["high"]


def test_weights_beyond_float16_are_named():
    found = qaic.check(model_of(largest=1e6, dims=(1, 64))).to_json()["sections"]
    assert found["precision"]["verdict"] == "perhaps"
    assert "'w'" in found["precision"]["findings"][0]


def test_samples_judge_the_precision(model):
    found = qaic.check(model, samples=[{"x": np.ones((1, 64), np.float32)}]).to_json()["sections"]
    assert found["precision"]["measured"] is True
    assert found["precision"]["verdict"] in {"yes", "perhaps", "no"}


def test_options_add_to_the_precision(model):
    assert qaic.check(model, mxfp6_matmul=True).checked.precision == "fp16+mxfp6"
    assert qaic.check(model, precision="fp32").checked.precision == "fp32"


def test_a_model_that_does_not_compile_is_answered_with_the_reason(tmp_path, capfd):
    path = tmp_path / "open.onnx"
    path.write_bytes(model_of().SerializeToString())
    report = qaic.check(path)
    assert not report.compiles
    with pytest.raises(type(report.failure)):
        report.forecast(1, 1, 1, 1)
    assert main(["check", str(path)]) == 1
    shown = capfd.readouterr()
    assert "does not compile" in shown.out
    assert "Traceback" not in shown.out + shown.err
    # The line that fixes the open dimension runs as printed.
    (line,) = (line for line in shown.out.splitlines() if line.startswith("next: "))
    assert main(shlex.split(line)[2:]) == 0


def test_operators_that_no_card_takes_are_listed():
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")
    found = qaic.check(model_of(node, dims=(1, 64))).to_json()["sections"]["operators"]
    assert found["verdict"] == "perhaps"
    assert list(found["unlikely"].values()) == [["noise"]]


def test_a_large_model_needs_more_devices(model):
    report = qaic.check(model, precision="mxfp6+fp16", card="ultra", cards=2)
    memory = report.to_json()["sections"]["memory"]
    assert memory["devices"] == 1
    assert memory["needed_bytes"] == sum(
        memory[name]
        for name in ("weight_bytes", "state_bytes", "activation_bytes", "transfer_bytes", "added_bytes")
    )


def test_a_decoder_has_caches_and_a_forecast_for_prefill_and_decode():
    sizes = decoder_model.Sizes(layers=1, context=128)
    report = qaic.check(
        decoder_model.decoder(sizes),
        network_specialization_config=decoder_model.specializations(context=128),
        retained_state=True,
    )
    found = report.to_json()["sections"]
    assert found["memory"]["state_bytes"] > 0
    assert found["memory"]["longest_context"] > 128
    prefill, decode = found["speed"]["sets"]
    assert prefill["tokens"] > decode["tokens"] == 1
    assert prefill["latency_s"] >= decode["latency_s"]
    assert any("state" in reason for reason in found["speed"]["reasons"])
    assert "throughput" not in found["speed"]
    assert re.search(r"\de[+-]\d", str(report)) is None, "rates have digits for a reader"
    assert re.search(r"openqaic accuracy .* --samples FILE --tokens \d+ ", str(report))


def test_a_model_larger_than_a_device_is_split(model):
    analysis = qaic.check(model).checked.analysis
    assert analysis is not None
    tiny = Card("tiny", 1, 14, 300 << 20, 110)
    many = replace(analysis, weights=WeightCounts(500 << 20, Counter(float32=2000 << 20)))
    found = memory_of(many, "fp16", tiny, 4)
    assert found.weight_bytes == 1000 << 20
    assert found.devices is not None
    assert found.devices > 4
    assert found.largest_batch == 0
    assert memory_of(many, "fp16", replace(tiny, memory_bytes=2 << 30), 4).devices == 1


def test_options_fix_a_part_of_the_configuration(model):
    found = qaic.check(model, aic_num_cores=2, num_activations=3, batchsize=8, set_size=2).to_json()[
        "sections"
    ]
    rows = [row for name in ("throughput", "latency", "balanced") for row in found["speed"][name]]
    assert {(row["cores"], row["instances"], row["batch"], row["set_size"]) for row in rows} == {(2, 3, 8, 2)}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"precision": "fp8"}, OptionError),
        ({"precision": "fp16,int8"}, OptionError),
        ({"card": "mini"}, OptionError),
        ({"cards": 0}, OptionError),
        ({"cards": True}, OptionError),
        ({"aic_num_cores": 15}, OptionConflictError),
        ({"aic_num_cores": 7, "num_activations": 3}, OptionConflictError),
        ({"no_such_option": 1}, OptionError),
    ],
)
def test_options_that_are_wrong_or_exclude_each_other_are_refused(model, options, error):
    with pytest.raises(error):
        qaic.check(model, **options)


def test_each_step_outside_of_the_measured_rows_is_named(model):
    near, far = (
        qaic.check(model, precision=name, card=card).to_json()["sections"]["speed"]["reasons"]
        for name, card in (("fp16", "standard"), ("mxfp6+fp16", "ultra"))
    )
    assert any("precision is fp16+mxfp6" in reason for reason in far)
    assert any("card is ultra" in reason for reason in far)
    assert not any("precision is" in reason or "card is" in reason for reason in near)
    # The model is much smaller than all measured models. Large numbers have commas, not a power of ten.
    assert any(
        re.fullmatch(r"weights: [\d,]+, measured models have \d[\d,]+,\d{3} to \d[\d,]+", one) for one in near
    )


def test_measured_runs_move_the_forecast_and_narrow_it(model, runs):
    before = qaic.check(model).forecast(2, 7, 8, 2)
    value, delay = before.samples_per_s[1] * 2, before.latency_s[1] / 2
    path = runs(HEADER + f"2,7,8,2,{value},{delay * 1e3}\n" * 3)
    after = qaic.check(model, measured=path).forecast(2, 7, 8, 2)
    assert before.samples_per_s[1] < after.samples_per_s[1] < value
    assert delay < after.latency_s[1] < before.latency_s[1]
    assert after.latency_s[2] / after.latency_s[1] < before.latency_s[2] / before.latency_s[1]


def text_of(page):
    """Return the text of a page between its heads and its foot."""
    shown = page.read_text()
    return html.unescape(re.sub("<[^>]*>", "", shown[shown.index("<main") : shown.index("</main>")]))


def test_a_page_shows_flags_and_commands_as_the_terminal_does(tmp_path, capfd):
    """Regression: a finding about weights had a keyword, and its command was in backquotes."""
    path, page = tmp_path / "model.onnx", tmp_path / "check.html"
    path.write_bytes(model_of(largest=1e6, dims=(1, 64)).SerializeToString())
    assert main(["check", str(path), "-o", str(page)]) == 0
    text = text_of(page)
    assert "--clip-fp16-constants=false makes them infinite; openqaic accuracy MODEL --to fp16 shows" in text
    assert "`" not in text
    assert with_flags(text, "--") == text
    assert "--clip-fp16-constants=false makes them infinite" in " ".join(capfd.readouterr().out.split())


def test_a_page_is_written_and_needs_no_network(model, tmp_path, capfd):
    page = tmp_path / "check.html"
    assert main(["check", str(model), "-o", str(page)]) == 0
    text = page.read_text()
    assert all(f'id="{name}"' in text for name in ("operators", "memory", "precision", "speed", "help"))
    assert "cards: 1 x standard" in text
    assert all(
        f"{title}: " in text for title in ("Operators supported", "Memory sufficient", "Precision sufficient")
    )
    assert "http://" not in text
    # A page names options in the form of the tool, and in the form of Python.
    assert "needs samples of real data (--samples)." in text_of(page)
    assert "needs samples of real data (samples)." in text_of(qaic.check(model).page(page))
    assert main(["check", str(model), "-o", str(tmp_path / "check.txt")]) == 2
    assert main(["check", str(model), "-o", str(model)]) == 2
    capfd.readouterr()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty file"),
        ("a,b\n1,2\n", "cores"),
        (
            HEADER.replace("latency_ms", "latency_us").replace("inferences_per_s", "x") + "1,1,1,1,1,1\n",
            "latency_us",
        ),
        (HEADER.replace("latency_ms", "latency_us") + "1,1,1,1,1,1\n", "latency_us"),
        (HEADER, "no rows"),
        (HEADER + "1,1,1,1,fast,1\n", "line 2"),
        (HEADER + "1,1,1,1,nan,1\n", "line 2"),
        (HEADER + "0,1,1,1,1,1\n", "cores"),
        (HEADER + "2,9,8,2,2410,46.8\n", "line 2, cores x instances: found 2 x 9"),
        (HEADER + "1,1,1,1,1000,1000\n", "milliseconds"),
        ("totalRoundtripTimeUs\n", "latency report"),
    ],
)
def test_wrong_measurements_are_explained(runs, text, said):
    with pytest.raises(InputError, match=said):
        read(runs(text), Fixed(), CARDS["standard"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.binary(), st.text(alphabet='1,.-en\n"').map(lambda text: HEADER + text)))
def test_any_file_of_measurements_is_read_or_refused(tmp_path, content):
    path = tmp_path / "runs.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    try:
        found = read(path, Fixed(), CARDS["standard"])
    except InputError:
        return
    assert all(np.isfinite(values).all() for values in found.settings)


def test_a_latency_report_takes_its_configuration_from_the_options(model, tmp_path):
    path = tmp_path / "aic-profiling-program-0-latency.txt"
    path.write_text("inferenceId,totalRoundtripTimeUs\n0,1000\n1,2000\n2,3000\n")
    with pytest.raises(InputError, match="configuration"):
        qaic.check(model, measured=path)
    options = {"aic_num_cores": 1, "num_activations": 1, "batchsize": 1, "set_size": 1}
    slower = qaic.check(model, measured=path, **options).forecast(1, 1, 1, 1)
    assert slower.latency_s[1] > qaic.check(model, **options).forecast(1, 1, 1, 1).latency_s[1]


@pytest.mark.parametrize(
    "dims", [["n", 4], [None, 4], ["n", "m"], ["2*n", 4], ["n*m", 4], [None, "n"], [None, "2*n"]]
)
def test_the_line_of_a_check_without_sizes_gives_the_sizes_of_all_inputs(tmp_path, dims):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "abcd"]
    nodes = [helper.make_node("Neg", ["a"], ["c"]), helper.make_node("Neg", ["b"], ["d"])]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:2], values[2:]), ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    given = {"onnx_define_symbol": {"n": 2}} if dims == ["n*m", 4] else {}
    (line,) = re.findall("next: (.*)", qaic.check(tmp_path / "model.onnx", **given).text())
    tool, name, path, *flags = shlex.split(line)
    assert (tool, name, path) == ("openqaic", "check", str(tmp_path / "model.onnx"))
    assert any(flag.startswith("--shape=") for flag in flags) == (dims not in (["2*n", 4], ["n*m", 4]))
    qaic.compile(path, **{option.name: option.value for option in read_argv(flags)})


def test_no_batch_is_proposed_that_the_model_does_not_take(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["r"])], "b", [], [helper.make_tensor_value_info("r", 1, [1, 4])]
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 4])],
        [helper.make_tensor_value_info("y", 1, [1, 4])],
        [numpy_helper.from_array(np.array(True), "c")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert "batchsize" not in str(qaic.check(path))
    assert "batchsize=1" in str(qaic.check(path, batchsize=1))
    assert "batchsize=16" not in str(qaic.check(path, batchsize=1))


@pytest.mark.parametrize("dims", [(1, 2), (5, 2)])
def test_a_declared_shape_is_that_of_one_batch(dims):
    model = session_models.model(
        [
            helper.make_node("NonZero", ["x"], ["places"]),
            helper.make_node("Transpose", ["places"], ["y"], perm=[1, 0]),
        ],
        [("x", TensorProto.FLOAT, (1, 16))],
        [("y", TensorProto.INT64, ("rows", 2))],
    )
    found = qaic.check(model, output_shapes={"y": dims}).to_json()["sections"]["speed"]
    assert {row["batch"] for row in found["throughput"]} == {1}


@pytest.mark.parametrize(
    ("second", "options"),
    [
        ([None, 4], {"batchsize": 8}),
        ([None, 4], {"batchsize": 8, "model_inputs": "b:3x4"}),
        ([None, 4], {"batchsize": 8, "model_inputs": "b:1x4"}),
        (["n", "m"], {"batchsize": 8}),
        (["n", "m"], {"batchsize": 8, "onnx_define_symbol": {"m": 2}}),
        ([None, 4], {"onnx_define_symbol": {"n": 1}, "model_inputs": "b:1x4"}),
    ],
)
def test_every_line_of_a_check_compiles_with_the_batch(tmp_path, second, options):
    shapes = {"a": ["n", 4], "b": second}
    first, last = (
        [
            helper.make_tensor_value_info(before + name, TensorProto.FLOAT, dims)
            for name, dims in shapes.items()
        ]
        for before in ("", "of_")
    )
    nodes = [helper.make_node("Neg", [name], [f"of_{name}"]) for name in shapes]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", first, last), ir_version=8), tmp_path / "m.onnx"
    )
    found = qaic.check(tmp_path / "m.onnx", **options).to_json()["sections"]
    lines = {line for section in found.values() for line in section["next"].values()}
    for line in sorted(lines):
        _, _, path, *words = shlex.split(line)
        # Words before the compiler's options are options of the command.
        given = {option.name: option.value for option in read_argv([word for word in words if "=" in word])}
        if line.startswith("openqaic"):
            assert "batchsize" not in options or "batchsize" in given, line
            qaic.compile(path, **given)


@pytest.mark.parametrize("form", ["list", "archive", "arrays", "iterator", "random"])
def test_samples_calibrate_the_check_and_its_compile_lines(model, tmp_path, monkeypatch, capfd, form):
    """Regression: the samples did not calibrate integers, and the lines compiled with random ranges."""
    monkeypatch.chdir(tmp_path)
    arrays = [{"x": np.full((1, 64), value, np.float32)} for value in (1, -30)]
    for at, sample in enumerate(arrays):
        np.save(f"{at}.npy", sample["x"])
    Path("list.txt").write_text("0.npy\n1.npy\n")
    np.savez("samples.npz", x=np.stack([sample["x"] for sample in arrays]))
    forms = {"list": "list.txt", "archive": "samples.npz", "iterator": iter(arrays), "random": "random"}
    report = qaic.check(model, precision="int8", samples=forms.get(form, arrays))
    assert not any(item.code == "calibration.random_samples" for item in report.checked.warnings)
    found = report.to_json()["sections"]
    assert found["precision"]["measured"]

    def quantized(path):
        return qaic.Qpc(path).graph.tobytes()

    drawn, measured = (
        quantized(qaic.compile(model, convert_to_quantize=True, **ranges).path)
        for ranges in ({"use_random_input_data": True}, {"calibration_data": arrays})
    )
    assert drawn != measured
    expected = drawn if form == "random" else measured
    lines = [found["operators"]["next"][""], found["speed"]["latency"][0]["compile"]]
    # Random samples have any batch; others run as printed only with their own.
    for line in lines[:1] if form == "random" else lines:
        if form in {"list", "archive", "random"}:
            assert main(shlex.split(line)[1:]) == 0
            path = Path("program/programqpc.bin")
        else:
            path = eval(line.removeprefix("in Python: "), {"qaic": qaic, "samples": arrays}).path
        assert quantized(path) == expected
    assert "no samples" not in capfd.readouterr().err


def test_a_call_in_python_repeats_shapes_and_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("open.onnx").write_bytes(model_of(dims=("n", 64)).SerializeToString())
    samples = [{"x": np.ones((4, 64), np.float32)}]
    options = {"model_inputs": "x:4x64", "retained_state": False}
    found = qaic.check("open.onnx", precision="int8", samples=samples, **options).to_json()["sections"]
    for line in (found["operators"]["next"][""], found["speed"]["latency"][0]["compile"]):
        program = eval(line.removeprefix("in Python: "), {"qaic": qaic, "samples": samples})
        assert [tuple(item.shape) for item in qaic.Qpc(program.path).inputs] == [(4, 64)]
