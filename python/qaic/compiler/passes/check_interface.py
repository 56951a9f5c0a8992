"""Checks of inputs and outputs, and the names of the program and its specializations."""

from dataclasses import replace

from qaic.compiler.diagnostics.messages import refuse, warn
from qaic.compiler.frontend.specialization import named
from qaic.compiler.ir.interface import Interface, TensorSpec
from qaic.compiler.ir.model import Context, Model, compiler_pass
from qaic.support.program_names import RETAINED_STATE_SUFFIX, STATS_OUTPUT


@compiler_pass()
def name_specializations_pass(model: Model, context: Context) -> None:
    """Check the inputs and outputs, and name the graphs of the container."""
    _check_outputs(model.interface)
    model.name, specializations = named(
        model.proto.graph.name, model.specializations, context.options.graph_names
    )
    model.known = replace(model.interface, specializations=specializations)
    context.given_weights = dict(model.weights)


def _check_outputs(interface: Interface) -> None:
    """Refuse a model without outputs, or with an output that is an input, which the engine does not write.

    The name of the statistics is also refused, because :class:`qaic.Session` hides that tensor.
    """
    if not interface.outputs:
        raise refuse(
            "the model",
            code="no_outputs",
            found="no outputs",
            expected="at least one",
            fix="export the model with the results of the graph as outputs",
        )
    if any(spec.name == STATS_OUTPUT for spec in (*interface.inputs, *interface.outputs)):
        raise refuse(
            f"tensor {STATS_OUTPUT!r}",
            code="reserved_name",
            found="an input or output with the name of the device statistics",
            expected="another name",
            fix="rename it in the exported model",
            context={"tensor": STATS_OUTPUT},
        )
    passed = {spec.name for spec in interface.inputs} & {spec.name for spec in interface.outputs}
    if passed:
        name = min(passed)
        raise refuse(
            f"output {name!r}",
            code="output_is_input",
            found="an input of the model with the same name",
            expected="the result of an operator",
            fix="insert an Identity operator between the input and an output with another name",
            context={"tensor": name},
        )


def check_retained(interface: Interface) -> None:
    """Refuse state whose type or shape differs between an output and its input.

    Raises CompileError if output ``X_RetainedState`` and input ``X`` differ in type or shape. It is also
    raised if the shape differs between specializations, because they share the state.
    """
    inputs = {spec.name: position for position, spec in enumerate(interface.inputs)}
    found = False
    for position, output in enumerate(interface.outputs):
        base = output.name.removesuffix(RETAINED_STATE_SUFFIX)
        if base == output.name:
            continue
        if base not in inputs:
            warn(
                "retained_state.plain_output",
                f"retained_state: output {output.name!r} has no input {base!r} and is a plain output",
            )
            continue
        found = True
        _check_pair(interface.inputs[inputs[base]], output)
        _check_specializations(interface, inputs[base], position)
    if not found:
        warn(
            "retained_state.no_state",
            f"retained_state: the model has no output X{RETAINED_STATE_SUFFIX} with an input X; it has no "
            "state",
        )


def _check_pair(source: TensorSpec, output: TensorSpec) -> None:
    if (source.elem_type, source.dims) == (output.elem_type, output.dims):
        return
    raise refuse(
        f"output {output.name!r}",
        code="retained_state",
        found=f"{output.dtype} {list(output.dims)}",
        expected=f"{source.dtype} {list(source.dims)} as for input {source.name!r}",
        fix="export the model with equal types and shapes for both",
        context={"input": source.name, "output": output.name},
    )


def _check_specializations(interface: Interface, position: int, output: int) -> None:
    name = interface.inputs[position].name
    for specialization in interface.specializations:
        first = interface.specializations[0]
        if specialization.inputs[position] != specialization.outputs[output]:
            raise refuse(
                f"output {interface.outputs[output].name!r} in specialization {specialization.name!r}",
                code="retained_state",
                found=f"the shape {list(specialization.outputs[output])}",
                expected=f"{list(specialization.inputs[position])} as for input {name!r}",
                fix="export the model with equal shapes for both",
                context={"input": name, "specialization": specialization.name},
            )
        if specialization.inputs[position] != first.inputs[position]:
            raise refuse(
                f"retained state {name!r}",
                code="retained_state",
                found=f"the shape {list(first.inputs[position])} in specialization {first.name!r} and "
                f"{list(specialization.inputs[position])} in {specialization.name!r}",
                expected="one shape, because all specializations share the state",
                fix="give the symbols of its shape the same sizes in every specialization",
                context={"input": name, "specializations": [first.name, specialization.name]},
            )


@compiler_pass(lambda context: context.options.retained_state)
def check_retained_state_pass(model: Model, _: Context) -> None:
    """Refuse state whose type or shape differs between an output and its input."""
    check_retained(model.interface)
