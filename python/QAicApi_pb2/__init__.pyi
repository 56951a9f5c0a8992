"""Messages that describe the buffers of a program; the module builds them when it is imported."""

from collections.abc import Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

bufferIoDirectionEnum: EnumTypeWrapper
BUFFER_IO_TYPE_INPUT: int
BUFFER_IO_TYPE_OUTPUT: int

bufferIoDataTypeEnum: EnumTypeWrapper
FLOAT_TYPE: int
FLOAT_16_TYPE: int
INT8_Q_TYPE: int
UINT8_Q_TYPE: int
INT16_Q_TYPE: int
INT32_Q_TYPE: int
INT32_I_TYPE: int
INT64_I_TYPE: int
INT8_TYPE: int
BFLOAT16_TYPE: int
TYPE_INVALID: int

class IoDesc(Message):
    @property
    def io_sets(self) -> RepeatedCompositeFieldContainer[IoSet]: ...
    @property
    def selected_set(self) -> IoSet: ...
    program_name: str
    @property
    def dma_buf(self) -> RepeatedCompositeFieldContainer[DmaBuf]: ...
    @property
    def runtime_constants(self) -> RepeatedCompositeFieldContainer[RuntimeConstants]: ...
    @property
    def pre_process_skip_stages(self) -> RepeatedCompositeFieldContainer[IoSet]: ...
    @property
    def post_process_skip_stages(self) -> RepeatedCompositeFieldContainer[IoSet]: ...
    @property
    def allowed_shapes(self) -> RepeatedCompositeFieldContainer[IoShapes]: ...
    def __init__(
        self,
        *,
        io_sets: Iterable[IoSet] | None = None,
        selected_set: IoSet | None = None,
        program_name: str | None = None,
        dma_buf: Iterable[DmaBuf] | None = None,
        runtime_constants: Iterable[RuntimeConstants] | None = None,
        pre_process_skip_stages: Iterable[IoSet] | None = None,
        post_process_skip_stages: Iterable[IoSet] | None = None,
        allowed_shapes: Iterable[IoShapes] | None = None,
    ) -> None: ...

class IoSet(Message):
    name: str
    @property
    def bindings(self) -> RepeatedCompositeFieldContainer[IoBinding]: ...
    def __init__(
        self,
        *,
        name: str | None = None,
        bindings: Iterable[IoBinding] | None = None,
    ) -> None: ...

class IoBinding(Message):
    name: str
    index: int
    type: int
    dir: int
    quant_scale: float
    quant_offset: int
    @property
    def dims(self) -> RepeatedScalarFieldContainer[int]: ...
    size: int
    @property
    def dma_buf_info(self) -> RepeatedCompositeFieldContainer[DmaBufInfo]: ...
    is_partial_buf_allowed: bool
    is_valid: bool
    def __init__(
        self,
        *,
        name: str | None = None,
        index: int | None = None,
        type: int | None = None,
        dir: int | None = None,
        quant_scale: float | None = None,
        quant_offset: int | None = None,
        dims: Iterable[int] | None = None,
        size: int | None = None,
        dma_buf_info: Iterable[DmaBufInfo] | None = None,
        is_partial_buf_allowed: bool | None = None,
        is_valid: bool | None = None,
    ) -> None: ...

class DmaBufInfo(Message):
    dma_buf_index: int
    dma_size: int
    io_binding_offset: int
    dma_offset: int
    def __init__(
        self,
        *,
        dma_buf_index: int | None = None,
        dma_size: int | None = None,
        io_binding_offset: int | None = None,
        dma_offset: int | None = None,
    ) -> None: ...

class DmaBuf(Message):
    index: int
    size: int
    dir: int
    def __init__(
        self,
        *,
        index: int | None = None,
        size: int | None = None,
        dir: int | None = None,
    ) -> None: ...

class RuntimeConstants(Message):
    name: str
    size: int
    offset: int
    def __init__(
        self,
        *,
        name: str | None = None,
        size: int | None = None,
        offset: int | None = None,
    ) -> None: ...

class TensorShape(Message):
    type: int
    @property
    def dims(self) -> RepeatedScalarFieldContainer[int]: ...
    def __init__(
        self,
        *,
        type: int | None = None,
        dims: Iterable[int] | None = None,
    ) -> None: ...

class IoShapes(Message):
    @property
    def shapes(self) -> RepeatedCompositeFieldContainer[TensorShape]: ...
    def __init__(
        self,
        *,
        shapes: Iterable[TensorShape] | None = None,
    ) -> None: ...
