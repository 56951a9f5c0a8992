"""Refusing interfaces that no program can have, and naming the program and its sets of shapes."""

from dataclasses import replace

from qaic.compiler.diagnostics.compile_error import refuse
from qaic.compiler.frontend import specialization
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.interface import Interface
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import compiler_pass
from qaic.support.program_names import STATS_OUTPUT


@compiler_pass()
def name_specializations_pass(model: Model, context: Context) -> bool:
    """Check the inputs and outputs, and name the graphs of the container."""
    _check_outputs(model.interface)
    model.name, specializations = specialization.named(
        model.proto.graph.name or "unnamed", model.specializations, context.options.graph_names
    )
    model.known = replace(model.interface, specializations=specializations)
    context.given_weights = dict(model.weights)
    return True


def _check_outputs(interface: Interface) -> None:
    """Refuse outputs that are missing, or are inputs: the engine leaves the memory of these as it is.

    The name of the statistics is refused too: callers of :class:`qaic.Session` would never see that tensor.
    """
    if not interface.outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="name the results of the graph as its outputs when exporting",
        )
    if any(spec.name == STATS_OUTPUT for spec in (*interface.inputs, *interface.outputs)):
        raise refuse(
            f"tensor {STATS_OUTPUT!r}",
            code="reserved_name",
            found="an input or output of the model under the name of the statistics of a device",
            expected="another name",
            fix="rename it when exporting",
            context={"tensor": STATS_OUTPUT},
        )
    passed = {spec.name for spec in interface.inputs} & {spec.name for spec in interface.outputs}
    if passed:
        name = min(passed)
        raise refuse(
            f"output {name!r}",
            code="output_is_input",
            found="an input of the model under the same name",
            expected="the result of an operator",
            fix="put an Identity operator between the input and an output of another name",
            context={"tensor": name},
        )
