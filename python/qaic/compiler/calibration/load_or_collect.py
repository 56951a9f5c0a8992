"""A profile from a file or from samples, and the identity of the graph that it belongs to.

The identity covers operators, attributes, shapes and constants. Names do not count, because entries contain
them: a graph with changed names loses entries, but keeps its identity.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx

from qaic.compiler.calibration.collector import ObservedTensors, choose, collect, model_inputs
from qaic.compiler.calibration.dataset import (
    RANDOM_SAMPLES,
    FileSource,
    ObjectSource,
    RandomSource,
    SampleSource,
    index_limits,
)
from qaic.compiler.calibration.encodings import read_external
from qaic.compiler.calibration.glow_profile import MOST_BYTES, read_profile, write_profile
from qaic.compiler.diagnostics.messages import about_files, listing, warn
from qaic.compiler.ir.constants.in_graph import as_weight
from qaic.compiler.ir.constants.weights import Weight
from qaic.compiler.ir.graph_edits import plain
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS
from qaic.compiler.ir.interface import TensorSpec
from qaic.compiler.ir.model import Context, Model, SideFile, compiler_pass
from qaic.compiler.ir.precision import INTEGERS, Classification, FloatReason
from qaic.compiler.ir.quantization import CalibrationProfile
from qaic.compiler.passes.assign_precision import decide
from qaic.compiler.passes.emulation.upcast_float16 import upcast_float16_pass
from qaic.compiler.passes.fold_batch_normalization import fold_batch_normalization_for_integers_pass
from qaic.errors import OptionError
from qaic.options.files.parsed_file import InputFileContent
from qaic.options.table import CompileOptions, is_quantizing
from qaic.support.open_regular import read_regular


def graph_hash(graph: onnx.GraphProto, weights: Mapping[str, Weight], inputs: Sequence[TensorSpec]) -> int:
    """Hash a main graph; reads every weight. `inputs` have their final shapes."""
    hashed = _Hash()
    numbers: dict[str, int] = {}
    for spec in inputs:
        numbers[spec.name] = len(numbers)
        hashed.text("input", str(spec.elem_type), *map(str, spec.dims))
    digests = {name: _constant(weight) for name, weight in weights.items()}
    hashed.graph(graph, numbers, digests)
    return hashed.number()


def _constant(weight: Weight) -> str:
    digest = hashlib.blake2b(f"{weight.elem_type} {weight.dims}".encode(), digest_size=16)
    for piece in weight.source.chunks():
        digest.update(piece)
    return digest.hexdigest()


class _Hash:
    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    def number(self) -> int:
        return int.from_bytes(self._digest.digest(), "big")

    def text(self, *words: str) -> None:
        """Add words, each with its length, so that different words never give the same bytes."""
        for word in words:
            data = word.encode()
            self._digest.update(len(data).to_bytes(8, "little"))
            self._digest.update(data)

    def graph(self, graph: onnx.GraphProto, numbers: dict[str, int], constants: Mapping[str, str]) -> None:
        """Add a graph; `numbers` and `constants` describe the outer values, and are not changed."""
        numbers, constants = dict(numbers), dict(constants)
        for tensor in graph.initializer:
            constants[tensor.name] = _constant(as_weight(tensor))
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = hashlib.blake2b(
                sparse.SerializeToString(deterministic=True), digest_size=16
            ).hexdigest()
        for node in graph.node:
            domain = "" if node.domain in STANDARD_DOMAINS else node.domain
            self.text("node", domain, node.op_type)
            for name in node.input:
                self.text(_reference(name, numbers, constants))
            for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
                self._attribute(attribute, numbers, constants)
            for name in node.output:
                self.text("result" if name else "")
                if name:
                    numbers[name] = len(numbers)
                    constants.pop(name, None)
        for value in graph.output:
            self.text("output", _reference(value.name, numbers, constants))

    def _attribute(
        self, attribute: onnx.AttributeProto, numbers: dict[str, int], constants: Mapping[str, str]
    ) -> None:
        self.text("attribute", attribute.name, str(attribute.type))
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        if not graphs:
            content = plain(attribute).SerializeToString(deterministic=True)
            self.text(hashlib.blake2b(content, digest_size=16).hexdigest())
            return
        for graph in graphs:
            inner = dict(numbers)
            for value in graph.input:
                inner[value.name] = len(inner)
            self.graph(graph, inner, constants)


def _reference(name: str, numbers: Mapping[str, int], constants: Mapping[str, str]) -> str:
    if not name:
        return ""
    return f"value {numbers[name]}" if name in numbers else f"constant {constants.get(name, 'unknown')}"


#: passes that make the float graph on which values are measured
FLOAT_GRAPH: Final = (
    upcast_float16_pass,
    fold_batch_normalization_for_integers_pass,
)


@compiler_pass(lambda context: context.options.dump_profile and not is_quantizing(context.options))
def dump_profile_pass(model: Model, context: Context) -> None:
    """Measure the values of the graph in floating point, and write them to a profile.

    Runs on a copy of the model. The profile that quantizes the model (`load_profile`) is not written.
    """
    path = context.options.dump_profile
    if path is None:
        return
    graph, asked = model.copy(), replace(context, for_integers=True)
    with about_files():
        for step in FLOAT_GRAPH:
            if step.is_needed(asked):
                step.run(graph, asked)
        profile = _measured(graph, asked, with_histograms=True)
    profile.graph_hash = graph_hash(graph.proto.graph, graph.weights, graph.inputs)
    pieces = list(write_profile(profile, graph.proto.graph))

    def write(target: Path) -> None:
        with target.open("w", encoding="utf-8") as stream:
            stream.writelines(pieces)

    context.side_files.append(SideFile(path, write))


@compiler_pass(lambda context: is_quantizing(context.options))
def calibrate_pass(model: Model, context: Context) -> None:
    """Get the ranges of the graph in floating point from a file, or from samples."""
    options = context.options
    if options.load_profile is not None:
        context.profile = _loaded(model, options, options.load_profile)
    elif options.external_quantization_file is not None:
        context.profile = _external(model, options.external_quantization_file)
    else:
        # The range is sufficient if calibration does not shrink it.
        with_histograms = options.quantization_calibration != "None"
        context.profile = _measured(model, context, with_histograms=with_histograms)


def profile_digest(profile: CalibrationProfile) -> str:
    """Identify the content of a profile; profiles with equal effects on quantization are equal."""
    digest = hashlib.sha256(struct.pack("<Q", profile.graph_hash))
    for name in sorted(profile.tensors):
        tensor = profile.tensors[name]
        digest.update(
            f"{name!r} {tensor.minimum!r} {tensor.maximum!r} {tensor.scale!r} {tensor.offset!r}".encode()
        )
        digest.update(f" {tensor.bits}\n".encode())
        for array in (tensor.histogram, tensor.channel_scales, tensor.channel_offsets):
            digest.update(b"-" if array is None else struct.pack("<Q", array.nbytes) + array.tobytes())
    digest.update(repr(sorted(profile.precisions.items())).encode())
    return digest.hexdigest()


def _loaded(graph: Model, options: CompileOptions, file: InputFileContent) -> CalibrationProfile:
    found = read_profile(read_unchanged(file, "load_profile"), str(file.path))
    own = graph_hash(graph.proto.graph, graph.weights, graph.inputs)
    if found.graph_hash is None:
        warn("calibration.profile_without_hash", "load_profile: the profile does not name its model")
    elif found.graph_hash != own and not found.is_ours:
        writer = f"GlowToolsVersion {found.tool}" if found.tool else "without GlowToolsVersion"
        warn(
            "calibration.profile_of_another_compiler",
            f"load_profile: another compiler wrote the profile ({writer}), so its graph hash is not "
            "compared; entries are matched by the names of nodes and tensors",
        )
    elif found.graph_hash != own:
        if not options.allow_profile_mismatch:
            raise OptionError(
                f"load_profile: {file.path} belongs to another model or to other shapes: found graph hash "
                f"0x{found.graph_hash:016x}, expected 0x{own:016x}",
                code="option.load_profile",
                context={"file": str(file.path), "found": found.graph_hash, "expected": own},
                hints=(
                    "dump the profile again with the same model and sizes, or set allow_profile_mismatch to "
                    "use the entries that fit",
                ),
            )
        warn(
            "calibration.profile_of_another_graph",
            "load_profile: the profile belongs to another graph; entries for equal tensor names are used",
        )
    profile = found.bind(graph.proto.graph)
    _complete(profile, choose(graph, _float_nodes(_decided(graph, options))), "load_profile", file)
    return profile


def _external(graph: Model, file: InputFileContent) -> CalibrationProfile:
    option = "external_quantization_file"
    profile = read_external(
        read_unchanged(file, option), str(file.path), graph.proto.graph, graph.constants()
    )
    chosen = choose(graph, set(profile.precisions))
    _complete(profile, chosen, option, file)
    return profile


def _complete(
    profile: CalibrationProfile, chosen: ObservedTensors, option: str, file: InputFileContent
) -> None:
    """Add entries for tensors with the same values as others, and report tensors without an entry."""
    for name, source in chosen.same.items():
        if name not in profile.tensors and source in profile.tensors:
            profile.tensors[name] = profile.tensors[source]
    missing = [name for name in chosen.same if name not in profile.tensors]
    if missing and not profile.tensors and not profile.precisions:
        raise OptionError(
            f"{option} {file.path}: found no entry for any of the {len(missing)} tensors that can be "
            f"quantized ({listing(missing)}), expected those of this model",
            code="option.profile_entries",
            context={"missing": len(missing)},
        )
    if missing:
        warn(
            "calibration.missing_entries",
            f"{option}: the file has no entries for {len(missing)} of {len(chosen.same)} tensors "
            f"({listing(missing)}); the nodes around them stay in floating point",
            nodes=missing,
        )


def _measured(graph: Model, context: Context, *, with_histograms: bool) -> CalibrationProfile:
    options = context.options
    source = source_of(graph, options)
    decided = _decided(graph, options)
    chosen = choose(graph, _float_nodes(decided))
    if not chosen.inputs and not chosen.results:
        what = "the model has no tensors that can be quantized"
        if FloatReason.QUANTIZED in decided.reasons.values():
            what = (
                "nodes that the model itself quantizes keep their integers, and the model has no other "
                "tensors that can be quantized"
            )
        warn("calibration.nothing_to_measure", f"{source.option}: {what}")
        return CalibrationProfile()
    found = collect(graph, context, chosen, source, with_histograms=with_histograms)
    tensors = {name: found.tensors[at] for name, at in chosen.same.items() if at in found.tensors}
    return CalibrationProfile(tensors, example=found.example)


def _decided(graph: Model, options: CompileOptions) -> Classification:
    """Return the precision of each node if all ranges are known."""
    return decide(graph.proto, graph.facts, options, graph.facts.types.keys(), tell=False)


def _float_nodes(decided: Classification) -> set[str]:
    """Collect the nodes that stay in floating point for any range."""
    return {key for key, chosen in decided.classes.items() if chosen not in INTEGERS}


def source_of(graph: Model, options: CompileOptions) -> SampleSource:
    """Open the samples that the options name, or random samples, with a warning, if they name none.

    Raises OptionError if a sample does not fit the model, as far as that is known before reading the sample.
    """
    if options.calibration_data is not None:
        return ObjectSource(options.calibration_data)
    inputs = model_inputs(graph, has_state=options.retained_state)
    if options.input_list_file is not None:
        return FileSource(options.input_list_file.path, inputs)
    if options.use_random_input_data is None:
        warn(
            "calibration.random_samples",
            "no samples are given with input_list_file, or calibration_data in Python: ranges are measured "
            f"on {RANDOM_SAMPLES} samples of random data, which do not show accuracy",
        )
    kind = options.use_random_input_data or "uniform"
    return RandomSource(inputs, kind, index_limits(graph.proto.graph, graph.facts.shapes))


def read_unchanged(file: InputFileContent, option: str) -> bytes:
    """Read a file whose digest is in the options.

    Raises OptionError if it is too large, or has changed since the options were resolved.
    """
    data = read_regular(file.path, MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise OptionError(
            f"{option}: found more than {MOST_BYTES >> 20} MiB in {file.path}, expected at most that",
            code=f"option.{option}",
        )
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise OptionError(
            f"{option}: found that {file.path} has changed since the options were read, expected the same "
            "content",
            code=f"option.{option}",
            hints=("do not write to the file while a model is compiled",),
        )
    return data
