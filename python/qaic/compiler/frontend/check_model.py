"""Refusing what cannot become a program, and bringing the rest into one form."""

from __future__ import annotations

from qaic.compiler.frontend import custom_ops, validation
from qaic.compiler.frontend.check_functions import check_functions
from qaic.compiler.frontend.check_subgraph_tensors import check_inner_tensors
from qaic.compiler.ir.context import Context
from qaic.compiler.ir.model import Model
from qaic.compiler.ir.pass_contract import Always


class CheckModel(Always):
    """Refuse text that is none, two constants of one name, and functions that never end."""

    name = "check-model"

    def run(self, model: Model, context: Context) -> bool:
        """Check."""
        del context
        validation.check_texts(model.proto)
        validation.check_initializers(model.proto, model.weights)
        check_functions(model.proto)
        return False


class Normalize(Always):
    """Give the model the one form that passes expect: no text for humans, no constant as an input."""

    name = "normalize"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        check_inner_tensors(model.proto)
        validation.normalize(model.proto, model.weights)
        return True


class CheckOperators(Always):
    """Refuse operators that neither onnx nor the user describes."""

    name = "check-operators"

    def run(self, model: Model, context: Context) -> bool:
        """Check."""
        custom_ops.check_implemented(model.proto, context.custom)
        validation.check_operators(model.proto, context.custom.implemented)
        return False


class CheckStructure(Always):
    """Have the checker of onnx look at the model with all its types and shapes."""

    name = "check-structure"

    def run(self, model: Model, context: Context) -> bool:
        """Check."""
        validation.check_structure(model.specialized[0])
        context.is_checked = True
        return False


class RemoveUnused(Always):
    """Remove constants that nothing reads."""

    name = "remove-unused"

    def run(self, model: Model, context: Context) -> bool:
        """Change the model."""
        del context
        validation.drop_unused(model.proto, model.weights)
        return True
