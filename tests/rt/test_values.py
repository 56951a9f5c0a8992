"""Structures of properties and information: documented defaults, and an error for unknown attributes."""

import copy
import pickle

import pytest

import qaicrt
from qaic.rt.containers import BufferMappingV2
from qaic.rt.devices import QHostApiInfoDevData, QHostApiInfoNspVersion, QPcieExtInfo, QPciInfo

INVALID_IO = qaicrt.BufferIoTypeEnum.BUFFER_IO_TYPE_INVAL
INVALID_DATA = qaicrt.BufferDataTypeEnum.BUFFER_DATA_TYPE_INVAL

DEFAULTS = {
    qaicrt.QAicProgramProperties: {
        "selectMask": 0,
        "SubmitNumRetries": 5,
        "SubmitRetryTimeoutMs": 0,
        "devMapping": "",
        "dataPathTimeoutMs": 0,
    },
    qaicrt.QAicQueueProperties: {"properties": 1, "numThreadsPerQueue": 4},
    qaicrt.InferenceSetProperties: {"name": "", "id": 0},
    qaicrt.BenchmarkProperties: {},
    qaicrt.BufferMapping: {
        "bufferName": "Invalid",
        "index": 0,
        "ioType": INVALID_IO,
        "size": 0,
        "isPartialBufferAllowed": False,
        "dataType": INVALID_DATA,
    },
    BufferMappingV2: {"bufferName": "Invalid", "defaultDimensions": [], "allowedDimensions": []},
    qaicrt.QpcInfo: {"program": [], "constants": []},
    qaicrt.QpcProgramInfo: {
        **dict.fromkeys(["programIndex", "numCores", "size", "batchSize", "numSemaphores", "numMcId"], 0),
        "totalRequiredMemory": 0,
        "name": "",
        "bufferMappings": [],
        "bufferMappingsDma": [],
    },
    qaicrt.QpcConstantsInfo: {"name": "", "constantsIndex": 0, "index": 0, "size": 0},
    qaicrt.ProgramInfo: {
        **dict.fromkeys(["uniqueProgramID", "userDefinedProgramID", "numNsp", "numMcid", "batchSize"], 0),
        "isAicStatsAvailable": False,
    },
    qaicrt.ExecObjInfo: {
        **dict.fromkeys(["execObjIndex", "activationIndex", "programId"], 0),
        "programName": "",
        "status": qaicrt.QStatus.QS_INVAL,
    },
    qaicrt.QResourceInfo: {"QResourceReservationID": -1, "dramTotal": 0, "nspFree": 0, "skuType": 0},
    qaicrt.QPerformanceInfo: {"nspFrequencyHz": 0, "peakCompute": 0.0, "dramBw": 0.0},
    qaicrt.QDevInfo: {"devStatus": qaicrt.QDevStatus.QDS_INITIALIZING, "qid": 0, "name": ""},
    QPciInfo: {"domain": 0, "devicename": ""},
    QPcieExtInfo: {"maxLinkSpeed": 0, "bar4Addr": 0},
    QHostApiInfoDevData: {"fwQCImageVersionString": "", "serial": "", "nspPgMask": 0},
    QHostApiInfoNspVersion: {"major": 0, "variant": ""},
}


@pytest.mark.parametrize("structure", DEFAULTS, ids=lambda cls: cls.__name__)
def test_defaults(structure):
    made = structure()
    assert {name: getattr(made, name) for name in DEFAULTS[structure]} == DEFAULTS[structure]


@pytest.mark.parametrize("structure", DEFAULTS, ids=lambda cls: cls.__name__)
def test_an_attribute_that_does_not_exist_is_refused(structure):
    made = structure()
    with pytest.raises(AttributeError):
        made.dataPathTimeoutSeconds = 1
    with pytest.raises(AttributeError):
        _ = made.dataPathTimeoutSeconds


@pytest.mark.parametrize("structure", DEFAULTS, ids=lambda cls: cls.__name__)
def test_no_two_share_a_part(structure):
    one, other = structure(), structure()
    for name in structure.__dataclass_fields__:
        value = getattr(one, name)
        if isinstance(value, list) or hasattr(value, "__dataclass_fields__"):
            assert value is not getattr(other, name)


@pytest.mark.parametrize("structure", DEFAULTS, ids=lambda cls: cls.__name__)
def test_values_are_kept_by_copies_and_pickles(structure):
    made = structure()
    name = next(iter(structure.__dataclass_fields__))
    changed = "changed"
    setattr(made, name, changed)
    assert getattr(copy.deepcopy(made), name) == changed
    assert getattr(pickle.loads(pickle.dumps(made)), name) == changed


def test_a_mapping_takes_all_fields_in_order():
    kind, data = (
        qaicrt.BufferIoTypeEnum.BUFFER_IO_TYPE_OUTPUT,
        qaicrt.BufferDataTypeEnum.BUFFER_DATA_TYPE_INT8,
    )
    made = qaicrt.BufferMapping("y", 3, kind, 12, True, data)
    found = (made.bufferName, made.index, made.ioType, made.size, made.isPartialBufferAllowed, made.dataType)
    assert found == ("y", 3, kind, 12, True, data)


def test_both_names_of_the_index_of_constants():
    made = qaicrt.QpcConstantsInfo("constants.bin", 1, 8)
    assert made.index == made.constantsIndex == 1
    made.index = 2
    assert made.constantsIndex == 2


def test_parts_of_properties():
    made = qaicrt.InferenceSetProperties()
    made.programProperties.dataPathTimeoutMs = 60000
    made.queueProperties.numThreadsPerQueue = 1
    assert made.programProperties.dataPathTimeoutMs == 60000
    assert isinstance(qaicrt.BenchmarkProperties().queueProperties, qaicrt.QAicQueueProperties)


class TestQIDList:
    def test_is_a_list_of_numbers(self):
        ids = qaicrt.QIDList()
        ids.append(0)
        ids.append(3)
        assert len(ids) == 2
        assert ids[0] == 0
        assert ids[-1] == 3
        assert 3 in ids
        assert 4 not in ids
        assert [number + 1 for number in ids] == [1, 4]
        assert set(ids) == {0, 3}
        assert ids == [0, 3]

    def test_shows_itself_as_the_vendor_does(self):
        ids = qaicrt.QIDList([0, 1])
        assert repr(ids) == "QIDList[0, 1]"
        assert f"{ids}" == "QIDList[0, 1]"
        assert repr(ids[1:]) == "QIDList[1]"
        assert repr(qaicrt.QIDList()) == "QIDList[]"

    def test_is_made_of_any_iterable(self):
        assert qaicrt.QIDList(range(3)) == qaicrt.QIDList((0, 1, 2)) == [0, 1, 2]

    @pytest.mark.parametrize(
        "change",
        [
            lambda ids: ids.append("0"),
            lambda ids: ids.insert(0, 1.0),
            lambda ids: ids.extend([None]),
            lambda ids: ids.__iadd__(["1"]),
            lambda ids: ids.__setitem__(0, "0"),
            lambda ids: ids.__setitem__(slice(0, 1), ["0"]),
            lambda _: qaicrt.QIDList(["0"]),
            lambda _: qaicrt.QIDList("01"),
        ],
    )
    def test_holds_nothing_but_numbers(self, change):
        ids = qaicrt.QIDList([5])
        with pytest.raises(TypeError):
            change(ids)
        assert ids == [5]

    def test_changes_like_a_list(self):
        ids = qaicrt.QIDList([1])
        ids += [2]
        ids[0] = 7
        ids[2:] = [8, 9]
        assert repr(ids) == "QIDList[7, 2, 8, 9]"
        assert pickle.loads(pickle.dumps(ids)) == ids
        assert isinstance(pickle.loads(pickle.dumps(ids)), qaicrt.QIDList)


def test_bytes_of_a_report():
    report = qaicrt.vector_char(b"abc")
    assert bytes(report) == b"abc"
    assert memoryview(report).readonly
    assert memoryview(report).tobytes() == b"abc"
    assert len(report) == 3
    assert repr(report) == "vector_char[97, 98, 99]"
    assert repr(qaicrt.vector_char(100)).endswith(", 0, ...]")
    with pytest.raises(TypeError):
        report[0] = 1
