"""``bindings.json`` next to a container: only the files that it names are inputs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from runner_support import compiled


@pytest.fixture(scope="module")
def difference(tmp_path_factory):
    """Compile ``a - b`` for two inputs with rows of different sizes."""
    inputs = [make_tensor_value_info(name, 1, shape) for name, shape in (("a", [2, 3]), ("b", [3]))]
    graph = make_graph(
        [make_node("Sub", ["a", "b"], ["y"])], "g", inputs, [make_tensor_value_info("y", 1, [2, 3])]
    )
    return compiled(
        tmp_path_factory.mktemp("difference"),
        make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8),
    )


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 5, 2], np.float32)


def user_buffers(folder, *rows):
    """Write raw files and a file with user buffers next to a copy of a container."""
    for name, array in (("bind/a.bin", A), ("bind/b.bin", B)):
        (folder / "bind").mkdir(exist_ok=True)
        array.tofile(folder / name)
    (folder / "bindings.json").write_text(json.dumps({"userBuffers": rows}))


def row(num, name, size, file=None):
    return {"num": num, "buffSize": size, "name": name, "inputFile": file or f"bind/{name}.bin"}


GOOD = [row(0, "a", 24), row(1, "b", 12)]


@pytest.fixture
def bound(difference, tmp_path):
    return Path(shutil.copytree(difference, tmp_path / "bound"))


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        GOOD,
        GOOD[::-1],
        [row(7, "b", 12), row(3, "a", 24)],
        [{key: item[key] for key in ("num", "inputFile")} for item in GOOD],
        [
            {**item, "name": f"tensor_{number}"} | {"inputFile": item["inputFile"]}
            for number, item in enumerate(GOOD)
        ],
        [*GOOD, {"num": 2, "buffSize": 24, "name": "y", "outputFile": "y.bin"}],
    ],
)
def test_user_buffers_beside_the_container_are_the_inputs(tool, bound, tmp_path, rows, as_file):
    user_buffers(bound, *rows)
    program = bound / "programqpc.bin" if as_file else bound
    code, lines, err = tool("-t", program, "-n", "2", "--write-output-dir", ".")
    assert (code, err) == (0, "")
    assert lines[:2] == [f"Input file: {bound / 'bind' / name}" for name in ("a.bin", "b.bin")]
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "y-activation-0-inf-0.bin", np.float32).reshape(2, 3), A - B
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"inputs": []}', 'an object with a list "userBuffers" or "IO-files" is expected'),
        ("[", "not valid JSON"),
        ({"userBuffers": {}}, '"userBuffers" is {}; a list of buffers is expected'),
        ({"userBuffers": [7]}, "userBuffers[0]: an object is expected"),
        ({"userBuffers": [{**GOOD[0], "num": "0"}]}, "\"num\" is '0'; a buffer number"),
        ({"userBuffers": [GOOD[0], {**GOOD[1], "num": 0}]}, '"num" is 0, which another buffer also has'),
        (
            {"userBuffers": GOOD[:1]},
            "found 1 file, expected one for each input of the program: 'a' (24 bytes), 'b' (12 bytes)",
        ),
        ({"userBuffers": []}, "found 0 files, expected one for each input of the program: 'a'"),
        ({"userBuffers": [{**GOOD[0], "buffSize": 64}, GOOD[1]]}, '"buffSize" is 64, and'),
        (
            {"userBuffers": [{**GOOD[0], "inputFile": "gone.bin"}, GOOD[1]]},
            "gone.bin: No such file or directory",
        ),
        ({"userBuffers": [row(0, "a", 12, "bind/b.bin"), row(1, "b", 24, "bind/a.bin")]}, "'a' takes 24"),
        (
            {"userBuffers": [row(0, "b", 12), row(1, "a", 24)]},
            "\"name\" is 'b', but the order of \"num\" gives 'a'",
        ),
        ({"userBuffers": [{**GOOD[0], "inputFile": "../a.bin"}, GOOD[1]]}, "is outside"),
        (
            {"userBuffers": [{**GOOD[0], "inputFile": None}, GOOD[1]]},
            '"inputFile" is None; a string is expected',
        ),
    ],
)
def test_inputs_that_the_user_named_are_never_random(tool, bound, content, message):
    user_buffers(bound)
    (bound / "bindings.json").write_text(content if isinstance(content, str) else json.dumps(content))
    code, lines, err = tool("-t", bound, "-n", "3")
    assert code == 1
    assert message in err
    assert not [line for line in lines if "random" in line or "Inf/Sec" in line]
    # The runner uses the files unless random inputs are requested.
    for flag in ("--bound-random", "--unbound-random"):
        assert tool("-t", bound, "-n", "1", flag)[0] == 0


def test_unknown_keys_of_user_buffers_are_named(tool, bound):
    user_buffers(bound, {**GOOD[0], "bufSize": 24}, GOOD[1])
    code, _, err = tool("-t", bound, "-n", "1")
    assert code == 0
    assert "the key 'bufSize' is not known and is ignored; did you mean buffSize?" in err
