"""Rounded arithmetic of the device, compared with arithmetic and casts of the engine."""

import numpy as np
import pytest

import decoder_model
import qaic
from session_models import save

SIZES = decoder_model.Sizes(layers=2, heads=4, groups=2, width=8, context=128)


def logits(folder, sizes, **options):
    """Run a prompt and some tokens; return the logits, and the operators of the device in the program."""
    config = decoder_model.specializations(8, context=sizes.context)
    path = save(folder, decoder_model.decoder(sizes))
    given = {"network_specialization_config": config, "retained_state": True, "convert_to_fp16": True}
    program = qaic.compile(path, output_dir=folder / f"program{len(options)}", **given, **options)
    chunks = [(range(8), 0), (range(8, 11), 8), *(([at], at) for at in range(11, 15))]
    found = []
    with qaic.Session(program) as session:
        for tokens, start in chunks:
            padding = [-1] * (8 - len(tokens) if len(tokens) > 1 else 0)
            feed = {
                "input_ids": np.array([[*tokens, *(0 for _ in padding)]]) % sizes.vocabulary,
                "position_ids": np.array([[*range(start, start + len(tokens)), *padding]]),
            }
            found.append(session.run(feed)["logits"])
    return found, qaic.Qpc(program).plan["own_operators"]


@pytest.mark.parametrize("elem_type", [1, 10])
@pytest.mark.parametrize("caches", [{}, {"mxint8_kv_cache": True}])
def test_a_decoder_computes_the_same_bits(tmp_path, elem_type, caches):
    sizes = decoder_model.replace(SIZES, elem_type=elem_type)
    found, operators = logits(tmp_path, sizes, **caches)
    expected, plain = logits(tmp_path, sizes, stored_weights=False, **caches)
    assert (set(operators), set(plain)) == ({"AttendedRows", "Elementwise"}, {"AttendedRows"})
    for numbers, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(numbers, others)
