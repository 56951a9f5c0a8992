"""Commands whose streams were closed by the parent process."""

import subprocess
import sys

import pytest

from qpc_support import container, program


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("module", ["qaic.cli.qpc info net.bin", "qaic info"])
def test_closed_streams_are_no_error(tmp_path, module, closed):
    (tmp_path / "net.bin").write_bytes(container(program()))
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m {module} {closed}', sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
