"""Crates depend only on lower crates, imports are lazy, versions agree, and files have a limited size."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import qaic

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "qaic"

RUST_DEPENDENCIES = {
    "qaic-sync": set(),
    "qaic-mem": {"qaic-quant"},
    "qaic-kmd": {"qaic-mem"},
    "qaic-emu": {"qaic-kmd", "qaic-mem"},
    "qaic-qpc": {"qaic-quant"},
    "qaic-quant": set(),
    "qaic-requests": set(),
    "qaic-stats": {"qaic-qpc"},
    "qaic-sched": {"qaic-sync"},
    "qaic-runtime": {
        "qaic-emu",
        "qaic-kmd",
        "qaic-mem",
        "qaic-qpc",
        "qaic-quant",
        "qaic-sched",
        "qaic-stats",
        "qaic-sync",
    },
    "qaic-python": {
        "qaic-emu",
        "qaic-kmd",
        "qaic-mem",
        "qaic-qpc",
        "qaic-quant",
        "qaic-requests",
        "qaic-runtime",
        "qaic-sync",
        "qaic-stats",
    },
}


def test_path_of_an_inference_is_at_most_eight_files():
    text = (ROOT / "rust" / "qaic-runtime" / "src" / "lib.rs").read_text()
    files = re.findall(r"^//! \d\. `([^`]+)`", text, re.MULTILINE)
    assert 4 < len(files) <= 8
    assert all((ROOT / file).is_file() for file in files)


def test_the_binding_makes_scopes_of_waits_and_proofs_of_a_released_lock_in_one_file():
    sources = (ROOT / "rust" / "qaic-python" / "src").rglob("*.rs")
    makers = {file.name for file in sources if re.search(r"\bWaitScope::|Detached::assume", file.read_text())}
    assert makers == {"gil.rs"}


@pytest.mark.parametrize("crate", RUST_DEPENDENCIES)
def test_crates_depend_downwards(crate):
    manifest = tomllib.loads((ROOT / "rust" / crate / "Cargo.toml").read_text())
    ours = {name for name in manifest.get("dependencies", {}) if name.startswith("qaic-")}
    assert ours <= RUST_DEPENDENCIES[crate]


def test_contributing_lists_every_layer_in_order():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one["name"] == "The layers of the product"]
    names = [layer.replace(":", " ").split() for layer in layers]
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Layers\n")[2]
    listed = re.findall(r"^    (python|rust)/([^\s,]+(?:, [^\s,]+)*)", text, re.MULTILINE)
    paths = ", ".join(path for language, path in listed if language == "python")
    packages = re.findall(r"(?:qaic/|\s)(\w+)(?:/|\.py)(?=,|$)", paths)
    found = (name for name in packages if name not in {"qaicrt", "QAicApi_pb2"})
    for layer in names:
        assert {next(found) for _ in layer} == set(layer)
    assert {path.rstrip("/") for language, path in listed if language == "rust"} == set(RUST_DEPENDENCIES)


def test_only_the_binding_names_pyo3():
    for crate in RUST_DEPENDENCIES:
        manifest = tomllib.loads((ROOT / "rust" / crate / "Cargo.toml").read_text())
        assert ("pyo3" in manifest["dependencies"]) == (crate == "qaic-python")


def loaded_by(statement: str) -> set[str]:
    """Packages, and modules of the package itself."""
    program = f"import sys; {statement}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    modules = output.stdout.split()
    return {name if name.startswith("qaic.") else name.split(".")[0] for name in modules}


HEAVY = {"onnx", "onnxruntime", "pydantic", "yaml", "matplotlib", "google"}


def test_import_loads_nothing_heavy():
    assert not loaded_by("import qaic") & (HEAVY | {"numpy"})
    # The table of options takes longer than all other modules together.
    assert not loaded_by("import qaic; qaic.Session; qaic.Qpc") & (HEAVY | {"qaic.options.table"})


#: Modules that `qaic.Session` can load and numpy does not load: no container, future or option, and none of
#: their modules.
OF_SESSION = {
    *("__future__", "atexit", "threading", "numpy", "qaic"),
    *("qaic._core", "qaic.errors", "qaic.options", "qaic.options.signature", "qaic.session"),
    *(
        "qaic.runtime",
        *(
            f"qaic.runtime.{name}"
            for name in ("benchmark", "forked", "imap", "latency", "load_lock", "metrics")
        ),
    ),
    *("qaic.runtime.program_view", "qaic.runtime.shapes"),
    "qaic.attribute_dict",
    *("qaic.support", *(f"qaic.support.{name}" for name in ("lazy_module", "status_line", "text"))),
}


def test_a_session_is_imported_without_what_it_opens_and_submits_with():
    loaded = loaded_by("import numpy; import qaic; qaic.Session")
    assert "qaic.session" in loaded
    assert loaded - loaded_by("import numpy") <= OF_SESSION


def test_what_serves_and_spreads_is_imported_when_it_is_used():
    light = HEAVY | {"asyncio", "grpc", "pyarrow", "ray", "starlette", "tritonclient", "uvicorn"}
    assert not loaded_by("import qaic.ray, qaic.serving; qaic.ray.map_batches, qaic.serving.serve") & light


def test_the_low_level_interface_loads_little():
    light = HEAVY | {"numpy", "dataclasses", "inspect", "json", "threading"}
    assert not loaded_by("import qaicrt; qaicrt.QStatus, qaicrt.Context, qaicrt.Qpc") & light
    assert not loaded_by("import qaicrt; qaicrt.Util().getDeviceIds()") & (HEAVY | {"numpy"})


def test_a_compiled_container_opens_without_the_compiler(tmp_path):
    container = ROOT / "tests" / "data" / "qpc" / "s01_simple_f32_file.qpc"
    target = tmp_path / "programqpc.bin"
    target.write_bytes(container.read_bytes())
    assert not loaded_by(f"import qaic; qaic.Session({str(target)!r})") & (HEAVY - {"yaml"})


def test_the_oldest_engine_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    (floor,) = (need for need in project["project"]["dependencies"] if need.startswith("onnxruntime"))
    (pinned,) = (need for need in project["dependency-groups"]["pins"] if need.startswith("onnxruntime"))
    minor = int(floor.removeprefix("onnxruntime>=1."))
    assert pinned.startswith(f"onnxruntime==1.{minor}.")
    assert f"api-{minor}" in workspace["ort-sys"]["features"]
    loader = (ROOT / "rust" / "qaic-runtime" / "src" / "device" / "cpu" / "engine" / "library.rs").read_text()
    assert f'MINIMUM_VERSION: &str = "1.{minor}";' in loader
    assert f"ORT_API_VERSION == {minor} &&" in loader
    guide = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert f"path of another `libonnxruntime.so`, 1.{minor} or newer |" in guide


@pytest.mark.parametrize(
    "caller", ["Makefile", ".ci/run", ".github/workflows/tests.yml", ".github/workflows/wheels.yml"]
)
def test_scripts_that_are_called_exist(caller):
    text = (ROOT / caller).read_text()
    scripts = re.findall(r"(?<![\w/])(?:(?:tools|tests|benches)/[\w/-]+\.(?:sh|py)|\.ci/\w+)", text)
    assert not [script for script in scripts if not (ROOT / script).is_file()]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = re.findall(r"^\s*(?:- run: )?make ([a-z-]+)|^when_changed ([a-z-]+) ", text, re.MULTILINE)
    assert {"".join(pair) for pair in called} <= targets


def test_versions_agree():
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert qaic.__version__ == metadata.version("openqaic") == workspace["workspace"]["package"]["version"]


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        _ = qaic.Sesion
    assert {"Session", "Qpc", "errors"} <= set(dir(qaic))


# Rust up to 800 lines, Python up to 600, tests up to 800; a longer table of facts needs a reason here.
CAPS = {"rust/**/src/**/*.rs": 800, "python/**/*.py": 600, "tests/**/*.py": 800, "rust/*/tests/**/*.rs": 800}


@pytest.mark.parametrize("pattern", CAPS)
def test_files_can_be_read_in_one_sitting(pattern):
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in ROOT.glob(pattern)
        if "target" not in path.parts and (lines := len(path.read_text().splitlines())) > CAPS[pattern]
    }
    assert not too_long


# Concurrent code is in crates that models, sanitizers and Rust tests cover.
def test_the_binding_holds_no_state_machines():
    source = ROOT / "rust" / "qaic-python" / "src"
    words = re.compile(r"\b(Mutex|RwLock|Condvar|Atomic\w+|mpsc|std::thread|thread::(spawn|scope|Builder))\b")
    concurrent = {
        str(path.relative_to(source)) for path in source.rglob("*.rs") if words.search(path.read_text())
    }
    assert not concurrent


def test_the_stub_names_what_the_module_has():
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    named = (node.name for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    described = {name for name in named if not name.startswith("_")}
    compiled = {name for name in vars(qaic._core) if not name.startswith("_")}
    assert described == compiled


# Fields of a model with many items, and the calls that change them. Other files call
# `compiler/ir/graph_edits.py`.
REPEATED_FIELDS = {
    *("node", "input", "output", "value_info", "initializer", "sparse_initializer", "attribute"),
    *("opset_import", "functions", "metadata_props", "external_data", "graphs", "dim", "dims"),
}
OF_A_FIELD = {"add", "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}
OF_A_MESSAGE = {"Clear", "ClearField", "CopyFrom", "FromString", "MergeFrom", "SetInParent"}
# Messages of the protocol are not graphs.
MAY_EDIT = ("compiler/ir/", "compiler/frontend/", "compiler/backend/", "serving/grpc_service.py")


def edits(source: str) -> list[int]:
    """Lines that change a repeated field of a protobuf, also through a name that is bound to it."""
    tree = ast.parse(source)
    aliases: set[str] = set()

    def is_field(held: ast.expr) -> bool:
        return (isinstance(held, ast.Attribute) and held.attr in REPEATED_FIELDS) or (
            isinstance(held, ast.Name) and held.id in aliases
        )

    for statement in ast.walk(tree):
        match statement:
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=held)) if any(map(is_field, held)):
                aliases.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=held) if is_field(held):
                aliases.add(name)
    found = []
    for place in ast.walk(tree):
        match place:
            case ast.Call(func=ast.Attribute(value=held, attr=name)):
                changes = name in OF_A_MESSAGE or (name in OF_A_FIELD and is_field(held))
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                changes = any(isinstance(one, ast.Subscript) and is_field(one.value) for one in targets)
            case ast.AugAssign(target=target):
                changes = is_field(target) or (isinstance(target, ast.Subscript) and is_field(target.value))
            case _:
                continue
        if changes:
            found.append(place.lineno)
    return found


def test_graphs_are_edited_in_one_place():
    names = re.compile(rf"\.({'|'.join(REPEATED_FIELDS | OF_A_MESSAGE)})\b")
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    places = [
        f"{path}:{line}"
        for path, source in sources.items()
        # Most files contain none of these fields, and parsing is slow.
        if not path.startswith(MAY_EDIT) and names.search(source)
        for line in edits(source)
    ]
    assert not places


@pytest.mark.parametrize(
    "statement",
    [
        "graph.node.append(made)",
        "del graph.node[3]",
        "del graph.node[:]",
        "node.input[0] = name",
        "graph.output += values",
        "graph.value_info.add().name = name",
        "copy.CopyFrom(node)",
        "nodes = graph.node\ndel nodes[1]",
        "for names in (node.input, node.output):\n    names[0] = name",
    ],
)
def test_an_edit_is_recognized(statement):
    assert edits(statement)


@pytest.mark.parametrize(
    "statement", ["names = list(node.input)", "made.append(graph.node[0])", "node.name = name"]
)
def test_reading_is_no_edit(statement):
    assert not edits(statement)
