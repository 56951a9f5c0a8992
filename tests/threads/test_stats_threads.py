"""Ctrl-C ends work on large stats buffers."""

import json

import pytest

from child_process import run_script

CTRL_C = """
import json, sys
import numpy as np
import stats_buffers
from child_process import interrupted
from qaic import _core, stats

what, folder = sys.argv[1:]
sections = stats_buffers.even_sections(5_000_000, descriptor_ops=1000)
sections["OP"]["kflags"] = 1
buffer = stats.open(_core.encode_stats(stats_buffers.run_facts(), sections, bytes(16)))
buffer.check()
made = []
call = {
    # No bytecode runs between the call and `append`, so a call that ignores the signal leaves its result.
    "trace": lambda: list(map(made.append, map(_core.stats_trace, [[(buffer.compiled, None, "net", None)]]))),
    "file": lambda: buffer.write_trace(f"{folder}/trace.json"),
}[what]
outcome = interrupted(call)
print(json.dumps({"result": outcome, "after": len(buffer.ops), "made": len(made)}))
"""


@pytest.mark.parametrize("what", ["trace", "file"])
def test_ctrl_c_ends_the_writing_of_a_trace(tmp_path, what):
    outcome = json.loads(run_script(CTRL_C, what, tmp_path).stdout)
    assert outcome["result"] == "interrupted"
    assert outcome["after"] == 5_000_000
    assert outcome["made"] == 0
    assert list(tmp_path.iterdir()) == []
