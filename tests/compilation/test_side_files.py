"""Files that a compilation writes next to its container, through the session."""

import json
import zipfile

import numpy as np
import pytest
from onnx import helper

import qaic
import session_models

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def model(tmp_path):
    built = session_models.model(
        [
            helper.make_node("Gather", ["t", "i"], ["g"], name="lookup"),
            helper.make_node("Neg", ["g"], ["y"], name="minus"),
        ],
        [("i", "int64", [2])],
        [("y", "float32", [2, 3])],
        {"t": TABLE},
    )
    return session_models.save(tmp_path, built)


def test_files_appear_with_the_container_again_and_again(tmp_path, model):
    tables, parts = tmp_path / "made" / "t.zip", tmp_path / "p.json"
    for _ in range(2):  # the second container comes from the cache
        session = qaic.Session(model, dump_embedding_tables=tables, mdp_dump_partition_config=parts)
        np.testing.assert_array_equal(session.run({"i": np.array([3, 0])})["y"], -TABLE[[3, 0]])
        assert json.loads(parts.read_text())["partitions"][0]["nodeList"] == ["lookup", "minus"]
        with np.load(tables) as archive:
            np.testing.assert_array_equal(archive["t"], TABLE)
        tables.unlink()
        parts.unlink()


def test_tables_of_the_file_decide_about_the_container(tmp_path, model):
    file = tmp_path / "t.zip"
    for factor in (2, 5):
        with zipfile.ZipFile(file, "w") as archive, archive.open("t.npy", "w") as member:
            np.save(member, TABLE * factor)
        session = qaic.Session(model, load_embedding_tables=file)
        np.testing.assert_array_equal(session.run({"i": np.array([1, 2])})["y"], -TABLE[[1, 2]] * factor)


def test_nothing_is_written_when_the_model_is_refused(tmp_path, model):
    parts = tmp_path / "p.json"
    with pytest.raises(qaic.errors.CompileError):
        qaic.Session(model, mdp_dump_partition_config=parts, output_node_names=["nothing"])
    assert not parts.exists()


@pytest.mark.parametrize(
    "option",
    [
        "dump_profile",
        "dump_embedding_tables",
        "dump_custom_io_config_template_file",
        "mdp_dump_partition_config",
    ],
)
def test_only_a_file_of_its_kind_is_replaced(tmp_path, model, option):
    path = tmp_path / "mine"
    given = {option: path} | ({"use_random_input_data": True} if option == "dump_profile" else {})
    for content in (b"thesis", b'{"mine": 1}', b"---\nmine: 1\n"):
        path.write_bytes(content)
        with pytest.raises(qaic.errors.OptionError, match="a file of another kind") as caught:
            qaic.compile(model, **given)
        assert caught.value.code == "option.output_file"
        assert path.read_bytes() == content
    path.write_bytes(b"")
    path.chmod(0o600)
    for _ in range(2):
        qaic.compile(model, **given)
        assert path.stat().st_size
        assert path.stat().st_mode & 0o777 == 0o600
