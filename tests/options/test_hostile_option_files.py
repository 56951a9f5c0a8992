"""Options that name a path without a regular file, or a file that must not be overwritten."""

import os
import threading
from pathlib import Path

import pytest

from calibration_models import convolutional
from child_process import WATCHDOG_S
from qaic.cli.compile import main
from qaic.compiler import driver
from qaic.errors import OptionError
from qaic.options import resolve
from session_models import save

DUMPS = [
    "dump_profile",
    "dump_embedding_tables",
    "dump_custom_io_config_template_file",
    "mdp_dump_partition_config",
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QAIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def built(tmp_path):
    return save(tmp_path, convolutional())


def compile_options(**options):
    return resolve(options, options_path=None, model_is_container=False).compile


@pytest.mark.parametrize("option", DUMPS)
def test_a_dump_does_not_replace_the_model(built, option):
    before = Path(built).read_bytes()
    link = Path("link.onnx")
    link.symlink_to(built)
    for target in (built, link):
        with pytest.raises(OptionError, match=rf"^{option}: .* is the model; ") as caught:
            driver.write_side_files(built, compile_options(**{option: target}))
        assert caught.value.code == "option.output_file"
    assert Path(built).read_bytes() == before


@pytest.mark.parametrize("option", DUMPS)
def test_a_dump_does_not_replace_a_pipe_device_or_folder(built, option):
    os.mkfifo("pipe")
    Path("folder").mkdir()
    link = Path("null")
    link.symlink_to(os.devnull)
    for target, found in (
        ("pipe", "a device or pipe"),
        ("folder", "a directory"),
        (link, "a device or pipe"),
    ):
        with pytest.raises(OptionError, match=rf"^{option}: .* is {found}; "):
            driver.write_side_files(built, compile_options(**{option: target}))
    assert Path("pipe").is_fifo()
    assert link.is_symlink()


def test_a_dump_does_not_replace_what_another_option_reads_or_writes(built):
    Path("list.txt").write_text("x.raw\n")
    with pytest.raises(OptionError, match=r"'list.txt' is the file of input_list_file; "):
        driver.write_side_files(built, compile_options(dump_profile="list.txt", input_list_file="list.txt"))
    options = compile_options(dump_profile="same", dump_custom_io_config_template_file="./same")
    with pytest.raises(OptionError, match="is the file of "):
        driver.write_side_files(built, options)
    assert Path("list.txt").read_text() == "x.raw\n"
    assert not Path("same").exists()


def test_a_compilation_looks_before_it_works(built):
    with pytest.raises(OptionError, match="is the model; "):
        driver.compile_model(built, compile_options(dump_profile=built), {}, output_dir="out")
    assert not Path("out").exists()


def test_a_dump_goes_where_a_link_points(built):
    Path("kept").mkdir()
    Path("template.yaml").symlink_to("kept/template.yaml")
    driver.write_side_files(built, compile_options(dump_custom_io_config_template_file="template.yaml"))
    assert Path("template.yaml").is_symlink()
    assert "IOName" in Path("kept/template.yaml").read_text()


@pytest.mark.parametrize(
    "flag",
    [
        "-options-path",
        "-network-specialization-config",
        "-custom-IO-list-file",
        "-node-precision-info",
        "-mdp-load-partition-config",
        "-load-profile",
    ],
)
def test_a_pipe_without_a_writer_is_refused_instead_of_waited_for(built, capsys, flag):
    os.mkfifo("pipe")
    codes = []
    arguments = [f"-m={built}", "-aic-binary-dir=out", f"{flag}=pipe"]
    thread = threading.Thread(target=lambda: codes.append(main(arguments)), daemon=True)
    thread.start()
    thread.join(WATCHDOG_S)
    assert codes == [2]
    assert "pipe" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize("found", [".", "missing.yaml"])
def test_an_options_file_that_cannot_be_read_is_wrong_usage(built, capsys, found):
    assert main([f"-m={built}", "-aic-binary-dir=out", f"-options-path={found}"]) == 2
    assert f"error: -options-path: {found}: " in capsys.readouterr().err
