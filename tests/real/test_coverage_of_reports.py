"""Which test stands for which line of the two lists that this project started from.

One is of what the suites of earlier systems check (TB: TVM's pool, builder and runner; AB: AITune's telemetry; PB: PyTorch's
tuning processes), the other of faults that were reported for systems like this one (T, Y, N, K, P). A line may be
covered by several tests (`module::name`); what of it is open, or does not apply, has its reason. The lists themselves are
no part of the repository, so that the comparison with them is skipped where they are not at hand.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
A_LINES_ID = re.compile(r"^\| ((?:TB|AB|PB)\d+|[TYNKP]-\d+[a-z]?) \|", re.MULTILINE)

COVERED = {
    # TVM's pool.
    "TB01": ["test_seeds::test_one_worker_object_goes_through_a_timeout_an_exit_and_values"],
    "TB02": ["test_seeds::test_one_worker_object_goes_through_a_timeout_an_exit_and_values"],
    "TB03": ["test_seeds::test_one_worker_object_goes_through_a_timeout_an_exit_and_values"],
    "TB04": ["test_supervision::test_maximum_uses_counts_calls_and_not_the_initializer"],
    "TB05": [
        "test_seeds::test_a_use_limit_of_two_gives_processes_a_a_b_and_a_is_gone",
        "test_supervision::test_maximum_uses_counts_calls_and_not_the_initializer",
    ],
    "TB06": ["test_seeds::test_four_endings_at_once_each_reach_their_own_caller"],
    "TB07": [
        "test_reported_faults::test_a_hang_a_fault_and_an_exit_among_a_hundred_cost_three_and_keep_the_order"
    ],
    "TB08": ["test_reported_faults::test_environment_and_initializer_reach_every_later_process"],
    "TB09": [
        "test_reported_faults::test_environment_and_initializer_reach_every_later_process",
        "test_supervision::test_maximum_uses_counts_calls_and_not_the_initializer",
    ],
    "TB10": ["test_seeds::test_what_an_initializer_registered_is_found_by_its_name"],
    "TB11": ["test_seeds::test_a_call_that_takes_just_its_limit_completes_or_times_out_and_nothing_else"],
    "TB12": ["test_seeds::test_a_use_limit_of_two_gives_processes_a_a_b_and_a_is_gone"],
    # TVM's builder and runner: here one measurement, and a search of them.
    "TB13": ["test_tuning::test_every_configuration_is_tried_and_the_fastest_is_the_best"],
    "TB14": [
        "test_opencl_kernels::test_what_the_compiler_says_comes_with_the_error",
        "test_benchmarking::test_outcomes_hold_what_benchmark_would_raise",
    ],
    "TB15": ["test_benchmarking::test_a_compilation_that_takes_too_long_is_told_from_a_slow_kernel"],
    "TB16": [
        "test_arguments::test_a_reference_that_cannot_be_compared_is_an_invalid_kernel",
        "test_tuning::test_what_cannot_be_asked_for_is_refused_before_anything_runs",
    ],
    "TB17": ["test_tuning::test_failures_are_kept_as_what_they_are_and_the_search_goes_on"],
    "TB18": ["test_benchmarking::test_a_right_kernel_is_measured_in_another_process"],
    "TB19": ["test_tuning::test_a_strategy_that_raises_ends_the_run_with_its_error"],
    "TB21": ["test_calls::test_an_initializer_that_hangs_is_a_timeout_of_its_phase"],
    "TB22": ["test_benchmarking::test_what_a_callable_raises_is_raised_here"],
    "TB23": [
        "test_arguments::test_a_reference_that_writes_its_inputs_fails",
        "test_opencl_kernels::test_a_right_kernel_has_a_time_and_says_how_it_was_taken",
    ],
    # PyTorch's tuning processes.
    "PB01": ["test_calls::test_a_timeout_is_kept_whatever_the_child_does"],
    "PB02": [
        "test_calls::test_an_exception_is_raised_as_itself_with_the_remote_traceback_as_its_cause",
        "test_attacks::test_odd_exceptions_are_errors_of_their_call",
    ],
    "PB03": ["test_seeds::test_one_worker_object_goes_through_a_timeout_an_exit_and_values"],
    "PB04": [
        "test_calls::test_a_worker_can_be_killed_and_joined_and_serves_again",
        "test_lifetime::test_the_death_of_an_idle_process_costs_no_call",
    ],
    "PB05": ["test_seeds::test_each_worker_sees_its_own_device_before_its_first_import"],
    "PB06": ["test_calls::test_a_crash_names_the_signal_and_costs_its_own_call"],
    "PB07": ["test_calls::test_a_timeout_is_kept_whatever_the_child_does"],
    "PB08": ["test_seeds::test_a_pool_on_the_last_two_of_four_devices_uses_these_two"],
    "PB09": [
        "test_masks::test_a_child_sees_one_gpu_of_those_that_its_parent_sees",
        "test_masks::test_other_devices_leave_the_mask_alone",
    ],
    # PyTorch's compile pool.
    "PB10": ["test_calls::test_values_arguments_and_keyword_arguments"],
    "PB11": [
        "test_reported_faults::test_an_exception_that_cannot_travel_is_told_with_type_message_and_traceback"
    ],
    "PB12": ["test_calls::test_a_crash_costs_no_other_call"],
    "PB13": ["test_seeds::test_a_guard_that_is_killed_from_outside_ends_the_call_that_runs"],
    "PB14": [
        "test_seeds::test_draining_twice_at_once_and_again_and_again_loses_no_call",
        "test_supervision::test_idle_processes_shrink_and_grow_again_unseen",
    ],
    "PB15": ["test_supervision::test_output_is_copied_to_a_file_as_it_comes"],
    "PB16": [
        "test_seeds::test_closing_waits_for_no_call_that_is_provably_inside",
        "test_supervision::test_whoever_ignores_every_signal_is_killed",
    ],
    "PB17": ["test_seeds::test_closing_waits_for_no_call_that_is_provably_inside"],
    "PB18": [
        "test_streams_of_calls::test_it_is_told_which_call_runs_in_which_phase_and_which_waits",
        "test_seeds::test_while_a_call_runs_it_is_shown_and_what_waits_is_shown_as_waiting",
        "test_supervision::test_events_and_statistics_say_what_runs_where_since_when",
    ],
    "PB19": [
        "test_seeds::test_an_idle_limit_that_is_armed_and_withdrawn_by_rapid_calls_costs_none",
        "test_lifecycle::test_a_new_call_withdraws_the_idle_limit",
        "test_supervision_in_virtual_time::test_an_idle_process_is_ended_after_its_time",
    ],
    "PB20": ["test_supervision::test_the_environment_of_a_call_is_undone_after_it"],
    "PB21": ["test_seeds::test_the_guard_forks_while_it_has_one_thread_and_a_worker_begins_with_one"],
    # PyTorch's benchmarker.
    "PB22": ["test_cpu_callables::test_a_callable_is_timed_by_the_wall_clock"],
    "PB23": ["test_benchmarking::test_what_is_asked_wrongly_is_an_error_before_anything_runs"],
    "PB24": ["test_procedure::test_one_measurement_goes_through_its_steps_in_order"],
    # Reports of TVM.
    "T-01": ["test_calls::test_a_timeout_is_kept_whatever_the_child_does"],
    "T-02": [
        "test_reported_faults::test_memory_stays_flat_though_every_call_leaks",
        "test_supervision::test_a_process_that_leaks_is_replaced_between_calls",
    ],
    "T-03": [
        "test_calls::test_a_limit_counts_from_the_start_of_execution_and_not_from_the_queue",
        "test_calls::test_waiting_for_a_worker_has_a_limit_of_its_own",
    ],
    "T-05": [
        "test_lifetime::test_nothing_outlives_the_parent_however_it_ends",
        "test_reported_faults::test_an_idle_process_and_its_guard_do_not_wake_up",
    ],
    "T-07": ["test_lifetime::test_no_descendant_is_left"],
    "T-08": [
        "test_reported_faults::test_timeout_crash_broken_protocol_and_exception_are_told_apart",
        "test_supervision::test_limits_name_phase_limit_and_device",
        "test_supervision::test_a_broken_protocol_names_the_process_and_its_device",
    ],
    "T-12": [
        "test_reported_faults::"
        "test_crashes_that_write_a_megabyte_each_keep_their_own_end_of_it_and_the_console_stays_empty"
    ],
    "T-13": ["test_reported_faults::test_environment_and_initializer_reach_every_later_process"],
    "T-23": ["test_procedure::test_a_launch_below_the_clocks_step_is_never_a_time_of_zero"],
    "T-25": ["test_lifetime::test_closing_kills_what_runs_and_tells_what_waits"],
    "T-26": [
        "test_calls::test_an_initializer_that_fails_gives_its_error_and_no_call_begins",
        "test_calls::test_what_cannot_travel_costs_its_own_call_and_says_which_part",
        "test_reported_faults::"
        "test_exceptions_whose_constructors_take_more_than_a_message_come_back_as_themselves",
        "test_reported_faults::"
        "test_a_worker_that_dies_again_and_again_in_the_middle_of_its_reply_hurts_no_neighbour",
    ],
    # Reports of PyTorch.
    "Y-03": [
        "test_reported_faults::test_a_standard_output_that_is_closed_and_opened_again_is_captured_again",
        "test_calls::test_the_standard_descriptors_are_the_callables_own",
        "test_calls::test_a_flood_of_output_is_bounded_and_harmless",
    ],
    "Y-06": [
        "test_lifetime::test_lambdas_closures_and_functions_of_main_work_from_a_script_without_a_guard",
        "test_lifetime::test_under_asyncios_debug_mode_and_with_warnings_as_errors",
    ],
    "Y-07": [
        "test_reported_faults::test_an_exception_that_cannot_travel_is_told_with_type_message_and_traceback"
    ],
    "Y-08": [
        "test_calls::test_a_device_fault_replaces_the_process",
        "test_cuda_flow::test_an_error_after_which_the_device_is_dead_is_a_fault",
        "test_gpu::test_an_illegal_access_is_a_fault_and_the_next_kernel_runs_in_a_fresh_process",
    ],
    "Y-12": ["test_reported_faults::test_of_calls_in_flight_and_queued_only_the_one_that_crashed_is_blamed"],
    "Y-17": [
        "test_seeds::test_a_process_gets_its_share_of_the_parents_mask_or_the_pool_is_refused",
        "test_masks::test_a_child_sees_one_gpu_of_those_that_its_parent_sees",
        "test_masks::test_a_mask_that_hides_the_gpu_or_is_none_is_an_error_that_quotes_it",
    ],
    "Y-18": [
        "test_lifetime::test_a_grandchild_that_holds_the_pipes_hides_nothing",
        "test_endpoints::test_a_worker_has_its_three_descriptors_and_the_protocols",
    ],
    "Y-19": [
        "test_attacks::test_odd_exceptions_are_errors_of_their_call",
        "test_attacks::test_a_result_that_exits_when_it_is_loaded_is_an_error_of_its_call",
        "test_calls::test_leaving_the_interpreter_is_an_error_of_the_call_and_keeps_the_process",
        "test_supervision_in_virtual_time::"
        "test_wherever_a_process_dies_its_call_has_one_outcome_and_the_next_one_runs",
    ],
    "Y-21": ["test_reported_faults::test_of_calls_in_flight_and_queued_only_the_one_that_crashed_is_blamed"],
    "Y-22": ["test_reported_faults::test_leaving_with_many_busy_workers_takes_less_than_starting_them"],
    "Y-26": [
        "test_supervision::test_workers_are_no_more_than_memory_has_room_for",
        "test_supervision::test_idle_processes_shrink_and_grow_again_unseen",
    ],
    "Y-31": ["test_supervision::test_a_tree_that_grows_over_its_limit_is_ended_and_its_limit_named"],
    "Y-34": ["test_calls::test_what_cannot_travel_costs_its_own_call_and_says_which_part"],
    # AITune's telemetry.
    "AB01": ["test_client::test_a_snapshot_is_one_call_that_is_awaited"],
    "AB02": ["test_telemetry::test_what_is_not_open_says_so"],
    "AB03": [
        "test_telemetry::test_a_snapshot_takes_what_is_held_and_without_reset_leaves_it",
        "test_store::test_reading_what_is_held_takes_nothing_away",
    ],
    "AB04": [
        "test_telemetry::test_a_snapshot_takes_what_is_held_and_without_reset_leaves_it",
        "test_telemetry::test_a_path_that_cannot_be_written_is_an_error_and_loses_no_row",
    ],
    "AB05": [
        "test_telemetry::test_nothing_is_sampled_while_no_scope_is_open",
        "test_telemetry::test_nested_scopes_have_paths_and_labels_and_the_outer_one_goes_on",
        "test_sampling::test_closing_what_is_not_open_is_an_error",
        "test_client::test_closing_a_scope_twice_is_an_error",
    ],
    "AB06": ["test_telemetry::test_while_a_scope_is_open_rows_of_every_provider_come_by_themselves"],
    "AB07": ["test_telemetry::test_opening_twice_is_opening_once"],
    "AB08": [
        "test_telemetry::test_telemetry_that_is_not_enabled_starts_nothing_and_does_nothing",
        "test_client::test_the_environment_says_whether_to_sample",
    ],
    "AB09": [
        "test_telemetry::test_closing_writes_what_no_snapshot_took_to_one_file_once",
        "test_telemetry::test_a_loop_that_ends_without_closing_loses_no_row",
    ],
    "AB10": ["test_telemetry::test_telemetry_that_is_not_enabled_starts_nothing_and_does_nothing"],
    "AB11": [
        "test_telemetry::test_the_environment_may_say_where_the_rows_go",
        "test_telemetry::test_closing_writes_what_no_snapshot_took_to_one_file_once",
        "test_telemetry::test_when_the_parent_is_killed_its_rows_are_in_exactly_one_file",
    ],
    "AB12": [
        "test_providers::test_the_host_has_memory_and_a_use_between_two_readings",
        "test_providers::test_a_gpu_is_read_in_the_units_of_its_names",
        "test_providers::test_without_a_mask_every_gpu_is_read_as_cuda_numbers_it",
        "test_telemetry::test_gpus_are_read_as_far_as_the_mask_shows_them",
    ],
    "AB13": [
        "test_telemetry::test_a_scope_is_closed_by_an_exception",
        "test_telemetry::test_annotated_functions_run_in_scopes_of_their_names",
        "test_client::test_a_scope_is_of_one_block_and_has_a_name",
    ],
    # Reports of newer tuners.
    "N-01": [
        "test_reported_faults::test_a_hang_a_fault_and_an_exit_among_a_hundred_cost_three_and_keep_the_order"
    ],
    "N-06": [
        "test_calls::test_a_device_fault_replaces_the_process",
        "test_supervision::test_a_process_whose_device_does_not_work_after_an_interrupt_is_replaced",
    ],
    "N-09": [
        "test_calls::test_cancelling_the_awaiting_task_stops_the_work",
        "test_lifetime::test_no_descendant_is_left",
    ],
    # Reports of measurement and tuning.
    "K-01": ["test_gpu::test_an_endless_kernel_reaches_its_limit_and_the_next_one_is_good"],
    "K-02": [
        "test_reported_faults::test_a_hang_a_fault_and_an_exit_among_a_hundred_cost_three_and_keep_the_order",
        "test_real_tuning::test_every_mistake_costs_itself_alone_and_is_told_as_what_it_is",
    ],
    "K-03": [
        "test_benchmarking::test_each_failure_has_its_own_kind_and_the_next_kernel_is_good",
        "test_import_cost::test_the_parent_of_a_benchmark_loads_no_library_of_the_work",
    ],
    "K-05": [
        "test_benchmarking::test_a_compilation_that_takes_too_long_is_told_from_a_slow_kernel",
        "test_lifecycle::test_the_phases_of_a_call_have_limits_of_their_own_and_go_forward_only",
    ],
    "K-06": [
        "test_calls::test_a_crash_names_the_signal_and_costs_its_own_call",
        "test_supervision::test_workers_are_no_more_than_memory_has_room_for",
    ],
    "K-08": [
        "test_reported_faults::test_a_parent_that_has_used_its_device_has_workers_that_can_use_it_too",
    ],
    "K-11": [
        "test_lifetime::test_lambdas_closures_and_functions_of_main_work_from_a_script_without_a_guard",
        "test_supervision::test_whoever_ignores_every_signal_is_killed",
    ],
    "K-16": [
        "test_reported_faults::test_an_abort_in_the_compile_stage_is_a_crash_there_and_the_sweep_goes_on"
    ],
    "K-17": ["test_real_tuning::test_every_mistake_costs_itself_alone_and_is_told_as_what_it_is"],
    "K-22": ["test_interrupting::test_it_ends_says_what_was_done_keeps_the_results_and_leaves_no_process"],
    "K-26": ["test_cuda_flow::test_a_callable_that_launches_nothing_is_found_out"],
    "K-31": [
        "test_cpu_callables::test_a_candidate_that_replaces_the_clock_does_not_change_its_time",
        "test_measurements::test_a_time_that_is_none_is_no_measurement",
    ],
    "K-33": [
        "test_calls::test_each_stage_has_its_own_limit",
        "test_benchmarking::test_a_limit_names_the_stage_that_was_too_slow",
        "test_supervision_in_virtual_time::test_each_limit_names_its_stage_at_its_time",
    ],
    "K-35": [
        "test_reported_faults::test_a_slow_compilation_before_a_fast_run_is_not_under_the_limit_of_the_run"
    ],
    # Reports of pools, subprocesses and streams.
    "P-1": ["test_lifetime::test_a_grandchild_that_holds_the_pipes_hides_nothing"],
    "P-2": [
        "test_reported_faults::test_closing_does_not_wait_for_a_worker_that_stopped_reading",
        "test_endpoints::test_closing_is_bounded_whatever_the_child_does",
        "test_attacks::test_a_send_that_waits_when_the_endpoint_is_closed_says_so",
    ],
    "P-4": [
        "test_lifetime::test_cancelling_at_random_instants_leaves_nothing",
        "test_lifetime::test_cancelling_an_opening_or_a_closing_leaves_nothing",
        "test_endpoints::test_cancelling_a_spawn_at_any_instant_leaves_nothing",
    ],
    "P-7": ["test_supervision_in_virtual_time::test_closing_is_bounded_when_a_process_cannot_be_reaped"],
    "P-8": ["test_calls::test_a_flood_of_output_is_bounded_and_harmless"],
    "P-12": ["test_lifetime::test_on_uvloop"],
    "P-13": [
        "test_reported_faults::test_a_frame_of_three_hundred_megabytes_arrives",
        "test_calls::test_a_flood_of_output_is_bounded_and_harmless",
    ],
    "P-16": [
        "test_calls::test_what_cannot_travel_costs_its_own_call_and_says_which_part",
        "test_reported_faults::test_an_exception_that_cannot_travel_is_told_with_type_message_and_traceback",
    ],
    "P-18": [
        "test_lifetime::test_the_death_of_an_idle_process_costs_no_call",
        "test_reported_faults::test_a_worker_that_dies_while_it_reads_a_call_has_not_begun_it",
        "test_reported_faults::"
        "test_a_worker_that_dies_again_and_again_in_the_middle_of_its_reply_hurts_no_neighbour",
        "test_supervision_in_virtual_time::test_a_reply_that_breaks_off_is_a_crash",
    ],
    "P-20": [
        "test_reported_faults::"
        "test_a_worker_that_dies_again_and_again_in_the_middle_of_its_reply_hurts_no_neighbour"
    ],
    "P-23": ["test_calls::test_a_cancelled_call_that_waits_never_begins"],
    "P-24": ["test_calls::test_cancelling_the_awaiting_task_stops_the_work"],
    "P-26": [
        "test_reported_faults::test_six_ways_to_die_are_six_sentences",
        "test_calls::test_a_crash_names_the_signal_and_costs_its_own_call",
    ],
    "P-27": [
        "test_reported_faults::test_a_hang_a_fault_and_an_exit_among_a_hundred_cost_three_and_keep_the_order",
        "test_calls::test_map_raises_at_the_first_failure_and_map_outcomes_does_not",
    ],
    "P-31": [
        "test_reported_faults::test_after_sigterm_a_worker_gets_no_other_call_though_it_answers",
        "test_supervision::test_no_interrupt_lands_in_a_neighbour",
        "test_lifecycle::test_a_call_that_ends_when_it_is_interrupted_keeps_its_process",
    ],
    "P-31b": ["test_reported_faults::test_a_slow_initializer_is_under_its_own_limit_in_every_process"],
    "P-31c": [
        "test_calls::test_a_child_that_closes_its_channel_and_lives_is_given_up_at_once",
        "test_calls::test_a_child_that_breaks_the_protocol_loses_its_process_only",
    ],
    "P-35": ["test_supervision::test_no_interrupt_lands_in_a_neighbour"],
    "P-36": [
        "test_lifetime::test_nothing_outlives_the_parent_however_it_ends",
        "test_reported_faults::test_a_parent_that_is_killed_leaves_no_worker",
        "test_lifetime::test_a_process_whose_interpreter_never_starts_does_not_outlive_the_parent",
    ],
    "P-38": ["test_lifetime::test_no_descendant_is_left"],
    "P-39": [
        "test_lifetime::test_a_callables_own_children_keep_their_exit_codes",
        "test_attacks::test_exit_codes_are_kept_where_the_parent_ignores_its_children",
    ],
    "P-45": [
        "test_reported_faults::test_ctrl_c_at_a_terminal_cancels_what_the_parent_cancels_and_hurts_no_worker"
    ],
    "P-46": ["test_reported_faults::test_a_worker_outlives_the_thread_that_started_it"],
    "P-48": ["test_supervision::test_whoever_ignores_every_signal_is_killed"],
    "P-49": [
        "test_supervision_in_virtual_time::test_what_cannot_be_reaped_costs_its_slot_and_says_so",
        "test_supervision_in_virtual_time::test_closing_is_bounded_when_a_process_cannot_be_reaped",
    ],
    "P-53": ["test_reported_faults::test_what_c_writes_to_stderr_before_it_aborts_is_in_the_error"],
    "P-54": [
        "test_reported_faults::test_what_a_grandchild_prints_is_output_of_the_call",
        "test_calls::test_what_a_call_prints_is_on_its_outcome_and_nowhere_else",
        "test_attacks::test_what_c_code_prints_belongs_to_its_call",
    ],
    "P-55": ["test_reported_faults::test_binary_junk_that_looks_like_frames_stays_output"],
    "P-58": ["test_calls::test_what_a_call_prints_is_on_its_outcome_and_nowhere_else"],
    "P-59": [
        "test_supervision::test_a_postmortem_says_how_a_process_ended_and_what_it_did_last",
        "test_supervision::test_a_crash_says_what_was_called_with_what_and_what_it_took",
    ],
    "P-60": ["test_reported_faults::test_however_often_and_whenever_it_is_killed_the_signal_is_known"],
    "P-62": [
        "test_reported_faults::test_a_cause_and_notes_within_a_group_arrive",
        "test_exceptions::test_chain_notes_and_groups_survive",
    ],
    "P-63": ["test_reported_faults::test_of_calls_in_flight_and_queued_only_the_one_that_crashed_is_blamed"],
    "P-66": ["test_calls::test_a_timeout_is_kept_whatever_the_child_does"],
    "P-69": ["test_seeds::test_each_worker_sees_its_own_device_before_its_first_import"],
    "P-71": [
        "test_reported_faults::test_a_large_array_is_in_a_workers_memory_once",
        "test_bulk::test_memory_is_used_again_however_many_arrays_pass",
        "test_codecs::test_an_array_travels_out_of_band",
        "test_frames::test_a_small_frame_is_one_part_and_a_large_buffer_is_not_copied",
    ],
    "P-72": [
        "test_calls::test_map_keeps_the_order_takes_items_as_it_goes_and_stops_early",
        "test_streams_of_calls::test_reports_come_in_order_and_then_the_result",
    ],
    "P-77": [
        "test_attacks::test_a_hostile_description_costs_its_own_call_only",
        "test_calls::test_results_as_msgspec_are_rebuilt_and_checked_and_never_unpickled",
        "test_endpoints::test_a_child_cannot_choose_to_be_unpickled",
    ],
    "P-78": ["test_calls::test_a_call_runs_on_the_main_thread"],
    "P-82": [
        "test_reported_faults::test_a_spare_of_a_pinned_device_is_not_initialised_before_it_is_needed",
        "test_supervision::test_draining_brings_the_process_count_to_zero_and_the_pool_goes_on",
    ],
    "P-85": ["test_reported_faults::test_a_step_of_the_wall_clock_is_no_timeout_and_no_age"],
}

REMOTE = "other machines are not offered yet; one process on this one has limits of its own for each stage"
CACHE_POLICY = "cold and warm caches as a policy of a measurement are not offered yet"
DEVICE_STATE = "a device's clocks and state are not recorded with a measurement yet"
STORE = "a store of trials that a later search reads is not offered yet"

OPEN = {
    "TB20": REMOTE,
    "TB24": REMOTE,
    "TB25": REMOTE,
    "PB09": "only CUDA has a mask here: OpenCL devices are numbered, and other vendors' runtimes not offered",
    "PB10": "a pool never forks its parent, so that there is one way to start a process",
    "PB25": "devices of a user's own kind are not offered; a callable is measured as it is",
    "PB26": "a lock on a device between pools and processes is not offered yet",
    "PB27": "launching by CUDA graphs is not offered yet",
    "PB28": "a profiler as a clock is not offered: events and the profiling of OpenCL are",
    "PB29": "devices of a user's own kind are not offered",
    "T-22": CACHE_POLICY,
    "Y-36": "a lock on a device between pools and processes is not offered yet",
    "N-03": "repeated launches before a measurement, to find late faults, are not offered yet",
    "N-06": "a configuration is tried once by a search; one that failed before is not known to a later search yet",
    "K-19": DEVICE_STATE,
    "K-20": "stopping when the samples have settled is not offered yet",
    "K-23": CACHE_POLICY,
    "K-24": CACHE_POLICY,
    "K-25": DEVICE_STATE,
    "K-29": "content that changes between launches, to find kept results, is not offered yet",
    "K-37": STORE,
    "K-44": "stopping a trial early that is clearly slower is not offered yet",
    "K-45": STORE,
    "K-49": STORE,
    "K-51": DEVICE_STATE,
    "P-9": "needs a parent of many gigabytes, and the answer is a figure: one of the benchmarks to come",
    "P-45": "an interrupted cell of a notebook is part of the integrations to come",
    "P-50": "a device is not probed yet before its next process gets work",
    "P-80": "a kernel's restart with a pool left over is part of the integrations to come",
}


@cache
def functions_of(module: str) -> frozenset[str]:
    """The names of the test functions of the module of this name, wherever it is below `tests/`."""
    (path,) = TESTS.rglob(f"{module}.py")
    tree = ast.parse(path.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_test_that_is_named_exists():
    assert all(COVERED.values())
    named = sorted({test for tests in COVERED.values() for test in tests})
    parts = [test.split("::") for test in named]
    assert [f"{module}::{name}" for module, name in parts if name not in functions_of(module)] == []


def test_every_line_of_the_lists_has_a_test_or_a_reason():
    files = [REFERENCE / "seeds.md", REFERENCE / "reported-faults.md"]
    if not all(file.exists() for file in files):
        pytest.skip("the lists are no part of the repository, and are not beside it")
    listed = [line for file in files for line in A_LINES_ID.findall(file.read_text())]
    assert len(listed) == len(set(listed))
    assert set(listed) == COVERED.keys() | OPEN.keys()
