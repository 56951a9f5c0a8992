"""Products that read packed weights from the container."""

import numpy as np
import pytest

from compiler_oracle import info, model_of, node
from qaic.compiler.passes import store_weights
from single_pass import applied, before, ops, skipped

NAME = "store-packed-weights"
ROWS, LENGTH, GROUP = 264, 320, 32


def product(inputs=("x", "w", "s"), group=GROUP):
    groups = LENGTH // group
    constants = [
        ("w", np.ones((ROWS, groups, group // 2), np.uint8)),
        ("s", np.ones(ROWS * groups, np.float32)),
        ("order", np.arange(LENGTH, dtype=np.int32) // group),
    ]
    sizes = {"N": ROWS, "K": LENGTH, "bits": 4, "block_size": group}
    made = node("MatMulNBits", list(inputs), ["y"], domain="com.microsoft", **sizes)
    return model_of([made], [info("x", [1, LENGTH])], [info("y", None)], constants)


@pytest.fixture(autouse=True)
def _programs_of_any_size(monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)


def test_rows_are_copied_and_scales_go_behind_them():
    model, context = before(NAME, product())
    assert applied(NAME, model, context)
    assert ops(model) == [store_weights.PRODUCT]
    (weight,) = model.weights.values()
    assert (weight.dims, weight.blocks.encoding, weight.layout.group) == ((ROWS, LENGTH), "uint4", GROUP)
    assert weight.source.nbytes == ROWS * (LENGTH // 2 + 5 * LENGTH // GROUP)


@pytest.mark.parametrize("proto", [product(("x", "w", "s", "", "order")), product(group=16)])
def test_order_of_groups_and_small_groups_stay_with_the_engine(proto):
    model, context = before(NAME, proto)
    assert not applied(NAME, model, context)
    assert ops(model) == ["MatMulNBits"]


def test_reasons_for_products_that_stay_are_reported():
    model, context = before(NAME, product(("x", "w", "s", "", "order")))
    assert skipped(NAME, model, context) == [
        f"{NAME} left 1 node (first 'y'): the groups have an order, or a bias or other type is used"
    ]
