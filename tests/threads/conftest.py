"""Fixtures for the tests of threads."""

import sys

import pytest


@pytest.fixture
def never_preempted():
    """Threads release the GIL only at defined points, so the order of execution is known."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)
