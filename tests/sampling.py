"""Share of the costly sweeps that a run takes: a sample, or the whole with ``--whole`` and in `make explore`.

A property draws two of five examples. Cases with the mark `whole` are left out, and the suite of ONNX selects
its own sample. `make test-pins` and `make test-kmd-numbers` run the whole.
"""

from __future__ import annotations

from hypothesis import settings

#: share of the examples of a property, in percent
_EXAMPLES = 40


def is_whole(config):
    """Return true if a run takes whole sweeps."""
    return config.getoption("--whole") or not settings.default.derandomize


def take_samples(config, items):
    """Leave cases out, and let each property draw fewer examples."""
    left_out = [item for item in items if item.get_closest_marker("whole")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    # Cases with parameters share a function.
    for test in {item.obj for item in items if hasattr(item.obj, "hypothesis")}:
        asked = test._hypothesis_internal_use_settings
        count = -(-asked.max_examples * _EXAMPLES // 100)
        test._hypothesis_internal_use_settings = settings(asked, max_examples=count)
