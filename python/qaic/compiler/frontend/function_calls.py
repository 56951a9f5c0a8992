"""Normalizes the functions of a model and their calls to the form that the passes expect.

In ONNX, a call may omit attributes and results. The tools that expand functions (onnx.inliner) or infer their
shapes (onnx.shape_inference) then lose defaults. The engine prefers its own operator to a function with the
same name, although ONNX gives the function precedence.
"""

from collections.abc import Collection, Mapping, MutableSequence
from itertools import count
from typing import Final

import onnx
from onnx import defs

from qaic.compiler.diagnostics.messages import listing, refuse
from qaic.compiler.ir.graph_edits import clone, import_opset
from qaic.compiler.ir.graph_walk import (
    STANDARD_DOMAINS,
    all_nodes,
    node_label,
    nodes_of,
    since,
    standard,
    standard_version,
)

#: domains of operators that the engine implements and onnx does not describe
ENGINE_DOMAINS: Final = frozenset({"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

#: domain, name, overload
FunctionKey = tuple[str, str, str]


def function_key(domain: str, name: str, overload: str) -> FunctionKey:
    """Identify a function; the standard domain has two spellings."""
    return "" if domain in STANDARD_DOMAINS else domain, name, overload


def normalize_functions(model: onnx.ModelProto) -> None:
    """Convert functions and calls to one form; changes `model` in place.

    A call gets all results, and omitted attributes with a default. A call that omits an attribute without a
    default calls a copy of the function without that attribute. Functions leave the domains of the engine.
    The model imports the operator sets of its functions, and all use one version of the standard set.
    Functions must not call themselves. Raises CompileError if a call omits a required attribute, or if no
    version gives all operators the same meaning.
    """
    if not model.functions:
        return
    _share_standard_set(model)
    _leave_domains_of_the_engine(model)
    for function in model.functions:
        for entry in function.opset_import:
            if entry.domain not in STANDARD_DOMAINS:
                import_opset(model, entry.domain, entry.version)
    _complete_calls(model)


def _share_standard_set(model: onnx.ModelProto) -> None:
    """Set a version of the standard set for model and functions in which all operators keep their meaning."""
    own = {function_key(f.domain, f.name, f.overload) for f in model.functions}
    given = standard_version(model)
    owners: list[onnx.ModelProto | onnx.FunctionProto] = [model, *model.functions]
    used: dict[tuple[str, int], str] = {}
    for owner in owners:
        name = "the model" if isinstance(owner, onnx.ModelProto) else f"function {owner.name!r}"
        nodes = owner.graph.node if isinstance(owner, onnx.ModelProto) else owner.node
        if all(entry.domain not in STANDARD_DOMAINS for entry in owner.opset_import):
            import_opset(owner, "", given)
        for node in all_nodes(nodes):
            if standard(node, node.op_type) and function_key("", node.op_type, node.overload) not in own:
                used.setdefault((node.op_type, standard_version(owner)), name)
    versions = {given, *map(standard_version, model.functions)}
    changed = {
        shared: [
            f"{op_type} of version {version} ({name})"
            for (op_type, version), name in used.items()
            if version != shared and since(op_type, version) != since(op_type, shared)
        ]
        for shared in sorted(versions, key=lambda version: (version != given, version))
    }
    shared = next((version for version, others in changed.items() if not others), given)
    if changed[shared]:
        raise refuse(
            "functions of the model",
            code="unsupported_opset",
            found=f"operators that version {given} of ai.onnx does not have in this form: "
            f"{listing(changed[shared])}",
            expected=f"functions in version {given}, as the model",
            fix="export model and functions with one opset_version, or export the model without functions",
        )
    for owner in owners:
        for entry in owner.opset_import:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = shared


def _leave_domains_of_the_engine(model: onnx.ModelProto) -> None:
    own = {(f.domain, f.name, f.overload) for f in model.functions if f.domain in ENGINE_DOMAINS}
    if not own:
        return
    for node in nodes_of(model):
        if (node.domain, node.op_type, node.overload) in own:
            node.domain += ".of_model"
    domains = {f"{domain}.of_model" for domain, _, _ in own}
    for function in model.functions:
        if function.domain in ENGINE_DOMAINS:
            function.domain += ".of_model"
    owners: list[onnx.ModelProto | onnx.FunctionProto] = [model, *model.functions]
    for owner in owners:
        for domain in sorted(domains):
            import_opset(owner, domain, 1)


def _complete_calls(model: onnx.ModelProto) -> None:
    functions = {function_key(f.domain, f.name, f.overload): f for f in model.functions}
    taken = {function.name for function in model.functions}
    copies: dict[tuple[object, ...], str] = {}
    reached: set[FunctionKey] = set()
    # Only called functions are visited, because the number of calls is limited.
    pending: list[MutableSequence[onnx.NodeProto]] = [model.graph.node]
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
            if missing:
                if (key, *missing) not in copies:
                    numbered = (f"{function.name}_copy{n}" for n in count(len(copies)))
                    name = next(name for name in numbered if name not in taken)
                    _check_missing(node, function, missing)
                    model.functions.append(_without(function, missing, name))
                    copy = functions[key[0], name, key[2]] = model.functions[-1]
                    pending.append(copy.node)
                    copies[key, *missing] = name
                    taken.add(name)
                node.op_type = copies[key, *missing]
            elif key not in reached:
                reached.add(key)
                pending.append(function.node)


def _check_missing(call: onnx.NodeProto, function: onnx.FunctionProto, missing: Collection[str]) -> None:
    """Refuse a call that omits an attribute without which a node of the function is invalid."""
    versions = {entry.domain: entry.version for entry in function.opset_import}
    for node in all_nodes(function.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name in missing and _is_required(node, attribute.name, versions):
                raise refuse(
                    f"node {node_label(call)!r} ({call.op_type})",
                    code="invalid_model",
                    found=f"no attribute {attribute.ref_attr_name!r}",
                    expected=f"a value for it, which {node.op_type} in the function {function.name!r} needs",
                    fix="export the model again, or add the attribute to the node",
                    context={"node": node_label(call), "attribute": attribute.ref_attr_name},
                )


def _is_required(node: onnx.NodeProto, attribute: str, versions: Mapping[str, int]) -> bool:
    # A Constant has one of several attributes.
    if standard(node, "Constant"):
        return True
    try:
        schema = defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return False
    return attribute in schema.attributes and schema.attributes[attribute].required


def _without(function: onnx.FunctionProto, missing: Collection[str], name: str) -> onnx.FunctionProto:
    """Copy a function without the attributes that its callers omit."""
    copy = clone(function)
    copy.name = name
    kept = [attribute for attribute in copy.attribute if attribute not in missing]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    for node in all_nodes(copy.node):
        for position in reversed(range(len(node.attribute))):
            if node.attribute[position].ref_attr_name in missing:
                del node.attribute[position]
    return copy
