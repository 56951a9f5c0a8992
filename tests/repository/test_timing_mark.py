"""`make adverse-timing` repeats the tests that use time, signals, threads or processes."""

from pathlib import Path

import pytest

import timing

_USES = [
    "import time\nclass TestA:\n    def test_a(self):\n        time.sleep(0)\n",
    "import time\ndef test_a():\n    time.sleep(0)\n",
    "from threading import Thread as T\ndef test_a():\n    T()\n",
    "import os\ndef test_a():\n    os.fork()\n",
    "import signal\ndef f():\n    return signal.SIGINT\ndef g():\n    f()\ndef test_a():\n    g()\n",
    "import asyncio\n@pytest.fixture\ndef loop():\n    asyncio.run(x)\ndef test_a(loop):\n    pass\n",
    'SCRIPT = """\nimport threading\n"""\ndef test_a():\n    run(SCRIPT)\n',
]


@pytest.mark.parametrize("uses", _USES)
def test_tests_are_chosen_by_what_they_use(tmp_path, uses):
    file = tmp_path / "test_made.py"
    file.write_text(f'{uses}\ndef test_b():\n    """Another time."""\n')
    assert timing.tests_of(file) == {"test_a"}


def test_all_tests_of_threads_are_chosen():
    file = Path(timing.__file__).parent / "threads" / "test_idle.py"
    assert "test_session_that_runs_nothing_wakes_no_thread" in timing.tests_of(file)
