"""Compilation for a card: runs the vendor's compiler with the options that were set.

The openqaic compiler never replaces it. Results appear atomically: the vendor's compiler works in a separate
folder, and the container is moved only after the openqaic reader has opened it.
"""

import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from qaic import _core
from qaic.compiler import cache
from qaic.compiler.backend import EXTRA_OPTIONS, card_files, card_process
from qaic.compiler.calibration.dataset import is_archive
from qaic.compiler.diagnostics.messages import refuse
from qaic.compiler.frontend.files import ModelSource, digest_of, opened
from qaic.compiler.frontend.files.onnx_file import OnnxFile
from qaic.compiler.output_folder import check_container, move_results, writable_folder
from qaic.compiler.reports import extra_artifacts
from qaic.errors import CompileError, OptionError, QpcError
from qaic.options.argv import to_argv, without_flag
from qaic.options.resolution import ResolvedOptions
from qaic.support.atomic_io import work_folder
from qaic.support.open_regular import read_regular
from qaic.support.program_names import QPC_FILE_NAME

_log = logging.getLogger("qaic.compiler")

_VARIABLE: Final = "QAIC_SDK_COMPILER"
_NAMES: Final = ("qaic-compile", "qaic-exec")
PRODUCT_FOLDER: Final = Path("/opt/qti-aic/exec")

#: text near the start of scripts that run this package
_OURS: Final = b"qaic.cli"
_HEAD_BYTES: Final = 4096

_FLAG: Final = re.compile(r"-[\w-]+")
#: options that the compiler reads as entries of a file
_BY_FILE: Final = frozenset({"mxint8_kv_cache"})
#: flags with which the compiler may exit without a container
_DUMPS: Final = frozenset(
    {
        "-dump-custom-IO-config-template",
        "-dump-embedding-tables",
        "-dump-profile",
        "-mdp-dump-partition-config",
    }
)
#: message of a compiler that cannot read names in the file of specializations
_ABOUT_SPECIALIZATIONS: Final = re.compile("speciali[sz]ation", re.IGNORECASE)


def find_compiler() -> Path:
    """Find the vendor's compiler in the environment, the product's folder or ``PATH``.

    Raises CompileError with the searched places if there is none.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        if problem := _problem(Path(named)):
            raise refuse(
                f"{_VARIABLE}={named}",
                code="card_compiler_missing",
                found=problem,
                expected="the vendor's compiler",
                fix=f"correct {_VARIABLE}, or unset it to search the other places",
                context={"looked_at": [named]},
            )
        return Path(named).absolute()
    folders = [PRODUCT_FOLDER, *(Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part)]
    places = [folder / name for folder in folders for name in _NAMES]
    for place in places:
        if _problem(place) is None:
            return place.absolute()
    looked = ", ".join(map(str, dict.fromkeys(folders)))
    raise refuse(
        "compiling for the target card",
        code="card_compiler_missing",
        found=f"no {' or '.join(_NAMES)} of the vendor ({_VARIABLE} is not set; looked in {looked})",
        expected="the vendor's compiler",
        fix=f"install the SDK, set {_VARIABLE}, or use the target cpu",
        context={"looked_at": [_VARIABLE, *map(str, places)]},
    )


def compile_for_card(model: ModelSource, resolved: ResolvedOptions) -> Path:
    """Compile a model with the vendor's compiler. Blocking; Ctrl-C ends the compiler and leaves no files.

    Options of openqaic alone are not passed on. Returns the container: in the output directory with all other
    results of the compiler, or in the compile cache if no directory is set. Raises CompileError if there is
    no compiler, it failed (the message contains its output), or its result is not a container. Raises
    OptionError if the compiler does not have an option, and OSError if a file cannot be read or written.
    """
    samples = resolved.compile.input_list_file
    is_archived = samples is not None and is_archive(samples.path)
    if resolved.compile.calibration_data is not None or is_archived:
        option = "input_list_file" if is_archived else "calibration_data"
        raise OptionError(
            f"{option}: the vendor's compiler reads samples from raw files: give a text file with their "
            "names as input_list_file",
            code="option.card_calibration_data",
            context={"options": [option]},
        )
    extra_artifacts.check_targets(model, resolved.compile)
    compiler = find_compiler()
    lost = [name for name in without_flag(resolved) if name not in _BY_FILE]
    if lost:
        _log.warning("options without a flag of the vendor's compiler are not passed on: %s", ", ".join(lost))
    folder = resolved.compile.output_dir
    if folder is not None:
        check_container(folder / QPC_FILE_NAME, target="card")
    with opened(model) as source:
        job = partial(_Job, compiler, model, source, resolved)
        if folder is None:
            return _cached(compiler, source, resolved, job)
        with writable_folder(folder), work_folder(folder.absolute()) as work:
            move_results(job(work).compiled().parent, folder)
            return folder / QPC_FILE_NAME


def _cached(
    compiler: Path, source: OnnxFile, resolved: ResolvedOptions, job: "Callable[[Path], _Job]"
) -> Path:
    """Return the container from the cache; each version of the compiler has its own."""
    store = cache.open_cache()
    found = compiler.stat()
    key = cache.cache_key(
        digest_of(source),
        {
            "compiler": [str(compiler), found.st_size, found.st_mtime_ns],
            "extra": os.environ.get(EXTRA_OPTIONS, ""),
            "set": resolved.set_compile,
            "unknown": [[item.origin.spelling, str(item.value)] for item in resolved.unknown],
        },
    )

    def write(temporary: Path) -> None:
        with work_folder(temporary.parent) as work:
            job(work).compiled().replace(temporary)

    return store.lookup(key) or store.build(key, write)


def dump_for_card(model: ModelSource, resolved: ResolvedOptions) -> None:
    """Run the vendor's compiler to write only the requested files about a model.

    Parameters and errors are those of `compile_for_card`.
    """
    extra_artifacts.check_targets(model, resolved.compile)
    compiler = find_compiler()
    with opened(model) as source, cache.open_cache().work_folder() as work:
        _Job(compiler, model, source, resolved, work).run()


class _Job:
    """One model for the compiler, and the folder for its work."""

    def __init__(
        self, compiler: Path, model: ModelSource, source: OnnxFile, resolved: ResolvedOptions, work: Path
    ) -> None:
        self._compiler, self._resolved, self._work = compiler, resolved, work
        path = Path(model).absolute() if isinstance(model, str | os.PathLike) else work / "model.onnx"
        if source.content is not None:
            path.write_bytes(source.content)
        files = card_files.write_files(resolved, work)
        if resolved.compile.mxint8_kv_cache:
            files["custom_io_list_file"] = work / "state.yaml"
            entries = card_files.with_state_precision(resolved.compile, source.parse().graph)
            files["custom_io_list_file"].write_text(card_files.custom_io_text(entries), encoding="utf-8")
        self._files = {**files, "model_path": path, "output_dir": work / "qpc"}
        self._program = work / "qpc" / QPC_FILE_NAME
        self._warned = False

    def compiled(self) -> Path:
        """Run the compiler and return its container, in a folder with its other results."""
        self.run()
        dumps = any(argument.partition("=")[0] in _DUMPS for argument in self._command())
        if not self._program.exists() and dumps:
            _log.info(
                "the compiler ended after writing files about the model: running again for the container"
            )
            self.run(dumps=False)
        return _checked(self._compiler, self._program)

    def run(self, *, dumps: bool = True) -> None:
        """Run the compiler to its end. Raises CompileError if it failed."""
        command = self._command(dumps=dumps)
        if not self._warned:
            _warn_of_unknown(self._compiler, command)
            self._warned = True
        ended = self._run(command)
        entries = self._resolved.compile.network_specialization_config
        if entries and ended.code > 0 and _ABOUT_SPECIALIZATIONS.search(ended.words):
            _log.warning("the compiler does not read names of specializations: trying again without")
            file = self._work / "specializations.json"
            file.write_text(card_files.specializations_text(entries, flat=True), encoding="utf-8")
            self._files["network_specialization_config"] = file
            command = self._command(dumps=dumps)
            ended = self._run(command)
        if ended.code:
            raise _failed(self._compiler, command, ended)

    def _run(self, command: Sequence[str]) -> card_process.Ended:
        # The behavior of the compiler for an existing directory is not known.
        shutil.rmtree(self._work / "qpc", ignore_errors=True)
        _log.info("running %s", shlex.join(command))
        return card_process.run(command)

    def _command(self, *, dumps: bool = True) -> list[str]:
        flags = to_argv(self._resolved, sdk=True, files=self._files)
        if "aic_hw" not in self._resolved.as_given:
            # Without this flag, the compiler compiles for its simulation on the host.
            flags.insert(1, "-aic-hw")
        if self._compiler.name == "qaic-exec" and "-compile-only" not in flags:
            # The older compiler also runs the program after compiling.
            flags.append("-compile-only")
        command = [str(self._compiler), *flags, *shlex.split(os.environ.get(EXTRA_OPTIONS, ""))]
        return [text for text in command if dumps or text.partition("=")[0] not in _DUMPS]


def _warn_of_unknown(compiler: Path, command: Sequence[str]) -> None:
    """Warn about flags that the help of the installed compiler does not mention."""
    known = set(_FLAG.findall(card_process.help_text(str(compiler)).replace("--", "-")))
    if not known:
        return
    flags = [argument.partition("=")[0].replace("--", "-") for argument in command[1:]]
    unknown = dict.fromkeys(flag for flag in flags if flag.startswith("-") and flag not in known)
    # `-vv` is the repeated flag `-v`.
    missing = [flag for flag in unknown if not (set(flag[1:]) == {"v"} and "-v" in known)]
    if missing:
        _log.warning("%s does not list in its help: %s", compiler, ", ".join(missing))


def _failed(compiler: Path, command: Sequence[str], ended: card_process.Ended) -> CompileError:
    how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
    words = f":\n{ended.words}" if ended.words else " without a word"
    return CompileError(
        f"{compiler} failed with {how}{words}",
        code="compile.card_compiler_failed",
        context={"command": list(command), "exit_code": ended.code, "words": ended.words},
    )


def _checked(compiler: Path, path: Path) -> Path:
    try:
        if path.is_fifo():
            # Reading a FIFO would wait for a writer.
            raise OSError("it is a pipe")  # noqa: TRY301  # refused below like everything else
        _core.Qpc(str(path))
    except (OSError, QpcError) as error:
        found = f"a file that is not a container ({error})" if path.exists() else f"no {QPC_FILE_NAME}"
        raise refuse(
            f"result of {compiler}",
            code="card_compiler_result",
            found=found,
            expected="a program container, because its exit code is 0",
        ) from error
    return path


def _problem(path: Path) -> str | None:
    """Return the reason why a path is not the vendor's compiler; None if it can be."""
    try:
        if not path.is_file():
            return "a missing file" if not path.exists() else "something that is not a file"
        if not os.access(path, os.X_OK):
            return "a file that cannot be executed"
        is_ours = _OURS in read_regular(path, _HEAD_BYTES)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"
    return "a script of openqaic" if is_ours else None
