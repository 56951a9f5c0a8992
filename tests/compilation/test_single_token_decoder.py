"""Decoders with one set of shapes for a single token: all sizes are constants."""

import numpy as np
import pytest

import decoder_model
import qaic
from decoder_client import Client, compiled
from qaic.compiler.passes.decoding.state_rows import OPERATOR

SIZES = decoder_model.Sizes(layers=2, width=32, context=128)


@pytest.mark.parametrize(
    "options", [{}, {"convert_to_fp16": True}, {"convert_to_fp16": True, "mxint8_kv_cache": True}]
)
def test_attended_rows_give_the_logits_of_whole_caches(tmp_path, options):
    sets = decoder_model.specializations(context=SIZES.context)[1:]
    clients = []
    for name, more in (("rows", {}), ("whole", {"whole_caches": True})):
        folder = compiled(decoder_model.decoder(SIZES), sets, tmp_path / name, **options, **more)
        operators = qaic.Qpc(folder / "programqpc.bin").plan.get("own_operators", [])
        assert operators[:1] == ([] if more else [OPERATOR])
        clients.append(Client(folder))
        clients[-1].skip_caches()
    for position in range(70):
        found, expected = (client.step(position % 5, position)["logits"] for client in clients)
        np.testing.assert_array_equal(found, expected)
