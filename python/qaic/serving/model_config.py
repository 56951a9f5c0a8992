"""Settings of a ``config.pbtxt``, in Triton's form, as the vendor's backend reads it."""

import copy
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from qaic.errors import OptionError
from qaic.qpc import TensorSpec
from qaic.serving.batcher import MAX_QUEUE_SIZE
from qaic.serving.request_body import datatype_of
from qaic.support.open_regular import read_text

_logger = logging.getLogger("qaic.serving")

BACKEND: Final = "qaic"
#: largest number of bytes of a configuration, which people write by hand
_MOST_BYTES: Final = 1 << 20
#: fields with an effect; the log names all others
_HONOURED: Final = frozenset(
    {
        "name", "backend", "max_batch_size", "input", "output", "parameters", "dynamic_batching",
        "version_policy", "instance_group", "default_model_filename",
    }
)  # fmt: skip
_DEFAULT_SET_SIZE: Final = 20
_SAYS_NO_BATCH: Final = re.compile(r"^\s*max_batch_size\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of a served model."""

    #: Name of the model.
    name: str
    #: Device; None: the runtime chooses.
    device_id: int | None = None
    #: Inferences that can be in flight, as the option of `qaic.Session`.
    set_size: int = _DEFAULT_SET_SIZE
    #: Activations of the program, as the option of `qaic.Session`.
    num_activations: int = 1
    #: Value of the configuration; None if the container decides, 0 for no batches.
    max_batch_size: int | None = None
    #: Seconds that a partial batch waits for further requests.
    max_queue_delay_s: float = 0.0
    #: Requests that can wait.
    max_queue_size: int = MAX_QUEUE_SIZE
    #: Seconds that a request may wait without a limit of its own; None: no limit.
    default_timeout_s: float | None = None
    #: The configuration as written; empty where there is none.
    config: Any = None

    @property
    def declares_rows_independent(self) -> bool:
        """True if the configuration asks to combine requests: a declaration that rows are independent."""
        return bool(self.max_batch_size) and self.config.HasField("dynamic_batching")

    def versions(self, found: Iterable[int]) -> list[int]:
        """Choose versions by the policy of the configuration; without a policy, the highest one."""
        versions = sorted(found)
        policy = None if self.config is None else self.config.version_policy
        if policy is None or policy.WhichOneof("policy_choice") in (None, "latest"):
            count = 1 if policy is None else max(1, policy.latest.num_versions)
            return versions[-count:]
        if policy.WhichOneof("policy_choice") == "all":
            return versions
        return [version for version in versions if version in policy.specific.versions]


def read_settings(name: str, path: Path) -> ModelSettings:
    """Read a ``config.pbtxt``. Blocking.

    Raises OSError if the file cannot be read, and OptionError if it is not a model's configuration for this
    backend.
    """
    try:
        text = read_text(path, _MOST_BYTES)
        config = _parse(text, path)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise _wrong(path, f"is not a model configuration: {str(error)[:300]}") from error
    if config.backend != BACKEND:
        found = config.backend or config.platform
        raise _wrong(path, f"is for the backend {found!r}; {BACKEND!r} is expected")
    if config.name not in ("", name):
        raise _wrong(path, f"names the model {config.name!r}; the name of its folder, {name!r}, is expected")
    ignored = [field.name for field, _ in config.ListFields() if field.name not in _HONOURED]
    if ignored:
        _logger.warning("%s: these fields have no effect: %s", path, ", ".join(ignored))
    for group in config.instance_group:
        if group.kind not in (group.KIND_AUTO, group.KIND_CPU, group.KIND_MODEL):
            raise _wrong(path, f"requests instances of {group.Kind.Name(group.kind)}; KIND_MODEL is expected")
    policy = config.dynamic_batching.default_queue_policy
    device_id = _parameter(config, path, "device_id", -1, -1)
    return ModelSettings(
        name,
        device_id=None if device_id == -1 else device_id,
        set_size=_parameter(config, path, "set_size", _DEFAULT_SET_SIZE, 1),
        num_activations=_parameter(config, path, "no_of_activations", 1, 1),
        # Without the field, the container decides. The message has 0 both for a missing field and for
        # `max_batch_size: 0`, so the text decides.
        max_batch_size=config.max_batch_size or (0 if _SAYS_NO_BATCH.search(text) else None),
        max_queue_delay_s=config.dynamic_batching.max_queue_delay_microseconds / 1e6,
        max_queue_size=policy.max_queue_size or MAX_QUEUE_SIZE,
        default_timeout_s=policy.default_timeout_microseconds / 1e6 or None,
        config=config,
    )


def _parse(text: str, path: Path) -> Any:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        # Fields of a newer Triton are accepted; a text that is no configuration fails again.
        config = text_format.Parse(text, model_config_pb2.ModelConfig(), allow_unknown_field=True)
        _logger.warning("%s: an unknown field has no effect: %s", path, error)
        return config


def _parameter(config: Any, path: Path, name: str, default: int, least: int) -> int:
    if name not in config.parameters:
        return default
    text = config.parameters[name].string_value
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        expected = f"a whole number of at least {least}"
        raise _wrong(path, f"parameter {name!r} is {text[:80]!r}; {expected} is expected")
    return value


def check_tensors(
    settings: ModelSettings, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> None:
    """Compare the tensors of a configuration, which may omit them, with those of the container.

    Raises OptionError if the tensors differ.
    """
    config = settings.config
    if config is None:
        return
    for side, named, specs in (("input", config.input, inputs), ("output", config.output, outputs)):
        found = {spec.name: spec for spec in specs}
        for tensor in named:
            spec = found.get(tensor.name)
            where = f"config.pbtxt of {settings.name!r}: {side} {tensor.name!r}"
            if spec is None:
                raise OptionError(
                    f"{where} does not exist; the program has {list(found)}", code="serving.config"
                )
            datatype = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
            if datatype not in ("INVALID", datatype_of(spec.dtype)):
                raise OptionError(
                    f"{where} has the type {datatype}; the program has {datatype_of(spec.dtype)}",
                    code="serving.config",
                )
            if tensor.HasField("reshape") and list(tensor.reshape.shape) != list(tensor.dims):
                raise OptionError(
                    f"{where} is reshaped from {list(tensor.dims)} to {list(tensor.reshape.shape)}, which is "
                    f"not supported; remove reshape and write dims: {list(tensor.reshape.shape)}, so that "
                    "clients send this shape",
                    code="serving.config",
                )
            dims = tuple(tensor.dims)
            shapes = (spec.shape, spec.shape[1:]) if settings.max_batch_size != 0 else (spec.shape,)
            if dims and not any(_fits(dims, shape) for shape in shapes):
                raise OptionError(
                    f"{where} has the dims {list(dims)}; the program has {list(spec.shape)}",
                    code="serving.config",
                )


def _fits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(a in (-1, b) for a, b in zip(dims, shape, strict=True))


def _wrong(path: Path, what: str) -> OptionError:
    return OptionError(f"{path} {what}", code="serving.config", context={"path": str(path)})


def complete_config(
    settings: ModelSettings,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    max_batch_size: int,
    shape_of: Callable[[TensorSpec], list[int]],
) -> Any:
    """Complete a configuration from the container, as the message of the protocol.

    `inputs` and `outputs` are those of the container; `max_batch_size` is 0 for no batches. `shape_of`
    returns the shape of a tensor for clients, with a leading -1 if there are batches.
    """
    config = model_config_pb2.ModelConfig() if settings.config is None else copy.deepcopy(settings.config)
    config.name, config.backend, config.max_batch_size = settings.name, BACKEND, max_batch_size
    for field, specs in ((config.input, inputs), (config.output, outputs)):
        del field[:]
        for spec in specs:
            dims = shape_of(spec)
            field.add(
                name=spec.name,
                data_type=model_config_pb2.DataType.Value(f"TYPE_{datatype_of(spec.dtype)}"),
                dims=dims[1:] if max_batch_size else dims,
            )
    if not config.instance_group:
        config.instance_group.add(
            name=settings.name, kind=model_config_pb2.ModelInstanceGroup.KIND_MODEL, count=1
        )
    device_id = -1 if settings.device_id is None else settings.device_id
    for name, value in (
        ("device_id", device_id),
        ("set_size", settings.set_size),
        ("no_of_activations", settings.num_activations),
    ):
        config.parameters[name].string_value = str(value)
    if max_batch_size:
        config.dynamic_batching.max_queue_delay_microseconds = round(settings.max_queue_delay_s * 1e6)
    return config
