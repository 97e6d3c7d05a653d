"""The layer of each test, in one place, and a guard that keeps tests inside theirs.

A test is a unit unless it is named here. A unit starts no process, opens no network socket and compiles nothing: the
guard refuses that with an error that names this file. `python scripts/test.py --fast` runs the units.
"""

# Theory of operation
#
# A test is a unit unless the table says more, so that a new test is fast by default and a slow one is a decision that a
# reviewer sees. An audit hook of Python refuses processes and network sockets to units in every run, so the table stays
# true. Refusals are noted besides being raised: code under test may swallow the error, and the test would pass.
#
# Rejected: decorators in each file (nothing refuses a missing one), folders by layer (tests mirror the package), and
# mocks of `socket` and `subprocess` (other packages hold the functions under names of their own; an audit hook sees all
# ways but one, which `install` wraps).

from __future__ import annotations

import contextlib
import functools
import multiprocessing.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

LAYERS: dict[str, tuple[str, ...]] = {
    # Starts processes. May open sockets too.
    "process": (
        "tests/actor/policies/numpy/test_lookup.py::test_policy_names_give_numpy_backends_without_torch",
        "tests/actor/rollout/test_recurrent_pipeline.py::test_a_worker_without_torch_sends_the_states_that_sequences_begin_with",
        "tests/actor/rollout/test_safe_action.py::test_motors_stop_when_a_program_ends",
        "tests/benchmarks/test_compare_sides.py",
        "tests/benchmarks/test_gpu.py",
        "tests/benchmarks/learning/test_queue.py::test_a_failing_run_names_its_output",
        "tests/benchmarks/learning/test_queue.py::test_a_run_is_ended_at_the_deadline",
        "tests/benchmarks/test_gateway.py::test_a_short_run_gives_all_figures",
        "tests/cli/test_main.py",
        "tests/cli/test_metrics.py::test_wandb_gets_all_records",
        "tests/local/test_seeds.py::test_a_run_that_fails_does_not_end_the_others",
        "tests/cli/test_sessions.py::test_a_recording_goes_to_a_dataset_and_back",  # h5py: uname
        "tests/compat/config/test_config_constants.py::test_importing_reads_no_configuration",
        "tests/config/test_loading.py::test_importing_reads_nothing",
        "tests/config/test_loading.py::test_the_page_of_all_keys_is_up_to_date",
        "tests/config/test_server_port.py::test_a_record_of_a_killed_process_does_not_count",
        "tests/config/test_agent_settings.py::test_it_is_found_before_anything_starts_and_without_torch",
        "tests/config/test_agent_settings.py::test_the_configuration_of_every_agent_is_checked_without_torch",
        "tests/config/test_agent_settings.py::test_the_table_is_not_read_before_a_configuration_is_checked",
        "tests/doctor/test_doctor_tlspyo.py",
        "tests/envs/test_example.py::test_importing_registers_the_ids_and_nothing_else",
        "tests/envs/replay/test_recorded.py::test_arrays_are_replayed_without_torch",
        "tests/actor/rollout/test_pictures.py::test_a_large_video_is_made_smaller",
        "tests/envs/test_filmed.py::test_the_video_holds_the_frames_between_start_and_stop",
        "tests/dashboard/test_page.py",
        "tests/dashboard/test_role.py",
        "tests/examples/test_clients.py",
        "tests/examples/test_custom_environment.py",
        "tests/examples/test_real_time.py::test_it_trains",
        "tests/examples/test_families.py::test_it_starts_to_learn",
        "tests/examples/test_tmrl.py",
        "tests/examples/test_demonstrations.py::test_a_killed_process_leaves_whole_sessions",
        "tests/gateway/test_end_to_end_runs.py",
        "tests/gateway/test_serve.py",
        "tests/gateway/advice/test_saves.py::test_a_killed_writer_leaves_whole_saves",
        "tests/gateway/advice/test_served.py",
        "tests/local/test_fleet.py",
        "tests/scripts/test_slurm.py",
        "tests/onnx_export/test_page.py::test_javascript_acts_as_the_recurrent_policy",
        "tests/local/test_masked_runs.py::test_a_run_between_processes_learns_too",
        "tests/local/test_other_packages.py::test_parts_of_another_package_train_resume_and_act_without_torch",
        "tests/local/test_pipeline.py",
        "tests/local/test_image_runs.py",
        "tests/local/test_probe_process.py",
        "tests/local/test_runs.py",
        "tests/local/test_supervision.py",
        "tests/metrics/test_console.py::test_a_plain_script_sees_its_rounds",
        "tests/metrics/test_console.py::test_importing_the_package_is_light",
        "tests/metrics/test_curve.py::test_drawing_leaves_pyplot_alone",
        "tests/metrics/test_wandb_sink.py",
        "tests/multiagent/algorithms/test_acting_policy.py::test_actors_need_no_torch",
        "tests/multiagent/test_end_to_end_runs.py",
        "tests/multiagent/test_remote_runs.py",
        "tests/multiagent/test_from_config.py::test_a_worker_of_a_training_agent_needs_no_torch",
        "tests/multiagent/test_worker_runs.py",
        "tests/networking/relay/test_relay.py::test_delivery_needs_neither_asyncio_nor_ssl",
        "tests/networking/simulation/test_simulation.py::test_a_seed_repeats_the_simulation_in_any_process",
        "tests/networking/simulation/test_simulation.py::test_the_script_prints_a_table_and_the_command_for_a_failing_seed",
        "tests/hostile/test_blind_server.py",
        "tests/hostile/test_resident_memory.py",
        "tests/networking/security/test_accepted_versions.py::test_processes_that_share_the_file_never_lower_its_version",
        "tests/networking/spools/test_spool_processes.py",
        "tests/networking/spools/test_spool.py::test_confirmed_messages_survive_a_kill",
        "tests/networking/test_load.py",
        "tests/networking/transports/test_conformance.py",
        "tests/networking/transports/test_selection.py::test_a_file_of_a_dead_process_is_ignored",
        "tests/networking/transports/tlspyo/test_transport.py",
        "tests/ranks/test_chaos.py",
        "tests/ranks/test_local.py::test_one_command_runs_two_ranks",
        "tests/ranks/test_runs.py",
        "tests/roles/test_lockstep_runs.py",
        "tests/roles/test_real_time_runs.py",
        "tests/roles/test_server.py::test_nothing_survives_a_process_that_did_not_close_it",
        "tests/roles/test_shutdown.py",
        "tests/roles/test_strange_worker_runs.py",
        "tests/roles/test_tlspyo_runs.py",
        "tests/roles/test_rollout_worker.py::test_a_worker_with_the_numpy_backend_never_imports_torch",
        "tests/scripts",
        "tests/storage/test_lock.py",
        "tests/success/test_success.py::test_a_worker_without_torch_computes_it",
        "tests/test_chaos.py",
        "tests/test_forked.py",
        "tests/test_fuzz.py",
        "tests/test_guides.py",
        "tests/test_imports.py",
        "tests/test_removable_rooms.py",
        "tests/test_terminal_log.py::test_links_of_a_server_stay_up_although_nobody_reads_its_output",
        "tests/test_terminal_log.py::test_the_last_lines_of_a_process_are_written",
        "tests/training/memories/test_disk_kills.py",
    ),
    # Opens network sockets on this machine. Starts no process.
    "socket": (
        "tests/actor/rollout/test_recurrent_pipeline.py",
        "tests/cli/test_status.py",
        "tests/compat/test_trainer_interface.py",
        "tests/doctor/test_doctor.py",
        "tests/dashboard/test_serve.py",
        "tests/gateway/test_app.py",
        "tests/web/test_connections.py",
        "tests/web/test_pages.py",
        "tests/gateway/test_proxy.py",
        "tests/gateway/test_websocket.py",
        "tests/multiagent/test_remote.py",
        "tests/networking/links/test_links.py",
        "tests/networking/links/test_viewer_link.py",
        "tests/networking/security/test_authentication.py",
        "tests/networking/test_bad_networks.py",
        "tests/hostile",
        "tests/networking/test_hostile.py",
        "tests/networking/test_other_states.py",
        "tests/networking/test_strangers.py",
        "tests/networking/transports/test_port_holder.py::test_the_holder_of_a_real_port_is_found",
        "tests/networking/transports/test_selection.py",
        "tests/networking/transports/test_tls.py",
        "tests/roles/test_server.py",
        "tests/roles/test_rollout_worker.py::test_a_worker_keeps_the_accepted_version_beside_its_policy",
        "tests/roles/test_rollout_worker.py::test_a_worker_uses_tls_with_its_credentials",
        "tests/test_contributing_parts.py",
        "tests/test_wrong_input.py",
        "tests/testing/test_proxy.py",
    ),
    # Compiles, or learns for seconds. May reach anything.
    "slow": (
        "tests/examples/test_custom_algorithm.py",
        "tests/multiagent/algorithms/test_learning.py",
        "tests/training/loops/test_train_steps.py",
        "tests/training/test_constructor_settings.py::test_a_changed_learning_rate_takes_effect",
        "tests/training/updates/test_compiled.py",
        "tests/training/updates/test_cuda_graphs.py",
        "tests/training/updates/test_fake_cuda.py",
        "tests/training/updates/test_capture_cuda.py",
    ),
}
"""Files, folders or single tests (`file.py::test_name`) of each layer; the longest matching name decides."""

_REACHES = {
    "process": ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
    "socket": ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"),
}
_REFUSED = {"unit": ("process", "socket"), "socket": ("process",)}
_KIND_OF_EVENT = {event: kind for kind, events in _REACHES.items() for event in events}
if sys.platform == "win32":  # socketpair() connects two network sockets there
    _KIND_OF_EVENT = {event: kind for event, kind in _KIND_OF_EVENT.items() if kind == "process"}

_refused: tuple[str, ...] = ()
_reached: list[str] = []
_installed = False


class LayerError(RuntimeError):
    """A test reaches further than its layer allows."""


def layer_of(test: str) -> str:
    """Return the layer of a test.

    Args:
        test: node id, `tests/folder/test_file.py::test_name[parameters]`.
    """
    layers = _layers_by_name(tuple(LAYERS.items()))
    name = test.partition("[")[0]
    while name and name not in layers:
        name = name[: max(name.rfind("/"), name.rfind("::"), 0)]
    return layers.get(name, "unit")


@functools.lru_cache
def _layers_by_name(table: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, str]:
    return {name: layer for layer, names in table for name in names}


@contextlib.contextmanager
def kept_in(layer: str) -> Iterator[list[str]]:
    """Refuse what a layer does not allow, in all threads, and list each refusal (the caller may swallow the error)."""
    global _refused, _reached
    before = _refused, _reached
    _refused, _reached = _REFUSED.get(layer, ()), []
    try:
        yield _reached
    finally:
        _refused, _reached = before


def install() -> None:
    """Begin to watch this process. An audit hook stays until the process ends."""
    global _installed
    if _installed:
        return
    _installed = True
    kinds = _KIND_OF_EVENT  # when the interpreter ends, the module's own name is gone before the hook
    sys.addaudithook(lambda event, _: _check(kinds[event], event) if event in kinds else None)
    if sys.platform != "win32":  # multiprocessing starts processes without an event there
        spawn = multiprocessing.util.spawnv_passfds

        def watched_spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
            _check("process", "multiprocessing")
            return spawn(path, args, passfds)

        multiprocessing.util.spawnv_passfds = watched_spawn


def raise_refused() -> None:
    """Raise if the current test was refused something."""
    if _reached:
        raise LayerError(_explain(_reached[0]))


def _check(kind: str, event: str) -> None:
    if kind in _refused:
        _reached.append(event)
        raise LayerError(_explain(event))


def _explain(event: str) -> str:
    return (
        f"{event} is outside the layer of this test. Test the part without it, or name the test in tests/layers.py "
        "under the layer that it needs."
    )
