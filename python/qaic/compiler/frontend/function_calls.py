"""Writes the functions of a model, and their calls, in the one form that the passes expect.

ONNX lets a call leave out attributes and results. The tools that expand functions (onnx.inliner) or look into
them (onnx.shape_inference) forget defaults then. The engine prefers its own operator to a function of the
same name, although ONNX gives the function precedence.
"""

from collections.abc import Collection, Iterator, MutableSequence
from typing import Final

import onnx

from qaic.compiler.ir.graph_edits import clone, import_opset
from qaic.compiler.ir.graph_walk import STANDARD_DOMAINS, all_nodes

#: domains of operators that the engine has and onnx does not describe
ENGINE_DOMAINS: Final = frozenset({"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

#: domain, name, overload
FunctionKey = tuple[str, str, str]


def function_key(domain: str, name: str, overload: str) -> FunctionKey:
    """Identify a function, whose standard domain has two spellings."""
    return "" if domain in STANDARD_DOMAINS else domain, name, overload


def normalize_functions(model: onnx.ModelProto) -> None:
    """Write functions and calls in one form; changes `model` in place.

    A call has all results, and states attributes that it leaves at their default. A function that is called
    without an attribute that has no default is another function. None is in a domain of the engine. The model
    imports the operator sets that its functions import. Functions do not call themselves.
    """
    if not model.functions:
        return
    _leave_domains_of_the_engine(model)
    for function in model.functions:
        for entry in function.opset_import:
            if entry.domain not in STANDARD_DOMAINS:
                import_opset(model, entry.domain, entry.version)
    _complete_calls(model)


def _bodies(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    yield model.graph.node
    for function in model.functions:
        yield function.node


def _leave_domains_of_the_engine(model: onnx.ModelProto) -> None:
    own = {(f.domain, f.name): f"{f.domain}.of_model" for f in model.functions if f.domain in ENGINE_DOMAINS}
    if not own:
        return
    for body in _bodies(model):
        for node in all_nodes(body):
            node.domain = own.get((node.domain, node.op_type), node.domain)
    for function in model.functions:
        function.domain = own.get((function.domain, function.name), function.domain)
    for domain in sorted(set(own.values())):
        import_opset(model, domain, 1)
        for function in model.functions:
            import_opset(function, domain, 1)


def _complete_calls(model: onnx.ModelProto) -> None:
    functions = {function_key(f.domain, f.name, f.overload): f for f in model.functions}
    taken = {(f.domain, f.name) for f in model.functions}
    names: dict[tuple[object, ...], str] = {}
    pending = list(_bodies(model))
    while pending:
        for node in all_nodes(pending.pop()):
            key = function_key(node.domain, node.op_type, node.overload)
            if key not in functions:
                continue
            function = functions[key]
            node.output.extend([""] * (len(function.output) - len(node.output)))
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(item for item in function.attribute_proto if item.name not in given)
            missing = [name for name in function.attribute if name not in given]
            if not missing:
                continue
            if (key, *missing) not in names:
                variant = _without(function, missing)
                while (variant.domain, variant.name) in taken:
                    variant.name += "_"
                model.functions.append(variant)
                # The model keeps a copy, whose calls are incomplete, too.
                pending.append(model.functions[-1].node)
                names[key, *missing] = variant.name
                taken.add((variant.domain, variant.name))
            node.op_type = names[key, *missing]


def _without(function: onnx.FunctionProto, missing: Collection[str]) -> onnx.FunctionProto:
    """Copy a function whose callers do not give some attributes."""
    copy = clone(function)
    copy.name = "_without_".join((function.name, *missing))
    kept = [attribute for attribute in copy.attribute if attribute not in missing]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    for node in all_nodes(copy.node):
        for position in reversed(range(len(node.attribute))):
            if node.attribute[position].ref_attr_name in missing:
                del node.attribute[position]
    return copy
