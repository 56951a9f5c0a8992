"""Options about the model, the interface of the program and the container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qaic.options.codecs.enumerations import CompilationTarget, HardwareVersion
from qaic.options.codecs.scalars import INT32_MAX, Bool, Enum, FilePath, Int, ListOf, Str
from qaic.options.codecs.structures import ModelInput, ModelInputs, OutputShapes, SymbolMap
from qaic.options.files.custom_io import CustomIo, CustomIoList
from qaic.options.files.parsed_file import FileContent, InputFileContent
from qaic.options.files.specializations import SpecializationEntry, Specializations
from qaic.options.spec import AicField, Effect, Flag, FlagForm, JsonForm, option, switch


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GraphOptions:
    """Options about the model, the interface of the program and the container."""

    SECTION: ClassVar = "Model, interface, container"

    output_dir: Path | None = option(
        FilePath("directory"),
        None,
        "Directory for `programqpc.bin`; if unset, the compile cache is used.",
        Effect.FILE,
        aliases=("compiler_compilationoutputdir",),
        flag=Flag("aic-binary-dir", of_openqaic="o"),
    )
    output_node_names: tuple[str, ...] = option(
        ListOf(Str()),
        (),
        "Tensors that become the outputs of the program instead of those of the model.",
        flag=Flag("output-node-name"),
    )
    extra_output_tensors: tuple[str, ...] = option(
        ListOf(Str()),
        (),
        "Tensors that become additional outputs of the program, after those of the model.",
        ours=True,
    )
    all_intermediate_outputs: bool = switch(
        "Make every float and integer tensor with a fixed shape an additional output.", ours=True
    )
    model_inputs: tuple[ModelInput, ...] = option(
        ModelInputs(),
        (),
        "Element types and shapes of inputs; sets the sizes of symbolic dimensions.",
        aliases=("model_inputs_list",),
        flag=Flag("model-input", FlagForm.REPEAT, others=("shapes", "shape"), of_openqaic="shape"),
    )
    onnx_define_symbol: Mapping[str, int] = option(
        SymbolMap(), {}, "Sizes of symbolic dimensions, by name.", flag=Flag(form=FlagForm.REPEAT)
    )
    output_shapes: Mapping[str, tuple[int | str, ...]] = option(
        OutputShapes(),
        {},
        "Shapes of outputs that do not follow from the shapes of the inputs.",
        flag=Flag("output-shape", FlagForm.REPEAT),
        ours=True,
    )
    dynamic_shape_input: tuple[str, ...] = option(
        ListOf(Str()), (), "Inputs that accept any size up to the value of `onnx_define_symbol`."
    )
    always_expand_onnx_functions: bool = switch("Inline all functions of the model before other passes.")
    batchsize: int | None = option(
        Int(ge=1, le=INT32_MAX), None, "Size of the first dimension of every input where it is 1 or a symbol."
    )
    network_specialization_config: tuple[SpecializationEntry, ...] = option(
        Specializations(),
        (),
        "Specializations with sizes of the symbolic dimensions; the input shapes select one.",
    )
    custom_io_list_file: tuple[CustomIo, ...] = option(
        CustomIoList(),
        (),
        "Element types, layouts and quantization of inputs and outputs.",
        aliases=("custom_io_list",),
        flag=Flag("custom-IO-list-file"),
    )
    dump_custom_io_config_template_file: Path | None = option(
        FilePath("YAML file to write"),
        None,
        "Write a template for `custom_io_list_file`.",
        Effect.FILE,
        flag=Flag("dump-custom-IO-config-template", of_openqaic=None),
    )
    retained_state: bool = switch(
        "Keep output `X_RetainedState` on the device as input `X` of the next inference.",
        aic=AicField(default=False),
    )
    split_retained_state_io: bool = switch("Allow the host to read and write the state of each sequence.")
    whole_caches: bool = switch("Read and write whole caches, not only the attended rows.", ours=True)
    stored_weights: bool = switch(
        "Use large weights in the mapped container; if false, the engine copies them.",
        default=True,
        ours=True,
    )
    split_model_io: bool = switch(
        "Split inputs and outputs of the program, for separate prefill and decode.", Effect.RECORDED
    )
    sub_functions: bool = switch(
        "Keep the functions of the model as functions of the program.", Effect.RECORDED
    )
    register_custom_op: tuple[InputFileContent, ...] = option(
        ListOf(FileContent("YAML file")),
        (),
        "YAML files that describe custom operators and their libraries.",
        flag=Flag(form=FlagForm.REPEAT, others=("registered-custom-op",)),
    )
    load_embedding_tables: InputFileContent | None = option(
        FileContent("zip file"), None, "Tables that replace the constants of the same name."
    )
    dump_embedding_tables: Path | None = option(
        FilePath("zip file to write"),
        None,
        "Write the embedding tables of the model.",
        Effect.FILE,
        flag=Flag(of_openqaic=None),
    )
    host_preproc: bool | None = option(
        Bool(),
        None,
        "Count conversions of inputs and outputs as work of the host; results do not change.",
        Effect.DIAGNOSTIC,
        aic=AicField(default=True, name="do_host_preproc"),
    )
    aic_preproc: bool = switch(
        "Count conversions of inputs and outputs as work of the device.", Effect.DIAGNOSTIC
    )
    compile_only: bool = switch(
        "Only compile; without this option, `qaic-exec` also runs the program.", in_container=False
    )
    aic_hw: bool | None = option(
        CompilationTarget(),
        None,
        "Compile for the card instead of the host reference; openqaic treats both alike.",
        Effect.RECORDED,
        aic=AicField("hardware", "compilation_target", form=JsonForm.TARGET),
    )
    aic_hw_version: str | None = option(
        HardwareVersion(),
        None,
        "Hardware family of the program; unset means `2.0`. Only `ai200` has bfloat16.",
        Effect.VALIDATED,
        aliases=("hwversion",),
        aic=AicField("2.0", "hardware_version"),
    )
    graph_names: tuple[str, ...] = option(
        ListOf(Str(), distinct=True),
        (),
        "Names of the graphs of the container, one for each specialization.",
        flag=None,
        aic=AicField((), json_key="graph_names", form=JsonForm.NAMES),
    )
    qpc_crc: bool = switch("Store checksums of all segments in the container; loading it verifies them.")
    io_encrypt: str | None = option(
        Str(),
        None,
        "Encrypt inputs and outputs. Not available without the SDK.",
        Effect.VALIDATED,
        sdk_only=True,
    )
    target: str = option(
        Enum("cpu", "card"),
        "cpu",
        "Compiler: `cpu` selects the embedded compiler, `card` the vendor's compiler.",
        ours=True,
    )
    allow_unknown_options: bool = switch(
        "Pass unknown options to the vendor's compiler; only for `target` `card`.",
        ours=True,
        in_container=False,
    )
    strict_aic: bool = switch(
        "Refuse a model that the card's compiler refuses or is unlikely to support.", ours=True
    )
    aic_operator_list: InputFileContent | None = option(
        FileContent("list of operators"),
        None,
        "Operator list of the card's compiler; replaces the built-in estimate.",
        ours=True,
    )
