"""Options about the model, the interface of the program and the container."""

# ruff: noqa: RUF009  # `option` makes an immutable row, as `dataclasses.field` does

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import CompilationTarget, HardwareVersion
from qaic.options.codecs.scalars import Bool, Enum, FilePath, Int, ListOf, Str
from qaic.options.codecs.structures import ModelInput, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.custom_io import CustomIo, CustomIoList
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.files.specializations import SpecializationEntry, Specializations
from qaic.options.spec import AicField, Documented, Effect, Flag, FlagForm, JsonForm, option, switch


# Only the class that is composed of the sections is made: methods of its bases would be made for nothing.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GraphOptions:
    """Options about the model, the interface of the program and the container."""

    SECTION: ClassVar = "Model, interface, container"

    output_dir: Path | None = option(
        FilePath("directory"),
        default=None,
        summary="Directory for `programqpc.bin`; unset: the container is in the compile cache.",
        effect=Effect.FILE,
        aliases=("compiler_compilationoutputdir",),
        flag=Flag("aic-binary-dir"),
    )
    output_node_names: tuple[str, ...] = option(
        ListOf(Str()),
        default=(),
        summary="Tensors that become the outputs of the program instead of those of the model.",
        effect=Effect.BEHAVIOR,
        flag=Flag("output-node-name"),
        in_container=True,
    )
    extra_output_tensors: tuple[str, ...] = option(
        ListOf(Str()),
        default=(),
        summary="Tensors that become additional outputs of the program, after those of the model.",
        effect=Effect.BEHAVIOR,
        in_container=True,
        ours=True,
    )
    all_intermediate_outputs: bool = switch(
        "Make every float and integer tensor with a fixed shape an additional output.",
        Effect.BEHAVIOR,
        in_container=True,
        ours=True,
    )
    model_inputs: tuple[ModelInput, ...] = option(
        ModelInputs(),
        default=(),
        summary="Element types and shapes of inputs; sets the sizes of symbolic dimensions.",
        effect=Effect.BEHAVIOR,
        aliases=("model_inputs_list",),
        flag=Flag("model-input", FlagForm.REPEAT, others=("shapes", "shape")),
        in_container=True,
    )
    onnx_define_symbol: Mapping[str, int] = option(
        SymbolMap(),
        default={},
        summary="Sizes of symbolic dimensions, by name.",
        effect=Effect.BEHAVIOR,
        flag=Flag(form=FlagForm.REPEAT),
        in_container=True,
    )
    output_shapes: Mapping[str, tuple[int | str, ...]] = option(
        OutputShapes(),
        default={},
        summary="Shapes of outputs that do not follow from the shapes of the inputs.",
        effect=Effect.BEHAVIOR,
        flag=Flag("output-shape", FlagForm.REPEAT),
        in_container=True,
        ours=True,
    )
    dynamic_shape_input: tuple[str, ...] = option(
        ListOf(Str()),
        default=(),
        summary="Inputs that accept any size up to the value of `onnx_define_symbol`.",
        effect=Effect.BEHAVIOR,
        flag=Flag(inferred=True),
        in_container=True,
    )
    always_expand_onnx_functions: bool = switch(
        "Inline all functions of the model before other passes.",
        Effect.BEHAVIOR,
        flag=Flag(inferred=True),
        in_container=True,
    )
    batchsize: int | None = option(
        Int(ge=1, le=2**31 - 1),
        default=None,
        summary="Size of the first dimension of every input that has 1 or a symbol there.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    network_specialization_config: tuple[SpecializationEntry, ...] = option(
        Specializations(),
        default=(),
        summary="Specializations: sizes of the symbolic dimensions; the shapes of the inputs select one.",
        effect=Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    custom_io_list_file: tuple[CustomIo, ...] = option(
        CustomIoList(),
        default=(),
        summary="Element types, layouts and quantization of inputs and outputs.",
        effect=Effect.BEHAVIOR,
        aliases=("custom_io_list",),
        flag=Flag("custom-IO-list-file"),
        in_container=True,
    )
    dump_custom_io_config_template_file: Path | None = option(
        FilePath("YAML file to write"),
        default=None,
        summary="Write a template of the file for `custom_io_list_file`.",
        effect=Effect.FILE,
        flag=Flag("dump-custom-IO-config-template"),
    )
    retained_state: bool = switch(
        "Keep output `X_RetainedState` on the device as input `X` of the next inference.",
        Effect.BEHAVIOR,
        documented=Documented.CLI,
        aic=AicField("retained_state", default=False, json_key="compiler_retained_state"),
        in_container=True,
    )
    split_retained_state_io: bool = switch(
        "Allow the host to read and write the state of each sequence.",
        Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    whole_caches: bool = switch(
        "Read and write whole caches, not only the attended rows.",
        Effect.BEHAVIOR,
        in_container=True,
        ours=True,
    )
    stored_weights: bool = switch(
        "Use large weights in the mapped container; if false, the engine copies them.",
        Effect.BEHAVIOR,
        default=True,
        in_container=True,
        ours=True,
    )
    split_model_io: bool = switch(
        "Split inputs and outputs of the program, for separate prefill and decode.",
        Effect.RECORDED,
        documented=Documented.CLI,
        in_container=True,
    )
    sub_functions: bool = switch(
        "Keep the functions of the model as functions of the program.",
        Effect.RECORDED,
        documented=Documented.CLI,
        in_container=True,
    )
    register_custom_op: tuple[InputFileContent, ...] = option(
        ListOf(FileContent("YAML file")),
        default=(),
        summary="YAML files that describe custom operators and their libraries.",
        effect=Effect.BEHAVIOR,
        flag=Flag(form=FlagForm.REPEAT, others=("registered-custom-op",)),
        documented=Documented.CLI,
        in_container=True,
    )
    load_embedding_tables: InputFileContent | None = option(
        FileContent("zip file"),
        default=None,
        summary="Tables that replace the constants of the same name.",
        effect=Effect.BEHAVIOR,
        flag=Flag(inferred=True),
        in_container=True,
    )
    dump_embedding_tables: Path | None = option(
        FilePath("zip file to write"),
        default=None,
        summary="Write the embedding tables of the model.",
        effect=Effect.FILE,
        flag=Flag(inferred=True),
    )
    host_preproc: bool | None = option(
        Bool(),
        default=None,
        summary="Count conversions of inputs and outputs as work of the host; results do not change.",
        effect=Effect.DIAGNOSTIC,
        flag=Flag(inferred=True),
        aic=AicField("do_host_preproc", default=True, json_key="compiler_do_host_preproc"),
        in_container=True,
    )
    aic_preproc: bool = switch(
        "Count conversions of inputs and outputs as work of the device.", Effect.DIAGNOSTIC, in_container=True
    )
    compile_only: bool = switch(
        "Do not run the program; only `qaic-exec` runs it without this option.",
        Effect.BEHAVIOR,
        documented=Documented.CLI,
    )
    aic_hw: bool | None = option(
        CompilationTarget(),
        default=None,
        summary="Compile for the card instead of the host's reference; both run the same here.",
        effect=Effect.RECORDED,
        documented=Documented.CLI,
        aic=AicField("compilation_target", "hardware", "compiler_compilation_target", JsonForm.TARGET),
        in_container=True,
    )
    aic_hw_version: str | None = option(
        HardwareVersion(),
        default=None,
        summary="Hardware family of the program; unset means `2.0`. Only `ai200` has bfloat16.",
        effect=Effect.VALIDATED,
        aliases=("hwversion",),
        documented=Documented.CLI,
        aic=AicField("hardware_version", "2.0", "compiler_hardware_version"),
        in_container=True,
    )
    graph_names: tuple[str, ...] = option(
        ListOf(Str(), distinct=True),
        default=(),
        summary="Names of the graphs of the container, one for each specialization.",
        effect=Effect.BEHAVIOR,
        flag=None,
        documented=Documented.CONFIG,
        aic=AicField("graph_names", (), "graph_names", JsonForm.NAMES),
        in_container=True,
    )
    qpc_crc: bool = switch(
        "Store checksums of the container, which loading verifies.",
        Effect.BEHAVIOR,
        documented=Documented.CLI,
        in_container=True,
    )
    io_encrypt: str | None = option(
        Str(),
        default=None,
        summary="Encrypt inputs and outputs. Not available without the SDK.",
        effect=Effect.VALIDATED,
        documented=Documented.CLI,
        sdk_only=True,
        in_container=True,
    )
    target: str = option(
        Enum("cpu", "card"),
        default="cpu",
        summary="Target of the compiler: `cpu` uses the embedded one, `card` runs the vendor's.",
        effect=Effect.BEHAVIOR,
        ours=True,
        in_container=True,
    )
    allow_unknown_options: bool = switch(
        "Pass unknown options to the vendor's compiler; only for `target` `card`.", Effect.BEHAVIOR, ours=True
    )
    strict_aic: bool = switch(
        "Refuse a model that the card's compiler refuses or is unlikely to support.",
        Effect.BEHAVIOR,
        ours=True,
        in_container=True,
    )
    aic_operator_list: InputFileContent | None = option(
        FileContent("list of operators"),
        default=None,
        summary="Operator list of the card's compiler; replaces the built-in estimate.",
        effect=Effect.BEHAVIOR,
        ours=True,
        in_container=True,
    )
