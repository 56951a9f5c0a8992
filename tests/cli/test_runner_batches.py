"""Batches of ``qaic-runner``: folders, lists and JSON files of inputs."""

import json
import re

import numpy as np
import pytest

import qaicrt
from decoder_model import Oracle, Sizes, decoder, specializations
from qaic.cli.runner.batch_json import read_batch
from qaic.cli.runner.loop import InputMemory
from qaic.cli.runner.network import Binding, Network, Part, Request
from qaic.errors import InputError
from runner_support import batch_json, compiled, doubling, entry, raw, two_inputs
from session_models import model


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("doubling"), doubling())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("pair"), two_inputs())


@pytest.fixture(scope="module")
def batch_of_four(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("four"), doubling((4, 3)))


def count(lines):
    return int(re.fullmatch(r"InferenceCnt (\d+) .*", lines[lines.index(" ---- Stats ----") + 1]).group(1))


def written(folder, name, iteration, dtype=np.float32):
    (path,) = folder.glob(f"{name}-activation-*-inf-{iteration}.bin")
    return np.fromfile(path, dtype)


def numbers(start, size=8):
    return np.arange(start, start + size, dtype=np.float32)


def test_each_file_of_a_folder_is_an_inference(tool, program, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        raw(folder, f"{number}.raw", numbers(number))
    code, lines, err = tool(
        *["-t", program, "--aic-batch-input-directory", folder, "--write-output-num-samples", "5", "-a", "2"]
    )
    assert (code, err) == (0, "")
    assert count(lines) == 5
    for number in range(5):
        assert written(tmp_path, "y", number).tolist() == (2 * numbers(number)).tolist()


def test_a_batch_goes_around_when_more_is_asked_for(tool, program, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        raw(folder, f"{number}.raw", numbers(number))
    options = ["-n", "8", "--write-output-num-samples", "8"]
    code, lines, _ = tool("-t", program, "--aic-batch-input-directory", folder, *options)
    assert code == 0
    assert count(lines) == 8
    assert written(tmp_path, "y", 7).tolist() == (2 * numbers(7 % 3)).tolist()


def test_a_folder_is_for_one_input(tool, pair, tmp_path):
    code, _, err = tool("-t", pair, "--aic-batch-input-directory", tmp_path)
    assert code == 1
    assert "is for programs with one input; this one has 2" in err


def test_an_empty_folder_and_an_empty_list(tool, program, tmp_path):
    code, _, err = tool("-t", program, "--aic-batch-input-directory", tmp_path)
    assert code == 1
    assert "found no input file" in err
    (tmp_path / "list").write_text("\n\n")
    code, _, err = tool("-t", program, "--aic-batch-input-file-list", "list")
    assert code == 1
    assert "found no input file" in err


def test_each_line_of_a_list_is_an_inference(tool, pair, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    lines = []
    for number in range(3):
        a = raw(folder, f"a{number}", numbers(number, 6))
        raw(folder, f"b{number}", numbers(10 * number, 6))
        lines.append(f"{a}, b{number}")
    (folder / "list.txt").write_text("\n".join(lines) + "\n")
    code, out, err = tool(
        *["-t", pair, "--aic-batch-input-file-list", "elsewhere/list.txt", "--write-output-num-samples", "3"]
    )
    assert (code, err) == (0, "")
    assert count(out) == 3
    for number in range(3):
        expected = numbers(number, 6) - numbers(10 * number, 6)
        assert written(tmp_path, "difference_out", number).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a",
            "list: found 1 file, expected one for each input of the program: 'a' (24 bytes), 'b' (24 bytes)",
        ),
        ("a,a,a", "found 3 files, expected one for each input of the program: 'a'"),
        ("a,a\na,,a", "line 2: a name is empty"),
        ("a,nowhere", "nowhere: No such file or directory"),
        ("a,short", "short has 4 bytes; 'b' takes 24"),
        (b"\xff\xfe", "not a list of file names"),
    ],
)
def test_lists_with_mistakes(tool, pair, tmp_path, text, message):
    raw(tmp_path, "a", numbers(0, 6))
    raw(tmp_path, "short", numbers(0, 1))
    (tmp_path / "list").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, _, err = tool("-t", pair, "--aic-batch-input-file-list", "list")
    assert code == 1
    assert message in err


def test_files_of_batch_1_are_combined_on_request(tool, batch_of_four, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        raw(folder, f"{number}.raw", numbers(number, 3))
    options = ["-t", batch_of_four, "--aic-batch-input-directory", folder]
    code, _, err = tool(*options)
    assert code == 1
    assert "the files have batch size 1, but the program has batch size 4" in err
    assert "hint: --auto-batch-input combines them" in err
    code, lines, err = tool(*options, "--auto-batch-input", "--write-output-num-samples", "2")
    assert code == 0
    assert err == "note: the last batch of 4 is filled with 2 copies of the last input\n"
    assert count(lines) == 2
    rows = [written(tmp_path, "y", number).reshape(4, 3) for number in (0, 1)]
    expected = [2 * numbers(min(number, 5), 3) for number in range(8)]
    assert np.concatenate(rows).tolist() == np.array(expected).tolist()


def test_files_to_combine_have_the_size_of_one(tool, batch_of_four, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    raw(folder, "0.raw", numbers(0, 12))
    code, _, err = tool("-t", batch_of_four, "--aic-batch-input-directory", folder, "--auto-batch-input")
    assert code == 1
    assert "has 48 bytes; 'x' needs 12 for one sample of a batch of 4" in err


def test_json_files_and_their_folder(tool, pair, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    sets = []
    for number in range(3):
        raw(data, f"a{number}", numbers(number, 6))
        b = raw(tmp_path, f"b{number}", numbers(5 * number, 6))
        sets.append(
            [
                entry(b, "in", "b", 4, [2, 3]),
                entry("difference", "out", "difference/out", 4, [2, 3]),
                entry(f"a{number}", "in", "a", 4),
            ]
        )
    path = batch_json(data, sets)
    code, lines, err = tool("-t", pair, "-aic-batch-json-input", path, "--write-output-num-samples", "3")
    assert (code, err) == (0, "")
    assert count(lines) == 3
    for number in range(3):
        assert (
            written(tmp_path, "sum", number).tolist()
            == (numbers(number, 6) + numbers(5 * number, 6)).tolist()
        )


def test_types_by_name_are_as_good_as_sizes(tool, program, tmp_path):
    item = entry(raw(tmp_path, "x", numbers(0)), "in", "x", 4)
    del item["elem-size"]
    path = batch_json(tmp_path, [[{**item, "data-type": "Float"}]])
    assert tool("-t", program, "--aic-batch-json-input", path)[0] == 0
    path = batch_json(tmp_path, [[{**item, "data-type": "complex"}]])
    code, _, err = tool("-t", program, "--aic-batch-json-input", path)
    assert code == 1
    assert "\"data-type\" is 'complex'; one of int8" in err


def test_outputs_of_a_batch_are_compared_on_request(tool, program, tmp_path):
    good = [
        entry(raw(tmp_path, "x", numbers(0)), "in", "x", 4),
        entry(raw(tmp_path, "y", 2 * numbers(0)), "out", "y", 4),
    ]
    bad = [good[0], entry(raw(tmp_path, "z", numbers(0)), "out", "y", 4)]
    path = batch_json(tmp_path, [good, bad])
    assert tool("-t", program, "--aic-batch-json-input", path)[0] == 0
    code, _, err = tool("-t", program, "--aic-batch-json-input", path, "-c", "-S", "1")
    assert code == 1
    assert (
        f"output 'y' differs in 1 of 2 inferences; inference 1: output 'y' differs from {tmp_path / 'z'}"
        in err
    )
    # A placeholder of another size is equivalent to one with other values.
    path = batch_json(tmp_path, [[good[0], entry(raw(tmp_path, "short", numbers(0)[:3]), "out", "y", 4)]])
    code, lines, err = tool("-t", program, "--aic-batch-json-input", path, "-c", "-n", "4")
    assert (code, sum("InferenceCnt 4 " in line for line in lines)) == (1, 1)
    assert "output 'y' differs in 4 of 4 inferences" in err
    path = batch_json(tmp_path, [good, [bad[0], {**bad[1], "skip-validation": True}]])
    assert tool("-t", program, "--aic-batch-json-input", path, "-c")[0] == 0
    path = batch_json(tmp_path, [[good[0], entry("nowhere", "out", "y", 4)]])
    assert tool("-t", program, "--aic-batch-json-input", path)[0] == 0
    code, _, err = tool("-t", program, "--aic-batch-json-input", path, "-c")
    assert code == 1
    assert "nowhere: No such file or directory" in err
    path = batch_json(tmp_path, [good[:1]])
    code, _, err = tool("-t", program, "--aic-batch-json-input", path, "-c")
    assert (code, err) == (0, "note: -c: the batch file lists no output file to compare with\n")


X = entry("x", "in", "x", 4)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", 'an object with a list "IO-files" is expected'),
        ({"IO-files": {}}, 'an object with a list "IO-files" is expected'),
        ({"IO-files": []}, "the list is empty; at least one inference is expected"),
        ({"IO-files": [{}]}, "IO-files[0]: a list of files is expected"),
        ({"IO-files": [[7]]}, "IO-files[0][0]: an object is expected"),
        ({"IO-files": [[X], []]}, "IO-files[1]: input 'x' has no data, and the device keeps no state for it"),
        ({"IO-files": [[X, X]]}, "IO-files[0][1]: 'x' is listed a second time"),
        ({"IO-files": [[{**X, "io-direction": "inout"}]]}, "\"io-direction\" is 'inout'"),
        ({"IO-files": [[{**X, "map-to": "xx"}]]}, "the program has no input 'xx'; did you mean 'x'?"),
        ({"IO-files": [[{**X, "io-direction": "out"}]]}, "the program has no output 'x'; there are 'y'"),
        ({"IO-files": [[{**X, "path": ""}]]}, "\"path\" is ''; a string is expected"),
        ({"IO-files": [[{**X, "path": 3}]]}, '"path" is 3; a string is expected'),
        ({"IO-files": [[{**X, "path": "a\0b"}]]}, "a string is expected"),
        ({"IO-files": [[{**X, "path": "nowhere"}]]}, "nowhere: No such file or directory"),
        ({"IO-files": [[{**X, "path": "."}]]}, "Is a directory"),
        ({"IO-files": [[{**X, "path": "short"}]]}, "short has 12 bytes; 'x' takes 32"),
        ({"IO-files": [[{**X, "path": "short", "dims": [1, 8]}]]}, "short has 12 bytes; [1, 8] takes 32"),
        ({"IO-files": [[{**X, "dims": [2, 5]}]]}, "shape [2, 5] has 40 bytes; 'x' takes 32 as [1, 8]"),
        ({"IO-files": [[{**X, "dims": [-1]}]]}, '"dims" is [-1]; a list of up to 8 sizes is expected'),
        ({"IO-files": [[{**X, "dims": [True, 8]}]]}, '"dims" is [True, 8]'),
        ({"IO-files": [[{**X, "dims": [1] * 9}]]}, "a list of up to 8 sizes is expected"),
        ({"IO-files": [[{**X, "dims": [10**30]}]]}, "a list of up to 8 sizes is expected"),
        ({"IO-files": [[{**X, "dims": 8}]]}, '"dims" is 8'),
        ({"IO-files": [[{**X, "dims": [0]}]]}, "input 'x' has no data"),
        (
            {"IO-files": [[{**X, "elem-size": 2, "dims": [1, 8]}]]},
            "elements have 2 bytes; those of 'x'",
        ),
        ({"IO-files": [[{**X, "elem-size": 0}]]}, '"elem-size" is 0'),
        ({"IO-files": [[{**X, "elem-size": None}]]}, '"elem-size" is missing'),
        ({"IO-files": [[X, {**entry("y", "out", "y", 4), "skip-validation": 1}]]}, '"skip-validation" is 1'),
    ],
)
def test_json_with_mistakes(tool, program, tmp_path, document, message):
    raw(tmp_path, "x", numbers(0))
    raw(tmp_path, "short", numbers(0, 3))
    text = json.dumps(document) if isinstance(document, dict) else document
    (tmp_path / "batch.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, lines, err = tool("-t", program, "--aic-batch-json-input", "batch.json")
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert " ---- Stats ----" not in lines


def test_a_file_that_shrinks_while_it_runs(tool, program, tmp_path, monkeypatch):
    path = raw(tmp_path, "x", numbers(0))
    original = Part.read

    def shrinking(part):
        path.write_bytes(b"")
        return original(part)

    monkeypatch.setattr(Part, "read", shrinking)
    code, _, err = tool("-t", program, "-i", path)
    assert code == 1
    assert "read 0 bytes, expected 32 as at the start" in err


def request_of(size, number):
    binding = Binding("x", 0, size, False, 0, (size,), ())
    return Request([Part(binding, (size,), data=np.full(size, number, np.uint8))], [])


def test_memory_is_shared_while_everything_fits():
    memory = InputMemory([request_of(100, number) for number in range(10)], 1000)
    assert memory.most_in_flight is None
    assert memory.load(3)[0] is memory.load(3)[0]


def test_memory_beyond_the_limit_is_read_again():
    requests = [request_of(100, number) for number in range(11)]
    memory = InputMemory(requests, 1000)
    assert memory.most_in_flight == 10
    assert memory.load(3) is not memory.load(3)
    assert InputMemory(requests, 99).most_in_flight == 1


def test_a_batch_larger_than_the_limit_streams(tool, tmp_path):
    program = compiled(tmp_path / "net", doubling((1, 100_000)))
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        raw(folder, f"{number}.raw", np.full(100_000, number, np.float32))
    code, lines, err = tool(
        *["-t", program, "--aic-batch-input-directory", folder, "--aic-batch-max-memory", "1", "-n", "12"],
        *["--write-output-num-samples", "12"],
    )
    assert (code, err) == (0, "")
    assert count(lines) == 12
    for number in range(12):
        assert set(written(tmp_path, "y", number)) == {2.0 * (number % 6)}


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    """A decoder with caches on the device and two sets of shapes."""
    return compiled(
        tmp_path_factory.mktemp("decoder"),
        decoder(),
        network_specialization_config=specializations(prefill=8),
        retained_state=True,
    )


def test_a_decoder_runs_chunks_with_its_caches_on_the_device(tool, stateful, tmp_path):
    sizes = Sizes()
    tokens = np.random.default_rng(3).integers(0, sizes.vocabulary, (1, 12))
    chunks = [(0, 8), (8, 9), (9, 10), (10, 11), (11, 12)]
    oracle = Oracle(sizes)
    sets, expected = [], []
    for number, (start, end) in enumerate(chunks):
        ids, positions = tokens[:, start:end], np.arange(start, end)[np.newaxis]
        logits = oracle.step(ids)[None, None]
        expected.append(logits)
        sets.append(
            [
                entry(raw(tmp_path, f"ids{number}", ids), "in", "input_ids", 8, list(ids.shape)),
                entry(raw(tmp_path, f"places{number}", positions), "in", "position_ids", 8, list(ids.shape)),
                # An omitted shape means the shape that matches the inputs, and gives the same result as that
                # shape.
                *([entry("logits", "out", "logits", 4, list(logits.shape))] if number % 2 else []),
            ]
        )
    # The last step also copies the caches to the host.
    sets[-1] += [
        entry("cache", "out", f"{name}_RetainedState", 4, list(sizes.cache_shape())) for name in sizes.caches
    ]
    code, lines, err = tool(
        *["-t", stateful, "--aic-batch-json-input", batch_json(tmp_path, sets)],
        *["--write-output-num-samples", "5", "--write-output-dir", "out"],
    )
    assert (code, err) == (0, "")
    assert count(lines) == 5
    for number, logits in enumerate(expected):
        found = written(tmp_path / "out", "logits", number).reshape(logits.shape)
        np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-5)
    caches_written = {path.name for path in (tmp_path / "out").glob("past_*")}
    assert caches_written == {f"{name}_RetainedState-activation-0-inf-4.bin" for name in sizes.caches}
    for name, cache in oracle.caches.items():
        found = written(tmp_path / "out", f"{name}_RetainedState", 4).reshape(sizes.cache_shape())
        np.testing.assert_allclose(found[:, :, :12], cache, rtol=1e-5, atol=1e-5)
        assert not found[:, :, 12:].any()


def test_a_shape_the_program_does_not_have(tool, stateful, tmp_path):
    item = entry(raw(tmp_path, "ids", np.zeros((1, 3), np.int64)), "in", "input_ids", 8, [1, 3])
    code, _, err = tool("-t", stateful, "--aic-batch-json-input", batch_json(tmp_path, [[item]]))
    assert code == 1
    assert "'input_ids' has no shape [1, 3]; expected one of [1, 8], [1, 1]" in err


def test_shapes_that_do_not_go_together(tool, stateful, tmp_path):
    ids = entry(raw(tmp_path, "ids", np.zeros((1, 8), np.int64)), "in", "input_ids", 8, [1, 8])
    places = entry(raw(tmp_path, "places", np.zeros((1, 1), np.int64)), "in", "position_ids", 8, [1, 1])
    code, _, err = tool("-t", stateful, "--aic-batch-json-input", batch_json(tmp_path, [[ids, places]]))
    assert code == 1
    assert "No matching dimension found" in err


def test_shapes_of_files_without_dims():
    partial = Binding("x", 0, 48, True, 0, (4, 3), ())
    assert partial.dims_for(48, "f") == (4, 3)
    assert partial.dims_for(24, "f") == (2, 3)
    for nbytes in (0, 20, 60):
        with pytest.raises(InputError, match="'x' takes 48 or less"):
            partial.dims_for(nbytes, "f")
    several = Binding("x", 0, 48, False, 0, (4, 3), ((4, 3), (1, 3)))
    assert several.dims_for(12, "f") == (1, 3)
    with pytest.raises(InputError, match="'x' takes 12 or 48"):
        several.dims_for(24, "f")
    ambiguous = Binding("x", 0, 48, False, 0, (4, 3), ((4, 3), (1, 6), (2, 3)))
    with pytest.raises(InputError):
        ambiguous.dims_for(24, "f")


def test_outputs_that_the_device_keeps_are_not_read_unless_listed(stateful, tmp_path):
    network = Network.of(qaicrt.Qpc(str(stateful)))
    ids = raw(tmp_path, "ids", np.zeros((1, 8), np.int64))
    sets = [[entry(ids, "in", "input_ids", 8), entry(ids, "in", "position_ids", 8)]]
    (request,) = read_batch(batch_json(tmp_path, sets), network, compare=False)
    assert [part.binding.name for part in request.inputs if not part.skipped] == ["input_ids", "position_ids"]
    assert [part.binding.name for part in request.outputs if not part.skipped] == ["logits"]
    assert request.outputs[0].dims == (1, 1, Sizes().vocabulary)
    assert request.input_bytes == 128


def test_outputs_of_one_file_name_are_refused(tool, tmp_path):
    from onnx import helper

    built = model(
        [helper.make_node("Neg", ["x"], ["a/b"]), helper.make_node("Abs", ["x"], ["a_b"])],
        [("x", "float32", [2])],
        [("a/b", "float32", [2]), ("a_b", "float32", [2])],
    )
    program = compiled(tmp_path / "net", built)
    code, _, err = tool("-t", program, "--write-output-dir", "out")
    assert code == 1
    assert "'a/b' and 'a_b' would be written to the same file" in err


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("path", ["../x.raw", "data/../../x.raw", "link/x.raw", "circle", ".."])
def test_relative_paths_stay_in_the_folder_of_the_file(tool, program, tmp_path, path, direction):
    folder = tmp_path / "bundle"
    (folder / "data").mkdir(parents=True)
    raw(tmp_path, "x.raw", numbers(0))
    raw(folder, "inside.raw", numbers(0))
    (folder / "link").symlink_to(tmp_path)
    (folder / "circle").symlink_to("circle")
    paths = {"in": "inside.raw", "out": "inside.raw"} | {direction: path}
    entries = [entry(paths["in"], "in", "x", 4, [1, 8]), entry(paths["out"], "out", "y", 4, [1, 8])]
    file = batch_json(folder, [entries])
    code, _, err = tool("-t", program, "--aic-batch-json-input", file, "--write-output-dir", "out")
    assert code == 1
    assert f'"path" is {path!r}, which is outside' in err
    assert not (tmp_path / "out").exists()


def test_absolute_paths_and_links_inside_the_folder_are_followed(tool, program, tmp_path):
    folder = tmp_path / "bundle"
    (folder / "data").mkdir(parents=True)
    x = raw(tmp_path, "x.raw", numbers(3))
    raw(folder / "data", "x.raw", numbers(4))
    (folder / "link").symlink_to("data")
    sets = [[entry(path, "in", "x", 4, [1, 8])] for path in (x, "link/x.raw", "link/../data/x.raw")]
    file = batch_json(folder, sets)
    code, _, err = tool(
        *["-t", program, "--aic-batch-json-input", file],
        *["--write-output-num-samples", "3", "--write-output-dir", "out"],
    )
    assert (code, err) == (0, "")
    for number, start in enumerate((3, 4, 4)):
        assert written(tmp_path / "out", "y", number).tolist() == (2 * numbers(start)).tolist()
