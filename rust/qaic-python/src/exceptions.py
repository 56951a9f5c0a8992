"""The exception tree of openqaic.

Every exception carries a stable ``code`` (a slug such as ``"qpc.segment_overlap"``), a ``context`` dictionary with the
figures behind the message, and ``hints``, what the user may do. Texts may change between versions, codes do not.

The compiled module runs this source once when it is imported and owns the classes; ``qaic.errors`` exports them.
"""

# Tracebacks and pickles show the public module as that of these classes.
__name__ = "qaic.errors"


class QaicError(Exception):
    """Base class of all errors of openqaic.

    Parameters
    ----------
    message
        Description of the failure: the object, the found value, the expected value.
    code
        Stable identifier, such as ``device.busy``.
    context
        Values and names in the message, by key.
    hints
        Possible fixes, one sentence each.
    """

    def __init__(self, message="", *, code="", context=None, hints=()):
        super().__init__(message)
        self.message = message
        self.code = code
        self.context = dict(context or {})
        self.hints = tuple(hints)
        if code:
            # Tracebacks show it below the message; `openqaic explain` takes it.
            self.add_note(f"code: {code}")

    def __repr__(self):
        shown = f"{self.message!r}, code={self.code!r}" if self.code else repr(self.message)
        return f"{type(self).__module__}.{type(self).__qualname__}({shown})"

    def __str__(self):
        # KeyError would show the repr of the message.
        return "\n".join([self.message, *(f"hint: {hint}" for hint in self.hints)])

    def __reduce__(self):
        # Others may have added notes, as `Session.map` does.
        notes = {"__notes__": list(getattr(self, "__notes__", ()))}
        return (_rebuild, (type(self), self.message, self.code, self.context, self.hints), notes)


def _rebuild(cls, message, code, context, hints):
    return cls(message, code=code, context=context, hints=hints)


class QpcError(QaicError, ValueError):
    """A program container cannot be used."""


class QpcFormatError(QpcError):
    """The bytes are not a well-formed container."""


class QpcVersionError(QpcError):
    """The container has a version this library does not read."""


class QpcLimitError(QpcError):
    """The container is larger or deeper than the limits allow."""


class OptionError(QaicError, ValueError):
    """An option has an invalid value."""


class UnknownOptionError(OptionError, TypeError):
    """An option of this name does not exist."""


class OptionConflictError(OptionError):
    """Options that exclude each other were given together; the message lists all conflicts."""


class CompileError(QaicError, RuntimeError):
    """A model cannot be compiled."""


class InputError(QaicError, ValueError):
    """Data given to an inference does not fit the program."""


class MissingInputError(InputError, KeyError):
    """An input of the program was not given."""


class InputShapeError(InputError):
    """An array has the wrong shape."""


class InputTypeError(InputError, TypeError):
    """An array has a type that does not convert to the input's."""


class StateError(QaicError, RuntimeError):
    """The call is not valid now: metrics are off, nothing was recorded yet, or the object is closed."""


class DeviceError(QaicError, RuntimeError):
    """A device cannot execute a request."""


class DeviceNotFoundError(DeviceError):
    """No device has this id."""


class DeviceBusyError(DeviceError):
    """The device has too few free cores."""


class DeviceLostError(DeviceError):
    """The device was lost."""


class DeviceMemoryError(DeviceError, MemoryError):
    """Memory could not be allocated."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """A time limit passed."""


class InferenceError(QaicError, RuntimeError):
    """An inference failed; the message contains the status and the message of the device."""


class StatsError(QaicError, ValueError):
    """Statistics cannot be decoded."""


class UnknownStatsLayoutError(StatsError):
    """No registered layout matches the statistics."""


class StatsFormatError(StatsError):
    """The bytes violate the rules of their layout."""


class StatsVersionError(StatsError):
    """The statistics have a version this library does not read."""


class StatsMismatchError(StatsError):
    """The statistics belong to another program."""


class InternalError(QaicError, RuntimeError):
    """A bug of openqaic; please report it with the message."""
