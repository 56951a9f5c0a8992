"""Messages that describe the buffers of a program, with the names of the vendor's generated module.

Nothing here is generated: the descriptor is built when the module is imported, with whatever version of
protobuf is installed, in a pool of its own so that no other definition of the same messages gets in the way.
Fields and codes are those of the messages in a container.
"""

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

if TYPE_CHECKING:
    from google.protobuf.message import Message

_PACKAGE = "aicapi"

_ENUMS = {
    "bufferIoDirectionEnum": {"BUFFER_IO_TYPE_INPUT": 0, "BUFFER_IO_TYPE_OUTPUT": 1},
    "bufferIoDataTypeEnum": {
        "FLOAT_TYPE": 0,
        "FLOAT_16_TYPE": 1,
        "INT8_Q_TYPE": 2,
        "UINT8_Q_TYPE": 3,
        "INT16_Q_TYPE": 4,
        "INT32_Q_TYPE": 5,
        "INT32_I_TYPE": 6,
        "INT64_I_TYPE": 7,
        "INT8_TYPE": 8,
        "BFLOAT16_TYPE": 11,
        "TYPE_INVALID": 255,
    },
}

# Message -> field -> (number, type); `*` marks a repeated field.
_MESSAGES = {
    "IoDesc": {
        "io_sets": (1, "*IoSet"),
        "selected_set": (2, "IoSet"),
        "program_name": (3, "string"),
        "dma_buf": (4, "*DmaBuf"),
        "runtime_constants": (5, "*RuntimeConstants"),
        "pre_process_skip_stages": (6, "*IoSet"),
        "post_process_skip_stages": (7, "*IoSet"),
        "allowed_shapes": (8, "*IoShapes"),
    },
    "IoSet": {"name": (1, "string"), "bindings": (2, "*IoBinding")},
    "IoBinding": {
        "name": (1, "string"),
        "index": (2, "uint32"),
        "type": (3, "bufferIoDataTypeEnum"),
        "dir": (4, "bufferIoDirectionEnum"),
        "quant_scale": (5, "float"),
        "quant_offset": (6, "int32"),
        "dims": (7, "*int32"),
        "size": (8, "uint32"),
        "dma_buf_info": (9, "*DmaBufInfo"),
        "is_partial_buf_allowed": (10, "bool"),
        "is_valid": (20, "bool"),
    },
    "DmaBufInfo": {
        "dma_buf_index": (1, "uint32"),
        "dma_size": (2, "uint32"),
        "io_binding_offset": (3, "uint32"),
        "dma_offset": (4, "uint32"),
    },
    "DmaBuf": {"index": (1, "uint32"), "size": (2, "uint32"), "dir": (3, "bufferIoDirectionEnum")},
    "RuntimeConstants": {"name": (1, "string"), "size": (2, "uint32"), "offset": (3, "uint32")},
    "TensorShape": {"type": (1, "bufferIoDataTypeEnum"), "dims": (2, "*int32")},
    "IoShapes": {"shapes": (1, "*TensorShape")},
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="QAicApi.proto", package=_PACKAGE, syntax="proto3")
    for name, members in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for member, number in members.items():
            enum.value.add(name=member, number=number)
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, marked) in fields.items():
            entry = message.field.add(name=field, number=number)
            entry.label = kinds.LABEL_REPEATED if marked.startswith("*") else kinds.LABEL_OPTIONAL
            kind = marked.lstrip("*")
            if kind in _MESSAGES:
                entry.type, entry.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            elif kind in _ENUMS:
                entry.type, entry.type_name = kinds.TYPE_ENUM, f".{_PACKAGE}.{kind}"
            else:
                entry.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())
DESCRIPTOR = _POOL.FindFileByName("QAicApi.proto")


def _message_class(name: str) -> "type[Message]":
    described = DESCRIPTOR.message_types_by_name[name]
    if hasattr(message_factory, "GetMessageClass"):
        made = message_factory.GetMessageClass(described)
    else:  # protobuf before 4.22
        old: Any = message_factory.MessageFactory(_POOL)
        made = old.GetPrototype(described)
    # Pickles name the class by its module.
    made.__module__ = __name__
    return made


for _name in _MESSAGES:
    globals()[_name] = _message_class(_name)
for _name, _members in _ENUMS.items():
    globals()[_name] = enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[_name])
    globals().update(_members)
del _name, _members

__all__ = ["DESCRIPTOR", *_MESSAGES, *_ENUMS, *(member for members in _ENUMS.values() for member in members)]
