"""State of a session: MXINT8 blocks on the device, and reads and writes between inferences."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import decoder_model
import qaic
from qaic.errors import InputError, InputShapeError, InputTypeError, OptionError, StateError
from quant_oracle import mx_round
from session_models import model, save

SIZES = decoder_model.Sizes(context=40)


def grow(shape, dtype="float32"):
    """``y`` is the previous state; an inference adds ``x`` to the state."""
    nodes = [
        helper.make_node("Add", ["kept", "x"], ["kept_RetainedState"]),
        helper.make_node("Identity", ["kept"], ["y"]),
    ]
    return model(
        nodes,
        [("x", dtype, shape), ("kept", dtype, shape)],
        [("y", dtype, shape), ("kept_RetainedState", dtype, shape)],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QAIC_CACHE_DIR", str(made / "cache"))
        yield made


def opened(folder, net, **options):
    return qaic.Session(save(folder, net), retained_state=True, **options)


def mx(array):
    """Round like the device, to the values that callers receive."""
    return mx_round(np.asarray(array, np.float32), "mxint8").astype(np.float32)


# --- blocks on the device -----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    shape=st.one_of(
        st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        st.tuples(st.integers(1, 3), st.integers(31, 70)),
    ),
    seed=st.integers(0, 99),
    half=st.booleans(),
)
def test_state_is_rounded_at_every_write(folder, shape, seed, half):
    dtype = np.dtype(np.float16 if half else np.float32)
    rng = np.random.default_rng(seed)
    with opened(folder, grow(shape, dtype), mxint8_kv_cache=True, split_retained_state_io=True) as session:
        kept = np.zeros(shape, np.float32)
        for _ in range(4):
            x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)).astype(dtype)
            np.testing.assert_array_equal(session.run({"x": x})["y"], kept.astype(dtype))
            kept = mx((kept.astype(dtype) + x).astype(np.float32))
            np.testing.assert_array_equal(session.read_state("kept"), kept.astype(np.float16))


def test_callers_see_float16_of_the_shape_of_the_model(folder):
    shape = (2, 3, 40)
    with opened(folder, grow(shape), mxint8_kv_cache=True) as session:
        assert session.model_input_shape_dict["kept"] == (shape, np.dtype(np.float16))
        assert session.model_output_shape_dict["kept_RetainedState"] == (shape, np.dtype(np.float16))
        assert session.model_output_shape_dict["y"] == (shape, np.dtype(np.float32))
        rng = np.random.default_rng(1)
        kept, x = rng.standard_normal((2, *shape))
        kept = kept.astype(np.float16)
        x = x.astype(np.float32)
        both = {"x": x, "kept": kept}
        expected = mx(mx(kept) + x).astype(np.float16)
        out = {"kept_RetainedState": np.empty(shape, np.float16)}
        assert session.run(both, out=out)["kept_RetainedState"] is out["kept_RetainedState"]
        found = [
            out["kept_RetainedState"],
            session.run(both)["kept_RetainedState"],
            session.submit(both).result()["kept_RetainedState"],
            next(session.map([both]))["kept_RetainedState"],
            # Other floats are converted as for a float16 input.
            session.run({"x": x, "kept": kept.astype(np.float64)})["kept_RetainedState"],
        ]
        for array in found:
            assert array.dtype == np.float16
            np.testing.assert_array_equal(array, expected)
        np.testing.assert_array_equal(session.run(both)["y"], mx(kept))
        # An array that was read and is written back.
        same = kept.copy()
        session.run({"x": x, "kept": same}, out={"kept_RetainedState": same})
        np.testing.assert_array_equal(same, expected)
        assert session.run_benchmark(num_inferences=3)[0] == 3
        with pytest.raises(InputShapeError, match="float16 of shape"):
            session.run({"x": x, "kept": kept[0]})


def test_values_that_have_no_block(folder):
    shape = (2, 33)
    with opened(folder, grow(shape), mxint8_kv_cache=True) as session:
        x = np.ones(shape, np.float32)
        x[0, 3], x[1, 32] = np.nan, np.inf
        session.run({"x": x})
        y = session.run({"x": np.zeros(shape, np.float32)})["y"]
        np.testing.assert_array_equal(np.isnan(y), [[True] * 32 + [False], [False] * 32 + [True]])
        np.testing.assert_array_equal(y[~np.isnan(y)], 1)


def test_inputs_and_outputs_without_state_can_be_blocks(folder):
    net = model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", "float32", [3, 5])], [("y", "float32", [3, 5])]
    )
    entries = [{"IOName": name, "Precision": "mxint8"} for name in ("x", "y")]
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    with qaic.Session(save(folder, net), custom_io_list_file=entries) as session:
        found = session.run({"x": x})["y"]
        np.testing.assert_array_equal(found, -mx(x.astype(np.float16)).astype(np.float16))


def test_shapes_choose_among_specializations(folder):
    net = model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", "float32", ["n", 40])], [("y", "float32", ["n", 40])]
    )
    sets = [{"n": 4}, {"n": 2}]
    entries = [{"IOName": name, "Precision": "mxint8"} for name in ("x", "y")]
    options = {"network_specialization_config": sets, "custom_io_list_file": entries}
    with qaic.Session(save(folder, net), **options) as session:
        assert session.model_input_shape_dict["x"][0] == (4, 40)
        for n in (2, 4, 2):
            x = np.random.default_rng(n).standard_normal((n, 40)).astype(np.float16)
            np.testing.assert_array_equal(session.run({"x": x})["y"], -mx(x).astype(np.float16))
        with pytest.raises(InputShapeError, match="No matching dimension"):
            session.run({"x": np.zeros((3, 40), np.float16)})


def test_decoder_with_compressed_caches(folder):
    """Prompts and tokens; onnxruntime receives caches that are rounded after every step."""
    net = decoder_model.decoder(SIZES)
    oracle = decoder_model.Oracle(SIZES)
    rng = np.random.default_rng(5)
    sets = decoder_model.specializations(8, context=SIZES.context)
    with opened(
        folder, net, network_specialization_config=sets, mxint8_kv_cache=True, split_retained_state_io=True
    ) as session:
        at = 0
        for rows in (8, 8, 1, 1, 1):
            step = {
                "input_ids": rng.integers(0, SIZES.vocabulary, (1, rows)),
                "position_ids": np.arange(at, at + rows)[None],
            }
            at += rows
            found = session.run(step)
            assert list(found) == ["logits"]
            logits = oracle.step(step["input_ids"])
            np.testing.assert_allclose(found["logits"][0, 0], logits, rtol=1e-4, atol=1e-4)
            for name, value in oracle.caches.items():
                held = session.read_state(name).astype(np.float32)[:, :, :at]
                rounded = mx(value)
                # Another order of summation can move a value across the boundary between two steps of its
                # block.
                step_of = np.ldexp(1.0, np.frexp(np.abs(value).max(-1, keepdims=True))[1] - 7)
                assert (np.abs(held - rounded) <= step_of).all()
                assert (held == rounded).mean() > 0.99
                np.testing.assert_array_equal(mx(held), held)
                oracle.caches[name] = held


def test_nothing_to_compress_is_a_warning(folder, caplog):
    with qaic.Session(save(folder, grow((2, 3), "int32")), retained_state=True, mxint8_kv_cache=True):
        assert "mxint8_kv_cache: the model has no floating-point state" in caplog.text


# --- reading and writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_state_of_one_sequence(folder, compressed):
    shape = (3, 2, 35)
    options = {"split_retained_state_io": True, "mxint8_kv_cache": compressed}
    see = mx if compressed else np.asarray
    rng = np.random.default_rng(2)
    with opened(folder, grow(shape), **options) as session:
        zeros = np.zeros(shape, np.float32)
        assert not session.read_state("kept").any()
        whole = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        session.write_state("kept", whole)
        np.testing.assert_array_equal(session.read_state("kept"), see(whole))
        np.testing.assert_array_equal(session.run({"x": zeros})["y"], see(whole))
        row = rng.standard_normal(shape[1:]).astype(np.float16)
        session.write_state("kept", row, sequence=1)
        expected = see(whole).copy()
        expected[1] = see(row)
        for sequence in range(3):
            found = session.read_state("kept", sequence=sequence)
            assert found.shape == shape[1:]
            np.testing.assert_array_equal(found, expected[sequence])
        np.testing.assert_array_equal(session.run({"x": zeros})["y"], expected)
        # The state is copied to another session, which continues with it.
        with opened(folder, grow(shape), **options) as other:
            other.write_state("kept", session.read_state("kept"))
            np.testing.assert_array_equal(other.run({"x": zeros})["y"], expected)
        # The result is a copy, not a view.
        copy = session.read_state("kept")
        copy += 1
        np.testing.assert_array_equal(session.read_state("kept"), expected)
        session.reset()
        assert not session.read_state("kept").any()


def test_state_that_is_a_vector(folder):
    with opened(folder, grow((4,)), split_retained_state_io=True) as session:
        session.write_state("kept", 7, sequence=2)
        np.testing.assert_array_equal(session.read_state("kept"), [0, 0, 7, 0])
        assert session.read_state("kept", sequence=2).shape == ()


def test_blocks_of_a_vector_belong_together(folder):
    options = {"split_retained_state_io": True, "mxint8_kv_cache": True}
    session = opened(folder, grow((4,)), **options)
    with session, pytest.raises(InputError, match=r"of shape \[4\] has no sequence 0"):
        session.read_state("kept", sequence=0)


def test_refusals(folder):
    shape = (2, 3)
    with opened(folder, grow(shape)) as session:
        for call in (
            lambda: session.read_state("kept"),
            lambda: session.write_state("kept", np.zeros(shape)),
        ):
            with pytest.raises(StateError, match="between inferences") as caught:
                call()
            assert caught.value.code == "state.not_split"
            assert "split_retained_state_io=True" in caught.value.hints[0]
    with opened(folder, grow(shape), split_retained_state_io=True) as session:
        for name in ("x", "y", "kept_RetainedState", "none"):
            with pytest.raises(InputError, match="does not exist; the device keeps") as caught:
                session.read_state(name)
            assert caught.value.context["known"] == ["kept"]
        for sequence in (2, 2**62):
            with pytest.raises(InputError, match="has no sequence"):
                session.write_state("kept", np.zeros(3, np.float32), sequence=sequence)
        with pytest.raises(OverflowError):
            session.read_state("kept", sequence=-1)
        with pytest.raises(InputShapeError, match="'kept'"):
            session.write_state("kept", np.zeros(3, np.float32))
        with pytest.raises(InputTypeError, match="'kept'"):
            session.write_state("kept", np.zeros(shape, complex))
        assert not session.read_state("kept").any()


def test_option_without_state(folder):
    with pytest.raises(OptionError, match="retained_state"):
        qaic.Session(save(folder, grow((2, 3))), split_retained_state_io=True)


def test_reading_beside_inferences(folder):
    """Every value that is read is a state between two inferences."""
    shape = (2, 2000)
    with opened(folder, grow(shape), split_retained_state_io=True) as session:
        ones = np.ones(shape, np.float32)

        def work():
            for _ in range(200):
                session.run({"x": ones}, output_names=[])

        worker = threading.Thread(target=work)
        worker.start()
        seen = []
        while worker.is_alive():
            state = session.read_state("kept")
            assert (state == state[0, 0]).all()
            seen.append(state[0, 0])
        worker.join()
        assert seen == sorted(seen)
        assert (session.read_state("kept") == 200).all()
