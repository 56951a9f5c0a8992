"""Every name in the tables of the SDK's names has the state that its row states."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
import tomllib
from contextlib import nullcontext, redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qaic
from qaic.cli import compile as compile_tool
from qaic.cli import compile_and_run, entry, shims
from qaic.errors import DeviceError, OptionError, QaicError
from qaic.options.names import normalize
from qaic.options.spec import Effect
from qaic.options.table import CompileOptions, RunStepOptions, RuntimeOptions, SessionOptions, specs_of

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / "docs" / page).read_text() for page in ("guide/moving.md", "reference/sdk-names.md"))
STATES = {"same", "differs", "not there"}
MODULES = {"qaic", "qaicrt", "QAicApi_pb2"}
#: Modules and tools of the SDK that this package does not contain.
OTHERS = {"qaiccc", "torch_qaic", "aic-manager", "model_configurator", "QAicUdevMonitor"}

SPECS = [
    spec
    for group in (SessionOptions, CompileOptions, RuntimeOptions, RunStepOptions)
    for spec in specs_of(group)
]
KEYWORDS = {key: spec for spec in SPECS if spec.keyword for key in spec.keys}
FLAGS = {text: spec for spec in SPECS if spec.flag is not None for text in spec.flag.texts}


def rows():
    """Every row of the tables: (section, name, description, difference)."""
    section = ""
    for line in TEXT.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "name" or set(cells[0]) == {"-"}:
            continue
        names, state, note = cells
        for name in re.findall(r"`([^`]+)`", names):
            yield section, name, state, note


ROWS = list(rows())


@cache
def scripts():
    """Module of each tool, both installed tools and shims."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    places = {tool: target.partition(":")[2] for tool, target in project["scripts"].items()}
    installed = {tool: getattr(entry, function).args[0] for tool, function in places.items()}
    return installed, {place.rpartition("/")[2]: module for place, module in shims._TOOLS.items()}


@cache
def help_of(tool):
    installed, laid = scripts()
    module = importlib.import_module({**laid, **installed}[tool])
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        raise SystemExit(module.main(["--help"]))
    assert ended.value.code in {0, None}
    return printed.getvalue()


def is_there(name):
    """Return True if a name of the guide exists; its spelling determines its kind."""
    if name.endswith("="):
        return normalize(name[:-1]) in KEYWORDS
    if name.startswith("-"):
        return name[1:] in FLAGS
    if name.startswith("/opt/qti-aic/"):
        assert shims.VENDOR_PREFIX == "/opt/qti-aic"
        return name.removeprefix("/opt/qti-aic/") in shims._TOOLS
    if name.startswith("qaic-"):
        tool, _, option = name.partition(" ")
        installed, laid = scripts()
        known = tool in installed or tool in laid
        return known and (
            not option or re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_of(tool)) is not None
        )
    if name in OTHERS:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    module, *path = name.split(".")
    assert module in MODULES, f"{name!r} is a name of no known kind"
    found = importlib.import_module(module)
    for part in path:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize(("section", "name", "state", "note"), ROWS)
def test_names_are_there_or_not_as_the_guide_says(section, name, state, note):
    assert state in STATES
    assert is_there(name) == (state != "not there"), f"{section}: {name}"
    assert note or state != "differs", "what differs is left open"


@pytest.mark.parametrize(
    ("name", "note"), [(name, note) for section, name, _, note in ROWS if section == "Missing names"]
)
def test_what_is_to_be_used_is_there(name, note):
    assert note.count(": ") or "only the SDK has" in note, "why it is not there, and what to use"
    for other in re.findall(r"`(qaic\.[\w.]+|qaic-[a-z]+(?: -{1,2}[\w-]+)?|-target)", note):
        assert is_there(other), other


def test_the_tables_are_read():
    """If the form of the tables changed, the test above would check nothing."""
    assert len(ROWS) > 120
    assert {state for _, _, state, _ in ROWS} == STATES
    sections = {section for section, *_ in ROWS}
    assert {"SDK up to 1.17", "SDK 1.18 to 1.21", "SDK 1.22 and later"} <= sections


@pytest.mark.parametrize(
    ("name", "state", "note"), [row[1:] for row in ROWS if row[1].startswith("-") or row[1].endswith("=")]
)
def test_options_do_what_the_guide_says(name, state, note):
    spec = KEYWORDS[normalize(name[:-1])] if name.endswith("=") else FLAGS[name[1:]]
    assert not spec.ours, "an option that the SDK does not have"
    assert (spec.effect is Effect.RECORDED) == ("recorded" in note)
    assert spec.sdk_only == ("refused:" in note)
    assert state == "differs" or spec.effect is not Effect.RECORDED


def test_variables_are_in_the_table_of_variables():
    variables = set(re.findall(r"`(QAIC_[A-Z_]+)`", TEXT)) | {"QAIC_DEVICE"}
    table = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert len(variables) >= 4
    assert all(f"| `{variable}` |" in table for variable in variables)


def test_every_tool_is_in_the_guide():
    named = {name.partition(" ")[0] for _, name, state, _ in ROWS if state != "not there"}
    installed, laid = scripts()
    # Only this project has the name `openqaic`, so no name of the SDK corresponds to it.
    assert {*installed, *laid} - {"openqaic"} <= named


def test_every_class_of_the_low_level_interface_is_in_a_guide():
    import qaicrt

    guides = TEXT + (ROOT / "docs" / "guide" / "low-level.md").read_text()
    classes = ["Context", "Qpc", "QpcFile", "Program", "Queue", "ExecObj", "QBuffer", "InferenceSet", "Util"]
    assert set(classes) <= set(qaicrt.__all__)
    for name in classes:
        assert name in guides


# --- statements of the guide about behavior ----------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "doubled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    path = tmp_path / "doubled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


BATCH = "-onnx-define-symbol=batch,3"


def test_compile_only_is_accepted_without_effect(model, tmp_path):
    words = [f"-m={model}", BATCH, f"-aic-binary-dir={tmp_path / 'a'}"]
    assert compile_tool.main([*words, "-compile-only"]) == 0
    assert (tmp_path / "a" / "programqpc.bin").is_file()


def test_the_older_compiler_also_runs(model, tmp_path, capsys):
    for flags, runs in (([], True), (["-compile-only"], False)):
        folder = tmp_path / f"runs-{runs}"
        assert compile_and_run.main([f"-m={model}", BATCH, f"-aic-binary-dir={folder}", *flags]) == 0
        assert ("Inf/Sec" in capsys.readouterr().out) == runs


@pytest.mark.parametrize("is_named", [True, False])
def test_both_forms_of_the_specialization_file_are_read(model, tmp_path, is_named):
    sizes = [{"batch": "2"}, {"batch": "5"}]
    entries = [{"name": f"of{at}", "symbols": each} for at, each in enumerate(sizes)] if is_named else sizes
    path = tmp_path / "specializations.json"
    path.write_text(json.dumps({"specializations": entries}))
    session = qaic.Session(model, network_specialization_config=path)
    assert session.model_input_shape_dict["x"][0] == (5, 4)


def test_encryption_is_refused(model, tmp_path, capsys):
    words = [f"-m={model}", BATCH, f"-aic-binary-dir={tmp_path / 'a'}", "-io-encrypt=key"]
    assert compile_tool.main(words) == 2
    assert "io-encrypt" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_an_unknown_flag_is_wrong_usage(model, capsys):
    assert compile_tool.main([f"-m={model}", "-aic-no-such-flag"]) == 2
    assert "-aic-no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".pb", ".pt", ".caffemodel"])
def test_models_of_other_frameworks_are_refused(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"\x08\x01")
    with pytest.raises(QaicError, match="onnx"):
        qaic.Session(path)


def test_compile_false_wants_a_container(model, tmp_path):
    with pytest.raises(OptionError):
        qaic.Session(model, compile=False, onnx_define_symbol={"batch": 3})
    qaic.Session(model, onnx_define_symbol={"batch": 3}, output_dir=tmp_path / "built")
    assert qaic.Session(tmp_path / "built", compile=False, backend="qaic").model_input_shape_dict


def test_hardware_2_0_means_ai100(model):
    inputs = {"x": np.ones((3, 4), np.float32)}
    for version, is_this_one in (("2.0", True), ("ai100", True), ("ai200", False)):
        session = qaic.Session(model, aic_hw_version=version, onnx_define_symbol={"batch": 3})
        with nullcontext() if is_this_one else pytest.raises(DeviceError, match="ai200"), session:
            session.run(inputs)


def test_the_delay_is_taken_with_and_without_the_superfluous_letter(model):
    options = {"onnx_define_symbol": {"batch": 3}}
    found = [
        qaic.compile(model, **{name: 3}, **options)
        for name in ("allocator_dealloac_delay", "allocator_dealloc_delay")
    ]
    assert found[0].options == found[1].options


def test_the_version_has_a_variant_of_its_own():
    import qaicrt

    status, *_, variant = qaicrt.Util().getAicVersion()
    assert (status, variant) == (qaicrt.QStatus.QS_SUCCESS, "OPENQAIC")
