"""Which tests of the suite run again in the guest, on the mainline driver, and why others do not.

A guest is slow: a tenth of the tests that open a device take what time there is. They are those in which the driver has a
part. The folders that `make test-kmd` runs besides look at what is above the calls, and run there on the emulated driver,
whose calls answer as the mainline one's do (rust/qaic-emu/tests/differential).
"""

#: files of tests
FILES = (
    "tests/api/test_devices.py",
    "tests/api/test_session_lifecycle.py",
    "tests/api/test_session_run.py",
    "tests/api/test_session_futures.py",
    "tests/api/test_session_shapes.py",
    "tests/api/test_device_stats.py",
    "tests/qaicrt/test_context.py",
    "tests/qaicrt/test_program.py",
    "tests/qaicrt/test_exec_obj.py",
    "tests/qaicrt/test_inference_set.py",
    "tests/qaicrt/test_queue.py",
    "tests/qaicrt/test_profiling.py",
    "tests/threads/test_session_threads.py",
    "tests/threads/test_exec_objs.py",
)

#: tests that cannot be there, by a part of their name, with the reason
EXCLUDED = {
    "test_output_larger_than_declared_is_an_error_not_a_cut": "Linux 6.12 does not tell of cores that fail: 30 s each",
    "test_without_a_device_it_is_the_first": "takes several cards, the guest has one",
    "test_unknown_devices_are_named": "takes several cards, the guest has one",
    "test_devices_outside_the_context_are_unknown": "takes several cards, the guest has one",
}


def pytest_collection_modifyitems(config, items):
    """Leave out what cannot be there (this is a plugin of pytest)."""
    excluded = [item for item in items if any(part in item.nodeid for part in EXCLUDED)]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in excluded]
