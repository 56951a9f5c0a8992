"""``Qpc`` and ``QpcFile`` of the low-level interface."""

import copy
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import qaic
import qaicrt
from qaicrt import BufferDataTypeEnum, BufferIoTypeEnum, QStatus

DATA = Path(__file__).parents[1] / "data" / "qpc"
SAMPLES = sorted(DATA.glob("s*.qpc"))
CONTAINER = DATA / "s04_convert_f16.qpc"

assert len(SAMPLES) >= 13


@pytest.fixture
def directory(tmp_path):
    shutil.copy(CONTAINER, tmp_path / "programqpc.bin")
    shutil.copy(DATA / "s01_simple_f32_file.qpc", tmp_path / "other.bin")
    return tmp_path


def test_every_way_to_open(directory):
    content = CONTAINER.read_bytes()
    ways = [
        qaicrt.Qpc(str(directory)),
        qaicrt.Qpc(f"{directory}/"),
        qaicrt.Qpc(directory),
        qaicrt.Qpc(str(directory), "programqpc.bin"),
        qaicrt.Qpc(basePath=directory, qpcFilename="programqpc.bin"),
        qaicrt.Qpc(str(CONTAINER)),
        qaicrt.Qpc(content),
        qaicrt.Qpc(bytearray(content)),
        qaicrt.Qpc(memoryview(content)),
        qaicrt.Qpc(content, len(content)),
        qaicrt.Qpc(content, len(content), False),
        qaicrt.Qpc(content + bytes(100), len(content), makeCopy=True),
    ]
    for qpc in ways:
        assert qpc.size() == len(content)
        assert bytes(qpc.buffer()) == content
    assert qaicrt.Qpc(directory, "other.bin").size() == (directory / "other.bin").stat().st_size


def test_the_bytes_outlive_the_object_and_cannot_be_written(directory):
    view = qaicrt.Qpc(directory).buffer()
    assert view.readonly
    assert view.tobytes() == CONTAINER.read_bytes()


@pytest.mark.parametrize("size", ["programqpc.bin", 1.5, -1])
def test_the_size_of_a_buffer_is_a_number(size):
    with pytest.raises(TypeError, match="size of the container is"):
        qaicrt.Qpc(CONTAINER.read_bytes(), size)


def test_a_size_beyond_the_buffer_and_a_name_that_is_a_number(directory):
    content = CONTAINER.read_bytes()
    with pytest.raises(
        qaicrt.ExceptionInit, match=f"{len(content) + 1}, and the buffer has {len(content)} bytes"
    ):
        qaicrt.Qpc(content, len(content) + 1)
    with pytest.raises(TypeError, match="qpcFilename is 5; the name of a file"):
        qaicrt.Qpc(directory, 5)


def test_the_size_of_a_program_is_that_of_its_elf_file(directory):
    [program] = qaicrt.Qpc(directory).getInfo().program
    assert program.size == qaic.Qpc(directory).segments["network.elf"].size > 0


def test_bytes_are_data_and_no_path(directory):
    with pytest.raises(qaicrt.ExceptionInit):
        qaicrt.Qpc(str(directory).encode())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_says_what_the_reference_says(sample):
    expected = json.loads(sample.with_suffix(".json").read_text())
    qpc = qaicrt.Qpc(sample)
    for found, described in [
        (qpc.getBufferMappings(), expected["buffer_mappings"]),
        (qpc.getBufferMappings(0), expected["buffer_mappings"]),
        (qpc.getBufferMappingsDma(), expected["buffer_mappings_dma"]),
    ]:
        assert [
            {
                "bufferName": mapping.bufferName,
                "index": mapping.index,
                "ioType": int(mapping.ioType),
                "size": mapping.size,
                "isPartialBufferAllowed": mapping.isPartialBufferAllowed,
                "dataType": int(mapping.dataType),
            }
            for mapping in found
        ] == described
    info = qpc.getInfo()
    # The vendor's library leaves the size at 0.
    program = {name: value for name, value in expected["program"].items() if name != "size"}
    assert len(info.program) == 1
    assert {name: getattr(info.program[0], name) for name in program} == program
    assert info.program[0].bufferMappings == qpc.getBufferMappings()
    assert info.program[0].bufferMappingsDma == qpc.getBufferMappingsDma()
    constants = [{"index": part.index, "name": part.name, "size": part.size} for part in info.constants]
    assert constants == expected["constants_info"]


def test_inputs_come_first_and_know_their_place():
    mappings = qaicrt.Qpc(CONTAINER).getBufferMappings()
    assert [mapping.index for mapping in mappings] == list(range(len(mappings)))
    roles = [mapping.ioType for mapping in mappings]
    inputs = roles.count(BufferIoTypeEnum.BUFFER_IO_TYPE_INPUT)
    assert 0 < inputs < len(roles)
    assert set(roles[inputs:]) == {BufferIoTypeEnum.BUFFER_IO_TYPE_OUTPUT}


def test_dimensions_of_several_specializations():
    first = qaicrt.Qpc(DATA / "s08_dynamic_shapes.qpc").getBufferMappingsV2()[0]
    assert first.defaultDimensions == [1, 32]
    assert first.allowedDimensions == [[1, 1], [1, 8], [1, 32]]
    assert first.dataType == BufferDataTypeEnum.BUFFER_DATA_TYPE_INT64I
    single = qaicrt.Qpc(CONTAINER).getBufferMappingsV2()
    assert [mapping.allowedDimensions for mapping in single] == [[]] * len(single)
    assert all(mapping.defaultDimensions for mapping in single)


@pytest.mark.parametrize("index", [-1, 1, 1 << 40])
def test_a_program_that_does_not_exist(index):
    qpc = qaicrt.Qpc(CONTAINER)
    for call in (qpc.getBufferMappings, qpc.getBufferMappingsDma):
        with pytest.raises(qaicrt.ExceptionRuntime, match=rf"^Runtime Exception: .*{index}"):
            call(index)


@pytest.mark.parametrize("path", sorted(DATA.glob("bad*.qpc")), ids=lambda path: path.stem)
def test_a_damaged_file_is_named(path):
    with pytest.raises(qaicrt.ExceptionInit) as caught:
        qaicrt.Qpc(str(path))
    assert str(caught.value).startswith("Initialization Exception: in object: Qpc ")
    assert str(path) in str(caught.value)
    assert caught.value.code.startswith("qpc.")
    assert isinstance(caught.value, RuntimeError)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for arguments in [(tmp_path,), (tmp_path / "nowhere",), (tmp_path, "x.bin"), (str(CONTAINER), "x.bin")]:
        with pytest.raises(qaicrt.ExceptionInit, match="in object: Qpc ") as caught:
            qaicrt.Qpc(*arguments)
        assert str(arguments[0]) in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "programqpc.bin")
    with pytest.raises(qaicrt.ExceptionInit, match="not a regular file"):
        qaicrt.Qpc(tmp_path)
    with pytest.raises(qaicrt.ExceptionInit, match="Not a regular file"):
        qaicrt.QpcFile(tmp_path).load()


@pytest.mark.parametrize("data", [b"", b"\x7c\xcd\xa1\x00", bytes(100)])
def test_bytes_that_are_no_container(data):
    with pytest.raises(qaicrt.ExceptionInit, match="Initialization Exception: "):
        qaicrt.Qpc(data)


@pytest.mark.parametrize("source", [3, 2.5, ["a"]])
def test_what_is_neither_a_path_nor_bytes(source):
    with pytest.raises(qaicrt.ExceptionInit, match="a path or the bytes of a container") as caught:
        qaicrt.Qpc(source)
    assert f"basePath is {source!r}" in str(caught.value)


def test_no_container_and_an_empty_name():
    with pytest.raises(qaicrt.ExceptionNullPtr, match="basePath is None"):
        qaicrt.Qpc(None)
    with pytest.raises(qaicrt.ExceptionInit, match="in object: Qpc '': No such file"):
        qaicrt.Qpc("")


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_cannot_be_copied(how, directory):
    for made in (qaicrt.Qpc(directory), qaicrt.QpcFile(directory)):
        with pytest.raises(TypeError):
            how(made)


def test_io_descriptor_is_bytes():
    status, data = qaicrt.Qpc(CONTAINER).getIoDescriptor()
    assert status == QStatus.QS_SUCCESS
    assert type(data) is bytes


class TestQpcFile:
    def test_is_empty_until_it_is_loaded(self, directory):
        file = qaicrt.QpcFile(str(directory))
        assert (file.size(), bytes(file.getBuffer()), bytes(file.data())) == (0, b"", b"")
        assert file.load() is True
        content = CONTAINER.read_bytes()
        assert (file.size(), bytes(file.getBuffer()), bytes(file.data())) == (len(content), content, content)
        assert file.data().readonly
        assert qaicrt.Qpc(file.getBuffer()).size() == len(content)

    def test_takes_another_name(self, directory):
        file = qaicrt.QpcFile(basePath=directory, qpcFilename="other.bin")
        file.load()
        assert file.size() == (directory / "other.bin").stat().st_size

    def test_names_what_cannot_be_read(self, tmp_path):
        file = qaicrt.QpcFile(tmp_path)
        with pytest.raises(qaicrt.ExceptionInit, match=str(tmp_path / "programqpc.bin")):
            file.load()
        with pytest.raises(qaicrt.ExceptionInit):
            qaicrt.QpcFile("a\0b").load()
        assert file.size() == 0
