"""The search finds the planted set, every node of it is needed, and the compiler accepts it."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import accuracy_models as models
import qaic
from qaic import accuracy
from qaic.accuracy.precision_search import trials
from qaic.accuracy.precision_search.targets import Target, parse
from qaic.errors import OptionError, StateError


def sqnr_of(model, samples, **options):
    noise = signal = 0.0
    with (
        qaic.Session(qaic.compile(model).path) as plain,
        qaic.Session(qaic.compile(model, **options).path) as rounded,
    ):
        for sample in samples:
            (a,), (b,) = plain.run(sample).values(), rounded.run(sample).values()
            signal += np.sum(a.astype(float) ** 2)
            noise += np.sum((a.astype(float) - b) ** 2)
    return 10 * np.log10(signal / noise) if np.isfinite(noise) else -np.inf


@pytest.mark.parametrize("places", [(1,), (0, 3)])
def test_the_planted_set_is_found(places, tmp_path):
    model, samples, planted = models.overflowing(places)
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=40")
    # A value that is computed from an overflowing mean does not overflow, but reads infinity in float16.
    roots = {f"deviation{at}" for at in places}
    assert set(plan.nodes) == set(planted) | roots
    assert plan.before < 40 <= plan.after
    assert plan.held_out >= 40
    assert plan.is_reached
    file = plan.write(tmp_path / "precision.yaml")
    assert yaml.safe_load(file.read_text())["FP32NodeInstanceNames"] == list(plan.nodes)
    options = {"convert_to_fp16": True, "node_precision_info_file": file}
    assert sqnr_of(model, samples, **options) >= 40
    for name in plan.nodes:
        rest = [other for other in plan.nodes if other != name]
        less = {"FP32NodeInstanceNames": rest}
        assert sqnr_of(model, samples[:4], convert_to_fp16=True, node_precision_info_file=less) < 40


def test_operands_that_cancel_are_found():
    model, samples, planted = models.cancelling()
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=60")
    # A product and its addend round once, and are kept together.
    assert plan.operations == 2
    assert set(plan.nodes) == {"plain", *planted}


def test_the_same_search_gives_the_same_file(tmp_path):
    model, samples, _ = models.overflowing((2,))
    first, second = (
        accuracy.search(model, to="fp16", samples=samples, target="cosine>=0.9999").write(tmp_path / name)
        for name in ("a.yaml", "b.yaml")
    )
    assert first.read_bytes() == second.read_bytes()


def test_nothing_is_kept_where_nothing_is_lost():
    model, samples, _ = models.overflowing(())
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=40")
    assert plan.nodes == ()
    assert plan.before == plan.after


def test_integers():
    model, samples = models.convolutional(outlier=1000.0)
    plan = accuracy.search(model, to="int8", samples=samples, target="sqnr>=30", enable_channelwise=True)
    assert plan.nodes
    assert plan.before < 30 <= plan.after
    assert len(plan.nodes) < plan.of


def test_float16_may_be_what_is_kept(tmp_path):
    model, samples = models.convolutional(outlier=1000.0)
    given = {"samples": samples, "target": "sqnr>=30", "enable_channelwise": True}
    plan = accuracy.search(model, to="int8", keep="fp16", **given)
    assert plan.before < 30 <= plan.after
    file = plan.write(tmp_path / "precision.yaml")
    assert yaml.safe_load(file.read_text()) == {"FP16NodeInstanceNames": list(plan.nodes)}
    with pytest.raises(OptionError, match="found 'fp16' for fp16"):
        accuracy.search(model, to="fp16", samples=samples, target="sqnr>=30", keep="fp16")


def test_what_is_found_holds_in_a_program_that_is_compiled_with_it():
    model, samples = models.convolutional(outlier=1000.0)
    options = {"enable_channelwise": True, "convert_to_quantize": True, "calibration_data": samples}
    plan = accuracy.search(model, to="int8", samples=samples, target="sqnr>=30", enable_channelwise=True)
    lists = {"FP32NodeInstanceNames": list(plan.nodes)}
    assert sqnr_of(model, samples[:4], **options) == pytest.approx(plan.before, abs=1e-4)
    assert sqnr_of(model, samples[:4], **options, node_precision_info_file=lists) == pytest.approx(
        plan.after, abs=1e-4
    )
    # The search measures only the samples that the set needs; the last sample was held out.
    assert sqnr_of(model, samples[4:], **options, node_precision_info_file=lists) == pytest.approx(
        plan.held_out, abs=1e-4
    )


def test_names_in_functions_stand_for_all_calls(tmp_path):
    model, samples = models.calls_of_a_function()
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=40")
    assert set(plan.nodes) == {"square", "mean", "deviation"}
    assert plan.operations == 3
    file = plan.write(tmp_path / "precision.yaml")
    assert sqnr_of(model, samples, convert_to_fp16=True, node_precision_info_file=file) >= 40


def test_the_margin_is_that_of_the_samples():
    rng = np.random.default_rng(2)
    reference = [{"y": rng.standard_normal((1, 8))} for _ in range(40)]
    found = [{"y": item["y"].copy()} for item in reference]
    for at in range(0, 40, 10):
        found[at]["y"] = -found[at]["y"]
    target = parse("same>=85%")
    score = target.score(found, reference)
    assert score.value == 0.9
    # Ten groups of four samples; in some groups, one sample differs.
    by_group = [np.mean([1 - (at % 10 == 0) for at in range(40) if at % 10 != left]) for left in range(10)]
    assert score.standard_error == pytest.approx(np.sqrt(9 * np.var(by_group)))
    assert target.holds(score, safely=False)
    equal = target.score(reference, reference)
    assert equal.safe == 1.0


@pytest.mark.parametrize("count", [1, 2])
def test_few_samples(count):
    model, samples, _ = models.overflowing((1,))
    plan = accuracy.search(model, to="fp16", samples=samples[:count], target="sqnr>=40")
    assert np.isnan(plan.held_out)
    assert plan.is_reached
    assert "no held-out samples" in str(plan)


def weakest(found, reference):
    return min(float((a["y"] * b["y"]).sum()) for a, b in zip(found, reference, strict=True))


def nothing(found, reference):
    return 0


def test_a_function_of_the_user():
    model, samples = models.convolutional()
    plan = accuracy.search(model, to="fp16", samples=samples, target=f"{__name__}:weakest>=0")
    assert plan.nodes == ()


@given(
    metric=st.sampled_from(["sqnr", "cosine", "same", f"{__name__}:weakest"]),
    bound=st.floats(0, 1, width=32),
    distance=st.floats(-(2.0**-10), 2.0**-10, width=32),
)
def test_a_value_that_is_shown_reaches_the_bound_if_the_value_does(metric, bound, distance):
    target = Target(f"{metric}>={bound}", metric, bound)
    scale = 100 if metric == "same" else 1
    for value in (bound + distance, bound, 0.0, 1.0):
        number, *unit = target.show(value).split()
        assert unit == {"sqnr": ["dB"], "same": ["%"]}.get(metric, [])
        assert (float(number) >= scale * bound) == (scale * value >= scale * bound)
        assert float(number) == pytest.approx(scale * value, rel=0.006)


def test_a_target_out_of_reach():
    model, samples, _ = models.overflowing((1,))
    with pytest.raises(StateError, match=r"found 0 with all \d+ operations in float32, expected at least 1"):
        accuracy.search(model, to="fp16", samples=samples, target=f"{__name__}:nothing>=1")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("sqnr", "found 'sqnr', expected sqnr>=40"),
        (40, "found 40"),
        ("psnr>=4", "the metric 'psnr'"),
        ("same>=99.5", r"99\.5 for same, which is at most 100%"),
        ("same>=200%", "200% for same, which is at most 100%"),
        ("cosine>=2", "2 for cosine, which is at most 1"),
        ("sqnr>=4e", "the bound '4e'"),
        ("tokens>=0", "0 tokens"),
        ("tokens>=2.5", r"2\.5 tokens"),
        ("no_such_module:f>=1", "'no_such_module:f', which cannot be imported"),
        ("math:pi>=1", "'math:pi', which is not a function"),
    ],
)
def test_wrong_targets(target, message):
    model, samples, _ = models.overflowing(())
    with pytest.raises(OptionError, match=message):
        accuracy.search(model, to="fp16", samples=samples, target=target)


def test_one_precision_at_a_time():
    model, samples, _ = models.overflowing(())
    with pytest.raises(OptionError, match="expected one precision"):
        accuracy.search(model, to="fp16,int8", samples=samples, target="sqnr>=1")


@pytest.mark.parametrize("cores", [1, 10, 16])
def test_parallel_samples_fit_on_the_card(monkeypatch, cores):
    """Regression: with two processors, a search needed two times the cores of the program."""
    monkeypatch.setattr(trials, "sched_getaffinity", lambda _: set(range(4)))
    model, samples, _ = models.overflowing((1,))
    plan = accuracy.search(model, to="fp16", samples=samples, target="sqnr>=40", aic_num_cores=cores)
    assert plan.is_reached
