"""The interface that ONNX defines for backends, with which its test suite drives qaic.

>>> import qaic_backend
>>> prepared = qaic_backend.prepare(model)  # doctest: +SKIP
>>> outputs = prepared.run([x])  # doctest: +SKIP

A model goes the way of every model: it is compiled to a container, opened and run. The container is private
to the prepared model and never enters the compile cache.
"""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from qaic.errors import CompileError, InputError, OptionError
from qaic.session import Session
from qaic.support.program_names import QPC_FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import onnx
    from numpy.typing import ArrayLike, NDArray

    from qaic.options.table import CompileOptions

    Inputs = Mapping[str, ArrayLike] | Sequence[ArrayLike] | NDArray[Any]

_DEVICE: Final = "CPU"

#: Messages of the compiler about valid models that a program cannot represent; all others mean an invalid
#: model.
_LIMITS: Final = frozenset(
    {
        "compile.dynamic_shape",
        "compile.engine_refused",
        "compile.output_is_input",
        "compile.too_many_dims",
        "compile.unbound_dimension",
        "compile.unbound_symbol",
        "compile.unsupported_operator",
        "compile.unsupported_opset",
        "compile.unsupported_type",
    }
)


class UnsupportedModelError(CompileError, unittest.SkipTest):
    """The model is valid, but a program cannot represent it; ONNX's test suite counts it as skipped."""


class QaicBackendRep(BackendRep):
    """A compiled model, loaded on its device.

    Parameters
    ----------
    session
        Session over the container.
    inputs, outputs
        Names in the order of the ONNX graph.
    """

    def __init__(self, session: Session, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session = session
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._result = namedtupledict("Outputs", self._outputs)

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """Run one inference.

        Parameters
        ----------
        inputs
            Arrays in the order of the graph's inputs, or by name; a single array when there is one input.
        **kwargs
            Arguments of ``Session.run``.

        Returns
        -------
        tuple
            Arrays in the order of the graph's outputs; also indexed by output name.

        Raises
        ------
        qaic.errors.InputError
            The number of arrays is not the number of inputs, or an array does not fit its input.
        """
        found = self._session.run(_by_name(inputs, self._inputs), **kwargs)
        return self._result(*(found[name] for name in self._outputs))


class QaicBackend(Backend):
    """The backend; its methods are also functions of this module."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if ``device`` is ``"CPU"`` or ``"CPU:<device id>"``, the AI 100 of that id."""
        kind, _, index = device.partition(":")
        return kind == _DEVICE and (not index or index.isdecimal())

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> bool:
        """Return True if the model can be prepared. Costs as much as preparing it."""
        if not cls.supports_device(device):
            return False
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = _DEVICE, **kwargs: Any) -> QaicBackendRep:
        """Compile a model and load it.

        Parameters
        ----------
        model
            The model; shapes of inputs are fixed, or made so by ``onnx_define_symbol`` or ``model_inputs``.
        device
            ``"CPU"`` or ``"CPU:<device id>"``.
        **kwargs
            Options of ``Session``.

        Raises
        ------
        UnsupportedModelError
            A program cannot hold the model; the message names the reason, ``code`` its class.
        qaic.errors.CompileError
            The model is not valid.
        qaic.errors.OptionError
            The device or an option is unknown.
        """
        from qaic.options import resolve

        if not cls.supports_device(device):
            raise OptionError(
                f"device is {device!r}; {_DEVICE!r} or '{_DEVICE}:<device id>' is expected",
                code="option.device",
                context={"device": device},
            )
        index = device.partition(":")[2]
        options = resolve(
            kwargs | ({"dev_id": int(index)} if index else {}), options_path=None, model_is_container=False
        )
        constants = {tensor.name for tensor in model.graph.initializer}
        constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
        with tempfile.TemporaryDirectory(prefix="openqaic-backend-") as folder:
            container = Path(folder) / QPC_FILE_NAME
            try:
                _compile(model, container, options.compile, options.set_compile)
            except CompileError as error:
                if error.code not in _LIMITS:
                    raise
                raise UnsupportedModelError(
                    error.message, code=error.code, context=error.context, hints=error.hints
                ) from error
            # An opened container no longer needs its file, which was read or mapped.
            session = Session(container)
        session.update_backend_options(**options.runtime.backend_options())
        session.setup()
        return QaicBackendRep(
            session,
            [value.name for value in model.graph.input if value.name not in constants],
            [value.name for value in model.graph.output],
        )

    @classmethod
    def run_model(
        cls,
        model: onnx.ModelProto,
        inputs: Inputs,
        device: str = _DEVICE,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Prepare a model and run it once; see :meth:`prepare` and :meth:`QaicBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = _DEVICE,
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Parameters
        ----------
        node
            The operator.
        inputs
            Arrays for its named inputs, in order or by name.
        device
            As for :meth:`prepare`.
        outputs_info
            Type and shape of each named output; inferred when absent.
        **kwargs
            ``opset_version``, by default the one in which the operator last changed; options of ``Session``.
        """
        opset = kwargs.pop("opset_version", None)
        return cls.run_model(_model_of(node, inputs, outputs_info, opset), inputs, device, **kwargs)


def _compile(
    model: onnx.ModelProto, container: Path, options: CompileOptions, set_options: Mapping[str, object]
) -> None:
    from qaic.compiler.backend.qpc_writer import write_program
    from qaic.compiler.diagnostics.progress import Progress
    from qaic.compiler.frontend.files import onnx_file
    from qaic.compiler.pipeline import lower
    from qaic.options.table import effective_options

    content = model.SerializeToString(deterministic=True)
    with onnx_file.open_bytes(content) as source, Progress("compiling model") as progress:
        program, _ = lower(source, options, progress)
        effective = effective_options(options)
        write_program(container, program, options, set_options, effective, progress=progress)


def _model_of(
    node: onnx.NodeProto,
    inputs: Inputs,
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    """Wrap a node in a model whose interface has the types and shapes of the arrays."""
    names = list(dict.fromkeys(name for name in node.input if name))
    values = [_value(name, np.asarray(array)) for name, array in _by_name(inputs, names).items()]
    outputs = [name for name in node.output if name]
    if outputs_info is None:
        # Shape inference adds the type and the shape.
        results = [ValueInfoProto(name=name) for name in outputs]
    else:
        results = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip(outputs, outputs_info, strict=True)
        ]
    if opset is None:
        known = defs.has(node.op_type, node.domain)
        opset = defs.get_schema(node.op_type, node.domain).since_version if known else 1
    imports = [helper.make_opsetid(node.domain, opset)]
    graph = helper.make_graph([node], node.name or node.op_type, values, results)
    return helper.make_model(
        graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True)
    )


def _by_name(inputs: Inputs, names: Sequence[str]) -> dict[str, ArrayLike]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
    if len(arrays) != len(names):
        raise InputError(
            f"{len(arrays)} arrays were given; there are {len(names)} inputs: {', '.join(names)}",
            code="input.count",
            context={"found": len(arrays), "expected": list(names)},
        )
    return dict(zip(names, arrays, strict=True))


def _value(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
    try:
        elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):
        elem_type = TensorProto.UNDEFINED
    return helper.make_tensor_value_info(name, elem_type, array.shape)


is_compatible = QaicBackend.is_compatible
prepare = QaicBackend.prepare
run_model = QaicBackend.run_model
run_node = QaicBackend.run_node
supports_device = QaicBackend.supports_device
