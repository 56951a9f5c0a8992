"""The reference page of the options, generated from the table.

The page is committed as ``docs/reference/options.md``; a test compares the two. With ``--flags``, the module
writes the help of the command line tools, which is committed next to the page.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from qaic.options.argv import render_help
from qaic.options.conflicts import RULES
from qaic.options.names import normalize
from qaic.options.rows.runner import RunnerOptions
from qaic.options.rules import Rule, Severity
from qaic.options.spec import Effect, FlagForm, OptionSpec, Stage, rows_of
from qaic.options.table import SPECS

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAGES = {
    Stage.SESSION: "Model, other options, and backend.",
    Stage.COMPILE: "These options apply to ONNX models. A container ignores them, with one warning.",
    Stage.RUNTIME: (
        "These options are not stored in the container. Those that *can change* after construction are\n"
        "the keys of `Session.backend_options()` and `Session.update_backend_options()`."
    ),
    Stage.CLI: "Flags of the command line tools; a YAML file can contain them, and a session ignores them.",
}

_COLUMNS = ("option", "value", "default", "flag", "effect", "documented", "meaning")

_RUNNER_COLUMNS = ("flag", "value", "default", "effect", "documented", "meaning")

# Options that the vendor documents elsewhere than for `Session`; options of the tools are documented there.
_OF_TOOLS = frozenset(
    {
        *("aic_hw", "aic_hw_version", "allow_mxint8_mdp_io", "batchsize", "compile_only", "input_list_file"),
        *("io_encrypt", "mdts_mos", "mxfp6_matmul", "mxint8_kv_cache", "network_specialization_config"),
        *("ols_config", "qpc_crc", "quantization_schema", "register_custom_op", "retained_state"),
        *("split_model_io", "split_retained_state_io", "stats_level", "sub_functions"),
        *("use_random_input_data", "user_tiled", "verbose"),
    }
)
_OF_CLASSES = frozenset(
    {
        *("direct_api", "exclude_mxfp6_matmul", "force_vtcm_spill", "graph_names", "process_lock"),
        *("submit_num_retries", "submit_timeout", "threads_per_queue"),
    }
)
_IN_CODE_ONLY = frozenset({"oversubscription_name"})
# Options whose flags follow from the general rule only, and are in no public text.
INFERRED_FLAGS = frozenset(
    {
        *("always_expand_onnx_functions", "compile_threads", "dump_embedding_tables", "dynamic_shape_input"),
        *("enable_debug", "exclude_mxfp6_matmul", "host_preproc", "io_crc", "io_crc_stride"),
        *("load_embedding_tables", "ols_config"),
    }
)

_INTRODUCTION = """\
# Options

<!-- Written by `make docs`. Edit the table in python/qaic/options, not this page. -->

Options are keyword arguments of `qaic.Session` and `qaic.compile`, keys of the YAML file `options_path`, or
flags of `qaic-compile`. Keyword arguments and flags take precedence over the file. `None` as a keyword
argument means "not set". All errors of one kind are reported together, before any work starts.

Names ignore case, hyphens, underscores and leading dashes: `aic_num_cores`, `aic-num-cores` and
`-aic-num-cores` are one option. An unknown keyword argument is an `UnknownOptionError`
(also a `TypeError`). An unknown key of a file is ignored with a warning, or refused with `strict_options`.

[options.schema.json](options.schema.json) is a JSON Schema of the file, for editors;
[flags.txt](flags.txt) is the list of flags that `qaic-compile -h` shows.

The column *effect* shows the effect of an option on the CPU device:

| effect | meaning |
|---|---|
| behavior | changes results, stored data or accepted input |
| timing | changes the speed only |
| file | writes a file |
| diagnostic | changes measurements or reports |
| validated | checked; no other effect |
| recorded only | for hardware only: checked and stored in the container, with a message |

The column *documented* shows where the vendor documents an option: for `Session`, for the command line
(`tools`), or for the configuration classes (`classes`). `ours` marks additions. An empty cell marks an
option that code uses without documentation. An asterisk marks a flag whose spelling is derived from its
keyword.

## Values

| type | Python | YAML |
|---|---|---|
| true or false | `True`, `False`, `1`, `0` | `true`, `false`, `yes`, `no`, `on`, `off`, `1`, `0`; any case |
| integer | `int` | decimal digits, optionally grouped by `_`; leading zeros are ignored |
| number | `int` or `float`, finite | decimal, also with an exponent |
| text | `str` | any text |
| path | `str` or `os.PathLike` | text, relative to the current folder |
| list | a sequence, or text with commas | a sequence, or text with commas |
| input file | as a path | text; two files with the same content are equal |

Every option accepts text, even in Python. A YAML file is read as text and converted to the type of each
option, so a symbol may have the name `on` or `no`. `null`, `None`, `~` and an empty value mean "not set"
unless they are quoted. With the key `relative-path: true`, paths are relative to the folder of the file. A
repeated key, also in another spelling, is an error.

`onnx_define_symbol` takes a mapping (`{"batch": 4}`), a list of pairs (`[("batch", 4)]`), a list of texts
(`["batch,4"]`), or one text (`"batch,4"`, or `"batch 4 seq 128"` for several).

`model_inputs` takes a list of mappings with `input_name`, `input_type` and `input_shape`, one such mapping,
or texts of the form `"data,float32,[1,3,224,224]"`.

`network_specialization_config` and `mdp_load_partition_config` take the path of a JSON file, or in Python
its content. `network_specialization_config` also takes the list of specializations
([shapes and state](../guide/shapes-and-state.md)). `custom_io_list_file` and `node_precision_info_file` take
the path of a YAML file, or in Python its content.

`mos`, `sdp_cluster_sizes`, `exclude_mxfp6_matmul` and `aic_pmu_events` also accept text with spaces. Events
are hexadecimal: `aic_pmu_events: 70` in a file is the event 0x70. In Python, a single integer is refused,
because it is ambiguous.

A flag has one or two dashes, and its value after `=` or as the next argument. A switch without a value is
true; it also accepts `=true`, `=false`, `=1` and `=0`. List flags can be repeated; `-onnx-define-symbol`,
`-model-input` and `-register-custom-op` take one entry each.

```yaml
aic_num_cores: 4
convert-to-fp16: true
onnx_define_symbol: {batch: 2, seq: 128}
```
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION]
    explained: set[Stage] = set()
    for section in dict.fromkeys(spec.section for spec in SPECS):
        rows = [spec for spec in SPECS if spec.section == section]
        stage = rows[0].stage
        text = "" if stage in explained else f"{_STAGES[stage]}\n\n"
        explained.add(stage)
        parts.append(f"## {section}\n\n{text}" + _table(_COLUMNS, map(_row, rows)))
    parts.append(_runner())
    parts.append("## Rules between options\n\n" + _table(("rule", "if violated"), map(_rule, RULES)))
    return "\n".join(parts)


def _runner() -> str:
    """Return the section about the options that only ``qaic-runner`` has."""
    text = (
        "These flags belong to `qaic-runner` only; they are not keyword arguments or YAML keys. Flags with\n"
        "more than one letter have one or two dashes.\n\n"
    )
    rows = map(_runner_row, rows_of(RunnerOptions, Stage.CLI))
    return f"## {RunnerOptions.SECTION}\n\n{text}" + _table(_RUNNER_COLUMNS, rows)


def _runner_row(spec: OptionSpec) -> tuple[str, ...]:
    flag = spec.flag
    if flag is None:
        raise AssertionError(spec.name)
    takes_none = flag.form in {FlagForm.SWITCH, FlagForm.COUNT}
    main, *others = (f"-{text}" if len(text) == 1 else f"--{text}" for text in flag.texts)
    flags = ", ".join(f"`{text}`" for text in (main if takes_none else f"{main}=…", *others))
    if flag.form in {FlagForm.REPEAT, FlagForm.COUNT}:
        flags += " (repeat)"
    place = "ours" if flag.ours else documented(spec)
    return flags, spec.codec.expected, _default(spec.default), _effect(spec), place, spec.summary


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _row(spec: OptionSpec) -> tuple[str, ...]:
    meaning = spec.summary
    if spec.updatable:
        meaning += " *Can change.*"
    own = {spec.name, *(() if spec.flag is None else map(normalize, spec.flag.texts))}
    others = [f"`{alias}`" for alias in spec.aliases if alias not in own]
    if spec.aic is not None:
        others += [f"`{name}`" for name in (spec.aic.name, spec.aic.json_key) if name not in own]
    if others:
        meaning += f" Also: {', '.join(others)}."
    flag = _flag(spec) + ("\\*" if spec.name in INFERRED_FLAGS else "")
    return (
        f"`{spec.name}`",
        spec.codec.expected,
        _default(spec.default),
        flag,
        _effect(spec),
        documented(spec),
        meaning,
    )


def documented(spec: OptionSpec) -> str:
    """Return the place in the vendor's documents, or ``ours``."""
    if spec.ours:
        return "ours"
    if spec.stage is Stage.CLI or spec.name in _OF_TOOLS:
        return "tools"
    if spec.name in _OF_CLASSES:
        return "classes"
    return "" if spec.name in _IN_CODE_ONLY else "Session"


def _effect(spec: OptionSpec) -> str:
    return "recorded only" if spec.effect is Effect.RECORDED else spec.effect.name.lower()


def _default(value: object) -> str:
    if value is None or value in ((), {}):
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _flag(spec: OptionSpec) -> str:
    if spec.flag is None:
        return ""
    text = f"-{spec.flag.text}"
    form = spec.flag.form
    if form is FlagForm.COUNT:
        return f"`{text}`, `-{spec.flag.text * 2}`, `-{spec.flag.text * 3}`"
    if form is FlagForm.OPTIONAL:
        return f"`{text}`, `{text}=…`"
    if form is FlagForm.SWITCH:
        return f"`{text}=false`" if spec.default is True else f"`{text}`"
    if form is FlagForm.ACTION:
        return ", ".join(f"`-{other}`" for other in spec.flag.texts)
    return f"`{text}=…`" + (" (repeat)" if form is FlagForm.REPEAT else "")


def _rule(rule: Rule) -> tuple[str, str]:
    return rule.summary, "warning" if rule.severity is Severity.WARNING else "error"


if __name__ == "__main__":
    sys.stdout.write(render_help(tuple(Stage)) if sys.argv[1:] == ["--flags"] else render())
