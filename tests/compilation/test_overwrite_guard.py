"""No kind of compilation replaces a container or a file that openqaic did not write."""

import numpy as np
import pytest
from onnx import helper

import qaic
from qaic.cli.compile import main as qaic_compile
from qaic.cli.openqaic import main as openqaic
from qaic.configs import CompileConfig
from qaic.errors import OptionError, QaicError
from qpc_support import container, program
from session_models import model, save


@pytest.fixture
def path(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    weights = {"w": np.full(4, 2, np.float32)}
    return save(tmp_path, model(nodes, [("x", "float32", [4])], [("y", "float32", [4])], weights))


def tool(command):
    def run(path, folder, options):
        options.write_text(f"output_dir: {folder}\n")
        return command(str(path), str(folder), str(options))

    return run


def from_python(call):
    def run(path, folder, options):
        options.write_text(f"output_dir: {folder}\n")
        try:
            call(path, folder, options)
        except QaicError:
            return 2
        return 0

    return run


WAYS = {
    "openqaic compile -o": tool(lambda path, folder, _: openqaic(["compile", path, "-o", folder])),
    **{
        f"openqaic {name} --options-path": tool(
            lambda path, _, options, name=name: openqaic([name, path, "--options-path", options])
        )
        for name in ("compile", "run", "inspect", "profile")
    },
    "openqaic bench": tool(
        lambda path, _, options: openqaic(["bench", path, "--seconds", "0.01", "--options-path", options])
    ),
    "qaic-compile": tool(lambda path, folder, _: qaic_compile([f"-m={path}", f"-aic-binary-dir={folder}"])),
    "qaic-compile, options file": tool(
        lambda path, _, options: qaic_compile([f"-m={path}", f"-options-path={options}"])
    ),
    "qaic.compile": from_python(lambda path, folder, _: qaic.compile(path, output_dir=folder)),
    "qaic.compile, options file": from_python(lambda path, _, options: qaic.compile(path, str(options))),
    "qaic.Session": from_python(lambda path, folder, _: qaic.Session(path, output_dir=folder)),
}
FOREIGN = {
    "a container of another compiler": container(program(name="elsewhere")),
    "no container": b"thesis",
    "an empty file": b"",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("found", FOREIGN)
def test_what_openqaic_did_not_compile_stays(path, tmp_path, way, found):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "programqpc.bin").write_bytes(FOREIGN[found])
    (folder / "notes.txt").write_text("mine")
    assert WAYS[way](path, folder, tmp_path / "o.yaml") == 2
    assert {held.name: held.read_bytes() for held in folder.iterdir()} == {
        "programqpc.bin": FOREIGN[found],
        "notes.txt": b"mine",
    }


@pytest.mark.parametrize("way", WAYS)
def test_what_openqaic_compiled_is_replaced(path, tmp_path, way):
    folder = tmp_path / "out"
    qaic.compile(path, output_dir=folder, aic_num_cores=2)
    # Simulates the files of a killed process.
    (folder / ".openqaic-0.tmp").mkdir()
    (folder / "programqpc.bin").chmod(0o600)
    assert WAYS[way](path, folder, tmp_path / "o.yaml") == 0
    assert qaic.Qpc(folder).program_info.num_cores != 2
    assert [held.name for held in folder.iterdir()] == ["programqpc.bin"]
    assert (folder / "programqpc.bin").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("found", FOREIGN)
def test_a_file_of_a_name_of_its_own_is_guarded_too(path, tmp_path, found):
    config = CompileConfig(backend="AIC", backend_binary_path=str(tmp_path / "mine.bin"))
    place = config.backend_binary_file
    place.write_bytes(FOREIGN[found])
    with pytest.raises(OptionError, match="backend_binary_path"):
        qaic.compile(path, config)
    assert place.read_bytes() == FOREIGN[found]
    place.unlink()
    for _ in range(2):
        assert qaic.compile(path, config).path == place


def test_the_message_names_the_option_as_it_was_typed(path, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    (tmp_path / "o.yaml").write_text(f"output_dir: {tmp_path / 'out'}\n")
    for argv, option in (
        (["-o", str(tmp_path / "out")], "-o: "),
        (["--options-path", str(tmp_path / "o.yaml")], f"output_dir ({tmp_path / 'o.yaml'}, line 1): "),
    ):
        assert openqaic(["compile", str(path), *argv]) == 2
        assert capsys.readouterr().err.startswith(f"error: {option}'{tmp_path / 'out'}' cannot be used")
