"""Tests that also run in the guest with the mainline driver, and the reasons why others do not.

Every test file that opens a device is in :data:`FILES`, or it or its folder is in :data:`LEFT_OUT`
(tests/repository/test_card_differences.py checks this). `make test-kmd` runs the files in LEFT_OUT on the
emulated driver, whose calls give the same replies as the mainline driver (rust/qaic-emu/tests/differential).
"""

#: Test files.
FILES = (
    "tests/api/test_devices.py",
    "tests/api/test_opening_forms.py",
    "tests/session/test_session_futures.py",
    "tests/session/test_session_map.py",
    "tests/session/test_session_metrics.py",
    "tests/session/test_session_refusals.py",
    "tests/session/test_session_run.py",
    "tests/session/test_session_shapes.py",
    "tests/session/test_session_state.py",
    "tests/qaicrt/test_benchmark_set.py",
    "tests/qaicrt/test_dma_buf.py",
    "tests/qaicrt/test_exec_obj.py",
    "tests/qaicrt/test_inference_handle.py",
    "tests/qaicrt/test_inference_set.py",
    "tests/qaicrt/test_inference_set_states.py",
    "tests/qaicrt/test_inference_vector.py",
    "tests/qaicrt/test_io_crc.py",
    "tests/qaicrt/test_profiling.py",
    "tests/rt/test_profiling_stream.py",
    "tests/rt/test_program.py",
    "tests/rt/test_rules.py",
    "tests/qaicrt/test_qbuffer.py",
    "tests/qaicrt/test_queue.py",
    "tests/qaicrt/test_shapes.py",
    "tests/qaicrt/test_slicing.py",
    "tests/qaicrt/test_stats_binding.py",
)

_NO_LOSSES = "Linux 6.12 reports no cores that fail, so the wait ends by its limit"
_OPENED_THERE = "the card's process opens the engine"

#: Tests that cannot run there, by a part of their name, with the reason.
EXCLUDED = {
    "test_a_queue_of_another_device_is_refused": "the guest has one card",
    "test_without_a_device_it_is_the_first_of_the_context": "the guest has one card",
    "test_without_a_device_it_is_the_first_with_enough_free_cores": "the guest has one card",
    "test_unknown_devices_are_named": "the guest has one card",
    "test_devices_outside_the_context_are_unknown": "the guest has one card",
    "test_an_empty_buffer_is_no_wish": "the engine runs in the card's process, which has another TMPDIR",
    "test_output_larger_than_declared_is_an_error_not_a_cut": _NO_LOSSES,
    "test_benchmark_failure_is_raised": _NO_LOSSES,
    "test_inferences_ended_by_the_failure_of_another_leave_their_objects_usable": _NO_LOSSES,
    "test_missing_engine_names_the_place_and_the_package": _OPENED_THERE,
    "test_engine_that_is_no_library": _OPENED_THERE,
    "test_engine_that_is_another_library": _OPENED_THERE,
    "test_8_probing_for_hardware_succeeds_without_a_card": "the guest has a card",
}

_ABOVE = "is about what lies above the calls, on which cards have no say"
_NUMBERS = "is about numbers that the engine computes, which runs in the card's process all the same"
_EMULATED = "holds the emulated card from behind"
_SEVERAL = "takes several devices"
_NOT_LOOKED_AT = "most of it passes there; which tests cannot, and why, has not been looked at"
_ENGINE = "looks at the engine's files or failures, which are in the card's process"

#: Excluded files and folders, with the reason; if both are listed, the entry of the file applies.
LEFT_OUT = {
    "tests/accuracy": _NUMBERS,
    "tests/cli": _ABOVE,
    "tests/compilation": _ABOVE,
    "tests/conformance": _NUMBERS,
    "tests/property": _NUMBERS,
    "tests/property/test_exec_obj_properties.py": "takes longer than the guest has",
    "tests/property/test_kmd_models.py": _EMULATED,
    "tests/property/test_kmd_random_faults.py": _EMULATED,
    "tests/property/test_kmd_random_programs.py": _EMULATED,
    "tests/qpc": _ABOVE,
    "tests/quantized": _NUMBERS,
    "tests/ray": _ABOVE,
    "tests/scale": _ABOVE,
    "tests/serving": _ABOVE,
    "tests/threads": "counts switches of threads, of which the guest with its one processor has others",
    "tests/threads/test_card_interrupts.py": _EMULATED,
    "tests/unit": _ABOVE,
    "tests/session/test_decoder_costs.py": _ENGINE,
    "tests/session/test_decoder_forks.py": "forks, and the guest has no memory for it",
    "tests/session/test_elementwise.py": _NUMBERS,
    "tests/unit/test_hostile_session.py": "forks, and the guest has no memory for it",
    "tests/api/test_batcher.py": _ABOVE,
    "tests/api/test_cards.py": "is about virtual cards",
    "tests/compilation/test_custom_ops.py": _ENGINE,
    "tests/api/test_device_claim.py": _ABOVE,
    "tests/api/test_device_stats.py": _ENGINE,
    "tests/compilation/test_dynamo_exports.py": _NUMBERS,
    "tests/compilation/test_engine_graph.py": _ENGINE,
    "tests/compilation/test_external_constants.py": _NUMBERS,
    "tests/api/test_hardware_family.py": _SEVERAL,
    "tests/api/test_kmd_programs.py": _EMULATED,
    "tests/api/test_messages.py": _ABOVE,
    "tests/api/test_mixed_devices.py": _SEVERAL,
    "tests/api/test_moving_guide.py": _ABOVE,
    "tests/compilation/test_op_profiles.py": _ENGINE,
    "tests/compilation/test_option_effects.py": _NUMBERS,
    "tests/api/test_serving_packages.py": _ABOVE,
    "tests/session/test_session_lifecycle.py": _NOT_LOOKED_AT,
    # The driver's ATTACH_SLICE_BO returns ENOSPC, like the emulated driver if memory is in small pieces.
    "tests/session/test_session_limits.py": "its buffers have more pieces there than a ring has places",
    "tests/session/test_session_memory.py": _ENGINE,
    "tests/session/test_session_profile.py": _ENGINE,
    "tests/session/test_session_placement.py": _SEVERAL,
    "tests/session/test_session_state_rows.py": _NUMBERS,
    "tests/api/test_shared_cores.py": "is about virtual cards",
    "tests/session/test_host_memory.py": "is about virtual cards",
    "tests/api/test_visible_devices.py": _SEVERAL,
    "tests/qaicrt/test_documented_signatures.py": _ABOVE,
    "tests/rt/test_context.py": _SEVERAL,
    "tests/rt/test_decoder.py": _NUMBERS,
    "tests/rt/test_device_metrics_table.py": _ABOVE,
    "tests/rt/test_dims.py": _ABOVE,
    "tests/rt/test_emulated_cards.py": _EMULATED,
    "tests/rt/test_enums.py": _ABOVE,
    "tests/rt/test_llm_exports.py": _NUMBERS,
    "tests/rt/test_partitions.py": _SEVERAL,
    "tests/rt/test_pb2.py": _ABOVE,
    "tests/rt/test_rt_qpc.py": _ABOVE,
    "tests/qaicrt/test_surface.py": _ABOVE,
    "tests/rt/test_util.py": "is about facts of the emulated machine",
    "tests/rt/test_values.py": _ABOVE,
}


def pytest_collection_modifyitems(config, items):
    """Exclude tests that cannot run there (this module is a plugin of pytest)."""
    excluded = [item for item in items if any(part in item.nodeid for part in EXCLUDED)]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in excluded]
