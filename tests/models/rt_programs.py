"""Programs and the objects for them, for tests of ``qaicrt``."""

from __future__ import annotations

import numpy as np
from onnx import helper

import qaicrt
import session_models
from child_process import WATCHDOG_S
from qaic import _core
from qaic.compiler.driver import compile_model
from qaic.options.files.specializations import SpecializationEntry
from qaic.options.table import CompileOptions

S = qaicrt.QStatus


def compiled(folder, built, **options):
    """Compile a model; return the directory of the container."""
    target = folder / "qpc"
    compile_model(session_models.save(folder, built), CompileOptions(**options), {}, output_dir=target)
    return str(target)


def shared(path):
    """A client that several tests use one after another: its program stays loaded."""
    client = Client(path)
    assert client.program.load() == S.QS_SUCCESS
    return client


def properties(**values):
    made = qaicrt.QAicProgramProperties()
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Client:
    """A program on a device, and its queue."""

    def __init__(self, path, dev=0, **values):
        self.path = path
        self.context = qaicrt.Context()
        self.program = qaicrt.Program(self.context, dev, qaicrt.Qpc(path), properties(**values))
        self.queue = qaicrt.Queue(self.context, dev)

    def exec_obj(self):
        return qaicrt.ExecObj(self.context, self.program)

    def renewed(self):
        """Return an exec object on new cores; no earlier exec object exists."""
        assert self.program.deactivate() == S.QS_SUCCESS
        assert self.program.activate() == S.QS_SUCCESS
        return self.exec_obj()

    def infer(self, exec_obj, *data):
        """Enqueue one inference and wait for it; all statuses must be success."""
        if data:
            assert exec_obj.setData(*data) == S.QS_SUCCESS
        assert self.queue.enqueue(exec_obj) == S.QS_SUCCESS
        assert exec_obj.waitForCompletion() == S.QS_SUCCESS


def free_cores(device=0):
    # Deleting an object waits only briefly for the thread that releases cores.
    assert _core.await_teardown(WATCHDOG_S)
    return _core.Context().devices()[device]["nsp_free"]


# --- models ----------------------------------------------------------------------------------------


def affine():
    """``y = relu(x @ w + b)``, float32 [2, 4]."""
    return session_models.affine()


def affine_of(x):
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    return np.maximum(np.asarray(x, np.float32).reshape(2, 4) @ weight + np.linspace(0, 1, 4), 0)


def sum_and_difference(count=3):
    """Bindings a, b, sum, diff; int32."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["diff"])]
    edges = [(name, "int32", [count]) for name in ("a", "b", "sum", "diff")]
    return session_models.model(nodes, edges[:2], edges[2:])


def types():
    """Bindings ids (int64 [1]), half (float16 [2, 2]), flag (bool [3]), scalar (float32 []), then copies."""
    edges = [
        ("ids", "int64", [1]),
        ("half", "float16", [2, 2]),
        ("flag", "bool", [3]),
        ("scalar", "float32", []),
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name, _, _ in edges]
    return session_models.model(nodes, edges, [(f"{name}_out", dtype, dims) for name, dtype, dims in edges])


def doubled():
    """``y = x + x``, float32 [rows, 4]; compile it with specializations of ``rows``."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    return session_models.model(nodes, [("x", "float32", ["rows", 4])], [("y", "float32", ["rows", 4])])


ROWS = tuple(SpecializationEntry(f"rows{rows}", {"rows": rows}) for rows in (8, 3, 1))


def counter():
    """Bindings x (float32 [1]), state (float32 [3, 4]), y, state_RetainedState.

    ``y`` is the state before the inference, which adds ``x`` to every element of the state.
    """
    nodes = [
        helper.make_node("Identity", ["state"], ["y"]),
        helper.make_node("Add", ["state", "x"], ["state_RetainedState"]),
    ]
    state = ("float32", [3, 4])
    return session_models.model(
        nodes, [("x", "float32", [1]), ("state", *state)], [("y", *state), ("state_RetainedState", *state)]
    )


X, STATE, Y, NEXT = range(4)


def endless():
    """Bindings n (int64 []), x (float32 [1]), y (float32 [1]): ``y`` is ``x`` plus 1, ``n`` times."""
    return session_models.endless()


#: Turns of :func:`endless` that take much longer than any limit in these tests.
FOREVER = np.int64(2**62)
