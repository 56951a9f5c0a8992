"""Programs whose system calls are compared.

``python transcript_programs.py NAME FOLDER`` runs one program on the card of the machine. FOLDER contains the
containers that :func:`containers` writes; the names in :data:`STORED`, containers in tests/data/qpc, need
none. One thread makes all calls, so that their order is fixed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import helper

import card_programs
import qaic
import qaicrt
from qaic import _core, errors
from session_models import model, save

DATA = Path(__file__).parents[1] / "data" / "qpc"
#: Containers for cards, whose bytes do not depend on the compiler; the last one comes from `card_programs`.
#: The last request of each program is for an output. If another request followed it, the next inference could
#: begin before this request has returned, and the request would be sent twice.
STORED = (
    "s01_simple_f32_file",
    "s03_shared_dma_memcopy",
    "s05_quant_i8",
    "s06_partial_single",
    "s07_partial_multi",
    "s09_constants_split",
    "s10_stats",
    "s12_metadata_both_sections",
    "one_place_for_two",
)
SETS = [{"batch": 1, "seq": 3}, {"batch": 4, "seq": 1}, {"batch": 2, "seq": 9}]


def _network(width):
    weights = np.linspace(-1, 1, 8 * width, dtype=np.float32).reshape(8, width)
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Softmax", ["m"], ["y"]),
            helper.make_node("ReduceSum", ["m"], ["z"], keepdims=0),
        ],
        [("x", "float32", ["batch", "seq", 8])],
        [("y", "float32", None), ("z", "float32", None)],
        {"w": weights},
    )


def containers(folder):
    """Compile the containers of the programs."""
    path = save(folder, _network(70))
    options = {
        "sets": {"network_specialization_config": SETS, "aic_num_cores": 2},
        "plain": {"network_specialization_config": SETS[:1]},
        "apart": {"network_specialization_config": SETS, "combine_inputs": False, "combine_outputs": False},
        "measured": {"network_specialization_config": SETS[:1], "stats_level": 40},
        "wide": {"network_specialization_config": SETS[:1], "aic_num_cores": 12},
        "large": {"network_specialization_config": [{"batch": 4, "seq": 4096}]},
    }
    for name, chosen in options.items():
        qaic.compile(path, output_dir=folder / name, **chosen)


def _feed(entry):
    count = entry["batch"] * entry["seq"] * 8
    return {"x": np.arange(count, dtype=np.float32).reshape(entry["batch"], entry["seq"], 8) / 7}


def one_inference(folder):
    with qaic.Session(folder / "plain") as session:
        session.run(_feed(SETS[0]))


def sets_of_shapes(folder):
    with qaic.Session(folder / "sets") as session:
        for entry in (*SETS, *reversed(SETS), SETS[1]):
            session.run(_feed(entry))


def buffers_apart(folder):
    with qaic.Session(folder / "apart") as session:
        for entry in (*SETS, SETS[0]):
            session.run(_feed(entry))


def large_buffers(folder):
    with qaic.Session(folder / "large") as session:
        for _ in range(2):
            session.run(_feed({"batch": 4, "seq": 4096}))


def activations_in_turn(folder):
    with qaic.Session(folder / "sets", num_activations=3) as session:
        for entry in (*SETS, *SETS):
            session.run(_feed(entry))


def measured(folder):
    with qaic.Session(folder / "measured") as session:
        for _ in range(3):
            session.run(_feed(SETS[0]))


def programs_one_after_the_other(folder):
    for name in ("plain", "sets", "plain"):
        with qaic.Session(folder / name) as session:
            session.run(_feed(SETS[0]))


def too_few_cores(folder):
    with qaic.Session(folder / "wide") as session:
        session.run(_feed(SETS[0]))
        try:
            qaic.Session(folder / "wide").run(_feed(SETS[0]))
        except errors.DeviceError as error:
            sys.stdout.write(f"{error.code}\n")
        session.run(_feed(SETS[0]))


def reset_of_a_session(folder):
    with qaic.Session(folder / "plain") as session:
        session.run(_feed(SETS[0]))
        session.reset()
        session.run(_feed(SETS[0]))


def low_level(folder):
    """Create program, queue and exec object directly."""
    _by_hand(folder / "plain")


def _by_hand(path):
    """Three inferences; the second one has as little data as allowed."""
    context = qaicrt.Context()
    container = qaicrt.Qpc(str(path))
    program = qaicrt.Program(context, 0, container, qaicrt.QAicProgramProperties())
    queue = qaicrt.Queue(context, 0)
    status = qaicrt.QStatus.QS_SUCCESS
    assert program.load() == status
    assert program.activate() == status
    execution = qaicrt.ExecObj(context, program)
    mappings = container.getBufferMappings()
    for part in (1, 2, 1):
        buffers = [
            qaicrt.QBuffer(bytes(mapping.size // part if mapping.isPartialBufferAllowed else mapping.size))
            for mapping in mappings
        ]
        assert execution.setData(buffers) == status
        assert queue.enqueue(execution) == status
        assert execution.waitForCompletion() == status
    del execution
    assert program.deactivate() == status
    assert program.unload() == status


def facts(_):
    context = _core.Context()
    sys.stdout.write(f"{len(context.devices())}\n")


PROGRAMS = {
    program.__name__: program
    for program in (
        one_inference,
        sets_of_shapes,
        buffers_apart,
        large_buffers,
        activations_in_turn,
        measured,
        programs_one_after_the_other,
        too_few_cores,
        reset_of_a_session,
        low_level,
        facts,
    )
}

if __name__ == "__main__":
    if sys.argv[1] == "one_place_for_two":
        with tempfile.TemporaryDirectory() as temporary:
            container = Path(temporary, "programqpc.bin")
            container.write_bytes(card_programs.one_place_for_two().container())
            _by_hand(container)
    elif sys.argv[1] in STORED:
        _by_hand(DATA / f"{sys.argv[1]}.qpc")
    else:
        PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
