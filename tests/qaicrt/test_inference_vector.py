"""``InferenceVector``: the sources of its buffers, and their replacement."""

import numpy as np
import pytest

import inference_sets
import qaicrt
from inference_sets import S, refused

V = qaicrt.InferenceVector


@pytest.fixture(scope="module")
def plain():
    return qaicrt.Qpc(str(inference_sets.PLAIN))


@pytest.fixture(scope="module")
def partial():
    return qaicrt.Qpc(str(inference_sets.PARTIAL))


def sizes(vector):
    return [buffer.size for buffer in vector.getVector()]


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.raw"
    path.write_bytes(bytes(range(256)) * 3)
    return path


def test_inputs_are_random_and_outputs_zero(plain):
    vector = V(plain.getBufferMappings())
    assert sizes(vector) == [768, 40]
    found, zeros = (bytes(buffer) for buffer in vector.getVector())
    assert len(set(found)) > 200
    assert zeros == bytes(40)
    # Two vectors of a container are equal, so that runs can be compared.
    assert bytes(V(plain).getVector()[0]) == found
    assert bytes(V(plain, V.RANDOM).getVector()[0]) == found
    assert bytes(V(plain, []).getVector()[0]) == found
    assert bytes(V(plain, V.FILESET, []).getVector()[0]) == found


def test_zeros(plain):
    vector = V(plain, source=V.ZERO_FILL)
    assert [bytes(buffer) for buffer in vector.getVector()] == [bytes(768), bytes(40)]


@pytest.mark.parametrize("both", [False, True])
def test_files(plain, image, tmp_path, both):
    # A name for each output can follow; such a file need not exist.
    files = [str(image), str(tmp_path / "output.raw")] if both else [image]
    for vector in (V(plain, files), V(plain, V.FILESET, files), V(plain, files=files)):
        assert bytes(vector.getVector()[0]) == image.read_bytes()
        assert bytes(vector.getVector()[1]) == bytes(40)


def test_what_is_no_source(plain):
    with pytest.raises(ValueError, match="source is 7"):
        V(plain, 7)
    with pytest.raises(TypeError, match="list of files"):
        V(plain, "image.raw")
    with pytest.raises(qaicrt.ExceptionNullPtr, match=r"^Null Pointer Exception: in object: InferenceVector"):
        V(None)
    with pytest.raises(AttributeError):
        V([1, 2])
    with pytest.raises(ValueError, match="follows an output"):
        V(list(reversed(plain.getBufferMappings())))


def test_files_that_do_not_fit(plain, image, tmp_path):
    with pytest.raises(qaicrt.ExceptionRuntime, match="no-such-file"):
        V(plain, [tmp_path / "no-such-file"])
    short = tmp_path / "short.raw"
    short.write_bytes(bytes(767))
    with pytest.raises(qaicrt.ExceptionInit, match="767 bytes; input `image` has 768"):
        V(plain, [short])
    with pytest.raises(qaicrt.ExceptionInit, match="found 3 files"):
        V(plain, [image] * 3)


def test_a_file_without_end(plain):
    with pytest.raises(qaicrt.ExceptionInit, match="/dev/zero is not a regular file, which is expected for"):
        V(plain, ["/dev/zero"])


def test_load_from_file_set(plain, image, tmp_path, capfd):
    vector = V(plain, V.ZERO_FILL)
    live = vector.getVector()
    assert vector.loadFromFileSet([str(image)]) == S.QS_SUCCESS
    assert bytes(live[0]) == image.read_bytes()
    before = list(live)
    refused(capfd, vector.loadFromFileSet([]), "no files")
    refused(capfd, vector.loadFromFileSet([image] * 3), "found 3 files", status=S.QS_ERROR)
    refused(capfd, vector.loadFromFileSet([tmp_path / "none"]), "none", status=S.QS_ERROR)
    long = tmp_path / "long.raw"
    long.write_bytes(bytes(769))
    refused(capfd, vector.loadFromFileSet([long]), "long.raw has more bytes", status=S.QS_ERROR)
    assert list(live) == before
    with pytest.raises(TypeError):
        vector.loadFromFileSet(str(image))


def test_a_partial_input_takes_a_smaller_file(partial, tmp_path, capfd):
    path = tmp_path / "tokens.raw"
    path.write_bytes(b"12345")
    vector = V(partial, [path])
    assert sizes(vector) == [5, 16]
    path.write_bytes(b"123456789")
    assert vector.loadFromFileSet([path]) == S.QS_SUCCESS
    assert sizes(vector) == [9, 16]
    path.write_bytes(bytes(65))
    refused(capfd, vector.loadFromFileSet([path]), "input `tokens` has 64", status=S.QS_ERROR)


def test_the_vector_is_live(plain):
    vector = V(plain)
    mine = qaicrt.QBuffer(bytes(768))
    vector.getVector()[0] = mine
    assert vector.getVector()[0] is mine
    assert vector.getVector() is vector.getVector()
    assert len(vector) == 2


def test_replacing_buffers(plain, capfd):
    vector = V(plain)
    live = vector.getVector()
    inputs, outputs = qaicrt.QBuffer(bytes(768)), qaicrt.QBuffer(bytes(40))
    assert vector.setBuffers([inputs, outputs]) == S.QS_SUCCESS
    assert live == [inputs, outputs]
    others = qaicrt.QBuffer(np.ones(192, np.float32)), qaicrt.QBuffer(np.ones(10, np.float32))
    assert vector.setInputBuffers([others[0]]) == S.QS_SUCCESS
    assert live == [others[0], outputs]
    assert vector.setOutputBuffers((others[1],)) == S.QS_SUCCESS
    assert live == [*others]
    refused(capfd, vector.setBuffers([inputs]), "found 1 buffer, expected 2")
    refused(capfd, vector.setInputBuffers([inputs, outputs]), "found 2 inputs, expected 1")
    refused(capfd, vector.setOutputBuffers([]), "found 0 outputs, expected 1")
    with pytest.raises(TypeError, match="buffer 0 has type bytes"):
        vector.setBuffers([bytes(768), bytes(40)])
    assert live == [*others]


def test_a_shortened_list_has_no_place_for_buffers(plain, capfd):
    vector = V(plain)
    del vector.getVector()[1]
    refused(
        capfd,
        vector.setOutputBuffers([qaicrt.QBuffer(bytes(40))]),
        "the list of buffers has length 1, expected 2",
    )


def test_an_exec_object_takes_a_vector():
    client = inference_sets.Client(inference_sets.affine())
    program = qaicrt.Program(client.context, 0, client.qpc)
    exec_obj = qaicrt.ExecObj(client.context, program)
    x, y = np.ones((2, 4), np.float32), np.empty((2, 4), np.float32)
    assert exec_obj.setData(client.vector(x, y)) == S.QS_SUCCESS
    assert exec_obj.run() == S.QS_SUCCESS
    np.testing.assert_allclose(y, inference_sets.affine_of(x), rtol=1e-6)
