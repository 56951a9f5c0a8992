"""Sessions of programs with several combinations of shapes, and with state."""

import json

import numpy as np
import pytest
from onnx import helper

import decoder_model
import qaic
import rt_programs
import session_models
from child_process import WATCHDOG_S
from qaic.errors import InputError, InputShapeError, InputTypeError, MissingInputError, OptionError

SETS = [
    {"name": "Long", "symbols": {"batch": "1", "seq": "6"}},
    {"name": "Wide", "symbols": {"batch": "3", "seq": "2"}},
    {"name": "Tall", "symbols": {"batch": "6", "seq": "1"}},
]


def symbolic():
    """Build a model with two inputs: ``y = x + sum(z)``, and ``n`` is the size of the batch."""
    shape = ["batch", "seq", 4]
    return session_models.model(
        [
            helper.make_node("ReduceSum", ["z"], ["total"], keepdims=0),
            helper.make_node("Add", ["x", "total"], ["y"]),
            helper.make_node("Shape", ["x"], ["n"], end=1),
        ],
        [("x", "float32", shape), ("z", "float32", ["batch", "seq"])],
        [("y", "float32", shape), ("n", "int64", [1])],
    )


def stateful():
    """Build a model that adds its input to its state."""
    return session_models.model(
        [
            helper.make_node("Add", ["past", "x"], ["past_RetainedState"]),
            helper.make_node("Neg", ["past_RetainedState"], ["y"]),
        ],
        [("x", "float32", [3]), ("past", "float32", [3])],
        [("y", "float32", [3]), ("past_RetainedState", "float32", [3])],
    )


@pytest.fixture(scope="module")
def symbolic_path(tmp_path_factory):
    return session_models.save(tmp_path_factory.mktemp("symbolic"), symbolic())


@pytest.fixture(scope="module")
def session(symbolic_path):
    with qaic.Session(symbolic_path, network_specialization_config=SETS, set_size=3) as session:
        session.setup()
        yield session


@pytest.fixture
def stateful_path(tmp_path):
    return session_models.save(tmp_path, stateful())


def arrays(batch, seq, number=1):
    return {
        "x": np.full((batch, seq, 4), number, np.float32),
        "z": np.full((batch, seq), number, np.float32),
    }


SHAPES = [(1, 6), (3, 2), (6, 1)]


def check(found, batch, seq, number=1):
    np.testing.assert_array_equal(
        found["y"], np.full((batch, seq, 4), number * (1 + batch * seq), np.float32)
    )
    assert found["n"].tolist() == [batch]


# --- several combinations of shapes ---------------------------------------------------------------


def test_shape_dictionaries_show_the_largest(session):
    assert session.model_input_shape_dict["x"] == ((6, 6, 4), np.dtype(np.float32))
    assert session.model_output_shape_dict["y"] == ((6, 6, 4), np.dtype(np.float32))


@pytest.mark.parametrize("first", range(3))
def test_inputs_choose_the_shapes(session, first):
    for turn in range(9):
        batch, seq = SHAPES[(first + turn // 2) % 3]
        check(session.run(arrays(batch, seq, turn)), batch, seq, turn)


def test_all_ways_to_run_choose_the_shapes(session):
    inputs = [arrays(*SHAPES[number % 3], number) for number in range(20)]
    for number, found in enumerate(session.map(inputs)):
        check(found, *SHAPES[number % 3], number)
    futures = [session.submit(one) for one in inputs]
    for number, future in enumerate(futures):
        check(future.result(WATCHDOG_S), *SHAPES[number % 3], number)


def test_out_arrays_have_the_shape_of_the_combination(session):
    mine = np.empty((3, 2, 4), np.float32)
    assert session.run(arrays(3, 2), out={"y": mine})["y"] is mine
    check({"y": mine, "n": np.array([3])}, 3, 2)
    with pytest.raises(InputError, match=r"\[6, 1, 4\]"):
        session.run(arrays(6, 1), out={"y": mine})


@pytest.mark.parametrize(("batch", "seq"), SHAPES)
def test_an_out_array_of_the_shape_that_is_shown_is_taken_and_its_head_is_written(session, batch, seq):
    shape, dtype = session.model_output_shape_dict["y"]
    mine = np.full(shape, 7, dtype)
    found = session.run(arrays(batch, seq), out={"y": mine})
    assert found["y"] is mine
    size = batch * seq * 4
    check({"y": mine.ravel()[:size].reshape(batch, seq, 4), "n": found["n"]}, batch, seq)
    assert (mine.ravel()[size:] == 7).all()


def test_an_out_array_of_a_larger_combination_is_taken_and_a_smaller_one_is_not(tmp_path):
    path = session_models.save(tmp_path, rt_programs.doubled())
    with qaic.Session(path, network_specialization_config=rt_programs.ROWS) as session:
        x = np.arange(32, dtype=np.float32).reshape(8, 4)
        for rows in (1, 3, 8):
            mine = np.full((8, 4), 7, np.float32)
            assert session.run({"x": x[:rows]}, out={"y": mine})["y"] is mine
            np.testing.assert_array_equal(mine[:rows], 2 * x[:rows])
            assert (mine[rows:] == 7).all()
        for rows, given in ((8, 3), (3, 1), (3, 4), (3, 9)):
            with pytest.raises(InputError, match=rf"\[{rows}, 4\] is expected"):
                session.run({"x": x[:rows]}, out={"y": np.zeros((given, 4), np.float32)})


@pytest.mark.parametrize(
    "convert", [np.ndarray.tolist, lambda array: array.astype(np.float64), np.asfortranarray]
)
def test_values_are_converted_in_the_chosen_shape(session, convert):
    check(session.run({name: convert(array) for name, array in arrays(3, 2).items()}), 3, 2)


@pytest.mark.parametrize(
    "shapes",
    [((1, 6, 4), (3, 2)), ((6, 6, 4), (6, 6)), ((24,), (6,)), ((2, 3, 4), (2, 3)), ((), ())],
)
def test_other_combinations_are_refused_with_those_that_are_allowed(session, shapes):
    x, z = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(InputShapeError, match="No matching dimension found") as caught:
        session.run({"x": x, "z": z})
    assert caught.value.code == "input.shapes"
    assert [[name for name, _ in allowed] for allowed in caught.value.context["allowed"]] == [["x", "z"]] * 3
    for text in (
        str(list(shapes[0])),
        "x [1, 6, 4], z [1, 6]",
        "x [3, 2, 4], z [3, 2]",
        "x [6, 1, 4], z [6, 1]",
    ):
        assert text in str(caught.value)
    with pytest.raises(InputShapeError, match="No matching dimension"):
        session.submit({"x": x, "z": z})


def test_names_and_types_are_checked_as_ever(session):
    with pytest.raises(MissingInputError, match="z"):
        session.run({"x": np.zeros((3, 2, 4), np.float32)})
    with pytest.raises(InputTypeError, match="complex"):
        session.run({**arrays(3, 2), "z": np.zeros((3, 2), np.complex64)})
    with pytest.raises(InputError, match="'w' does not exist"):
        session.run({**arrays(3, 2), "w": 1})


def test_a_benchmark_runs_in_the_first_combination(session):
    assert session.run_benchmark(20)[0] == 20
    assert session.run_benchmark(20, input_dict=arrays(6, 1))[0] == 20


def test_a_configuration_file_does_the_same(symbolic_path, tmp_path):
    config = tmp_path / "sets.json"
    config.write_text(json.dumps({"specializations": SETS[:2]}))
    with qaic.Session(symbolic_path, network_specialization_config=config) as session:
        check(session.run(arrays(3, 2)), 3, 2)
        with pytest.raises(InputShapeError):
            session.run(arrays(6, 1))


# --- retained state -------------------------------------------------------------------------------


X = np.array([1, 2, 3], np.float32)


def test_state_stays_on_the_device_and_starts_with_zeros(stateful_path):
    with qaic.Session(stateful_path, retained_state=True) as session:
        for turn in range(1, 6):
            found = session.run({"x": X})
            assert list(found) == ["y"]
            np.testing.assert_array_equal(found["y"], -turn * X)
        session.reset()
        np.testing.assert_array_equal(session.run({"x": X})["y"], -X)


def test_state_is_returned_when_requested_or_passed(stateful_path):
    with qaic.Session(stateful_path, retained_state=True) as session:
        session.run({"x": X})
        found = session.run({"x": X}, output_names=["past_RetainedState"])
        assert list(found) == ["past_RetainedState"]
        np.testing.assert_array_equal(found["past_RetainedState"], 2 * X)
        mine = np.empty(3, np.float32)
        assert session.run({"x": X}, out={"past_RetainedState": mine})["past_RetainedState"] is mine
        np.testing.assert_array_equal(mine, 3 * X)
        # If a caller passes the state, it receives the next state, which also stays on the device.
        found = session.run({"x": X, "past": 10 * X})
        np.testing.assert_array_equal(found["past_RetainedState"], 11 * X)
        np.testing.assert_array_equal(session.run({"x": X})["y"], -12 * X)


def test_skipping_all_outputs_moves_the_state_on(stateful_path):
    with qaic.Session(stateful_path, retained_state=True) as session:
        for _ in range(3):
            assert session.run({"x": X}, output_names=[]) == {}
        np.testing.assert_array_equal(session.run({"x": X})["y"], -4 * X)


def test_a_refused_run_leaves_the_state(stateful_path):
    with qaic.Session(stateful_path, retained_state=True) as session:
        session.run({"x": X})
        for wrong in ({"x": np.zeros(4, np.float32)}, {}, {"x": X, "past": np.zeros(2)}):
            with pytest.raises(InputError):
                session.run(wrong)
        np.testing.assert_array_equal(session.run({"x": X})["y"], -2 * X)


def test_only_inputs_with_state_may_be_left_out(stateful_path):
    with qaic.Session(stateful_path, retained_state=True) as session:
        with pytest.raises(MissingInputError) as caught:
            session.run({"past": X})
        assert caught.value.context["missing"] == ["x"]
    with qaic.Session(stateful_path) as session, pytest.raises(MissingInputError):
        session.run({"x": X})


def test_maps_and_futures_keep_the_order_of_the_state(stateful_path):
    with qaic.Session(stateful_path, retained_state=True, set_size=4) as session:
        found = [outputs["y"] for outputs in session.map({"x": X} for _ in range(30))]
        futures = [session.submit({"x": X}) for _ in range(30)]
        found += [future.result(WATCHDOG_S)["y"] for future in futures]
        for turn, y in enumerate(found, start=1):
            np.testing.assert_array_equal(y, -turn * X)


def test_each_activation_would_have_a_state_of_its_own(stateful_path):
    session = qaic.Session(stateful_path, retained_state=True, num_activations=2)
    with pytest.raises(OptionError, match="has its own state") as caught:
        session.run({"x": X})
    assert "qaicrt" in str(caught.value.hints)
    session.update_backend_options(num_activations=1)
    np.testing.assert_array_equal(session.run({"x": X})["y"], -X)
    session.reset()


def test_a_decoder_prefills_in_chunks_and_decodes(tmp_path):
    sizes = decoder_model.Sizes()
    path = session_models.save(tmp_path, decoder_model.decoder(sizes))
    oracle = decoder_model.Oracle(sizes)
    generator = np.random.default_rng(3)
    config = decoder_model.specializations(prefill=8)
    with qaic.Session(path, network_specialization_config=config, retained_state=True) as session:
        position = 0
        for rows in (8, 8, 1, 1, 1, 8, 1):
            ids = generator.integers(0, sizes.vocabulary, (1, rows))
            positions = np.arange(position, position + rows)[None]
            found = session.run({"input_ids": ids, "position_ids": positions})
            assert list(found) == ["logits"]
            np.testing.assert_allclose(found["logits"][0, 0], oracle.step(ids), rtol=1e-4, atol=1e-5)
            position += rows
        with pytest.raises(InputShapeError, match="No matching dimension"):
            session.run({"input_ids": ids[:, :0], "position_ids": positions[:, :0]})


@pytest.mark.parametrize("side", ["input", "output"])
def test_shapes_are_named_tuples_of_shape_and_type(session, side):
    expected = {
        "input": {"x": ((6, 6, 4), "float32"), "z": ((6, 6), "float32")},
        "output": {"y": ((6, 6, 4), "float32"), "n": ((1,), "int64")},
    }[side]
    found = getattr(session, f"model_{side}_shape_dict")
    assert found() is found
    assert list(found) == list(expected)
    for name, (shape, dtype) in expected.items():
        assert found[name] == (shape, np.dtype(dtype))
        assert (found[name].shape, found[name].dtype) == (shape, np.dtype(dtype))
        assert found[name]._fields == ("shape", "dtype")
