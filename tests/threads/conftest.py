"""Fixtures for the tests of threads."""

import sys

import pytest


@pytest.fixture
def never_preempted():
    """Threads give the GIL up only of their own accord, so what ran in between is certain."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)
