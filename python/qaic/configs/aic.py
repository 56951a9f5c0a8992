"""``AicConfigHelper``: configurations of the AIC back end to the dictionary of its tools and back."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from qaic.configs.aic_models import (
    AicCompilerConfig,
    AicConfig,
    AicRuntimeConfig,
    fields_of,
    list_config_options,
)
from qaic.errors import OptionError
from qaic.options.spec import AicField, JsonForm
from qaic.support.text import format_value

#: Older key for one device.
_OLD_DEVICE_KEY = "runtime_device_id"


class AicConfigHelper:
    """Functions for `AicCompilerConfig` and `AicRuntimeConfig`, which are also functions of the module."""

    list_config_options = staticmethod(list_config_options)

    @staticmethod
    def list_config_types() -> set[str]:
        """Return the kinds of configurations."""
        return {"compiler", "runtime"}

    @staticmethod
    def shared_library_path() -> str:
        """Return the file name of the vendor's library for Linux that reads the dictionary."""
        return "libQnnAicNetRunExtensions.so"

    @staticmethod
    def to_backend_extension_dict(
        compiler_config: AicCompilerConfig | None = None, runtime_config: AicRuntimeConfig | None = None
    ) -> dict[str, Any]:
        """Return the flat dictionary of the back-end extension file.

        Parameters
        ----------
        compiler_config, runtime_config
            Configurations. Only fields that were set, and not to ``None``, become keys: the result for a new
            ``AicCompilerConfig()`` is ``{}``, independent of its defaults.

        Raises
        ------
        TypeError
            An argument has another type.

        Examples
        --------
        >>> from qaic.configs import AicCompilerConfig, AicConfigHelper, AicRuntimeConfig
        >>> AicConfigHelper.to_backend_extension_dict(
        ...     AicCompilerConfig(cluster_sizes="4 4"), AicRuntimeConfig(num_activations=2)
        ... )
        {'compiler_cluster_sizes': '4 4', 'runtime_num_activations': 2}
        """
        made: dict[str, Any] = {}
        for given, kind in ((compiler_config, AicCompilerConfig), (runtime_config, AicRuntimeConfig)):
            if given is None:
                continue
            if not isinstance(given, kind):
                raise TypeError(f"found type {type(given).__name__}, expected {kind.__name__} or None")
            fields = fields_of(kind)
            for name, value in set_fields(given).items():
                made[fields[name].json_key] = _plain(value, fields[name])
        return made

    @staticmethod
    def from_backend_extension_dict(
        data: Mapping[str, Any],
    ) -> tuple[AicCompilerConfig, AicRuntimeConfig, dict[str, Any]]:
        """Read the flat dictionary: the inverse of `to_backend_extension_dict`, which QAIRT does not have.

        Parameters
        ----------
        data
            Dictionary with the keys of the back-end extension file, in their exact case.

        Returns
        -------
        tuple
            Both configurations with the fields that the dictionary contains, and the keys that are not
            fields.

        Raises
        ------
        qaic.errors.OptionError
            A value has another type than its field. Also a ``ValueError``.
        """
        compiler, left_over = _read(AicCompilerConfig, data, "back-end extensions")
        data = {
            "runtime_device_ids" if key == _OLD_DEVICE_KEY else key: value for key, value in left_over.items()
        }
        if isinstance(data.get("runtime_device_ids"), int):
            data["runtime_device_ids"] = [data["runtime_device_ids"]]
        runtime, others = _read(AicRuntimeConfig, data, "back-end extensions")
        return compiler, runtime, others


list_config_types = AicConfigHelper.list_config_types
shared_library_path = AicConfigHelper.shared_library_path
to_backend_extension_dict = AicConfigHelper.to_backend_extension_dict


def set_fields(config: AicConfig) -> dict[str, Any]:
    """Return the fields that were set to something, in the order of the class."""
    return {
        name: getattr(config, name)
        for name in fields_of(type(config))
        if name in config.model_fields_set and getattr(config, name) is not None
    }


def from_backend_extension_dict(
    data: Mapping[str, Any], *, place: str
) -> tuple[AicCompilerConfig, dict[str, Any]]:
    """Read the compiler's keys of back-end extension file `place`; returns the other keys, too.

    Raises OptionError if a value has another type than its field.
    """
    return _read(AicCompilerConfig, data, place)


def _read(kind: Any, data: Mapping[str, Any], place: str) -> tuple[Any, dict[str, Any]]:
    by_key = {field.json_key: name for name, field in fields_of(kind).items()}
    known = {by_key[key]: value for key, value in data.items() if key in by_key and value is not None}
    others = {key: value for key, value in data.items() if key not in by_key}
    try:
        return kind(**known), others
    except ValidationError as error:
        # If a field accepts several types, each type has an error; the first one is sufficient.
        wrong = {str(found["loc"][0]): found for found in reversed(error.errors())}
        keys = {name: key for key, name in by_key.items()}
        texts = [
            f"{keys[name]}: {found['msg']}, found {format_value(found['input'])}"
            for name, found in wrong.items()
        ]
        raise OptionError(
            f"{place}: {'; '.join(reversed(texts))}",
            code="option.invalid_value",
            context={"options": [keys[name] for name in wrong]},
        ) from None


def _plain(value: Any, field: AicField) -> Any:
    """Return a value in the form of the file."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list):
        return list(value) if field.form in {JsonForm.NAMES, JsonForm.IDS} else " ".join(value)
    return value
