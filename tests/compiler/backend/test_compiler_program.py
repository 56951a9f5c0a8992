import contextlib
import hashlib
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qaic
from child_process import started
from compiler_oracle import info, model_of, node
from qaic import _core
from qaic.compiler import cache, cache_contents, driver, pipeline
from qaic.compiler.backend import qpc_writer
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.driver import compile_model
from qaic.compiler.frontend.files import content_digest as digest
from qaic.errors import CompileError
from qaic.options.table import CompileOptions

RNG = np.random.default_rng(3)
W = RNG.standard_normal((16, 40), dtype=np.float32)
B = RNG.standard_normal(40, dtype=np.float32)
V = RNG.standard_normal((40, 9), dtype=np.float32)


def two_layers(op="Relu"):
    return model_of(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node(op, ["a"], ["r"]),
            node("MatMul", ["r", "v"], ["y"]),
        ],
        [info("x", [2, 16])],
        [info("y", [2, 9])],
        [("w", W), ("b", B), ("v", V)],
    )


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("QAIC_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def model_path(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(two_layers(), path)
    return path


def compiled(model, output_dir=None, set_options=None, **options):
    return compile_model(model, CompileOptions(**options), set_options or {}, output_dir=output_dir)


def files_below(folder):
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock" and not p.name.startswith(".sound")
    )


def open_program(path):
    qpc = _core.Qpc(str(path))
    plan = json.loads(bytes(qpc.elf_section("openqaic_plan")))
    graph = bytes(qpc.elf_section("openqaic_graph"))
    return qpc, plan, graph


def run_program(path, feeds):
    """Run the graph section with its constants from the container, as the device runs it."""
    qpc, _, graph = open_program(path)
    names = {segment[0] for segment in qpc.segments}
    options = ort.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        if "constants.bin" in names:
            Path(folder, "constants.bin").write_bytes(bytes(qpc.payload("constants.bin")))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)


def test_container_holds_the_segments_of_a_cpu_program(cache_dir, model_path):
    path = compiled(model_path)
    qpc, plan, _ = open_program(path)
    assert [segment[0] for segment in qpc.segments] == [
        "constants.bin",
        "constants.bin.crc",
        "constantsdesc.bin",
        "metadata_fb.crc",
        "network.elf",
        "network.elf.crc",
        "networkdesc.bin",
    ]
    constants = bytes(qpc.payload("constants.bin"))
    w, v = plan["initializers"]
    assert (w["name"], v["name"]) == ("w", "v")
    assert constants[w["offset"] : w["offset"] + w["size"]] == W.tobytes()
    assert constants[v["offset"] : v["offset"] + v["size"]] == V.tobytes()
    assert all(entry["offset"] % 64 == 0 for entry in plan["initializers"])
    assert w["dims"] == [16, 40]
    assert w["dtype"] == "float32"
    assert bytes(qpc.payload("constants.bin.crc")) == struct.pack("<I", zlib.crc32(constants))
    assert bytes(qpc.payload("metadata_fb.crc")) == struct.pack(
        "<I", zlib.crc32(bytes(qpc.elf_section("metadata_fb")))
    )
    assert bytes(qpc.payload("constantsdesc.bin")) == struct.pack("<QQQ", len(constants), 0, 0)
    (entry,) = [segment for segment in qpc.segments if segment[0] == "constants.bin"]
    assert entry[1] == len(constants)


def test_container_is_free_of_findings(cache_dir, model_path):
    assert _core.validate_container(str(compiled(model_path))) == []


def test_metadata_names_cores_and_program(cache_dir, model_path):
    qpc, plan, _ = open_program(compiled(model_path, aic_num_cores=4))
    text = qpc.metadata_json()
    assert '"net"' in text
    assert plan["cores"] == 4
    assert json.loads(qpc.network_desc_json())["num_cores"] == 4


def test_program_computes_what_the_model_computes(cache_dir, model_path):
    x = RNG.standard_normal((2, 16), dtype=np.float32)
    (y,) = run_program(compiled(model_path), {"x": x})
    np.testing.assert_allclose(y, np.maximum(x @ W + B, 0) @ V, rtol=1e-5, atol=1e-5)


def test_plan_records_interface_and_options(cache_dir, model_path):
    _, plan, _ = open_program(
        compiled(model_path, set_options={"convert_to_fp16": True}, convert_to_fp16=True)
    )
    assert plan["version"] == 1
    assert plan["target"] == "cpu"
    assert plan["batch"] == 2
    assert plan["producer"] == f"openqaic {_core.__version__}"
    assert plan["inputs"] == [{"name": "x", "dtype": "float32", "dims": [2, 16]}]
    assert plan["outputs"] == [{"name": "y", "dtype": "float32", "dims": [2, 9]}]
    assert plan["options"] == {"convert_to_fp16": True}
    assert plan["effective"]["combine_inputs"] is True
    assert {entry["dtype"] for entry in plan["initializers"]} <= {"float16"}


def test_program_without_constants_has_no_constants_segment(cache_dir):
    path = compiled(model_of([node("Relu", ["x"], ["y"])], [info("x", [3])], [info("y", [3])]))
    qpc, plan, _ = open_program(path)
    names = {segment[0] for segment in qpc.segments}
    assert "constants.bin" not in names
    assert {"constantsdesc.bin", "network.elf", "networkdesc.bin"} <= names
    assert plan["initializers"] == []
    (y,) = run_program(path, {"x": np.float32([-1, 0, 2])})
    np.testing.assert_array_equal(y, [0, 0, 2])


def test_scalars_and_empty_tensors_keep_their_dims(cache_dir):
    path = compiled(
        model_of(
            [node("Identity", ["s"], ["t"]), node("Concat", ["e", "f"], ["y"], axis=0)],
            [info("s", []), info("e", [0, 2]), info("f", [1, 2])],
            [info("t", []), info("y", [1, 2])],
        )
    )
    _, plan, _ = open_program(path)
    assert [entry["dims"] for entry in plan["inputs"]] == [[], [0, 2], [1, 2]]


@pytest.mark.parametrize("convert", [False, True])
def test_same_model_and_options_give_the_same_bytes(tmp_path, monkeypatch, convert):
    digests = set()
    for number in range(2):
        folder = tmp_path / f"place{number}"
        folder.mkdir()
        monkeypatch.setenv("QAIC_CACHE_DIR", str(folder / "cache"))
        onnx.save(two_layers(), folder / f"name{number}.onnx")
        path = compiled(folder / f"name{number}.onnx", convert_to_fp16=convert)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
        assert str(tmp_path).encode() not in path.read_bytes()
    assert len(digests) == 1


def test_all_forms_of_a_model_share_one_entry(cache_dir, model_path):
    first = compiled(str(model_path))
    assert compiled(model_path) == first
    assert compiled(model_path.read_bytes()) == first
    assert compiled(onnx.load(model_path)) == first


def test_external_data_is_part_of_the_key(cache_dir, tmp_path):
    path = tmp_path / "external.onnx"
    onnx.save(two_layers(), path, save_as_external_data=True, location="w.data", size_threshold=0)
    first = compiled(path)
    data = bytearray((tmp_path / "w.data").read_bytes())
    data[103] ^= 0x80
    (tmp_path / "w.data").write_bytes(data)
    second = compiled(path)
    assert second != first
    programs = (_core.Qpc(str(path)) for path in (first, second))
    assert len({bytes(qpc.payload("constants.bin")) for qpc in programs}) == 2


def test_options_have_entries_of_their_own(cache_dir, model_path):
    assert len({compiled(model_path), compiled(model_path, convert_to_fp16=True)}) == 2


def test_known_model_is_neither_parsed_nor_hashed_again(cache_dir, model_path, monkeypatch):
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    first = compiled(model_path)
    monkeypatch.setattr(driver, "opened", lambda _model: pytest.fail("the model was opened"))
    assert compiled(model_path) == first


#: The parts of the compiler that find a program in the cache.
OF_A_HIT = {
    *("qaic.compiler.backend", "qaic.compiler.cache"),
    *("qaic.compiler.cache_contents", "qaic.compiler.driver", "qaic.compiler.output_folder"),
    *("qaic.compiler.frontend", "qaic.compiler.frontend.files"),
    *(f"qaic.compiler.frontend.files.{name}" for name in ("content_digest", "external_data")),
    *("qaic.compiler.ir", "qaic.compiler.ir.constants", "qaic.compiler.ir.constants.weights"),
    "qaic.compiler.diagnostics",
    *(f"qaic.compiler.diagnostics.{name}" for name in ("messages", "progress")),
    *("qaic.compiler.reports", "qaic.compiler.reports.emit_report", "qaic.compiler.reports.extra_artifacts"),
}

#: Modules that neither a session with default options nor a compilation without samples needs.
UNNEEDED = {
    *("concurrent.futures", "numpy.random", "qaic.compilation", "qaic.options.files.options_file"),
    *("qaic.options.keywords", "qaic.options.rules", "qaic.qpc", "yaml"),
}


def test_a_cache_hit_imports_neither_onnx_nor_passes(cache_dir, model_path, monkeypatch):
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    qaic.compile(model_path)

    def loaded(path: Path) -> set[str]:
        session = f"import qaic; qaic.Session({str(path)!r})"
        script = (
            f"import sys, numpy; of_numpy = {{*sys.modules}}; {session}; print(*{{*sys.modules}} - of_numpy)"
        )
        return set(subprocess.check_output([sys.executable, "-c", script], text=True).split())

    hit = loaded(model_path)
    assert not hit & {"onnx", "onnxruntime", "google.protobuf", "shutil", "tempfile", *UNNEEDED}
    assert {name for name in hit if name.startswith("qaic.compiler.")} <= OF_A_HIT
    # Other contents mean another program: the same script then imports the modules that compile.
    other = model_path.with_name("other.onnx")
    other.write_bytes(model_path.read_bytes().replace(W.tobytes(), (W + 1).tobytes()))
    compilation = loaded(other)
    assert {"onnx", "qaic.compiler.pipeline"} <= compilation
    assert not compilation & UNNEEDED


def test_young_file_is_not_trusted_to_the_index(cache_dir, model_path):
    compiled(model_path)
    assert not (cache_dir / "index").exists()


def test_changed_model_of_the_same_size_and_time_is_noticed(cache_dir, model_path, monkeypatch):
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    first = compiled(model_path)
    before = model_path.stat()
    content = bytearray(model_path.read_bytes())
    content[content.index(W.tobytes()) + 5] ^= 1
    model_path.write_bytes(content)
    os.utime(model_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert compiled(model_path) != first


@pytest.mark.parametrize("damage", ["truncate", "garbage", "empty"])
def test_damaged_entry_is_built_again(cache_dir, model_path, caplog, damage):
    path = compiled(model_path)
    good = path.read_bytes()
    path.write_bytes({"truncate": good[:-8], "garbage": b"x" * len(good), "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert compiled(model_path) == path
    assert path.read_bytes() == good
    assert "damaged" in caplog.text


def test_program_from_before_a_restart_is_checked_by_its_crcs(cache_dir, model_path, monkeypatch, caplog):
    path = compiled(model_path)
    good = path.read_bytes()
    holed = good.replace(W.tobytes(), bytes(W.nbytes))
    path.write_bytes(holed)
    assert compiled(model_path).read_bytes() == holed  # the machine did not restart
    monkeypatch.setattr(cache, "boot_id", lambda: "another-boot")
    with caplog.at_level(logging.WARNING):
        assert compiled(model_path).read_bytes() == good
    assert "damaged" in caplog.text
    checked = []
    monkeypatch.setattr(_core, "validate_container", lambda p: checked.append(p) or [])
    compiled(model_path)
    assert checked == []
    monkeypatch.setattr(cache, "boot_id", lambda: "third-boot")
    compiled(model_path)
    compiled(model_path)
    assert len(checked) == 1


def test_output_dir_receives_a_copy_and_the_cache_keeps_its_own(cache_dir, model_path, tmp_path):
    target = tmp_path / "deep" / "out"
    path = compiled(model_path, output_dir=target)
    assert path == target / "programqpc.bin"
    cached = compiled(model_path)
    assert cached.read_bytes() == path.read_bytes()
    edited = bytearray(cached.read_bytes())
    edited[-1] ^= 1
    path.write_bytes(edited)
    assert cached.read_bytes() != edited
    compiled(model_path, output_dir=target)
    assert path.read_bytes() == cached.read_bytes()
    assert files_below(target) == ["programqpc.bin"]


def bad_model():
    return two_layers(op="Rellu").SerializeToString()


def test_failure_leaves_nothing_behind(cache_dir, tmp_path):
    target = tmp_path / "deep" / "out"
    with pytest.raises(CompileError):
        compiled(bad_model(), output_dir=target)
    assert not (tmp_path / "deep").exists()
    assert files_below(cache_dir) == []


def test_failure_keeps_the_program_that_was_there(cache_dir, model_path, tmp_path):
    target = tmp_path / "out"
    good = compiled(model_path, output_dir=target).read_bytes()
    with pytest.raises(CompileError):
        compiled(bad_model(), output_dir=target)
    assert files_below(target) == ["programqpc.bin"]
    assert (target / "programqpc.bin").read_bytes() == good


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
def test_interruption_while_writing_leaves_nothing_behind(cache_dir, model_path, monkeypatch, error):
    def interrupted(*_arguments):
        raise error

    monkeypatch.setattr(Progress, "advance", interrupted)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        compiled(model_path)
    assert files_below(cache_dir) == []


def test_graph_the_engine_refuses_fails_at_compile_time(cache_dir):
    model = model_of(
        [node("FusedConvNonsense", ["x"], ["y"], domain="com.microsoft")], [info("x", [1])], [info("y", [1])]
    )
    with pytest.raises(CompileError, match="FusedConvNonsense"):
        compiled(model)
    assert files_below(cache_dir) == []


def test_what_is_loaded_for_the_proof_is_what_is_kept(cache_dir, monkeypatch):
    loaded, inner = [], _core.check_program

    def check(path):
        loaded.append(Path(path).read_bytes())
        inner(path)

    monkeypatch.setattr(_core, "check_program", check)
    path = compiled(weighted(600))
    assert loaded == [path.read_bytes()]


@pytest.mark.parametrize("size", [8, 600])
def test_weights_that_the_engine_refuses_when_it_loads_are_refused_by_the_compiler(cache_dir, size):
    """A kernel reads constant operands when it is created."""
    scales = np.float32([1, 1, -2, 2])
    resize = node("Resize", ["x", "", "scales"], ["z"], mode="nearest")
    model = weighted(size, [resize], [info("x", [1, 1, 2, 2])], [("scales", scales)], "z")
    with pytest.raises(CompileError, match="engine of the CPU device cannot run") as caught:
        compiled(model)
    assert caught.value.code == "compile.engine_refused"
    assert files_below(cache_dir) == []


def weighted(size, nodes=(), inputs=(), initializers=(), output=None):
    """Build a product with a square weight, and more nodes."""
    outputs = [info("y", [1, size]), *([info(output, None)] if output else [])]
    return model_of(
        [node("MatMul", ["a", "w"], ["y"]), *nodes],
        [info("a", [1, size]), *inputs],
        outputs,
        [("w", np.ones((size, size), np.float32)), *initializers],
    )


def test_the_proof_needs_no_memory_for_large_weights(cache_dir, tmp_path):
    """Weights that only the engine copies, because they are transposed before their product."""
    size = 6000
    model = model_of(
        [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])],
        [info("x", [1, size])],
        [info("y", [1, size])],
        [("w", np.ones((size, size), np.float32))],
    )
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights")
    script = (
        "import re, qaic\n"
        "def anonymous():\n"
        "    status = open('/proc/self/status').read()\n"
        "    return int(re.search(r'RssAnon:\\s+(\\d+)', status)[1]) << 10\n"
        "import threading\n"
        "peak, done = 0, threading.Event()\n"
        "def watch():\n"
        "    global peak\n"
        "    while not done.wait(0.002):\n"
        "        peak = max(peak, anonymous())\n"
        "import onnx, onnxruntime\n"
        "before = anonymous()\n"
        "watcher = threading.Thread(target=watch)\n"
        "watcher.start()\n"
        f"qaic.Session({str(tmp_path / 'model.onnx')!r})\n"
        "done.set()\n"
        "watcher.join()\n"
        "print(peak - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < size * size * 4 / 2


def test_output_dir_that_is_a_file_fails_before_any_work(cache_dir, model_path, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(OSError, match="file") as caught:
        compiled(model_path, output_dir=blocker / "below")
    assert caught.value.filename
    assert not cache_dir.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_output_dir_fails_before_any_work(cache_dir, model_path, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        compiled(model_path, output_dir=folder)
    assert not cache_dir.exists()


def test_missing_model_is_an_ordinary_error(cache_dir, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        compiled(tmp_path / "none.onnx")
    assert caught.value.filename.endswith("none.onnx")


def test_cache_that_cannot_be_written_is_replaced_for_the_process(tmp_path, monkeypatch, model_path, caplog):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("QAIC_CACHE_DIR", str(blocker / "cache"))
    with caplog.at_level(logging.WARNING):
        first = compiled(model_path)
        assert compiled(model_path) == first
    assert first.exists()
    assert caplog.text.count("cannot be used") == 1


def test_default_cache_follows_xdg(tmp_path, monkeypatch, model_path):
    monkeypatch.delenv("QAIC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert (tmp_path / "xdg" / "openqaic") in compiled(model_path).parents


def test_threads_compile_one_model_once(cache_dir, model_path, monkeypatch):
    count = []
    original = pipeline.lower
    monkeypatch.setattr(pipeline, "lower", lambda *a: (count.append(1), original(*a))[1])
    results = []
    threads = [threading.Thread(target=lambda: results.append(compiled(model_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(set(results)) == 1
    assert len(count) == 1


def test_processes_compile_one_model_at_once(cache_dir, model_path):
    script = (
        "import sys; from qaic.compiler.driver import compile_model;"
        "from qaic.options.table import CompileOptions;"
        "print(compile_model(sys.argv[1], CompileOptions(), {}))"
    )
    package = Path(qpc_writer.__file__).parents[2]
    paths = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(
                    [sys.executable, "-c", script, str(model_path)],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONPATH": paths},
                )
            )
            for _ in range(3)
        ]
        outputs = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert outputs == {f"{compiled(model_path)}\n"}
    assert [name for name in files_below(cache_dir) if not name.startswith(("index", ".in-use"))] == [
        str(compiled(model_path).relative_to(cache_dir))
    ]


def test_build_works_where_locks_do_not(tmp_path, monkeypatch):
    def refused(*_arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(cache_contents.fcntl, "flock", refused)
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    assert compiled(two_layers()).exists()


@pytest.mark.parametrize(
    ("options", "became", "value"),
    [
        ({}, "the largest finite value (clip_fp16_constants=False makes them infinite; ", 65504),
        (
            {"clip_fp16_constants": False},
            "infinite (clip_fp16_constants=False; ",
            np.inf,
        ),
    ],
)
def test_constants_beyond_float16_are_reported_once(options, became, value, cache_dir, caplog):
    model = model_of(
        [node("Mul", ["x", "t"], ["y"])],
        [info("x", [600])],
        [info("y", [600])],
        [("t", np.full(600, 1e6, "f"))],
    )
    with caplog.at_level(logging.WARNING):
        path = compiled(model, convert_to_fp16=True, **options)
    assert caplog.messages == [
        f"600 constants beyond the range of float16 became {became}`openqaic accuracy MODEL "
        "--to fp16` shows the effect on accuracy): 't' (1e+06, read by 'y')"
    ]
    (y,) = run_program(path, {"x": np.ones(600, np.float32)})
    assert (y == value).all()


def test_importing_the_compiler_does_not_load_onnx():
    script = "import sys, qaic.compiler; print([m for m in ('onnx', 'onnxruntime') if m in sys.modules])"
    package = Path(qpc_writer.__file__).parents[2]
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])},
    )
    assert out.stdout == "[]\n"
