"""Cost of a decoder's token on the device: operations, and operations that copy a cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import decoder_model
import qaic
from qaic.compiler.passes import store_weights
from session_models import save

SIZES = decoder_model.Sizes(layers=3, heads=4, groups=2, width=8, context=256)

#: Operators that copy a cache or rows of one.
COPIES = {"AttendedRows", "ScatterND", "GatherND"}


def operations_of_tokens(folder, sizes, positions, **options):
    """Count the operations of each kind that the device runs for each of these tokens."""
    config = decoder_model.specializations(8, context=sizes.context)
    given = {"network_specialization_config": config, "retained_state": True, "stats_level": 70, **options}
    counts = []
    with qaic.Session(save(folder, decoder_model.decoder(sizes)), **given) as session:
        for position in positions:
            feed = {"input_ids": np.array([[1]]), "position_ids": np.array([[position]])}
            session.run(feed)
            with session.profile() as profile:
                session.run(feed)
            (buffer,) = profile.device
            counts.append(Counter(buffer.descriptor.ops(0).kind[buffer.ops["oc"]].tolist()))
    return counts


@pytest.mark.run_profiles
def test_a_token_copies_each_cache_once(tmp_path):
    """Each layer copies keys and values, and no number depends on the position or the context."""
    positions = (0, 63, 64, 200)
    found = operations_of_tokens(tmp_path, SIZES, positions)
    found += operations_of_tokens(tmp_path, replace(SIZES, context=4096), positions)
    assert all(counts == found[0] for counts in found)
    assert {kind: found[0][kind] for kind in COPIES & found[0].keys()} == {"AttendedRows": 2 * SIZES.layers}
    # One more layer adds its own operations and two copies.
    (more,) = operations_of_tokens(tmp_path, replace(SIZES, layers=4), [5])
    assert more["AttendedRows"] == found[0]["AttendedRows"] + 2
    (whole,) = operations_of_tokens(tmp_path, SIZES, [5], whole_caches=True)
    copies = {kind: whole[kind] for kind in COPIES & whole.keys()}
    # In addition to the caches, one gather per row hides padding.
    assert copies == {"ScatterND": 2 * SIZES.layers, "GatherND": 4 * SIZES.layers}


@pytest.mark.run_profiles
def test_roundings_of_a_layer_are_few_operations(tmp_path, monkeypatch):
    """A layer rounds ten results outside of its seven stored products, and casts the rows of two caches.

    The operators that round read the rotated halves of queries and keys in place.
    """
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)
    sizes = replace(SIZES, elem_type=10, layers=2, heads=16, groups=4, width=32)

    def layer(**options):
        (more,) = operations_of_tokens(
            tmp_path, replace(sizes, layers=3), [5], convert_to_fp16=True, **options
        )
        (found,) = operations_of_tokens(tmp_path, sizes, [5], convert_to_fp16=True, **options)
        return more - found

    found, plain = layer(), layer(stored_weights=False)
    counted = ("StoredMatMul", "Elementwise", "Cast")
    assert [found[kind] for kind in counted] == [7, 10, 2]
    assert not found.keys() & {"Concat", "Neg", "Slice", "Split"}
    # Two casts for each rounding: one for each stored product and each step of the operators.
    assert [plain[kind] for kind in counted] == [0, 0, 2 * 24 + 2]
