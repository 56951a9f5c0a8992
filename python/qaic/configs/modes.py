"""Named settings for a whole configuration, and the functions that apply them."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qaic.configs.base import BackendType, OpenModel
from qaic.configs.htp import HtpContextConfig, HtpDeviceConfig, HtpGraphConfig
from qaic.errors import OptionError

_KEYS = ("chipset", "dsp_arch", "soc_model", "cores")
_ARCHITECTURE = re.compile(r"v[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SocTarget:
    """Description of one SoC in a text; fields that the text does not contain are ``None``."""

    #: Market name.
    chipset: str | None = None
    #: Generation of the processor, as ``v73``.
    dsp_arch: str | None = None
    #: Number of the model in the tools.
    soc_model: int | None = None
    #: Number of its cores.
    cores: int | None = None


def parse_soc_details(text: str) -> tuple[SocTarget, ...]:
    """Parse the text form.

    `text` contains ``key:value`` pairs joined by ``;``. A ``|`` begins another SoC; a value without a key
    after it belongs to the previous key, as in ``soc_model:43|57``. Raises ValueError with the invalid part
    if the text has another form.
    """
    targets: list[SocTarget] = []
    key = ""
    for alternative in text.split("|"):
        given: dict[str, str] = {}
        for part in alternative.split(";"):
            name, colon, value = part.partition(":")
            if not colon:
                name, value = key, part
            key = name.strip()
            if key not in _KEYS or not value.strip():
                message = (
                    f"found {part.strip()!r}, expected KEY:VALUE with one of the keys {', '.join(_KEYS)}"
                )
                raise ValueError(message)
            if key in given:
                raise ValueError(f"{key} is given twice for one SoC; | separates SoCs")
            given[key] = value.strip()
        targets.append(_soc(given))
    return tuple(targets)


def _soc(given: dict[str, str]) -> SocTarget:
    architecture = given.get("dsp_arch")
    if architecture is not None and not _ARCHITECTURE.fullmatch(architecture):
        raise ValueError(f"found dsp_arch {architecture!r}, expected a text such as 'v73'")
    numbers = {key: given[key] for key in ("soc_model", "cores") if key in given}
    for key, text in numbers.items():
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ValueError(f"found {key} {text!r}, expected a whole number")
    return SocTarget(given.get("chipset"), architecture, **{key: int(text) for key, text in numbers.items()})


class CompilerModes(enum.StrEnum):
    """Modes of `CompileConfig.set_mode`."""

    WEIGHT_SHARING = "weight_sharing"

    @classmethod
    def list_options(cls) -> list[str]:
        """Return the names of the modes."""
        return [mode.value for mode in cls]


class HtpConfig(Protocol):
    """The fields of `CompileConfig` that modes read and set."""

    backend: BackendType
    soc_details: str | None
    graph_custom_configs: list[OpenModel] | None
    device_custom_configs: list[OpenModel] | None
    context_custom_configs: list[OpenModel] | None

    def mark_graphs(self, *, ensure: bool) -> None: ...  # noqa: D102


class CompilerModeSetters:
    """Settings of each mode."""

    @staticmethod
    def set_weight_sharing(
        config: HtpConfig,
        *,
        graph_names: Sequence[str] | None = None,
        soc_model: int | None = None,
        dsp_arch: str | None = None,
        hvx_threads: int | None = None,
        vtcm_size_in_mb: int | None = None,
        fp16: bool | None = None,
    ) -> None:
        """Set the options with which graphs of one HTP context share weights. Changes only data.

        Parameters
        ----------
        config
            Configuration of the back end HTP, changed in place.
        graph_names
            Graphs that share weights; they keep existing options. ``None``: all graphs of the configuration.
            If it has no graphs, it gets one entry without a name, and the compilation fills in the names of
            the model (`CompileConfig.ensure_graphs`).
        soc_model, dsp_arch
            Target, as ``43`` and ``"v73"``. Default: the values in ``soc_details``.
        hvx_threads, vtcm_size_in_mb, fp16
            Options of each graph; only given options are set.

        Raises
        ------
        qaic.errors.OptionError
            The back end is not HTP, or the target is unknown: openqaic has no database of SoCs. The
            configuration does not change. Also a ``ValueError``.
        """
        require_htp(config.backend, "the mode weight_sharing")
        target = _target(config, soc_model, dsp_arch)
        given = {
            "hvx_threads": hvx_threads,
            "vtcm_size_in_mb": vtcm_size_in_mb,
            "fp16_relaxed_precision": None if fp16 is None else int(fp16),
        }
        options = {name: value for name, value in given.items() if value is not None}
        device: dict[str, Any] = {"soc_model": target.soc_model, "dsp_arch": target.dsp_arch}
        if target.cores is not None:
            device["cores"] = [{"core_id": core} for core in range(target.cores)]
        config.graph_custom_configs = _graphs(config.graph_custom_configs, graph_names, options)
        config.device_custom_configs = _changed(config.device_custom_configs, HtpDeviceConfig, device)
        config.context_custom_configs = _changed(
            config.context_custom_configs, HtpContextConfig, {"weight_sharing_enabled": True}
        )
        config.mark_graphs(
            ensure=not any("name" in graph.as_given() for graph in config.graph_custom_configs)
        )


def require_htp(backend: BackendType, what: str) -> None:
    """Raise OptionError if the back end is not HTP; `what` needs it."""
    if backend is not BackendType.HTP:
        raise OptionError(
            f"{what}: found the backend {backend}, expected HTP",
            code="option.backend",
            context={"found": str(backend), "expected": ["HTP"]},
        )


def _target(config: HtpConfig, soc_model: int | None, dsp_arch: str | None) -> SocTarget:
    details = config.soc_details
    known = parse_soc_details(details)[0] if details is not None else SocTarget()
    model = known.soc_model if soc_model is None else soc_model
    architecture = known.dsp_arch if dsp_arch is None else dsp_arch
    missing = [name for name, value in (("soc_model", model), ("dsp_arch", architecture)) if value is None]
    if missing:
        said = f" (soc_details is {details!r})" if details is not None else ""
        raise OptionError(
            f"the mode weight_sharing needs soc_model and dsp_arch; {' and '.join(missing)} is not given"
            + said,
            code="option.soc_unknown",
            context={"missing": missing, "soc_details": details},
            hints=("openqaic has no database of SoCs: pass soc_model=43, dsp_arch='v73' or the like",),
        )
    return SocTarget(known.chipset, architecture, model, known.cores)


def _graphs(
    present: Sequence[OpenModel] | None, names: Sequence[str] | None, options: dict[str, Any]
) -> list[OpenModel]:
    """Set options of graphs; named graphs that do not exist are appended."""
    graphs = [graph.as_given() for graph in present or ()]
    if names is None:
        return [HtpGraphConfig(**{**graph, **options}) for graph in graphs or [{}]]
    known = {graph.get("name") for graph in graphs}
    made = [{**graph, **(options if graph.get("name") in names else {})} for graph in graphs]
    made += [{"name": name, **options} for name in names if name not in known]
    return [HtpGraphConfig(**graph) for graph in made]


def _changed(
    present: Sequence[OpenModel] | None, kind: type[OpenModel], changes: dict[str, Any]
) -> list[OpenModel]:
    """Set options in the first configuration of a list; create it if the list is empty."""
    first, *others = present or [kind()]
    return [kind(**{**first.as_given(), **changes}), *others]
