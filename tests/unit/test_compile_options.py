"""``qaic.CompileOptions``: one value with all options of a compilation."""

import inspect
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qaic
import session_models
from qaic.errors import OptionConflictError, OptionError, UnknownOptionError
from qaic.options.keywords import CompileKeywords, SessionKeywords
from qaic.options.spec import Stage
from qaic.options.table import SPECS

COMPILE = [spec for spec in SPECS if spec.stage is Stage.COMPILE and spec.keyword]
HARMLESS = (
    "aic_perf_warnings",
    "aic_perf_metrics",
    "time_passes",
    "qpc_crc",
    "multicast_weights",
    "direct_api",
)
VALUES = {
    "aic_num_cores": st.integers(1, 16),
    "convert_to_fp16": st.booleans(),
    "stats_level": st.sampled_from([10, 40, 70]),
    "output_node_names": st.lists(st.sampled_from(["y", "m", "a"]), unique=True, max_size=2),
    "onnx_define_symbol": st.dictionaries(st.sampled_from(["n", "m"]), st.integers(1, 9), max_size=2),
    **{name: st.booleans() for name in HARMLESS},
}
OPTIONS = st.fixed_dictionaries({}, optional=VALUES)


@settings(max_examples=60)
@given(options=OPTIONS)
def test_options_survive_every_way_around(options):
    made = qaic.CompileOptions(**options)
    for other in (
        qaic.CompileOptions(made),
        qaic.CompileOptions(**made),
        qaic.CompileOptions({name.replace("_", "-"): value for name, value in options.items()}),
        pickle.loads(pickle.dumps(made)),
        made.replace(),
    ):
        assert other == made
        assert hash(other) == hash(made)
        assert dict(other) == dict(made)
        assert other.difference(made) == {}


@settings(max_examples=60)
@given(one=OPTIONS, other=OPTIONS)
def test_options_are_equal_when_nothing_differs(one, other):
    first, second = qaic.CompileOptions(one), qaic.CompileOptions(other)
    found = first.difference(second)
    assert (first == second) == (not found)
    assert {name: pair[::-1] for name, pair in found.items()} == second.difference(first)
    assert first.replace(**{**dict.fromkeys(one), **second}) == second


def test_a_default_that_is_spelled_out_changes_nothing():
    assert qaic.CompileOptions(convert_to_fp16=False) == qaic.CompileOptions()
    assert len(qaic.CompileOptions(convert_to_fp16=False)) == 1


@pytest.mark.parametrize("spec", COMPILE, ids=lambda spec: spec.name)
def test_every_option_of_the_table_is_an_attribute(spec):
    options = qaic.CompileOptions()
    assert getattr(options, spec.name) == spec.default
    assert spec.name in dir(options)


def test_attributes_that_are_no_options_are_refused():
    options = qaic.CompileOptions()
    for name in ("aic_num_coers", "set_size", "model_path", "_given_"):
        with pytest.raises(AttributeError, match=f"no option '{name}'"):
            getattr(options, name)


def test_wrong_options_are_refused_at_once():
    with pytest.raises(UnknownOptionError, match="did you mean aic_num_cores"):
        qaic.CompileOptions(aic_num_coers=2)
    with pytest.raises(OptionError, match="aic_num_cores"):
        qaic.CompileOptions(aic_num_cores=0)
    with pytest.raises(OptionConflictError):
        qaic.CompileOptions({"aic_num_cores": 2, "aic-num-cores": 3})
    with pytest.raises(OptionError, match=r"set_size.*run options") as caught:
        qaic.CompileOptions(set_size=2, num_activations=1)
    assert caught.value.code == "option.of_running"


def test_the_file_gives_way(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("aic_num_cores: 2\nconvert_to_fp16: true\n")
    options = qaic.CompileOptions(options_path=file, aic_num_cores=4)
    assert (options.aic_num_cores, options.convert_to_fp16) == (4, True)


def test_equal_options_make_equal_programs(tmp_path):
    path = session_models.save(tmp_path, session_models.affine())
    options = qaic.CompileOptions(aic_num_cores=4, convert_to_fp16=True)
    programs = [
        qaic.compile(path, options),
        qaic.compile(path, **options),
        qaic.Session(path, **options).qpc,
        qaic.compile(path, {"aic-num-cores": "4"}, convert_to_fp16="true"),
    ]
    assert len({bytes(one.content) for one in programs}) == 1
    assert qaic.compile(path, options, aic_num_cores=2).program_info.num_cores == 2


def test_texts_explain_what_was_given():
    options = qaic.CompileOptions(aic_num_cores=4, convert_to_fp16=True)
    assert repr(options) == "CompileOptions(aic_num_cores=4, convert_to_fp16=True)"
    lines = str(options).splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["aic_num_cores", "convert_to_fp16"]
    summaries = {spec.name: spec.summary for spec in COMPILE}
    assert lines[0].endswith(summaries["aic_num_cores"])
    assert '<td class="t">aic_num_cores</td><td class="t">4</td>' in options._repr_html_()
    assert str(qaic.CompileOptions()) == "defaults of the compiler"
    assert "defaults of the compiler" in qaic.CompileOptions()._repr_html_()


@pytest.mark.parametrize(
    ("made", "keywords"),
    [
        (qaic.Session, SessionKeywords),
        (qaic.CompileOptions, CompileKeywords),
        (qaic.compile, CompileKeywords),
    ],
)
def test_signatures_list_the_options_for_completion(made, keywords):
    parameters = inspect.signature(made).parameters
    assert set(keywords.__annotations__) <= set(parameters)
    assert not [one for one in parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
