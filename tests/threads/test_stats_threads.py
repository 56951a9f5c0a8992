"""Work on large stats buffers answers Ctrl-C."""

import json

import pytest

from child_process import assert_prompt, run_script

CTRL_C = """
import json, sys
import numpy as np
import stats_buffers
from child_process import interrupted
from qaic import _core, stats

what, folder = sys.argv[1:]
# Takes a second or more without an interrupt.
sections = stats_buffers.even_sections(5_000_000, descriptor_ops=1000)
sections["OP"]["kflags"] = 1
buffer = stats.open(_core.encode_stats(stats_buffers.run_facts(), sections, bytes(16)))
buffer.check()
call = {
    "trace": lambda: _core.stats_trace([(buffer.compiled, None, "net", None)]),
    "file": lambda: buffer.write_trace(f"{folder}/trace.json"),
}[what]
outcome = interrupted(call)
print(json.dumps({**outcome, "after": len(buffer.ops)}))
"""


@pytest.mark.parametrize("what", ["trace", "file"])
def test_ctrl_c_ends_the_writing_of_a_trace(tmp_path, what):
    outcome = json.loads(run_script(CTRL_C, what, tmp_path).stdout)
    assert_prompt(outcome)
    assert outcome["after"] == 5_000_000
    assert list(tmp_path.iterdir()) == []
