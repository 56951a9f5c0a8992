"""Mixtures of experts that read selected matrices in the container, compared with unstored weights and
float64.
"""

import json

import numpy as np
import pytest

import qaic
from compiler_oracle import info, model_of, node
from qaic.cli.stored_weights import stored_weights
from qaic.compiler.passes import store_weights
from quant_oracle import mx_round
from session_models import save

EXPERTS, HIGH, WIDE = 5, 320, 288
#: More entries than experts, in no order, with one index from the end.
CHOSEN = (3, 0, 3, -1, 3, 1, 0)
ENTRIES = len(CHOSEN)


@pytest.fixture(autouse=True)
def _programs_of_any_size(monkeypatch):
    monkeypatch.setattr(store_weights, "LEAST_IN_PROGRAM", 1)


def drawn(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def experts(nodes=None, count=ENTRIES, rows=1, shape=(EXPERTS, HIGH, WIDE), index_type=7, entries=None):
    """Multiply entries by the gathered matrices of their experts, as exporters write it."""
    nodes = nodes or [node("Gather", ["w", "chosen"], ["copies"]), node("MatMul", ["x", "copies"], ["y"])]
    inputs = [info("x", [entries or count, rows, HIGH]), info("chosen", [count], index_type)]
    wide = shape[1] if shape[2] == HIGH else shape[2]
    outputs = [info("y", [entries or count, rows, wide])]
    return model_of(nodes, inputs, outputs, [("w", drawn(shape, 1))])


def compiled(folder, proto, name, **options):
    where = folder / name
    where.mkdir()
    return qaic.compile(save(where, proto), output_dir=where / "qpc", **options).path


def answer(path, feeds):
    with qaic.Session(path) as session:
        return session.run(feeds)["y"].astype(np.float32)


#: The matrices are the left operand, as in exports of Mixtral.
LEFT = [node("Gather", ["w", "chosen"], ["copies"]), node("MatMul", ["copies", "x"], ["y"])]
BLOCKS = {"convert_to_fp16": True, "mxfp6_matmul": True}
TURNED = [
    node("Gather", ["w", "chosen"], ["copies"], axis=0),
    node("Transpose", ["copies"], ["turned"], perm=[0, 2, 1]),
    node("MatMul", ["x", "turned"], ["y"]),
]


@pytest.mark.parametrize(
    "options",
    [{}, {"convert_to_fp16": True}, BLOCKS, {"mxfp6_matmul": True}],
    ids="-".join,
)
@pytest.mark.parametrize("index_type", [6, 7])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("nodes", [None, TURNED, LEFT])
def test_each_entry_is_multiplied_with_its_expert(tmp_path, nodes, rows, index_type, options):
    shape = (EXPERTS, WIDE, HIGH) if nodes else (EXPERTS, HIGH, WIDE)
    proto = experts(nodes, rows=rows, shape=shape, index_type=index_type)
    if nodes is LEFT:
        proto.graph.input[0].CopyFrom(info("x", [ENTRIES, HIGH, rows]))
        proto.graph.output[0].CopyFrom(info("y", [ENTRIES, WIDE, rows]))
    stored, plain = (
        compiled(tmp_path, proto, name, **options, **more)
        for name, more in (("stored", {}), ("plain", {"stored_weights": False}))
    )
    plan = qaic.Qpc(stored).plan
    assert plan["own_operators"][0] == store_weights.EXPERTS
    (entry,) = plan["initializers"]
    encoding = "mxfp6_e2m3" if "mxfp6_matmul" in options else None
    found = entry["dims"], entry["layout"], entry.get("encoding")
    assert found == ([EXPERTS * WIDE, HIGH], "tiles", encoding)
    x = drawn((ENTRIES, rows, HIGH), 2)
    feeds = {"x": x.swapaxes(1, 2) if nodes is LEFT else x, "chosen": np.array(CHOSEN)}
    feeds["chosen"] = feeds["chosen"].astype(np.int32 if index_type == 6 else np.int64)
    weight = drawn(shape, 1)
    if encoding:
        axis = 2 if nodes else 1
        weight = mx_round(weight.swapaxes(axis, 2), encoding).swapaxes(axis, 2)
    is_half = "convert_to_fp16" in options
    used = [a.astype(np.float16 if is_half else np.float32).astype(np.float64) for a in (x, weight)]
    matrices = used[1][list(CHOSEN)]
    matrices = matrices.swapaxes(1, 2) if nodes else matrices
    size = np.abs(used[0]) @ np.abs(matrices)
    expected = used[0] @ matrices
    found, engine = (answer(path, feeds) for path in (stored, plain))
    if nodes is LEFT:
        found, engine = (given.swapaxes(1, 2) for given in (found, engine))
    bound = 1e-6 * size + (np.spacing(np.abs(expected).astype(np.float16)) if is_half else 0)
    assert (np.abs(found - expected) <= bound).all()
    assert (np.abs(found - engine) <= 2 * bound).all()


def test_sums_depend_neither_on_other_entries_nor_on_threads(tmp_path):
    x = drawn((ENTRIES, 1, HIGH), 2)
    one = compiled(tmp_path, experts(count=1), "one", convert_to_fp16=True)
    alone = np.concatenate(
        [answer(one, {"x": x[at : at + 1], "chosen": [at_]}) for at, at_ in enumerate(CHOSEN)]
    )
    for cores in (1, 2):
        path = compiled(tmp_path, experts(), f"cores{cores}", convert_to_fp16=True, aic_num_cores=cores)
        np.testing.assert_array_equal(answer(path, {"x": x, "chosen": CHOSEN}), alone)


@pytest.mark.parametrize(("entries", "chosen"), [(1, [4, 1, 4]), (3, [2]), (1, [3])])
def test_one_entry_or_index_serves_the_whole_batch(tmp_path, entries, chosen):
    proto = experts(count=len(chosen), entries=entries)
    proto.graph.output[0].CopyFrom(info("y", [max(entries, len(chosen)), 1, WIDE]))
    path = compiled(tmp_path, proto, "shared")
    assert qaic.Qpc(path).plan["own_operators"] == [store_weights.EXPERTS]
    x = drawn((entries, 1, HIGH), 2)
    expected = x @ drawn((EXPERTS, HIGH, WIDE), 1)[chosen]
    np.testing.assert_allclose(answer(path, {"x": x, "chosen": chosen}), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("options", "size"), [({"convert_to_fp16": True}, 2), (BLOCKS, 25 / 32)])
def test_an_inference_reads_the_chosen_experts(tmp_path, options, size):
    path = compiled(tmp_path, experts(count=2), "stored", **options)
    weights = stored_weights(qaic.Qpc(path))
    assert weights["bytes"] == size * EXPERTS * HIGH * WIDE
    assert weights["read_bytes"] == size * 2 * HIGH * WIDE
    every = compiled(tmp_path, experts(), "every", **options)
    assert stored_weights(qaic.Qpc(every))["read_bytes"] == size * EXPERTS * HIGH * WIDE


def test_products_of_two_precisions_read_the_blocks_of_the_chosen_experts(tmp_path):
    nodes = [*TURNED, node("MatMul", ["x", "turned"], ["z"])]
    proto = experts(nodes, shape=(EXPERTS, WIDE, HIGH))
    proto.graph.output.append(info("z", [ENTRIES, 1, WIDE]))
    lists = {"node_precision_info_file": {"FP16NodeInstanceNames": ["y"]}}
    feeds = {"x": drawn((ENTRIES, 1, HIGH), 2), "chosen": np.array(CHOSEN)}
    for name, more in (("stored", {}), ("plain", {"stored_weights": False})):
        path = compiled(tmp_path, proto, name, mxfp6_matmul=True, **lists, **more)
        encodings = {entry.get("encoding") for entry in qaic.Qpc(path).plan["initializers"]}
        assert encodings == {"mxfp6_e2m3"}
        with qaic.Session(path) as session:
            found = session.run(feeds)
        weight = mx_round(drawn((EXPERTS, WIDE, HIGH), 1), "mxfp6_e2m3")[list(CHOSEN)].swapaxes(1, 2)
        for output, half in (("y", True), ("z", False)):
            used = [a.astype(np.float16 if half else np.float32).astype(float) for a in (feeds["x"], weight)]
            bound = (2e-3 if half else 1e-6) * (np.abs(used[0]) @ np.abs(used[1]))
            assert (np.abs(found[output] - used[0] @ used[1]) <= bound).all()


@pytest.mark.parametrize(("counts", "read"), [((2, 4), 2), ((4, 2), 2), ((3, 3), 3)])
def test_an_inference_of_several_sets_reads_the_experts_of_the_smallest(tmp_path, counts, read):
    proto = experts(count="n")
    entries = [{"n": str(count), "m": str(at)} for at, count in enumerate(counts, 1)]
    proto.graph.input.append(info("more", ["m"]))
    proto.graph.output.append(info("z", ["m"]))
    proto.graph.node.append(node("Relu", ["more"], ["z"]))
    file = tmp_path / "sets.json"
    file.write_text(json.dumps({"specializations": entries}))
    path = compiled(tmp_path, proto, "sets", convert_to_fp16=True, network_specialization_config=str(file))
    assert stored_weights(qaic.Qpc(path))["read_bytes"] == read * 2 * HIGH * WIDE


@pytest.mark.parametrize("counts", [(4, 1), (1, 4)])
def test_of_several_readers_of_the_experts_the_largest_counts(tmp_path, counts):
    nodes, proto = [], experts(count=1)
    for at, count in enumerate(counts):
        proto.graph.input.extend([info(f"x{at}", [count, 1, HIGH]), info(f"chosen{at}", [count], 7)])
        proto.graph.output.append(info(f"y{at}", [count, 1, WIDE]))
        nodes.append(node("Gather", ["w", f"chosen{at}"], [f"copies{at}"]))
        nodes.append(node("MatMul", [f"x{at}", f"copies{at}"], [f"y{at}"]))
    proto.graph.node.extend(nodes)
    path = compiled(tmp_path, proto, "readers", convert_to_fp16=True)
    assert stored_weights(qaic.Qpc(path))["read_bytes"] == max(counts) * 2 * HIGH * WIDE


@pytest.mark.virtual_card("a failing operator ends the channel of a card with all inferences in flight")
@pytest.mark.parametrize("index", [EXPERTS, -EXPERTS - 1])
def test_expert_that_does_not_exist_is_an_error(tmp_path, index):
    path = compiled(tmp_path, experts(count=1), "stored")
    with (
        qaic.Session(path) as session,
        pytest.raises(qaic.errors.QaicError, match=f"index {index} of 5 experts"),
    ):
        session.run({"x": drawn((1, 1, HIGH), 2), "chosen": [index]})


@pytest.mark.parametrize("options", [{"convert_to_fp16": True}, BLOCKS])
@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        # Rows of an expert that do not fill tiles.
        (None, (EXPERTS, HIGH, WIDE + 1)),
        # Another reader of the copies, or of the weight.
        ([*TURNED, node("Relu", ["copies"], ["z"])], (EXPERTS, WIDE, HIGH)),
        ([*TURNED, node("Relu", ["w"], ["z"])], (EXPERTS, WIDE, HIGH)),
        # Both operands.
        ([*TURNED[:2], node("MatMul", ["copies", "turned"], ["y"])], (EXPERTS, WIDE, HIGH)),
        # Other axes.
        ([node("Gather", ["w", "chosen"], ["y"], axis=1)], (EXPERTS, HIGH, WIDE)),
    ],
)
def test_experts_that_the_device_cannot_read_stay_with_the_engine(tmp_path, nodes, shape, options):
    proto = experts(nodes, shape=shape)
    if nodes and nodes[-1].output[0] == "z":
        proto.graph.output.append(info("z", None))
    if not any("x" in one.input for one in nodes or TURNED):
        del proto.graph.input[0]
        proto.graph.output[0].CopyFrom(info("y", None))
    path = compiled(tmp_path, proto, "plain", **options)
    # The blocks of a product are a copy that no other node reads.
    has_copy = "mxfp6_matmul" in options and nodes is not None and len(nodes) > 1
    assert ("own_operators" in qaic.Qpc(path).plan) == has_copy


def routed(tokens, best, k):
    """Multiply each token with the matrices of its `best` experts; without `k`, it is an input."""
    nodes = [
        node("MatMul", ["x", "router"], ["scores"]),
        node("Softmax", ["scores"], ["shares"]),
        node("TopK", ["shares", "k"], ["share", "experts"]),
        node("Reshape", ["experts", "list"], ["chosen"]),
        node("Gather", ["w", "chosen"], ["copies"]),
        node("Unsqueeze", ["x", "one"], ["single"]),
        node("Tile", ["single", "times"], ["repeated"]),
        node("Reshape", ["repeated", "apart"], ["each"]),
        node("MatMul", ["each", "copies"], ["y"]),
    ]
    constants = [
        ("router", drawn((HIGH, EXPERTS), 3)),
        ("w", drawn((EXPERTS, HIGH, WIDE), 1)),
        ("list", np.array([-1])),
        ("one", np.array([1])),
        ("times", np.array([1, best, 1])),
        ("apart", np.array([-1, 1, HIGH])),
    ]
    inputs = [info("x", [tokens, HIGH])]
    if k is None:
        inputs.append(info("k", [1], 7))
    else:
        constants.append(("k", np.array([k])))
    outputs = [info("y", [tokens * best, 1, WIDE]), info("experts", [tokens, best], 7)]
    return model_of(nodes, inputs, outputs, constants)


@pytest.mark.parametrize("options", [{}, {"convert_to_fp16": True}, BLOCKS])
def test_a_token_without_scores_uses_experts_that_exist(tmp_path, options):
    tokens, best = 3, 2
    path = compiled(tmp_path, routed(tokens, best, best), "routed", **options)
    assert store_weights.EXPERTS in qaic.Qpc(path).plan["own_operators"]
    x = drawn((tokens, HIGH), 2)
    with qaic.Session(path) as session:
        usual = session.run({"x": x})
        for number in (np.nan, np.inf, -np.inf):
            x[1] = number
            found = session.run({"x": x})
            assert ((found["experts"] >= 0) & (found["experts"] < EXPERTS)).all()
            by_token = found["y"].reshape(tokens, -1)
            assert not np.isfinite(by_token[1]).all()
            # Other tokens do not notice.
            for token in (0, 2):
                np.testing.assert_array_equal(by_token[token], usual["y"].reshape(tokens, -1)[token])


@pytest.mark.parametrize("k", [EXPERTS + 1, -1])
def test_more_experts_than_exist_are_refused(tmp_path, k):
    with pytest.raises(qaic.errors.CompileError, match=r"\(TopK\): found"):
        compiled(tmp_path, routed(3, k, k), "routed")


@pytest.mark.virtual_card("a failing operator ends the channel of a card with all inferences in flight")
@pytest.mark.parametrize("k", [EXPERTS + 1, 0, -1, 1 << 62, -(1 << 63)])
def test_another_number_of_experts_than_the_outputs_have_is_an_error(tmp_path, k):
    path = compiled(tmp_path, routed(3, 2, None), "routed")
    with qaic.Session(path) as session:
        feeds = {"x": drawn((3, HIGH), 2)}
        with pytest.raises(qaic.errors.QaicError, match="TopK"):
            session.run(feeds | {"k": [k]})
        assert np.isfinite(session.run(feeds | {"k": [2]})["y"]).all()
