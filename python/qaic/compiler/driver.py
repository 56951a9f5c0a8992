"""The entry point of the compiler: reads a program from the cache, or lowers and writes it.

Each target has its own compiler, and none replaces another. Functions import modules that only a compilation
needs, because importing those takes longer than a cache hit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qaic.compiler import cache
from qaic.compiler.backend import EXTRA_OPTIONS
from qaic.compiler.diagnostics.messages import (
    Diagnostic,
    Diagnostics,
    changed,
    load,
    note_cached,
    record,
    recorded,
    refuse,
    repeat,
)
from qaic.compiler.diagnostics.progress import Progress
from qaic.compiler.frontend.files import ModelSource, digest_of, opened
from qaic.compiler.output_folder import check_container, writable_folder
from qaic.compiler.reports import emit_report, extra_artifacts
from qaic.options.codecs.structures import ModelInput
from qaic.options.table import CompileOptions, effective_options, recorded_only
from qaic.support.atomic_io import copy_replacing, write_replacing
from qaic.support.program_names import QPC_FILE_NAME

if TYPE_CHECKING:
    from qaic.compiler.calibration.dataset import SampleFiles
    from qaic.compiler.frontend.files.onnx_file import OnnxFile
    from qaic.compiler.ir.model import Context, Model
    from qaic.options.resolution import ResolvedOptions

_LOG = logging.getLogger("qaic.compiler")
#: bytes of weights from which a container in an output folder has no copy in the cache, because compiling
#: takes little longer than copying
_WRITTEN_ONCE_BYTES: Final = 1 << 30


def compile_resolved(model: ModelSource, resolved: ResolvedOptions) -> Path:
    """Compile a model for the target that the options name.

    `model` is a file, or in memory without external data. Returns the container: in the output directory if
    there is one, else in the compile cache. Raises CompileError if the model cannot be compiled or the
    target's compiler is missing, OptionError if an option contradicts the model, and OSError if a file cannot
    be read or written. An unwritable output directory is refused before any work.
    """
    options = resolved.compile
    if options.target == "card":
        from qaic.compiler.card_driver import compile_for_card

        return compile_for_card(model, resolved)
    if os.environ.get(EXTRA_OPTIONS):
        _LOG.debug("%s is for the vendor's compiler: ignored for the target cpu", EXTRA_OPTIONS)
    set_options = dict(resolved.set_compile)
    if resolved.run_step.aic_profiling_type:
        # This runtime option also requests statistics from the compiler.
        set_options["aic_profiling_type"] = list(resolved.run_step.aic_profiling_type)
    return compile_model(model, options, set_options, output_dir=options.output_dir)


def compile_model(
    model: ModelSource,
    options: CompileOptions,
    set_options: Mapping[str, object],
    *,
    output_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Compile an ONNX model to a program container for the CPU device.

    `model` is a file, or in memory without external data. `set_options` are in canonical JSON form, and are
    recorded in the container. Returns its path: in `output_dir`, which is created if needed, else in the
    compile cache. Raises CompileError if the model cannot be compiled, OptionError if an option contradicts
    it, and OSError if a file cannot be read or written. An unwritable `output_dir` is refused before any
    work.
    """
    if names := ", ".join(spec.name for spec in recorded_only(options)):
        _LOG.info("recorded, no effect on the cpu target: %s", names)
    extra_artifacts.check_targets(model, options)
    folder = None if output_dir is None else Path(output_dir)
    if folder is not None:
        check_container(folder / QPC_FILE_NAME)
    with writable_folder(folder):
        path = _compiled(model, options, set_options, folder)
        if folder is None or path.parent == folder:
            return path
        target = folder / QPC_FILE_NAME
        # A link would let an edit of the copy change the cache.
        copy_replacing(path, target)
    return target


def write_side_files(model: ModelSource, options: CompileOptions) -> list[Path]:
    """Write the profiles, templates and tables that options name, and no container.

    Returns the written files; empty if the options name none. Raises the errors of `compile_model`, and then
    writes nothing.
    """
    from qaic.compiler.pipeline import lower

    extra_artifacts.check_targets(model, options)
    with opened(model) as source, Progress(f"reading {title_of(model)}") as progress:
        _, context = lower(source, options, progress, cache.open_cache().work_folder)
        extra_artifacts.write_all(context.side_files)
    return [file.path for file in context.side_files]


def title_of(model: object) -> str:
    """Return a name of a model for messages."""
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def _compiled(
    model: ModelSource, options: CompileOptions, set_options: Mapping[str, object], output_dir: Path | None
) -> Path:
    """Return the container in the cache, or in the output folder if the model is too large for both."""
    store = cache.open_cache()
    keyed = {"set": dict(set_options), "effective": effective_options(options)}
    samples = _listed_samples(options, store)
    if samples is not None:
        keyed["samples"] = {"digest": samples.digest}
    if options.register_custom_op:
        from qaic.compiler.frontend import custom_ops

        libraries = custom_ops.read(options.register_custom_op).libraries
        keyed["custom_op_libraries"] = [library.to_json() for library in libraries]
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    # A stream of samples has no name; only its measured values show if the program is cached.
    is_measured_first = options.convert_to_quantize and options.calibration_data is not None
    is_kept = not (extra_artifacts.are_wanted(options) or emit_report.wanted(options))
    if path is not None and is_kept and not is_measured_first:
        known = store.index.lookup(path)
        found = known and store.lookup(cache.cache_key(known, keyed))
        if found:
            repeat(load(found))
            note_cached()
            return found
    with (
        emit_report.watched(options, output_dir) as passes,
        Progress(f"compiling {title_of(model)}", passes) as progress,
        opened(model) as source,
    ):
        progress.stage("read")
        lowered = None
        with recorded() as diagnostics:
            if is_measured_first:
                lowered = _lowered(source, options, samples, progress, store)
                keyed["profile"] = {"digest": _profile_digest(lowered[1])}

            def write(temporary: Path) -> None:
                made = lowered or _lowered(source, options, samples, progress, store)
                _write(
                    temporary, source, made, options, set_options, progress=progress, diagnostics=diagnostics
                )

            if output_dir is not None and _size(source) >= _WRITTEN_ONCE_BYTES:
                # A digest of the model takes as long as the rest of the compilation.
                write_replacing(output_dir / QPC_FILE_NAME, write)
                return output_dir / QPC_FILE_NAME
            content = digest_of(source)
            key = cache.cache_key(content, keyed)
            found = store.lookup(key) if is_kept else None
            result = found or store.build(key, write, again=not is_kept)
        if found:
            note_cached()
            if lowered is None:
                repeat(load(found))
        if path is not None and not any(file.changed() for file in source.files):
            store.index.store(
                path, {file.path: file.stat for file in source.files}, content, source.data.search()
            )
    return result


def _size(source: OnnxFile) -> int:
    """Return the size of a model; weights that share bytes of a file count separately."""
    in_files = sum(file.size for file in source.files)
    return max(in_files, sum(weight.source.nbytes for weight in source.weights.values()))


def _listed_samples(options: CompileOptions, store: cache.Cache) -> SampleFiles | None:
    """Identify the samples of an input list that the compilation will use."""
    is_used = options.convert_to_quantize or options.dump_profile is not None
    if not is_used or options.input_list_file is None or options.calibration_data is not None:
        return None
    from qaic.compiler.calibration.dataset import digest_samples

    with Progress("reading samples"):
        return digest_samples(options.input_list_file.path, store.index)


def _profile_digest(context: Context) -> str:
    from qaic.compiler.calibration.load_or_collect import profile_digest

    return "" if context.profile is None else profile_digest(context.profile)


def _lowered(
    source: OnnxFile,
    options: CompileOptions,
    samples: SampleFiles | None,
    progress: Progress,
    store: cache.Cache,
) -> tuple[Model, Context]:
    """Lower the model, and make sure that the samples were those of the cache key."""
    from qaic.compiler.pipeline import lower

    lowered = lower(source, options, progress, store.work_folder)
    written = None if samples is None else samples.changed()
    if written is not None:
        raise refuse(
            f"sample file {str(written)!r}",
            code="samples_changed",
            found="another content than when compiling began",
            expected="the same",
            fix="do not write to the samples while a model is compiled",
        )
    return lowered


def _described(inputs: Iterable[ModelInput], names: Sequence[str]) -> tuple[ModelInput, ...]:
    """Return descriptions with names, and without types, which are those of the model, in the model's order.

    `names` are those of the model's inputs; a description without a name belongs to the only input.
    """
    found = [ModelInput(one.input_name or names[0], None, one.input_shape) for one in inputs]
    return tuple(sorted(found, key=lambda one: names.index(one.input_name)))


def _write(
    path: Path,
    source: OnnxFile,
    lowered: tuple[Model, Context],
    options: CompileOptions,
    set_options: Mapping[str, object],
    *,
    progress: Progress,
    diagnostics: Diagnostics,
) -> None:
    """Write the program of a lowered model, and the files next to it."""
    from qaic.compiler.backend.qpc_writer import write_program
    from qaic.compiler.frontend.files import weight_free
    from qaic.compiler.ir.constants import float16_weights

    model, context = lowered

    def overflows() -> list[Diagnostic]:
        return [
            *weight_free.overflow_warning(source.overflows),
            *float16_weights.overflow_warning(context.overflows),
        ]

    inputs = _described(options.model_inputs, [*model.input_dims])
    # Forms of one description give the same container.
    options = replace(options, model_inputs=inputs)
    if inputs:
        set_options = {**set_options, "model_inputs": effective_options(options)["model_inputs"]}
    write_program(
        path,
        model,
        options,
        set_options,
        effective_options(options),
        progress=progress,
        said=lambda: [*diagnostics.items, *overflows()],
    )
    for file in source.files:
        if file.changed():
            path.unlink()
            found = "another content than when it was opened"
            raise changed(f"model file {str(file.path)!r}", found, "the same")
    for item in overflows():
        record(item)
    extra_artifacts.write_all(context.side_files)
