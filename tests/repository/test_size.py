"""The limits on lines of code: the lines that count, and the failure for a part that exceeds its limit."""

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from size.__main__ import code_lines, lowered, part, verdict

SIZES = st.dictionaries(st.sampled_from(["rust/a", "rust/b", "python/c"]), st.integers(1, 9))


def test_blank_lines_and_comments_are_no_code():
    assert code_lines("//! Head.\n\nfn one() {} // why\n    // why\n", ".rs") == 1
    assert code_lines("# why\n\nimport this\n", ".py") == 1


def test_each_source_counts_for_its_crate_or_package():
    owners = {
        "rust/qaic-mem/src/view.rs": "rust/qaic-mem",
        "rust/qaic-sync/loom/tests/ring.rs": "rust/qaic-sync",
        "python/qaic/session.py": "python/qaic",
        "python/qaic/compiler/ir/graph.py": "python/qaic/compiler",
        "python/qaicrt/__init__.py": "python/qaicrt",
        "tests/kernel/pci_card/src/card.rs": "tests/kernel/pci_card",
        "docs/index.md": None,
        "tests/repository/test_size.py": None,
        "benches/report.py": None,
    }
    assert {name: part(PurePosixPath(name)) for name in owners} == owners


@given(SIZES, SIZES)
def test_sizes_are_good_exactly_where_no_part_is_above_its_limit(sizes, limits):
    lines, is_good = verdict(sizes, limits)
    different = sorted(name for name in {*sizes, *limits} if sizes.get(name, 0) != limits.get(name, 0))
    assert is_good == all(limits.get(name, 0) >= size for name, size in sizes.items())
    assert [line.split(":")[0] for line in lines] == different


@given(SIZES, SIZES)
def test_limits_that_are_lowered_never_go_up(sizes, limits):
    for name, limit in lowered(sizes, limits).items():
        assert limit == min(sizes[name], limits[name])
