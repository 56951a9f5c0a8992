"""Every flag that efficient-transformers and vllm-qaic pass to the compiler, in the form that they write.

The clients build the command line from keyword arguments: an underscore becomes a dash, true becomes a bare
flag, false is omitted, and any other value follows ``=``. The flags come from the clients' sources,
documents, examples, tests and files.
"""

from __future__ import annotations

import json

import onnx
import pytest

import qaic
from decoder_model import Sizes, decoder, specializations
from qaic.cli import compile as compile_tool

SLICES = {
    "connections": [{"devices": [0, 1], "type": "p2p"}],
    "partitions": [
        {"name": "Partition0", "devices": [{"deviceId": number, "numCores": 16} for number in range(2)]}
    ],
}
STAGES = {
    "connections": [{"devices": [0, 1], "type": "p2p"}],
    "partitions": [
        {"name": "Partition0", "devices": [{"deviceId": 0, "numCores": 16}], "nodeList": ["embed", "gone"]},
        {"name": "Partition1", "devices": [{"deviceId": 1, "numCores": 16}], "nodeList": ["head"]},
    ],
}
CUSTOM_OP = """
op_info:
  name: Gelu5
implementations:
  - {backend: AIC, type: src, impl: gelu5.cpp}
"""

#: Name of each file on the command lines -> its content.
FILES = {
    "specializations.json": json.dumps({"specializations": specializations()}),
    "custom_io.yaml": "".join(
        f" - IOName: {name}\n   Precision: {precision}\n\n"
        for precision, names in (
            ("float16", ("past_key.0", "past_value.0")),
            ("float16", ("past_key.0_RetainedState", "past_value.0_RetainedState")),
        )
        for name in names
    ),
    "mdp_ts_2.json": json.dumps(SLICES),
    "mdp_pp_2.json": json.dumps(STAGES),
    "custom_op_config.yaml": CUSTOM_OP,
    "ols.config": "anything\n",
}

# The flag, the flags that it requires, and the recorded option, or none if the container does not record it.
FLAGS = {
    "-aic-hw": ((), "aic_hw"),
    "-aic-hw-version=ai100": ((), "aic_hw_version"),
    "-aic-hw-version=ai200": ((), "aic_hw_version"),
    "-aic-num-cores=16": ((), "aic_num_cores"),
    "-aic-num-cores=11": ((), "aic_num_cores"),
    "-aic-enable-depth-first": ((), "aic_enable_depth_first"),
    "-allow-mxint8-mdp-io": (("-mdp-load-partition-config=mdp_pp_2.json",), "allow_mxint8_mdp_io"),
    "-compile-only": ((), None),
    "-convert-to-fp16": ((), "convert_to_fp16"),
    "-custom-IO-list-file=custom_io.yaml": (("-convert-to-fp16",), "custom_io_list_file"),
    "-mdp-dump-partition-config=mdp_dump.json": ((), None),
    "-mdp-load-partition-config=mdp_ts_2.json": ((), "mdp_load_partition_config"),
    "-mdp-load-partition-config=mdp_pp_2.json": ((), "mdp_load_partition_config"),
    "-mdts-mos=1": (("-mdp-load-partition-config=mdp_ts_2.json",), "mdts_mos"),
    "-mos=1": ((), "mos"),
    "-mos=-1": ((), None),
    "-mxfp6-matmul": (("-convert-to-fp16",), "mxfp6_matmul"),
    "-network-specialization-config=specializations.json": ((), "network_specialization_config"),
    "-node-precision-info=fp32_nodes.yaml": (("-convert-to-fp16",), "node_precision_info_file"),
    "-ols=2": ((), "ols"),
    "-ols-config=ols.config": ((), "ols_config"),
    "-register-custom-op=custom_op_config.yaml": ((), "register_custom_op"),
    "-registered-custom-op=custom_op_config.yaml": ((), "register_custom_op"),
    "-retained-state": ((), "retained_state"),
    "-split-model-io": ((), "split_model_io"),
    "-split-retained-state-io": (("-retained-state",), "split_retained_state_io"),
    "-sub-functions": ((), "sub_functions"),
    "-user-tiled": ((), "user_tiled"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = decoder(Sizes(layers=1))
    onnx.save(model, "decoder.onnx")
    # Results of normalizations, and names from function bodies, as in the clients' lists.
    norms = [node.output[0] for node in model.graph.node if node.op_type == "CustomRMSNorm"]
    listed = [*norms, *(name for found in model.functions[0].node for name in found.output)]
    (tmp_path / "fp32_nodes.yaml").write_text(
        "FP32NodeInstanceNames:\n" + "".join(f"  - {name}\n" for name in dict.fromkeys(listed))
    )
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def compiled(arguments):
    """Compile as the clients do; returns the recorded options."""
    specialized = "-network-specialization-config=specializations.json"
    extra = () if specialized in arguments else (specialized,)
    code = compile_tool.main(["-m=decoder.onnx", *arguments, *extra, "-aic-binary-dir=qpc"])
    assert code == 0
    return qaic.Qpc("qpc/programqpc.bin").options


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.usefixtures("folder")
def test_a_flag_of_the_clients_is_taken(flag, capsys):
    beside, name = FLAGS[flag]
    recorded = compiled([flag, *beside])
    assert name is None or name in recorded
    assert "invalid option" not in capsys.readouterr().err


def test_the_line_of_a_decoder_with_everything(folder, capsys):
    """Writes the tool, the target, the version, the model, and then the flags that the client adds, in its
    order.
    """
    recorded = compiled(
        [
            *("-aic-hw", "-aic-hw-version=ai100", "-retained-state", "-convert-to-fp16", "-mxfp6-matmul"),
            *("-aic-num-cores=16", "-split-model-io", "-mos=1", "-mdts-mos=1", "-aic-enable-depth-first"),
            *("-user-tiled", "-node-precision-info=fp32_nodes.yaml", "-sub-functions"),
            *("-mdp-load-partition-config=mdp_ts_2.json", "-custom-IO-list-file=custom_io.yaml"),
        ]
    )
    assert recorded["split_model_io"] is True
    assert (folder / "qpc" / "programqpc.bin").is_file()
    stderr = capsys.readouterr().err
    assert "recorded, no effect on the cpu target" not in stderr
    # The matrices of the test are too small for blocks of 32. No other warning is expected.
    assert [line.split(":")[1].strip() for line in stderr.splitlines()] == ["-mxfp6-matmul"]


def test_splitting_needs_no_state(folder):
    """The vision half of a model has no caches, and is compiled with the same flag."""
    assert "split_model_io" in compiled(["-aic-hw", "-convert-to-fp16", "-split-model-io"])
    assert (folder / "qpc").is_dir()
