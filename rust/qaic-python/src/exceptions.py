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
    """A program container cannot be used or written."""


class QpcFormatError(QpcError):
    """The bytes are not a well-formed container."""


class QpcVersionError(QpcError):
    """The container has a version this library does not read."""


class QpcLimitError(QpcError):
    """The container is larger or deeper than the limits allow."""


class OptionError(QaicError, ValueError):
    """An option or argument is invalid or missing."""


class UnknownOptionError(OptionError, TypeError):
    """An option of this name does not exist."""


class OptionConflictError(OptionError):
    """Options do not fit together; the message lists all conflicts."""


class CompileError(QaicError, RuntimeError):
    """A model cannot be compiled."""


class InputError(QaicError, ValueError):
    """Given data cannot be used: a file, an array or a request."""


class MissingInputError(InputError, KeyError):
    """An input of the program was not given."""


class InputShapeError(InputError):
    """An array has the wrong shape or size."""


class InputTypeError(InputError, TypeError):
    """An argument or array has the wrong type."""


class StateError(QaicError, RuntimeError):
    """The call is not possible now, for example because the object is closed or a package is missing."""


class DeviceError(QaicError, RuntimeError):
    """A device cannot execute a request."""


class DeviceNotFoundError(DeviceError):
    """A requested device does not exist."""


class DeviceBusyError(DeviceError):
    """A device has too little free capacity."""


class DeviceLostError(DeviceError):
    """The device was lost."""


class DeviceMemoryError(DeviceError, MemoryError):
    """Memory could not be allocated."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """A time limit passed."""


class InferenceError(QaicError, RuntimeError):
    """An inference failed or was cancelled; the message contains the reason."""


class StatsError(QaicError, ValueError):
    """Statistics cannot be found or decoded."""


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
