"""Members of the enumerations behave as clients of the vendor's binding expect."""

import copy
import pickle
import sys

import pytest

import qaicrt
from qaic.rt.enums import CodedEnum

ENUMS = sorted(CodedEnum.__subclasses__(), key=lambda cls: cls.__name__)
MEMBERS = [member for enum in ENUMS for member in enum]

assert len(ENUMS) >= 12


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_member_knows_its_name_and_code(member):
    enum = type(member)
    assert enum.__members__[member.name] is member
    assert getattr(enum, member.name) is member
    assert int(member) == member.value
    assert enum(member.value) is member
    assert repr(member) == f"<{enum.__name__}.{member.name}: {member.value}>"
    assert str(member) == f"{enum.__name__}.{member.name}"


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_member_stays_itself(member):
    assert pickle.loads(pickle.dumps(member)) is member
    assert copy.deepcopy(member) is member
    assert {member: 1}[type(member)(member.value)] == 1


def test_members_compare_by_identity_and_not_with_numbers():
    assert qaicrt.QStatus(0) == qaicrt.QStatus.QS_SUCCESS
    assert qaicrt.QStatus.QS_SUCCESS != qaicrt.QStatus.QS_INVAL
    assert qaicrt.QStatus.QS_SUCCESS != 0
    assert qaicrt.QStatus.QS_SUCCESS.value == 0


def test_a_member_is_an_index():
    assert ["debug", "info", "warn", "error"][qaicrt.QLogLevel.QL_WARN] == "warn"
    assert f"{qaicrt.QDevStatus.QDS_READY:}" == "QDevStatus.QDS_READY"


def test_a_code_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="QStatus"):
        qaicrt.QStatus(301)
    with pytest.raises(AttributeError):
        _ = qaicrt.QStatus.QS_SUCESS


def test_both_names_of_the_buffer_enumerations():
    assert qaicrt.QAicBufferIoTypeEnum is qaicrt.BufferIoTypeEnum
    assert qaicrt.QAicBufferDataTypeEnum is qaicrt.BufferDataTypeEnum


@pytest.mark.parametrize(
    ("enum", "codes"),
    {
        "QStatus": [*range(13), 300, 500],
        "QDevStatus": [0, 1, 2],
        "QLogLevel": [0, 1, 2, 3],
        "BufferIoTypeEnum": [0, 1, 2, 3],
        "BufferDataTypeEnum": [*range(10), 11],
        "QBufferType": [0, 1, 2, 0xFFFFFFFF],
        "QAicDeviceType": [1],
        "LiveReportingLevelEnum": [1, 2],
        "QAicOpStatsFormatEnum": [0, 1],
        "QAicProfilingTypeEnum": [0, 1, 2, 3],
        "QDirection": [0, 1, 2, 3],
        "QAicProgramStatus": [0, 1, 2, 100, 101, 102],
        "QAicErrorType": [
            *(0x100, 0x101, 0x200, 0x201, 0x202, 0x300, 0x301),
            *(0x400, 0x401, 0x500, 0x501, 0x600, 0x601),
        ],
    }.items(),
)
def test_codes(enum, codes):
    assert [member.value for member in getattr(qaicrt, enum)] == codes


def test_code_of_a_member_runs_no_python_code():
    # Loops over inferences in flight read this member of every status.
    calls = []
    status = qaicrt.QStatus.QS_SUCCESS
    sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code.co_name))
    try:
        found = status.value
    finally:
        sys.setprofile(None)
    assert (found, calls) == (0, [])
