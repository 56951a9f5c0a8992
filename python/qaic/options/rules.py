"""Rules between options (compile-options §1.3).

Rules see the merged values after typing, and are all checked before any work starts, so that one error can
list everything that is wrong.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qaic.options.partitions import PartitionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qaic.options.given import Origin


class Severity(enum.Enum):
    """What a broken rule leads to."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class RuleView:
    """What a rule may look at.

    Parameters
    ----------
    values
        Value of every option by canonical name, defaults included.
    origins
        Where the options that were given came from.
    model_is_container
        Whether the model is a compiled container.
    """

    values: Mapping[str, object]
    origins: Mapping[str, Origin]
    model_is_container: bool

    def spell(self, name: str) -> str:
        """Return the name of an option the way the user wrote it."""
        return str(self.origins.get(name, name))


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Parameters
    ----------
    name
        Stable name, the last part of the error's code.
    options
        Canonical names the rule is about.
    severity
        What a broken rule leads to.
    summary
        One sentence for the reference.
    check
        Returns what is wrong and how to repair it, or None.
    """

    name: str
    options: tuple[str, ...]
    severity: Severity
    summary: str
    check: Callable[[RuleView], str | None]


def _metrics_or_profiling(view: RuleView) -> str | None:
    if not (view.values["enable_metrics"] and view.values["enable_profiling"]):
        return None
    metrics, profiling = view.spell("enable_metrics"), view.spell("enable_profiling")
    return (
        f"{metrics} and {profiling} exclude each other: profiling records the metrics too, so drop {metrics}"
    )


def _container_needed(view: RuleView) -> str | None:
    if view.values["compile"] or view.model_is_container:
        return None
    return (
        f"{view.spell('compile')} is false, but the model is not compiled: give a container or leave it out"
    )


def _needs_sdk(view: RuleView) -> str | None:
    if view.values["io_encrypt"] is None or view.values["target"] == "card":
        return None
    return f"{view.spell('io_encrypt')} is not available without the SDK: only with the target card"


def _clip_without_fp16(view: RuleView) -> str | None:
    if not view.values["clip_fp16_constants"] or view.values["convert_to_fp16"]:
        return None
    return f"{view.spell('clip_fp16_constants')} has no effect without convert_to_fp16"


def _cores_of_partitions(view: RuleView) -> str | None:
    config, cores = view.values["mdp_load_partition_config"], view.values["aic_num_cores"]
    if not isinstance(config, PartitionConfig):
        return None
    for partition in config.partitions:
        for device, given in zip(partition.devices, partition.cores, strict=True):
            if given not in {None, cores}:
                return (
                    f"{view.spell('mdp_load_partition_config')} gives device {device} of {partition.name!r} "
                    f"{given} cores; every device uses the {cores} of {view.spell('aic_num_cores')}"
                )
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        "metrics_and_profiling",
        ("enable_metrics", "enable_profiling"),
        Severity.ERROR,
        "`enable_metrics` and `enable_profiling` exclude each other.",
        _metrics_or_profiling,
    ),
    Rule(
        "container_needed",
        ("compile",),
        Severity.ERROR,
        "`compile` may be false only for a compiled container.",
        _container_needed,
    ),
    Rule(
        "needs_sdk",
        ("io_encrypt", "target"),
        Severity.ERROR,
        "`io_encrypt` is not available without the SDK, that is for the `target` `cpu`.",
        _needs_sdk,
    ),
    Rule(
        "clip_without_fp16",
        ("clip_fp16_constants", "convert_to_fp16"),
        Severity.WARNING,
        "`clip_fp16_constants` needs `convert_to_fp16`.",
        _clip_without_fp16,
    ),
    Rule(
        "cores_of_partitions",
        ("mdp_load_partition_config", "aic_num_cores"),
        Severity.WARNING,
        "`numCores` of `mdp_load_partition_config` is that of `aic_num_cores`.",
        _cores_of_partitions,
    ),
)


def broken(view: RuleView, severity: Severity) -> list[tuple[Rule, str]]:
    """Return the broken rules of one severity with what is wrong."""
    checked = ((rule, rule.check(view)) for rule in RULES if rule.severity is severity)
    return [(rule, text) for rule, text in checked if text is not None]
