"""Property structures: plain attributes with the documented defaults.

Assignment to an unknown attribute is an error, so that a misspelled time limit is noticed. The object that
receives the properties checks the values.
"""

from dataclasses import dataclass, field

from qaic.rt.enums import QAicProfilingTypeEnum, of_qaicrt


@of_qaicrt
@dataclass(slots=True, eq=False)
class QAicProgramProperties:
    """Placement of a program, and time limits of its inferences."""

    selectMask: int = 0
    """Bit field; 0x08: the caller keeps the container alive, which is always true here."""
    SubmitNumRetries: int = 5
    """Tries after a time-out."""
    SubmitRetryTimeoutMs: int = 0
    """Milliseconds to wait per try; 0 is the default of the device."""
    devMapping: str = ""
    """Ids of the devices of a program on several devices, separated by colons: ``"0:1"``."""
    dataPathTimeoutMs: int = 0
    """Milliseconds to wait per try, in place of ``SubmitRetryTimeoutMs`` when it is not 0."""

    @property
    def submitNumRetries(self) -> int:
        """The name of ``SubmitNumRetries`` since version 1.22 of the vendor's SDK."""
        return self.SubmitNumRetries

    @submitNumRetries.setter
    def submitNumRetries(self, tries: int) -> None:
        self.SubmitNumRetries = tries


@of_qaicrt
@dataclass(slots=True, eq=False)
class QAicQueueProperties:
    """Properties of a queue."""

    properties: int = 1
    """0: one thread; 1: several."""
    numThreadsPerQueue: int = 4
    """Number of inferences of a program that run at a time through this queue.

    The CPU device runs at most one for each CPU. A queue without properties keeps the number of the program.
    """


@of_qaicrt
@dataclass(slots=True, eq=False)
class InferenceSetProperties:
    """Properties of an inference set."""

    programProperties: QAicProgramProperties = field(default_factory=QAicProgramProperties)
    queueProperties: QAicQueueProperties = field(default_factory=QAicQueueProperties)
    name: str = ""
    id: int = 0


@of_qaicrt
@dataclass(slots=True, eq=False)
class BenchmarkProperties:
    """Properties of a benchmark."""

    programProperties: QAicProgramProperties = field(default_factory=QAicProgramProperties)
    queueProperties: QAicQueueProperties = field(default_factory=QAicQueueProperties)


@of_qaicrt
@dataclass(slots=True, eq=False)
class ProfilingProperties:
    """Contents of a :class:`StreamProfilingHandle`'s reports."""

    type: QAicProfilingTypeEnum = QAicProfilingTypeEnum.QAIC_PROFILING_INFERENCE_LATENCY_TYPE
