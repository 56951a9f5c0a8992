"""``qaic.ray.map_batches``: each row once, with the bits of a separate inference."""

import gc
import itertools
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import qaic
import qaic.ray
import session_models
from qaic.errors import DeviceBusyError, InputError, OptionError, StateError
from qaic.ray.batch_inference import BatchInference, Columns
from qaic.ray.shared_program import SharedProgram
from serving_support import BATCH, WIDTH, expected, several_types

# The tests compile, and several processes start.


@pytest.fixture(scope="module")
def model():
    return session_models.affine(WIDTH, BATCH)


def rows_of(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def results_of(x):
    """Return the expected results of rows, with one inference for each batch and without Ray."""
    parts = [expected(x[start : start + BATCH]) for start in range(0, len(x), BATCH)]
    return np.concatenate(parts) if parts else np.empty((0, WIDTH), np.float32)


def lists(x):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(x).ravel()), x.shape[1])


def table_of(x):
    return pa.table({"id": np.arange(len(x)), "x": lists(x)})


def dataset_of(ray, x, blocks=1):
    tables = [
        table_of(x).slice(start, -(-len(x) // blocks)) for start in range(0, len(x), -(-len(x) // blocks))
    ]
    return ray.data.from_arrow(tables)


def test_every_row_once_and_the_bits_of_a_session(cluster, model):
    x = rows_of(1003)
    found = qaic.ray.map_batches(
        dataset_of(cluster, x, blocks=7), model, num_actors=2, batch_size=50, keep=["id"]
    ).take_all()
    assert sorted(row["id"] for row in found) == list(range(1003))
    by_id = sorted(found, key=lambda row: row["id"])
    assert np.stack([row["y"] for row in by_id]).tobytes() == results_of(x).tobytes()


def test_a_pool_that_grows_keeps_the_order_where_asked(cluster, model):
    x = rows_of(400, 1)
    found = qaic.ray.map_batches(
        dataset_of(cluster, x, blocks=9), model, num_actors=(1, 2), batch_size=16, preserve_order=True
    )
    assert [row["id"] for row in found.iter_rows()] == list(range(400))


def test_outputs_as_lists_of_arrow(cluster, model):
    x = rows_of(9)
    found = qaic.ray.map_batches(
        dataset_of(cluster, x), model, output_format="arrow", outputs={"y": "score"}, keep=["id"]
    )
    (table,) = cluster.get(found.to_arrow_refs())
    assert table.schema == pa.schema([("id", pa.int64()), ("score", pa.list_(pa.float32(), WIDTH))])
    assert np.stack(table.column("score").to_pylist()).astype(np.float32).tobytes() == results_of(x).tobytes()


def test_the_one_column_needs_no_name(cluster, model):
    x = rows_of(12, 2)
    found = qaic.ray.map_batches(cluster.data.from_numpy(x), model, preserve_order=True).to_pandas()
    assert list(found.columns) == ["data", "y"]
    assert np.stack(found["y"]).tobytes() == results_of(x).tobytes()


def test_rows_of_a_program_without_batches(cluster):
    half = np.arange(12, dtype=np.float16).reshape(4, 3)
    count = np.arange(16).reshape(4, 2, 2)
    flag = np.array([[True], [False], [True], [False]])
    dataset = cluster.data.from_items(
        [{"half": half[row], "count": count[row], "flag": flag[row]} for row in range(4)]
    )
    outputs = {"half_out": "a", "count_out": "b", "flag_out": "c"}
    found = qaic.ray.map_batches(
        dataset, several_types(), outputs=outputs, keep=[], preserve_order=True
    ).to_pandas()
    assert np.stack(found["a"]).tobytes() == (half + half).tobytes()
    assert np.array_equal(np.stack(found["b"]), count + count)
    assert np.array_equal(np.stack(found["c"]), ~flag)


def test_an_empty_dataset(cluster, model):
    found = qaic.ray.map_batches(cluster.data.from_arrow(table_of(rows_of(0))), model)
    assert found.take_all() == []


def test_actors_take_cards_of_their_own(cluster, model, host, tmp_path):
    class Cards(BatchInference):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            (tmp_path / str(os.getpid())).write_text(os.environ["QAIC_VISIBLE_DEVICES"])

        def __call__(self, table):
            # Otherwise, the first actor could compute all blocks before the second one starts.
            while len(list(tmp_path.iterdir())) < 2:
                time.sleep(0.01)
            return super().__call__(table)

    program, _ = SharedProgram.put(model, {}, 1.0)
    pool = cluster.data.ActorPoolStrategy(size=2)
    found = dataset_of(cluster, rows_of(400), blocks=20).map_batches(
        Cards,
        fn_constructor_args=(program, Columns({}, None, None, "numpy")),
        batch_format="pyarrow",
        batch_size=20,
        compute=pool,
        resources={"QAIC": 1},
    )
    assert len(found.take_all()) == 400
    assert sorted(claim.read_text() for claim in tmp_path.iterdir()) == ["0", "1"]


def test_claims_are_of_processes_and_shares_fit_on_a_card(cluster, host):
    @cluster.remote(num_cpus=0.1, resources={"QAIC": 0.5})
    class Sharer:
        def card(self):
            return qaic.claim_devices(0.5), qaic.claim_devices(0.5)

    @cluster.remote(num_cpus=0.1, resources={"QAIC": 1})
    class Owner:
        def card(self, count=1, timeout_s=30):
            return qaic.claim_devices(count, timeout_s=timeout_s)

    sharers = [Sharer.remote() for _ in range(2)]
    owner = Owner.remote()
    # Actors of earlier tests may still be ending, so any card can be the first free one.
    first, second = cluster.get([one.card.remote() for one in sharers])
    assert first == second == (first[0],) * 2
    assert cluster.get(owner.card.remote()) != first[0]
    with pytest.raises(StateError, match="this process has already claimed 1, devices"):
        cluster.get(owner.card.remote(2))
    # The third card does not belong to Ray, and is free; a fourth does not exist.
    for one in (*sharers, owner):
        cluster.kill(one)
    late = Owner.remote()
    with pytest.raises(
        DeviceBusyError, match=r"cannot claim 4: this process sees the ready devices \[0, 1, 2\]"
    ):
        cluster.get(late.card.remote(4, 0))
    # A killed process has released its share, or releases it within the time limit.
    assert cluster.get(late.card.remote(3)) == (0, 1, 2)
    cluster.kill(late)


# --- rows, batches and order, in one process ----------------------------------------------------------------


@pytest.fixture(scope="module")
def actor(cluster, model):
    program, _ = SharedProgram.put(model, {"set_size": 2}, 0)
    return BatchInference(program, Columns({}, None, ("id",), "numpy"))


@given(
    count=st.integers(0, 70),
    cuts=st.lists(st.integers(0, 70), max_size=6),
    order=st.randoms(use_true_random=False),
)
@example(count=0, cuts=[], order=None)
@settings(max_examples=60)
def test_any_division_of_the_rows_gives_the_same_bits(actor, count, cuts, order):
    x = rows_of(count, 3)
    ids = list(range(count))
    if order is not None:
        order.shuffle(ids)
    whole = pa.table({"id": np.array(ids, np.int64), "x": lists(x[ids])})
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    parts = [actor(whole.slice(start, end - start)) for start, end in itertools.pairwise(edges)]
    found = pa.concat_tables(parts) if parts else actor(whole)
    assert found.column("id").to_pylist() == ids
    y = np.concatenate(
        [np.asarray(chunk.to_numpy(zero_copy_only=False)) for chunk in found.column("y").chunks]
    )
    assert y.tobytes() == results_of(x)[ids].tobytes()


def test_memory_is_flat_over_rows(actor):
    table = table_of(rows_of(64))
    # Ray keeps a reference to each type that it creates, and its threads can allocate at any time.
    own = [tracemalloc.Filter(inclusive=True, filename_pattern=str(Path(qaic.__file__).parent / "*"))]

    def kept_after_calls():
        for _ in range(40):
            actor(table)
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(own).traces)

    tracemalloc.start()
    try:
        kept_after_calls()
        first, *later = (kept_after_calls() for _ in range(5))
    finally:
        tracemalloc.stop()
    assert max(later) < first + 64 * WIDTH * 4, "more than the results of one call"


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            pa.array([[0.0] * WIDTH] * 5 + [[0.0] * 3]),
            r"row 5 of a batch of 6 rows \(id=5, name='n5'\): column 'x'",
        ),
        (pa.array([[0.0] * WIDTH, None] + [[0.0] * WIDTH] * 4), r"row 1 of .*id=1.*column 'x' has no value"),
        (pa.array([[0.0] * 3] * 6), r"row 0 of .*id=0.*\[1, 3\]; allowed are x \[1 to 8, 16\]"),
        (pa.array(["text"] * 6), r"column 'x' is of type string; numbers, tensors or lists"),
    ],
)
def test_an_error_names_the_row(actor, x, message):
    table = pa.table({"id": np.arange(6), "name": [f"n{row}" for row in range(6)], "x": x})
    with pytest.raises(InputError, match=message):
        actor(table)


def test_a_value_that_does_not_fit_names_its_row(cluster):
    doubled = session_models.model(
        [session_models.helper.make_node("Add", ["x", "x"], ["y"])],
        [("x", "int32", [4, 2])],
        [("y", "int32", [4, 2])],
    )
    numbers = pa.array([[row, 1 << 40 if row == 9 else 2] for row in range(11)])
    dataset = cluster.data.from_arrow(pa.table({"id": np.arange(11) + 100, "x": numbers}))
    found = qaic.ray.map_batches(dataset, doubled)
    with pytest.raises(cluster.exceptions.RayTaskError, match=r"row 9 of a batch of 11 rows \(id=109\)"):
        found.take_all()


def test_a_row_that_the_program_fails_on_is_named(cluster):
    gathered = session_models.model(
        [session_models.helper.make_node("Gather", ["t", "x"], ["y"])],
        [("x", "int64", [4])],
        [("y", "float32", [4, 2])],
        {"t": np.arange(20, dtype=np.float32).reshape(10, 2)},
    )
    program, _ = SharedProgram.put(gathered, {}, 0)
    actor = BatchInference(program, Columns({}, None, None, "numpy"))
    good = actor(pa.table({"x": [1, 2, 3, 4, 5]}))
    assert good.column("y")[4].as_py().tolist() == [10.0, 11.0]
    with pytest.raises(RuntimeError, match=r"row 6 of a batch of 9 rows \(x=99\)"):
        actor(pa.table({"x": [0, 1, 2, 3, 4, 5, 99, 7, 8]}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_actors": 0}, "num_actors is 0; a number of at least 1"),
        ({"num_actors": (3, 1)}, r"num_actors is \(3, 1\)"),
        ({"inputs": {"z": "x"}}, r"inputs names 'z'; the program has the inputs \['x'\]"),
        ({"outputs": {"x": "y"}}, r"outputs names 'x'; the program has the outputs \['y'\]"),
        ({"output_format": "pandas"}, "output_format is 'pandas'"),
        ({"devices_per_actor": -1}, "devices=-1; a number for each actor"),
        ({"options": {"dev_id": 1}}, "dev_id=1 names devices, but each actor claims"),
        ({"options": {"sett_size": 1}}, "set_size"),
    ],
)
def test_wrong_arguments_are_refused_at_once(cluster, model, arguments, message):
    with pytest.raises(OptionError, match=message):
        qaic.ray.map_batches(dataset_of(cluster, rows_of(1)), model, **arguments)


def test_more_devices_than_a_node_has_are_warned_of(cluster, model, caplog):
    qaic.ray.map_batches(dataset_of(cluster, rows_of(1)), model, devices_per_actor=2)
    assert not caplog.records
    qaic.ray.map_batches(dataset_of(cluster, rows_of(1)), model, devices_per_actor=3)
    assert "requests 3 of the resource QAIC, but no node has more than 2, so it waits" in caplog.text


def test_a_dataset_of_something_else_is_refused(cluster, model):
    with pytest.raises(OptionError, match=r"the dataset has type list; a ray.data.Dataset"):
        qaic.ray.map_batches([1], model)


def test_columns_that_are_missing_or_there_already(cluster, model):
    x = rows_of(2)
    program, _ = SharedProgram.put(model, {}, 0)

    def run(columns, table):
        return BatchInference(program, columns)(table)

    with pytest.raises(OptionError, match=r"no column 'x' for input 'x'; it has \['id', 'z'\]"):
        run(Columns({}, None, None, "numpy"), pa.table({"id": [0, 1], "z": lists(x)}))
    with pytest.raises(OptionError, match="output 'y' would become column 'y', which the dataset"):
        run(Columns({}, None, None, "numpy"), pa.table({"y": [0, 1], "x": lists(x)}))
    with pytest.raises(OptionError, match=r"keep names the column 'w'; the dataset has \['x'\]"):
        run(Columns({}, None, ("w",), "numpy"), pa.table({"x": lists(x)}))
