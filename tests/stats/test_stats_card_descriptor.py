"""Operations in the form of newer vendor SDKs, with a schema that the test defines."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import qaic
from qaic import _core, stats
from qaic.errors import StatsFormatError, StatsVersionError
from qaic.stats.card_descriptor import card_descriptors
from qpc_support import DATA

Field = descriptor_pb2.FieldDescriptorProto

# Message -> fields: name -> type. The numbers are arbitrary, because only the names of the real schema are
# known.
MESSAGES = {
    "Pair": {"id": "int32", "str": "string"},
    "OpDetails": {"op_kind_id_str_pairs": "*Pair", "op_memory_id_str_pairs": "*Pair"},
    "Common": {"op_details": "OpDetails"},
    "Op": {
        "oc": "uint32",
        "name": "string",
        "output_size": "uint64",
        "kind_id": "int32",
        "memory_id": "int32",
    },
    "Ops": {"op_name_kinds": "*Op"},
    "Core": {"tg_op_name_kinds": "*Ops"},
    "SpecializationEntry": {"name": "string", "core_op_name_kinds": "*Core"},
    "Metadata": {"common_metadata": "Common", "specialization_metadata": "*SpecializationEntry"},
    "OpstatsDescriptor": {
        "major_version": "uint32",
        "minor_version": "uint32",
        "opstats_metadata": "Metadata",
    },
}


def schema(messages=MESSAGES, package="aicopstatsdesc"):
    file = descriptor_pb2.FileDescriptorProto(name="ops.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, text) in enumerate(fields.items(), 7):
            kind = text.removeprefix("*")
            made = message.field.add(name=field, number=number)
            made.label = Field.LABEL_REPEATED if text != kind else Field.LABEL_OPTIONAL
            if kind in messages:
                made.type, made.type_name = Field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                made.type = getattr(Field, f"TYPE_{kind.upper()}")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def root():
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(schema()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("aicopstatsdesc.OpstatsDescriptor"))


def described(ocs=((0, 3), (1,), (2,)), **versions):
    message = root()(**{"major_version": 1, "minor_version": 11} | versions)
    details = message.opstats_metadata.common_metadata.op_details
    for number, text in enumerate(["aicconvolutiond32", "elementadd ", "aiccopyddr"]):
        details.op_kind_id_str_pairs.add(id=number + 10, str=text)
    for number, text in enumerate(["TCM", "DDR"]):
        details.op_memory_id_str_pairs.add(id=number + 1, str=text)
    for slice_number in (0, 2):
        one = message.opstats_metadata.specialization_metadata.add(name=f"QAicGraph_slice{slice_number:02}")
        for _ in range(2):
            core = one.core_op_name_kinds.add()
            for group in ocs:
                ops = core.tg_op_name_kinds.add()
                for oc in group:
                    op = ops.op_name_kinds.add(oc=oc, name=f"/l{oc}/MatMul/__{oc}", output_size=oc * 100)
                    op.kind_id, op.memory_id = 10 + oc % 3, 1
    return message


def container(path, segment):
    source = _core.Qpc(DATA / "qpc" / "s10_stats.qpc")
    payloads = {name: bytes(source.payload(name)) for name, *_ in source.segments}
    if segment is not None:
        payloads["opstatsdesc.bin"] = segment
    writer = _core.QpcWriter(path, sorted((name, len(data), 0) for name, data in payloads.items()), 64)
    for name in sorted(payloads):
        writer.write(name, payloads[name])
    writer.finish()
    return qaic.Qpc(path)


def test_operations_come_from_the_segment(tmp_path):
    qpc = container(tmp_path / "card.qpc", described().SerializeToString())
    (tmp_path / "schema.pb").write_bytes(schema())
    for given in (schema(), tmp_path / "schema.pb", str(tmp_path / "schema.pb")):
        found = stats.descriptors(qpc, opstats_schema=given)
        assert [one.network for one in found] == ["QAicGraph_slice00", "QAicGraph_slice02"]
        assert [one.slice_of(1) for one in found] == [0, 2]
        ops = found[0].ops(1)
        assert ops.name.tolist() == [f"/l{oc}/MatMul/__{oc}" for oc in range(4)]
        # Blanks after a kind are padding; number 3 is in the first group, although it comes last.
        assert ops.kind.tolist() == ["aicconvolutiond32", "elementadd", "aiccopyddr", "aicconvolutiond32"]
        assert ops.memory.tolist() == ["TCM"] * 4
        assert ops.group.tolist() == [0, 1, 2, 0]
        assert ops.output_bytes.tolist() == [0, 100, 200, 300]
        assert found[0].stats_level == qpc.network_descriptor["stats"]["stats_level"]


def test_numbers_may_have_gaps(tmp_path):
    qpc = container(tmp_path / "card.qpc", described([[5], [1]]).SerializeToString())
    (one, _) = card_descriptors(qpc, schema())
    assert one.ops(0).name.tolist() == ["", "/l1/MatMul/__1", "", "", "", "/l5/MatMul/__5"]


def test_without_the_segment_the_network_descriptor_counts(tmp_path):
    qpc = container(tmp_path / "card.qpc", None)
    assert list(card_descriptors(qpc, b"never read")) == []
    with_schema = stats.descriptors(qpc, opstats_schema=schema())
    assert [one.network for one in with_schema] == [one.network for one in stats.descriptors(qpc)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["Op"].pop("oc"), "no field 'oc' in Op"),
        (lambda m: m["OpstatsDescriptor"].pop("opstats_metadata"), "opstats_metadata"),
        (lambda m: m["Metadata"].update(specialization_metadata="SpecializationEntry"), "not repeated"),
    ],
)
def test_schemas_of_other_names(tmp_path, change, words):
    qpc = container(tmp_path / "card.qpc", described().SerializeToString())
    messages = {name: dict(fields) for name, fields in MESSAGES.items()}
    change(messages)
    with pytest.raises(StatsFormatError, match=words) as caught:
        list(card_descriptors(qpc, schema(messages)))
    assert caught.value.code == "stats.opstats_schema"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"\xff\xff", "not a serialized FileDescriptorSet"),
        (schema(package="other"), "does not define aicopstatsdesc.OpstatsDescriptor"),
        (b"", "does not define"),
    ],
)
def test_what_is_no_schema(tmp_path, given, words):
    qpc = container(tmp_path / "card.qpc", described().SerializeToString())
    with pytest.raises(StatsFormatError, match=words) as caught:
        list(card_descriptors(qpc, given))
    assert caught.value.code == "stats.opstats_schema"


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        (b"\xff\xff\xff", "does not follow the schema"),
        (described([[0], [0]]).SerializeToString(), "repeated"),
        (described([[0], [2**32 - 1]]).SerializeToString(), "too far apart"),
    ],
)
def test_segments_that_are_damaged(tmp_path, segment, words):
    qpc = container(tmp_path / "card.qpc", segment)
    with pytest.raises(StatsFormatError, match=words) as caught:
        list(card_descriptors(qpc, schema()))
    assert caught.value.code == "stats.opstats_schema"


def test_other_versions_are_refused(tmp_path):
    qpc = container(tmp_path / "card.qpc", described(major_version=2).SerializeToString())
    with pytest.raises(StatsVersionError, match=r"version 2\.11") as caught:
        stats.descriptors(qpc, opstats_schema=schema())
    assert caught.value.code == "stats.opstats_version"
