"""Facts that programs and exec objects report."""

from dataclasses import dataclass

from qaic.rt.enums import QStatus, of_qaicrt


@of_qaicrt
@dataclass(slots=True)
class ProgramInfo:
    """Facts about a program on a device."""

    uniqueProgramID: int = 0
    userDefinedProgramID: int = 0
    numNsp: int = 0
    """Cores."""
    numMcid: int = 0
    """Multicast ids."""
    batchSize: int = 0
    isAicStatsAvailable: bool = False


@of_qaicrt
@dataclass(slots=True)
class ExecObjInfo:
    """The exec object that completed, and its result."""

    execObjIndex: int = 0
    activationIndex: int = 0
    programId: int = 0
    programName: str = ""
    status: QStatus = QStatus.QS_INVAL
