"""A sub-interpreter is refused: a process that loaded the engine in one did not end."""

import sys

import pytest

import child_process

SOURCE = """
import sys
import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import qaic; qaic.Session
except ImportError as error:
    message = str(error)
else:
    raise SystemError("imported")
assert "multiprocessing" in message and "main interpreter" in message, message
''')
import qaic
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the private module has another name")
def test_import_in_a_sub_interpreter_is_refused_and_the_process_ends():
    child_process.run_script(SOURCE)
