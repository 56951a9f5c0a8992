"""Which tests of the suite run again in the guest, on the mainline driver, and why others do not.

They are some of those in which the driver has a part. The others look at what is above the calls, take
several cards, hold a card from behind, or fail its cores, which Linux 6.12 does not tell of: `make test-kmd`
runs them on the emulated driver, whose calls answer as the mainline one's do
(rust/qaic-emu/tests/differential).

tests/api/test_device_stats.py cannot run there: it looks for the engine's profiles in a folder of its own
process, and the engine runs in the card's.
"""

#: files of tests
FILES = (
    "tests/api/test_devices.py",
    "tests/session/test_session_futures.py",
    "tests/session/test_session_run.py",
    "tests/session/test_session_shapes.py",
    "tests/qaicrt/test_benchmark_set.py",
    "tests/qaicrt/test_dma_buf.py",
    "tests/qaicrt/test_exec_obj.py",
    "tests/qaicrt/test_inference_handle.py",
    "tests/qaicrt/test_inference_set.py",
    "tests/qaicrt/test_inference_set_states.py",
    "tests/qaicrt/test_inference_vector.py",
    "tests/qaicrt/test_io_crc.py",
    "tests/qaicrt/test_profiling.py",
    "tests/qaicrt/test_qbuffer.py",
    "tests/qaicrt/test_queue.py",
    "tests/qaicrt/test_shapes.py",
    "tests/qaicrt/test_slicing.py",
    "tests/qaicrt/test_stats_binding.py",
)

#: tests that cannot be there, by a part of their name, with the reason
EXCLUDED = {
    "test_a_queue_of_another_device_is_refused": "the guest has one card",
    "test_an_empty_buffer_is_no_wish": "the engine runs in the card's process, which has another TMPDIR",
    "test_output_larger_than_declared_is_an_error_not_a_cut": "Linux 6.12 does not tell of cores that fail",
}


def pytest_collection_modifyitems(config, items):
    """Leave out what cannot be there (this is a plugin of pytest)."""
    excluded = [item for item in items if any(part in item.nodeid for part in EXCLUDED)]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in excluded]
