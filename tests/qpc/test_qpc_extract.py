"""Extraction writes only into its folder, overwrites nothing by default, and leaves no partial file."""

import json
import os
from pathlib import Path

import onnx
import pytest

from qaic.qpc import Qpc
from qaic.qpc.extract import file_names
from qpc_support import FIXTURES, container, program

SIMPLE = FIXTURES[0]


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()
    }


def test_everything(tmp_path):
    qpc = Qpc(SIMPLE)
    written = qpc.extract(tmp_path / "out")
    found = files_below(tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")) for path in written} == found.keys()
    assert found.keys() == {
        "constants.bin",
        "constantsdesc.bin",
        "constantsdesc.bin_dir/constantsdesc.json",
        "network.elf",
        "network.elf_dir/metadata.json",
        "networkdesc.bin",
        "networkdesc.bin_dir/iodesc.json",
        "networkdesc.bin_dir/networkdesc.json",
    }
    for name, segment in qpc.segments.items():
        assert found[name] == segment.data.tobytes()
    assert json.loads(found["networkdesc.bin_dir/networkdesc.json"]) == qpc.network_descriptor
    assert json.loads(found["networkdesc.bin_dir/iodesc.json"]) == qpc.io_desc
    assert json.loads(found["network.elf_dir/metadata.json"]) == qpc.metadata
    assert json.loads(found["constantsdesc.bin_dir/constantsdesc.json"]) == qpc.constants.descriptor
    assert b'"dims": [1, 3, 8, 8]' in found["networkdesc.bin_dir/networkdesc.json"]


def test_a_cpu_program(tmp_path):
    graph = onnx.ModelProto(ir_version=8, producer_name="test")
    plan = {"version": 1, "target": "cpu", "note": "a\n[\n 1\n]", "lone": "\ud800"}
    qpc = Qpc(container(program(plan=plan, graph=graph.SerializeToString())))
    qpc.extract(tmp_path)
    assert onnx.load(tmp_path / "network.elf_dir" / "graph.onnx") == graph
    assert json.loads((tmp_path / "network.elf_dir" / "plan.json").read_bytes()) == plan


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*networkdesc.bin_dir/networkdesc.json", ["networkdesc.bin_dir/networkdesc.json"]),
        ("*networkdesc.json", ["networkdesc.bin_dir/networkdesc.json"]),
        ("network.elf", ["network.elf"]),
        ("constants*.bin", ["constants.bin", "constantsdesc.bin"]),
        ("*opstatsdesc.bin", []),
        ("NETWORK.ELF", []),
    ],
)
def test_patterns(tmp_path, pattern, expected):
    Qpc(SIMPLE).extract(tmp_path / "out", pattern)
    assert sorted(files_below(tmp_path / "out")) == expected
    # A pattern without a match does not create the folder.
    assert (tmp_path / "out").exists() == bool(expected)


def test_slices_have_folders_of_their_own(tmp_path):
    inner = container([*program(name="inner"), ("opstatsdesc.bin", b"stats", 0)])
    qpc = Qpc(container([("mdp_meta_info", b""), ("QAicGraph_slice00", inner), ("QAicGraph_slice01", inner)]))
    qpc.extract(tmp_path)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("QAicGraph_slice*_dir/opstatsdesc.bin"))] == [
        b"stats"
    ] * 2
    assert (tmp_path / "QAicGraph_slice01").read_bytes() == inner
    descriptor = tmp_path / "QAicGraph_slice01_dir" / "networkdesc.bin_dir" / "networkdesc.json"
    assert json.loads(descriptor.read_bytes())["network_name"] == "inner"
    assert (tmp_path / "mdp_meta_info").read_bytes() == b""


HOSTILE_NAMES = [
    "../../outside",
    "/etc/passwd",
    "..",
    ".",
    "...",
    "a/b",
    "a\\b",
    "~/x",
    ".bashrc",
    "-rf",
    "\x1b[31mred",
    "line\nbreak",
    "tab\t",
    "con:stream",
    "%2e%2e",
    "x" * 255,
    "é" * 127,
    "\u202egnp.exe",
    "networkdesc.bin_dir",
    "a%2Fb",
    " ",
    "*",
]


def test_hostile_names_stay_in_the_folder(tmp_path):
    outside = tmp_path / "outside"
    folder = tmp_path / "deep" / "er" / "out"
    qpc = Qpc(container(program(extra=[(name, name.encode()) for name in HOSTILE_NAMES])))
    written = qpc.extract(folder)
    assert not outside.exists()
    everything = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert everything == set(written)
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in everything)
    names = file_names(qpc.segments)
    assert len(set(names.values())) == len(names)
    for name in HOSTILE_NAMES:
        file = folder / names[name]
        assert file.parent == folder
        assert file.read_bytes() == name.encode()
        assert file.name.isprintable()
        assert not file.name.startswith(".")
    # The segment with this name replaced the folder for the contents of networkdesc.bin.
    assert (folder / "networkdesc.bin_dir").is_file()
    assert (folder / "networkdesc.bin_dir~" / "networkdesc.json").is_file()


def test_names_of_known_segments_are_kept():
    names = ["constants.bin", "QAicGraph_slice00", "metadata_fb.crc", "opstatsdesc.bin", "Größe"]
    assert file_names(names) == {name: name for name in names}


def test_existing_files_are_kept(tmp_path):
    (tmp_path / "network.elf").write_bytes(b"mine")
    with pytest.raises(FileExistsError) as caught:
        Qpc(SIMPLE).extract(tmp_path)
    assert caught.value.filename == str(tmp_path / "network.elf")
    assert files_below(tmp_path) == {"network.elf": b"mine"}
    Qpc(SIMPLE).extract(tmp_path, force=True)
    assert (tmp_path / "network.elf").read_bytes() == Qpc(SIMPLE).segments["network.elf"].data.tobytes()


def test_existing_links_are_kept(tmp_path):
    (tmp_path / "network.elf").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        Qpc(SIMPLE).extract(tmp_path)
    assert not (tmp_path / "nowhere").exists()
    Qpc(SIMPLE).extract(tmp_path, force=True)
    assert not (tmp_path / "network.elf").is_symlink()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("force", [True, False])
def test_links_out_of_the_folder_are_not_followed(tmp_path, force):
    outside, folder = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    folder.mkdir()
    (folder / "networkdesc.bin_dir").symlink_to(outside)
    with pytest.raises(PermissionError):
        Qpc(SIMPLE).extract(folder, force=force)
    assert files_below(outside) == {}
    assert list(folder.iterdir()) == [folder / "networkdesc.bin_dir"]


@pytest.mark.parametrize("force", [True, False])
def test_a_file_where_a_folder_is_needed(tmp_path, force):
    (tmp_path / "networkdesc.bin_dir").write_bytes(b"mine")
    with pytest.raises(NotADirectoryError):
        Qpc(SIMPLE).extract(tmp_path, force=force)
    assert files_below(tmp_path) == {"networkdesc.bin_dir": b"mine"}


@pytest.mark.parametrize("force", [True, False])
def test_a_folder_where_a_file_is_needed(tmp_path, force):
    (tmp_path / "network.elf").mkdir()
    with pytest.raises(IsADirectoryError):
        Qpc(SIMPLE).extract(tmp_path, force=force)
    assert files_below(tmp_path) == {}


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    real = Path.write_bytes
    calls = []

    def fails_later(path, data):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device", str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", fails_later)
    with pytest.raises(OSError, match="No space"):
        Qpc(SIMPLE).extract(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_output_folder_is_a_file(tmp_path):
    (tmp_path / "out").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        Qpc(SIMPLE).extract(tmp_path / "out")


def test_damaged_parts_are_left_out_with_a_warning(tmp_path):
    qpc = Qpc(container(program(elf=b"no elf")))
    with pytest.warns(UserWarning, match="is skipped") as caught:
        written = qpc.extract(tmp_path)
    left_out = [f"network.elf_dir/{name} is skipped" for name in ("metadata.json", "plan.json", "graph.onnx")]
    assert [str(warning.message).split(":")[0] for warning in caught] == left_out
    assert (tmp_path / "network.elf").read_bytes() == b"no elf"
    assert tmp_path / "networkdesc.bin_dir" / "networkdesc.json" in written
    # Only the requested segments cause a warning.
    qpc.extract(tmp_path / "again", "constants.bin")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        Qpc(SIMPLE).extract(tmp_path)
