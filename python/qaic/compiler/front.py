"""The way of a model through the compiler: find it in the cache, else lower it and write it there."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from qaic.compiler import cache, digest, kept_warnings, onnx_file, reports, side_files
from qaic.compiler.output_folder import writable_folder
from qaic.compiler.progress import Progress
from qaic.compiler.refusal import refuse
from qaic.options.canonical import effective_options, recorded_only

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from qaic.compiler.onnx_file import ModelFile
    from qaic.options.models import CompileOptions

_LOG = logging.getLogger("qaic.compiler")


def compile_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    options: CompileOptions,
    set_options: Mapping[str, object],
    *,
    output_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Compile an ONNX model to a program container for the CPU device.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        Model file, or a model in memory (without external data).
    options : CompileOptions
        Compile options.
    set_options : Mapping[str, object]
        The compile options that were set, in canonical JSON form; recorded in the container.
    output_dir : path or None
        Folder that receives a copy of the container; created if needed.

    Returns
    -------
    Path
        The container: in `output_dir` if given, else in the compile cache.

    Raises
    ------
    CompileError
        The model cannot be compiled.
    OptionError
        An option contradicts the model.
    OSError
        A file cannot be read or written; raised for an unwritable `output_dir` before any work.
    """
    _tell_recorded(options)
    folder = None if output_dir is None else Path(output_dir)
    with writable_folder(folder):
        path = _compiled(model, options, set_options, folder)
        if folder is None:
            return path
        target = folder / cache.PROGRAM_NAME
        # A copy, not a link: who edits the copy must not edit the cache.
        cache.write_replacing(target, lambda temporary: _copy(path, temporary))
    return target


def _tell_recorded(options: CompileOptions) -> None:
    names = ", ".join(spec.name for spec in recorded_only(options))
    if names:
        _LOG.info("recorded, without effect on the cpu target: %s", names)


def _compiled(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    options: CompileOptions,
    set_options: Mapping[str, object],
    output_dir: Path | None,
) -> Path:
    """Return the container in the cache."""
    store = cache.open_cache()
    keyed = {"set": dict(set_options), "effective": effective_options(options)}
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    is_kept = not (side_files.are_wanted(options) or reports.are_wanted(options))
    if path is not None and is_kept:
        known = store.index.lookup(path)
        found = known and store.lookup(cache.cache_key(known, keyed))
        if found:
            kept_warnings.repeat(found)
            return found
    title = f"compiling {path.name if path else 'model'}"
    with (
        _opened(model) as source,
        reports.watched(options, output_dir) as passes,
        Progress(title, passes) as progress,
    ):
        progress.stage("read")
        if source.content is not None:
            content = digest.content_digest(source.content)
        else:
            content = digest.files_digest(source.files)
        key = cache.cache_key(content, keyed)
        found = store.lookup(key) if is_kept else None
        if found:
            result = found
            kept_warnings.repeat(found)
        else:
            with kept_warnings.collected() as texts:
                result = store.build(
                    key,
                    lambda temporary: _write(temporary, source, options, set_options, progress),
                    anew=not is_kept,
                )
            kept_warnings.keep(result, texts)
        if path is not None and not any(file.changed() for file in source.files):
            store.index.store(path, source.files, content)
    return result


def _write(
    path: Path,
    source: ModelFile,
    options: CompileOptions,
    set_options: Mapping[str, object],
    progress: Progress,
) -> None:
    """Lower the model and write its program."""
    from qaic.compiler import precision
    from qaic.compiler.lowering import lower
    from qaic.compiler.program import write_program

    lowered = lower(source, options, progress)
    write_program(path, lowered, options, set_options, effective_options(options), progress=progress)
    for file in source.files:
        if file.changed():
            path.unlink()
            raise refuse(
                f"model file {str(file.path)!r}",
                code="model_changed",
                found="another content than when it was opened",
                expected="the same",
                fix="do not write to the model while it is compiled",
            )
    precision.report(lowered.overflows)
    side_files.write_all(lowered.side_files)


def _opened(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ModelFile:
    if isinstance(model, str | os.PathLike):
        return onnx_file.open_model(Path(model))
    if isinstance(model, bytes):
        return onnx_file.open_bytes(model)
    from google.protobuf.message import EncodeError

    try:
        return onnx_file.open_bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise refuse(
            "model in memory",
            code="graph_too_large",
            found=f"a message that protobuf cannot serialize ({error})",
            expected="at most 2 GiB",
            fix="save it with external data and pass the path",
        ) from error


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
