import json

import pytest

from qaic.errors import OptionError
from qaic.options import resolve
from qaic.options.codecs.scalars import ValueMismatchError
from qaic.options.files.partitions import Partitions
from qaic.options.files.specializations import SpecializationEntry, Specializations

NAMED = [
    {"name": "Prefill", "symbols": {"batch_size": "1", "seq_len": "8"}},
    {"name": "Decode", "symbols": {"batch_size": 1, "seq_len": 1}},
]
PARSED = (
    SpecializationEntry("Prefill", {"batch_size": 1, "seq_len": 8}),
    SpecializationEntry("Decode", {"batch_size": 1, "seq_len": 1}),
)


def resolved(**options):
    return resolve(options, options_path=None, model_is_container=False)


def written(folder, value, name="specializations.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "entries", [NAMED, [entry["symbols"] for entry in NAMED], [NAMED[0], NAMED[1]["symbols"]], PARSED]
)
def test_both_forms_of_entries_mean_the_same(entries):
    assert Specializations().content(entries) == PARSED


def test_file_object_and_list_mean_the_same(tmp_path):
    path = written(tmp_path, {"specializations": NAMED})
    for value in (path, str(path), {"specializations": NAMED}, NAMED):
        options = resolved(network_specialization_config=value)
        assert options.compile.network_specialization_config == PARSED
        assert options.set_compile["network_specialization_config"] == [
            {"name": entry.name, "symbols": entry.symbols} for entry in PARSED
        ]


def test_json_form_parses_back():
    codec = Specializations()
    assert codec.content(codec.to_json(PARSED)) == PARSED


def test_flat_entries_are_named_by_their_sequence_and_number():
    flat = [{"seq_len": 128}, {"seq_len": 1}, {"height": 4}, {"seq_len": 32}]
    names = [entry.name for entry in Specializations().content(flat)]
    assert names == ["Prefill_0", "Decode", "Graph_2", "Prefill_1"]


def test_no_specializations_are_none():
    assert resolved(network_specialization_config=[]).compile.network_specialization_config == ()


def test_path_in_an_options_file_may_start_from_its_folder(tmp_path):
    written(tmp_path, {"specializations": NAMED})
    options = tmp_path / "options.yaml"
    options.write_text("relative-path: true\nnetwork-specialization-config: specializations.json\n")
    found = resolve({}, options_path=options, model_is_container=False)
    assert found.compile.network_specialization_config == PARSED


def test_file_that_an_argument_overrides_is_not_read(tmp_path):
    options = tmp_path / "options.yaml"
    options.write_text(f"network_specialization_config: {tmp_path / 'missing.json'}\n")
    found = resolve({"network_specialization_config": NAMED}, options_path=options, model_is_container=False)
    assert found.compile.network_specialization_config == PARSED


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", r"JSON in the file .*specializations\.json.*a mistake"),
        ("\xff", "JSON in the file"),
        ('{"specializations": [], "specializations": []}', "'specializations' occurs twice"),
        ([1], "an object with sizes of symbols as specialization 0.*found 1"),
        ({"specialization": []}, "the key 'specializations'.*found the keys 'specialization'"),
        ({"specializations": {"a": 1}}, "expected a list of specializations"),
        ([{"seq_len": 0}], "an integer from 1 .*for the symbol 'seq_len' in specialization 0.*found 0"),
        ([{"seq_len": "x"}], "found 'x'"),
        ([{"seq_len": [1]}], r"found \[1\]"),
        ([{"name": "A", "symbols": [1]}], "sizes of symbols in specialization 0"),
        ([{"name": "", "symbols": {}}], "text as the name of specialization 0"),
        ([NAMED[0], {"": 1}], "'' as the name of a symbol"),
    ],
)
def test_wrong_files_are_refused_with_place_and_name(tmp_path, content, text):
    path = written(tmp_path, content)
    if content == "\xff":
        path.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=f"(?s)^network_specialization_config: .*{text}") as caught:
        resolved(network_specialization_config=path)
    assert caught.value.code == "option.invalid_value"


def test_missing_file_is_refused_by_its_path(tmp_path):
    with pytest.raises(OptionError, match=r"(?s)a readable file .*gone\.json.*No such file"):
        resolved(network_specialization_config=tmp_path / "gone.json")
    with pytest.raises(OptionError, match="Is a directory"):
        resolved(network_specialization_config=tmp_path)
    with pytest.raises(OptionError, match="found 5"):
        resolved(network_specialization_config=5)
    with pytest.raises(OptionError, match="found ''"):
        resolved(network_specialization_config="")


def test_file_that_is_not_a_configuration_by_its_size_is_refused(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(OptionError, match="at most 64 MiB"):
        resolved(network_specialization_config=path)


def devices(*ids, cores=2):
    return [{"deviceId": device, "numCores": cores} for device in ids]


PARTITIONS = {
    "connections": [{"devices": [0, 1], "type": "P2P"}],
    "partitions": [
        {"name": "Partition0", "devices": devices(0, 1), "nodeList": ["a", "b"]},
        {"name": "Partition1", "devices": [{"deviceId": 2}]},
    ],
}


def test_partition_file_is_read_and_written_back(tmp_path):
    path = written(tmp_path, PARTITIONS)
    config = resolved(mdp_load_partition_config=path, aic_num_cores=2).compile.mdp_load_partition_config
    assert config.devices == 3
    assert [partition.nodes for partition in config.partitions] == [("a", "b"), None]
    assert config.partitions[1].cores == (None,)
    assert config.connections[0].kind == "p2p"
    assert Partitions().content(Partitions().to_json(config)) == config


def test_cores_that_differ_from_the_option_are_a_warning():
    given = resolved(mdp_load_partition_config=PARTITIONS, aic_num_cores=4)
    assert any("gives device 0 of 'Partition0' 2 cores" in text for text in given.warnings)
    assert not resolved(mdp_load_partition_config=PARTITIONS, aic_num_cores=2).warnings


def partition(name="P", **changes):
    return {"partitions": [{"name": name, "devices": devices(0)} | changes]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "an object as the partition file"),
        ({}, "the key 'partitions'"),
        ({"partitions": []}, "at least one partition"),
        ({"partitions": [1]}, "an object as partition 0, found 1"),
        (partition(name=""), "the name of partition 0"),
        (partition(devices=[]), "at least one device in partition 0"),
        (partition(devices=[{}]), "the key 'deviceId' in a device of partition 0"),
        (partition(devices=devices(1)), "the deviceIds 0 to 0, found 1"),
        (partition(devices=devices(0, 0)), "each deviceId once, found 0 twice"),
        (partition(devices=devices(0, cores=0)), "numCores in partition 0"),
        (partition(nodeList=["a", "a"]), "each node once, found 'a' twice"),
        (partition(nodeList="a"), "a list as nodeList of partition 0"),
        ({"partitions": partition()["partitions"] * 2}, "each partition name once"),
        (partition() | {"connections": [{"devices": [0, 1], "type": "p2p"}]}, "the deviceId 1"),
        (partition() | {"connections": [{"devices": [0], "type": "usb"}]}, "one of p2p, host"),
        (
            partition(devices=devices(*range(17)))
            | {"connections": [{"devices": list(range(17)), "type": "p2p"}]},
            "at most 16 devices in connection 0",
        ),
    ],
)
def test_wrong_partition_files_are_refused(content, text):
    with pytest.raises(ValueMismatchError, match=text):
        Partitions().content(content)
