"""Defects that a developer could make, each with the promise that it breaks and the tests that notice.

`scripts/mutations.py` puts them into a copy of the package. Each text occurs once in its file: who changes that line,
changes the mutation too. Who removes a test that is named here, names another one that finds the mutation.
"""

from __future__ import annotations

from dataclasses import dataclass

ONCE = "1: a sample is delivered once"
UNCHANGED = "2: nothing changes on the way"
BOUNDED = "3: memory is bounded everywhere"
WEIGHTS = "4: weights are a last-value channel"
NOTICED = "5: every failure is noticed in bounded time"
NO_CODE = "6: nothing received can run code"
MEMBERS = "7: one member cannot harm another"
ORIGIN = "8: the relay need not be trusted"
NETWORK = "security: an attacker on the network"
STOLEN = "security: a stolen worker machine"
GATEWAY = "security: an attacker at the gateway"
LIVE_PAGE = "security: an attacker at the live page"
LEARNING = "learning: policies and losses keep their documented bounds"

SIMULATED = "tests/networking/simulation/test_simulation.py::test_every_promise_is_kept[0]"
CHAOS = "tests/test_chaos.py::test_a_kill_of_each_role_loses_and_duplicates_nothing"
TAKEN_OVER = "tests/hostile/test_fake_server.py::test_a_server_that_was_taken_over_gets_nothing_accepted"
DELIVERY = "tests/networking/protocol/test_delivery.py"
SPOOLS = "tests/networking/spools/test_spool.py"
SPOOL_PROCESSES = "tests/networking/spools/test_spool_processes.py"
DISK_KILLS = (
    "tests/training/memories/test_disk_kills.py::test_a_killed_process_neither_loses_nor_duplicates_committed_samples"
)
DISK_CRASH = "tests/training/memories/test_disk_crash.py"
STRANGERS = "tests/networking/test_strangers.py"
MISUSE = "tests/networking/test_hostile.py"
AUTHENTICATION = "tests/networking/security/test_authentication.py"
SERVED = "tests/gateway/test_serve.py"
RELAY = "tests/networking/relay"
TAKEOVER = "tests/actor/rollout/test_takeover.py"
BOUNDS = "tests/actor/policies/test_bounds.py"


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Args:
        name: for the command line.
        promise: the promise or claim that it breaks.
        file: module, from the root of the repository.
        old: text that occurs once in it.
        new: text in its place.
        tests: node ids of tests, each of which must fail; without parameters, any case of it.
    """

    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the source of the module with the defect.

        Raises:
            ValueError: the text does not occur once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {source.count(self.old)} times in {self.file}")
        return source.replace(self.old, self.new)


_P = "tmrl_core/networking"

MUTATIONS = (
    # --- 1: a sample is delivered once -------------------------------------------------------------------------------
    Mutation(
        "offset-one-short",
        ONCE,
        f"{_P}/protocol/delivery.py",
        "self.offset = CommittedOffset(last + 1, position)",
        "self.offset = CommittedOffset(last, position)",
        (SIMULATED, f"{DELIVERY}::test_only_committed_messages_are_acknowledged"),
    ),
    Mutation(
        "offset-one-ahead-of-the-rows",
        ONCE,
        f"{_P}/protocol/delivery.py",
        "            if last > number:",
        "            if last > number + 1:",
        (f"{DELIVERY}::test_the_offset_after_a_commit_is_known_before_it",),
    ),
    Mutation(
        "repetition-not-noticed",
        ONCE,
        f"{_P}/protocol/delivery.py",
        "self._skip_body = number < self.next_number",
        "self._skip_body = False",
        (f"{DELIVERY}::test_a_repeated_message_is_discarded_and_acknowledged_again",),
    ),
    Mutation(
        "resume-skips-a-message",
        ONCE,
        f"{_P}/protocol/delivery.py",
        "self._sent[-1].number >= next_number",
        "self._sent[-1].number > next_number",
        (SIMULATED, f"{DELIVERY}::test_a_resume_rewinds_to_the_number_that_it_names"),
    ),
    Mutation(
        "acknowledgement-releases-one-more",
        ONCE,
        f"{_P}/protocol/delivery.py",
        "while self._sent and self._sent[0].number < ack.next:",
        "while self._sent and self._sent[0].number <= ack.next:",
        (SIMULATED,),
    ),
    Mutation(
        "frames-of-an-earlier-epoch",
        ONCE,
        f"{_P}/relay/credit_flow.py",
        "if not stream.active or frame.epoch != stream.epoch:",
        "if not stream.active:",
        (SIMULATED, f"{MISUSE}::test_frames_of_an_earlier_epoch_are_discarded"),
    ),
    Mutation(
        "acknowledged-at-their-receipt",
        ONCE,
        "tmrl_core/training/remote/interface.py",
        "            self._outstanding.append((one, delivery))",
        "            self.link.acknowledge([one])\n            self._outstanding.append((one, delivery))",
        ("tests/roles/test_trainer.py::test_uncommitted_samples_are_sent_again_to_the_next_trainer",),
    ),
    Mutation(
        "disk-has-offsets-of-the-commit-before",
        ONCE,
        "tmrl_core/training/remote/delivery_log.py",
        "            after,\n            samples=",
        "            before,\n            samples=",
        (
            "tests/training/checkpoints/test_disk_checkpoints.py::"
            "test_offsets_gaps_and_refusals_are_written_before_acknowledgement",
        ),
    ),
    Mutation(
        "offsets-not-in-the-record-of-their-rows",
        ONCE,
        "tmrl_core/training/memories/replay.py",
        'self._disk.commit({"marks": dict(offsets or {}), "tails"',
        'self._disk.commit({"marks": {}, "tails"',
        (
            DISK_KILLS,
            f"{DISK_CRASH}::test_a_truncated_record_has_no_effect",
        ),
    ),
    Mutation(
        "stack-of-frames-forgets-its-frames",
        ONCE,
        "tmrl_core/training/memories/disk_rows.py",
        "self.found_needs += frames.runs(first_row)",
        "self.found_needs += frames.runs(self.readable + rows)",
        (DISK_KILLS,),
    ),
    Mutation(
        "payloads-not-checked",
        ONCE,
        "tmrl_core/storage/format.py",
        "        if check_payloads and zlib.crc32(payload) != payload_crc:",
        "        if check_payloads and not payload and payload_crc:",
        ("tests/storage/test_format.py::test_a_changed_bit_is_noticed_unless_it_is_in_padding",),
    ),
    Mutation(
        "checkpoint-offsets-newer-than-the-memory",
        ONCE,
        f"{_P}/trainer/connection.py",
        "known = {stream: receiver.offset for stream, receiver in self.receivers.items()}",
        "known = {\n                stream: CommittedOffset(receiver.next_number, receiver.offset.position)\n"
        "                for stream, receiver in self.receivers.items()\n            }",
        (
            f"{RELAY}/test_relay.py::test_a_trainer_killed_between_receipt_and_append_gets_the_sample_again",
            "tests/training/checkpoints/test_disk_checkpoints.py::"
            "test_offsets_gaps_and_refusals_are_written_before_acknowledgement",
        ),
    ),
    Mutation(
        "resumed-trainer-without-its-offsets",
        ONCE,
        "tmrl_core/training/remote/linked_training.py",
        '            offsets=delivery.get("marks", {}),\n',
        "",
        ("tests/roles/test_trainer.py::test_a_memory_on_disk_continues_after_a_restart",),
    ),
    Mutation(
        "stored-before-written",
        ONCE,
        f"{_P}/spools/disk_spool.py",
        "        self._unwritten[kept.info.principal] += message.cost",
        "        self._unwritten[kept.info.principal] += message.cost\n        self._is_stored(kept, message)",
        (
            f"{SPOOLS}::test_confirmed_messages_survive_a_kill",
            f"{SPOOLS}::test_a_worker_keeps_samples_that_the_disk_refuses_and_gets_the_reason",
        ),
    ),
    Mutation(
        "spool-repeats-its-last-message-after-a-restart",
        ONCE,
        f"{_P}/spools/disk_spool.py",
        "kept.next_number = kept.stored = number + 1",
        "kept.next_number = kept.stored = number",
        (
            f"{SPOOL_PROCESSES}::test_spooled_samples_survive_a_kill_of_the_server",
            f"{SPOOLS}::test_a_reopened_spool_has_the_stored_messages",
        ),
    ),
    Mutation(
        "spool-does-not-end-at-a-restart",
        ONCE,
        f"{_P}/spools/disk_spool.py",
        "kept.ended = kind == _END",
        "kept.ended = False",
        (f"{SPOOLS}::test_a_reopened_spool_has_the_stored_messages",),
    ),
    Mutation(
        "spool-drops-one-more-than-acknowledged",
        ONCE,
        f"{_P}/relay/spooling.py",
        "self.spool.drop(stream.id, ack.next)",
        "self.spool.drop(stream.id, ack.next + 1)",
        (
            SIMULATED,
            f"{RELAY}/test_spooling.py::test_a_trainer_killed_before_it_committed_gets_the_spooled_samples_again",
        ),
    ),
    Mutation(
        "step-of-a-client-recorded-twice",
        ONCE,
        "tmrl_core/gateway/client_session.py",
        "            if number == last:\n                return self._answer\n",
        "",
        (
            "tests/gateway/test_app.py::test_a_repeated_step_is_recorded_once",
            "tests/gateway/test_client_session.py::test_a_repeated_number_gets_the_same_answer_and_records_nothing",
        ),
    ),
    Mutation(
        "save-written-in-place",
        ONCE,
        "tmrl_core/gateway/advice/saves.py",
        "        write_whole(path, content)",
        "        path.parent.mkdir(parents=True, exist_ok=True)\n        path.write_bytes(content)",
        ("tests/gateway/advice/test_saves.py::test_a_failed_write_leaves_the_others",),
    ),
    # --- 2: nothing changes on the way -------------------------------------------------------------------------------
    Mutation(
        "reward-cast-to-float32",
        UNCHANGED,
        "tmrl_core/samples/codec.py",
        "reward=_tree(entry.reward, columns),",
        'reward=_tree(entry.reward, columns).astype("f4"),',
        ("tests/samples/test_codec.py::test_a_chunk_and_records_come_back",),
    ),
    Mutation(
        "reward-of-the-step-before",
        UNCHANGED,
        "tmrl_core/training/memories/transitions.py",
        "        taken(chunk.reward, rows),",
        "        taken(chunk.reward, np.maximum(new_rows - 1, 0)),",
        (
            f"{SERVED}::test_transitions_of_a_client_equal_those_in_the_trainers_memory",
            "tests/training/memories/test_replay.py::test_an_episode_gives_one_transition_per_step",
        ),
    ),
    Mutation(
        "flags-exchanged",
        UNCHANGED,
        "tmrl_core/samples/codec.py",
        "        terminated=_flags(entry.terminated, entry.rows),",
        "        terminated=_flags(entry.truncated, entry.rows),",
        (
            f"{SERVED}::test_transitions_of_a_client_equal_those_in_the_trainers_memory",
            "tests/samples/test_codec.py::test_a_chunk_and_records_come_back",
        ),
    ),
    Mutation(
        "transition-over-a-missing-message",
        UNCHANGED,
        "tmrl_core/training/memories/memory.py",
        "if last is None or (last.episode, last.step + 1) != (segment.episode, segment.first_step):",
        "if last is None or last.episode != segment.episode:",
        ("tests/training/memories/test_replay.py::test_a_missing_message_is_not_bridged",),
    ),
    Mutation(
        "transition-over-a-truncated-end",
        UNCHANGED,
        "tmrl_core/training/memories/memory.py",
        "follows[1:] &= ~(chunk.terminated | chunk.truncated)[:-1]",
        "follows[1:] &= ~chunk.terminated[:-1]",
        ("tests/training/memories/test_memory.py::test_rows_that_follow_equals_a_slow_loop",),
    ),
    Mutation(
        "streams-of-workers-mixed",
        UNCHANGED,
        "tmrl_core/training/remote/interface.py",
        "by_lane(chunk, one.stream)",
        "by_lane(chunk, bytes(16))",
        (CHAOS,),
    ),
    Mutation(
        "sessions-of-a-gateway-not-rejoined",
        UNCHANGED,
        "tmrl_core/gateway/central.py",
        "if player.repeats and (self._latest is player or len(chunks) == 1):",
        "if player.repeats:",
        (
            f"{SERVED}::test_clients_that_play_at_once_lose_no_transition",
            "tests/gateway/test_central.py::test_transitions_over_steps_are_all_there_and_few_are_shorter_with_several_sessions",
        ),
    ),
    Mutation(
        "episode-of-many-agents-with-a-hole",
        UNCHANGED,
        "tmrl_core/multiagent/experiences.py",
        "if current is None or (current.number, current.version, current.step) != (run.episode, run.version, step):",
        "if current is None or (current.number, current.version) != (run.episode, run.version):",
        (
            "tests/multiagent/test_experiences.py::test_a_missing_message_refuses_the_episode_and_not_the_next",
            "tests/multiagent/test_round_episodes.py::test_an_episode_without_one_of_its_messages_does_not_count",
        ),
    ),
    # --- 3: memory is bounded everywhere -----------------------------------------------------------------------------
    Mutation(
        "queue-of-a-worker-without-a-bound",
        BOUNDED,
        f"{_P}/protocol/delivery.py",
        "while self.held_bytes and self.memory_bytes + body_bytes > self.queue_bytes:",
        "while self.held_bytes and self.memory_bytes > self.queue_bytes:",
        (SIMULATED, f"{RELAY}/test_relay.py::test_a_blocking_sender_refuses_messages_beyond_the_limit"),
    ),
    Mutation(
        "more-samples-than-credit",
        BOUNDED,
        f"{_P}/relay/credit_flow.py",
        "        if stream.received > stream.limit:",
        "        if stream.received > stream.limit + self._most_bytes:",
        (f"{MISUSE}::test_a_misbehaving_worker_loses_only_its_own_link",),
    ),
    Mutation(
        "reservations-not-counted",
        BOUNDED,
        f"{_P}/relay/credit_flow.py",
        "        self.reserved_bytes += size\n",
        "",
        (SIMULATED,),
    ),
    Mutation(
        "bomb-not-refused-by-its-size",
        BOUNDED,
        "tmrl_core/samples/codec.py",
        '        if size > max_bytes:\n            raise CodecError(f"a message of {size} bytes when',
        '        if len(frame) > max_bytes:\n            raise CodecError(f"a message of {size} bytes when',
        (
            f"{MISUSE}::test_a_decompression_bomb_is_relayed_and_refused_by_the_decoder",
            "tests/samples/test_codec.py::test_a_decompression_bomb_is_refused_by_its_header",
        ),
    ),
    Mutation(
        "inbox-takes-more-than-it-granted",
        BOUNDED,
        f"{_P}/trainer/connection.py",
        "if self._data_bytes > self._granted + self._inbox_bytes:",
        "if self._data_bytes > self._granted + 2 * self._inbox_bytes + (1 << 30):",
        ("tests/networking/trainer/test_greedy_server.py::test_samples_beyond_the_credit_end_the_link",),
    ),
    Mutation(
        "spool-beyond-its-limit",
        BOUNDED,
        f"{_P}/spools/spool.py",
        "if more and held + more > _SHARE_OF_FREE * (most - used - more):",
        "if more and more > _SHARE_OF_FREE * (most - more):",
        (
            f"{SPOOL_PROCESSES}::test_a_full_server_refuses_and_the_worker_reports_the_rest",
            f"{SPOOLS}::test_a_full_spool_refuses_until_a_stream_is_removed",
        ),
    ),
    Mutation(
        "policies-for-slow-links-kept",
        BOUNDED,
        f"{_P}/relay/core.py",
        "                if room < 0 and index:",
        "                if room < -self.settings.budget_bytes and index:",
        (
            "tests/hostile/test_resident_memory.py::test_the_memory_of_the_server_grows_by_its_budget_at_most[deaf-10]",
            f"{RELAY}/test_one_principal.py::test_links_that_read_nothing_are_closed_and_hold_few_old_policies",
        ),
    ),
    Mutation(
        "large-frames-before-the-greeting",
        BOUNDED,
        f"{_P}/relay/connection.py",
        "        self._reader.max_payload_bytes = GREETING_PAYLOAD_BYTES\n",
        "",
        (f"{STRANGERS}::test_frames_before_the_greeting_are_limited_at_their_header",),
    ),
    # --- 4: weights are a last-value channel -------------------------------------------------------------------------
    Mutation(
        "version-may-go-down-at-a-worker",
        WEIGHTS,
        f"{_P}/worker/connection.py",
        "        if version <= self.policy_version:\n",
        "        if version == self.policy_version:\n",
        ("tests/networking/protocol/test_connection.py::test_policy_versions_only_grow",),
    ),
    Mutation(
        "older-policy-becomes-the-latest",
        WEIGHTS,
        f"{_P}/relay/latest_policy.py",
        "old = version[0] != incarnation or (stored is not None and version <= stored.version)",
        "old = version[0] != incarnation",
        (f"{RELAY}/test_relay_policies.py::test_an_older_version_is_accepted_but_not_forwarded",),
    ),
    Mutation(
        "late-joiner-waits-for-the-next-policy",
        WEIGHTS,
        f"{_P}/relay/latest_policy.py",
        "for policy in (self.newest, self.arriving):\n            if policy",
        "for policy in (self.arriving,):\n            if policy",
        (
            f"{SERVED}::test_a_gateway_that_is_made_again_goes_on_with_the_same_weights",
            f"{RELAY}/test_relay_policies.py::test_a_worker_that_joins_during_a_policy_gets_the_previous_complete_one_first",
        ),
    ),
    Mutation(
        "samples-without-the-version-that-acted",
        WEIGHTS,
        "tmrl_core/actor/rollout/uplink.py",
        "        self._recorder.set_version(update.version)\n",
        "",
        ("tests/actor/rollout/test_worker.py::test_samples_carry_the_acting_version",),
    ),
    Mutation(
        "restarted-trainer-counts-versions-from-one",
        WEIGHTS,
        "tmrl_core/training/remote/linked_training.py",
        "            counter=training.versions_before,\n",
        "",
        ("tests/roles/test_trainer.py::test_a_resumed_trainer_publishes_the_latest_policy_again_with_its_number",),
    ),
    # --- 5: every failure is noticed in bounded time -----------------------------------------------------------------
    Mutation(
        "silence-not-noticed",
        NOTICED,
        f"{_P}/protocol/connection.py",
        "elif now - self._last_in >= self.silent_s:",
        "elif now - self._last_in >= self.silent_s + self.greeting_s:",
        (
            "tests/networking/protocol/test_connection.py::test_silence_is_noticed_on_time_and_a_single_byte_prevents_it",
            "tests/networking/test_bad_networks.py::test_a_black_hole_is_noticed_by_both_sides_and_samples_flow_when_it_heals[both-worker]",
        ),
    ),
    Mutation(
        "no-heartbeats",
        NOTICED,
        f"{_P}/protocol/connection.py",
        "                self._control.append(PING_FRAME)",
        "                self._last_in = now",
        (
            "tests/networking/protocol/test_connection.py::test_heartbeats_are_sent_when_nothing_else_was",
            f"{RELAY}/test_relay.py::test_silence_is_noticed_and_heartbeats_keep_an_idle_link",
        ),
    ),
    Mutation(
        "bytes-extend-the-time-to-identify",
        NOTICED,
        f"{_P}/protocol/connection.py",
        'if self.state == "greeting" and now - self._connected_at >= self.greeting_s:',
        'if self.state == "greeting" and now - self._last_in >= self.greeting_s:',
        ("tests/networking/protocol/test_connection.py::test_other_bytes_do_not_extend_the_greeting_deadline",),
    ),
    Mutation(
        "child-outlives-its-supervisor",
        NOTICED,
        "tmrl_core/roles/shutdown.py",
        "            if not data or STOP in commands:\n                break",
        "            if not data:\n                return\n            if STOP in commands:\n                break",
        ("tests/local/test_supervision.py::test_a_child_ends_when_its_supervisor_dies",),
    ),
    Mutation(
        "crashed-worker-not-restarted",
        NOTICED,
        "tmrl_core/local/supervision.py",
        "if child.restarts >= RESTARTS or status == WRONG_CONFIGURATION:",
        "if child.restarts >= RESTARTS or status >= 1:",
        (
            "tests/local/test_supervision.py::"
            "test_a_worker_that_crashes_is_started_again_a_few_times_and_old_restarts_do_not_count",
        ),
    ),
    # --- 6: nothing received can run code ----------------------------------------------------------------------------
    Mutation(
        "yaml-of-any-type",
        NO_CODE,
        "tmrl_core/config/documents.py",
        "class _Loader(yaml.SafeLoader):",
        "class _Loader(yaml.UnsafeLoader):",
        (
            "tests/config/test_documents.py::test_broken_yaml_is_named_with_its_place",
            "tests/test_no_code.py::test_no_function_that_can_run_received_code_is_used",
        ),
    ),
    Mutation(
        "weights-with-pickles",
        NO_CODE,
        "tmrl_core/compat/policy_files.py",
        'map_location="cpu", weights_only=True)',
        'map_location="cpu", weights_only=False)',
        (
            "tests/compat/test_policy_files.py::test_nothing_in_a_file_is_run",
            "tests/test_no_code.py::test_no_function_that_can_run_received_code_is_used",
        ),
    ),
    Mutation(
        "relay-of-tlspyo-reads-pickles",
        NO_CODE,
        f"{_P}/transports/tlspyo/io_process.py",
        "deserialize = msgspec.msgpack.decode",
        "import pickle\n\ndeserialize = pickle.loads",
        (
            "tests/networking/transports/tlspyo/test_transport.py::test_the_relay_refuses_a_pickle",
            "tests/test_no_code.py::test_no_function_that_can_run_received_code_is_used",
        ),
    ),
    # --- 7: one member cannot harm another ---------------------------------------------------------------------------
    Mutation(
        "share-for-each-stream",
        MEMBERS,
        f"{_P}/relay/core.py",
        "self.flow.join(stream, connection.principal, connection.identity.weight)",
        'self.flow.join(stream, f"{connection.principal} {stream.id.hex()}", connection.identity.weight)',
        (
            "tests/hostile/test_one_bundle.py::test_unused_credit_of_many_streams_leaves_enough_for_others",
            f"{RELAY}/test_one_principal.py::test_principals_get_shares_of_the_trainers_credit_by_their_weights",
        ),
    ),
    Mutation(
        "stream-of-another-opened",
        MEMBERS,
        f"{_P}/relay/core.py",
        "if taken or not self._stream_ids.claim(message.stream, connection.principal):",
        "if taken and not self._stream_ids.claim(message.stream, connection.principal):",
        (f"{AUTHENTICATION}::test_a_stream_belongs_to_its_owner_after_its_link_is_lost",),
    ),
    Mutation(
        "links-of-one-without-a-limit",
        MEMBERS,
        f"{_P}/relay/core.py",
        "if older is None and connection.identity.role is not None and of_one",
        "if older is None and connection.identity.role is None and of_one",
        (f"{MISUSE}::test_the_links_of_one_certificate_are_limited",),
    ),
    Mutation(
        "others-get-nothing-of-the-pool",
        MEMBERS,
        f"{_P}/relay/credit_flow.py",
        "return share.reserved_bytes + need > _SHARE_OF_FREE * (free - need) or free - need < request",
        "return free - need < 0",
        (
            "tests/hostile/test_one_bundle.py::test_unused_credit_of_many_streams_leaves_enough_for_others",
            f"{RELAY}/test_one_principal.py::test_credit_is_left_for_others_whatever_one_principal_wants",
        ),
    ),
    Mutation(
        "revoked-peer-stays-linked",
        MEMBERS,
        f"{_P}/security/authentication.py",
        "        if (rejection := self.check_certificate(connection.identity)) is not None:\n"
        "            return rejection\n",
        "",
        (f"{AUTHENTICATION}::test_a_revoked_machine_alone_is_disconnected_and_refused",),
    ),
    Mutation(
        "samples-with-nan-taken",
        MEMBERS,
        "tmrl_core/training/memories/sample_check.py",
        "        if np.abs(column).max() <= _FLOAT32_MAX:",
        "        if not np.abs(column).max() > _FLOAT32_MAX:",
        ("tests/training/memories/test_sample_check.py::test_rows_that_are_not_finite_never_reach_the_store",),
    ),
    Mutation(
        "worker-with-another-environment-taken",
        MEMBERS,
        "tmrl_core/training/remote/interface.py",
        "        if found and self._check_environment:",
        "        if found and not self._check_environment:",
        (
            "tests/networking/test_other_environments.py::"
            "test_samples_of_another_environment_are_refused_and_both_sides_say_so",
        ),
    ),
    # --- 8: the relay need not be trusted ----------------------------------------------------------------------------
    Mutation(
        "forged-acknowledgements",
        ORIGIN,
        f"{_P}/protocol/delivery.py",
        "if self._sealer is not None and not self._sealer.check_ack(",
        "if self._sealer is not None and ack.tag and not self._sealer.check_ack(",
        (
            "tests/hostile/test_taken_over_server.py::test_forged_acknowledgements_release_no_samples",
            f"{TAKEN_OVER}[authenticate]",
        ),
    ),
    Mutation(
        "policy-under-another-version",
        ORIGIN,
        f"{_P}/worker/seal.py",
        "        if signed != version:",
        "        if signed[0] != version[0]:",
        (
            "tests/hostile/test_taken_over_server.py::test_forged_altered_and_old_policies_are_not_used",
            "tests/networking/worker/test_seal.py::test_a_policy_under_another_version_is_refused",
        ),
    ),
    Mutation(
        "older-policy-accepted",
        ORIGIN,
        f"{_P}/worker/seal.py",
        "if version < self.accepted or version == self._opened:",
        "if version == self._opened:",
        (
            "tests/hostile/test_taken_over_server.py::test_a_worker_that_starts_again_with_its_file_accepts_no_older_policy",
            "tests/networking/worker/test_seal.py::test_policies_grow",
        ),
    ),
    Mutation(
        "nonce-used-again",
        ORIGIN,
        f"{_P}/worker/seal.py",
        "        own.seals += 1\n        return self._keys(own, self._card).seal(mode, own.seals, head, body)",
        "        return self._keys(own, self._card).seal(mode, head.number, head, body)",
        ("tests/networking/end_to_end/test_stream_keys.py::test_no_nonce_is_used_twice",),
    ),
    Mutation(
        "card-of-a-worker-believed",
        ORIGIN,
        f"{_P}/worker/seal.py",
        'peer = self._verifier.check(card.certificate, ("trainer",))',
        'peer = self._verifier.check(card.certificate, ("trainer", "worker"))',
        (
            "tests/networking/worker/test_seal.py::test_other_cards_are_refused",
            f"{TAKEN_OVER}[encrypt]",
        ),
    ),
    Mutation(
        "old-directive-obeyed",
        ORIGIN,
        f"{_P}/worker/seal.py",
        "if version < max(self._newest.get((subject, stream), (0, 0)), (self.incarnation, 0)):",
        "if version < (self.incarnation, 0):",
        ("tests/networking/worker/test_seal.py::test_an_older_directive_is_not_obeyed",),
    ),
    Mutation(
        "samples-readable-in-the-server",
        ORIGIN,
        f"{_P}/worker/seal.py",
        'mode = ENCRYPTED if self.mode == "encrypt" else MAC',
        "mode = MAC",
        (
            "tests/hostile/test_blind_server.py::test_the_server_has_no_plain_text[encrypt]",
            "tests/networking/end_to_end/test_stream_keys.py::test_an_encrypted_body_is_unreadable",
        ),
    ),
    Mutation(
        "revoked-certificate-believed-from-the-cache",
        ORIGIN,
        f"{_P}/end_to_end/identity.py",
        "        if peer.serial in self.revoked:\n",
        "        if certificate not in self._checked and peer.serial in self.revoked:\n",
        (
            "tests/hostile/test_members_and_certificates.py::test_a_revoked_worker_is_refused_by_a_trainer_that_has_the_list",
            "tests/networking/end_to_end/test_identity.py::test_a_certificate_is_refused_once_it_is_revoked",
        ),
    ),
    # --- docs/security.md, besides these -----------------------------------------------------------------------------
    Mutation(
        "token-compared-by-its-beginning",
        NETWORK,
        f"{_P}/security/tls_contexts.py",
        'return hmac.compare_digest(digest, expected.ljust(64, "-"))',
        'return hmac.compare_digest(digest[:8], expected.ljust(64, "-")[:8])',
        (f"{STRANGERS}::test_tokens_are_compared_whole",),
    ),
    Mutation(
        "host-name-not-checked",
        NETWORK,
        f"{_P}/security/tls_contexts.py",
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n",
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n    context.check_hostname = False\n",
        ("tests/networking/links/test_links.py::test_the_client_reports_a_wrong_host_name",),
    ),
    Mutation(
        "plaintext-to-another-machine",
        NETWORK,
        f"{_P}/transports/selection.py",
        "if plain and not is_loopback(settings.host) and not settings.allow_insecure_remote:",
        "if plain and not settings.token and not is_loopback(settings.host) and not settings.allow_insecure_remote:",
        (
            "tests/networking/links/test_links.py::test_plaintext_beyond_this_machine_is_refused_before_the_token_leaves",
        ),
    ),
    Mutation(
        "rejections-not-delayed",
        NETWORK,
        f"{_P}/security/admission.py",
        "over = count - FREE_FAILURES",
        "over = count - FREE_FAILURES - _MAX_FAILURES",
        (
            f"{STRANGERS}::test_rejections_are_delayed_but_valid_credentials_are_accepted_immediately",
            "tests/networking/security/test_admission.py::test_each_failure_is_answered_later_than_the_one_before",
        ),
    ),
    Mutation(
        "forged-log-lines",
        NETWORK,
        f"{_P}/relay/core.py",
        "connection.name = connection.called = plain(hello.name, MAX_NAME_CHARACTERS)",
        "connection.name = connection.called = hello.name[:MAX_NAME_CHARACTERS]",
        (f"{MISUSE}::test_peers_cannot_forge_log_lines_or_control_a_terminal",),
    ),
    Mutation(
        "certificate-of-a-worker-and-a-token-make-a-trainer",
        STOLEN,
        f"{_P}/security/logins.py",
        "    if identity.role is None:\n        return check_token(hello, verifier)",
        "    if identity.role is None or hello.token:\n        return check_token(hello, verifier)",
        (f"{MISUSE}::test_a_workers_certificate_with_any_token_is_not_a_trainers",),
    ),
    Mutation(
        "worker-sees-the-status",
        STOLEN,
        f"{_P}/security/logins.py",
        "if identity.role in OPERATOR_ROLES or (identity.role is None and may):",
        "if identity.role is not None or may:",
        ("tests/networking/transports/test_selection.py::test_roles_that_may_request_the_status_over_tls",),
    ),
    Mutation(
        "missing-list-of-revocations-counts-as-empty",
        STOLEN,
        f"{_P}/security/authentication.py",
        "if self._had_list and not has_list and not before <= self._signed:",
        "if self._had_list and not has_list and not before:",
        (f"{AUTHENTICATION}::test_a_damaged_list_keeps_the_last_good_one_and_a_server_does_not_start_with_it",),
    ),
    Mutation(
        "key-of-a-client-compared-by-its-id",
        GATEWAY,
        "tmrl_core/gateway/api_keys.py",
        "return key if _matches(text, _NO_HASH if key is None else key.sha256) else None",
        'return key if key is None or _matches(text, key.sha256) or "." in text else None',
        (
            "tests/gateway/test_app.py::test_wrong_keys_are_refused",
            "tests/gateway/test_api_keys.py::test_other_texts_are_not_keys",
        ),
    ),
    Mutation(
        "sessions-of-a-revoked-key-go-on",
        GATEWAY,
        "tmrl_core/gateway/client_sessions.py",
        "            ended += usage.clients.values()\n",
        "",
        ("tests/gateway/test_client_sessions.py::test_sessions_of_a_revoked_key_end",),
    ),
    Mutation(
        "cookie-makes-steps-of-a-session",
        GATEWAY,
        "tmrl_core/gateway/app.py",
        "        if not fields.session_key and fields.is_end:\n",
        "        if not fields.session_key:\n",
        ("tests/gateway/test_app.py::test_an_end_message_needs_a_key_or_the_cookie",),
    ),
    Mutation(
        "login-ends-a-session-in-use",
        GATEWAY,
        "tmrl_core/gateway/client_sessions.py",
        "        if now - oldest.last_request < MAKE_ROOM_S:\n",
        "        if now - oldest.last_request < 0:\n",
        ("tests/gateway/test_client_sessions.py::test_a_key_has_a_maximum_of_sessions_and_long_idle_ones_make_room",),
    ),
    Mutation(
        "gateway-acts-with-its-first-policy",
        GATEWAY,
        "tmrl_core/gateway/central.py",
        "                self.policy.adopt(self._outbox.version)\n",
        "                self.policy.version = self._outbox.version\n",
        ("tests/gateway/test_central.py::test_new_weights_act_in_all_sessions",),
    ),
    Mutation(
        "order-of-another-page",
        LIVE_PAGE,
        "tmrl_core/dashboard/app.py",
        '        check_origin(request, "this page")\n        if not request.headers.get("content-type"',
        '        if not request.headers.get("content-type"',
        ("tests/dashboard/test_app.py::test_an_order_of_another_page_is_refused",),
    ),
    Mutation(
        "events-without-a-login",
        LIVE_PAGE,
        "tmrl_core/dashboard/app.py",
        "        self._check(request)\n        if self._feed.viewers",
        "        if self._feed.viewers",
        ("tests/dashboard/test_app.py::test_nothing_is_shown_without_a_login",),
    ),
    Mutation(
        "page-of-any-name",
        LIVE_PAGE,
        "tmrl_core/web/origins.py",
        "        return name in self._names or is_loopback(name)\n",
        "        return True\n",
        (
            "tests/dashboard/test_app.py::test_other_names_are_refused_over_plain_http",
            "tests/web/test_logins.py::test_names_of_a_server",
        ),
    ),
    # --- learning: bounds of policies and losses ---------------------------------------------------------------------
    Mutation(
        "normalized-observations-without-their-limit-in-numpy",
        LEARNING,
        "tmrl_core/actor/policies/numpy/mlp.py",
        "        np.clip(vector, -OBSERVATION_LIMIT, OBSERVATION_LIMIT, out=vector)\n",
        "        np.minimum(vector, OBSERVATION_LIMIT, out=vector)\n",
        (f"{BOUNDS}::test_normalized_observations_are_cut_at_ten_at_both_ends",),
    ),
    Mutation(
        "normalized-observations-without-their-limit-in-torch",
        LEARNING,
        "tmrl_core/actor/policies/torch/mlp.py",
        ".clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)",
        ".clamp(max=OBSERVATION_LIMIT)",
        (f"{BOUNDS}::test_normalized_observations_are_cut_at_ten_at_both_ends",),
    ),
    Mutation(
        "spread-without-its-limit-in-torch",
        LEARNING,
        "tmrl_core/actor/policies/torch/squashed_gaussian.py",
        "torch.clamp(log_std_BA, LOG_STD_MIN, LOG_STD_MAX)",
        "torch.clamp(log_std_BA, LOG_STD_MIN)",
        (f"{BOUNDS}::test_the_logarithm_of_the_spread_is_between_minus_twenty_and_two",),
    ),
    Mutation(
        "another-limit-of-the-spread",
        LEARNING,
        "tmrl_core/actor/policies/numpy/squashed_gaussian.py",
        "LOG_STD_MAX = 2.0",
        "LOG_STD_MAX = 3.0",
        (f"{BOUNDS}::test_the_logarithm_of_the_spread_is_between_minus_twenty_and_two",),
    ),
    Mutation(
        "spread-without-its-limit-in-batches-of-numpy",
        LEARNING,
        "tmrl_core/actor/policies/numpy/squashed_gaussian.py",
        'np.minimum(np.maximum(heads["log_std"], LOG_STD_MIN), LOG_STD_MAX)',
        'np.maximum(heads["log_std"], LOG_STD_MIN)',
        (f"{BOUNDS}::test_the_logarithm_of_the_spread_is_between_minus_twenty_and_two",),
    ),
    Mutation(
        "squashed-action-leaves-its-bound-by-a-bit",
        LEARNING,
        "tmrl_core/actor/policies/torch/squashed_gaussian.py",
        "        action_BA = torch.clamp(action_BA, self.low, self.high)\n",
        "",
        (f"{BOUNDS}::test_saturated_actions_of_a_batch_stay_inside_their_bounds",),
    ),
    Mutation(
        "deterministic-action-leaves-its-bound-by-a-bit",
        LEARNING,
        "tmrl_core/actor/policies/torch/deterministic.py",
        '{"action": torch.clamp(action_BA, self.low, self.high)}',
        '{"action": action_BA}',
        (f"{BOUNDS}::test_saturated_actions_of_a_batch_stay_inside_their_bounds",),
    ),
    Mutation(
        "noise-leaves-the-bounds-in-batches",
        LEARNING,
        "tmrl_core/actor/policies/torch/deterministic.py",
        "self.mixed(torch.clamp(noisy_B, self.low, self.high), ",
        "self.mixed(noisy_B, ",
        (f"{BOUNDS}::test_noise_does_not_leave_the_bounds_in_batches_and_sessions",),
    ),
    Mutation(
        "density-at-a-bound-of-another-action",
        LEARNING,
        "tmrl_core/actor/policies/torch/squashed_gaussian.py",
        "_UNIT_MARGIN = 1e-6",
        "_UNIT_MARGIN = 1e-3",
        (f"{BOUNDS}::test_the_density_at_a_bound_is_that_of_an_action_just_inside",),
    ),
    Mutation(
        "gradients-of-ppo-unclipped",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        "clip_grad_norm_(self.model.parameters(), longest)",
        "clip_grad_norm_(self.model.parameters(), math.inf)",
        ("tests/training/agents/test_ppo.py::test_a_step_is_no_longer_than_the_clipped_gradient",),
    ),
    Mutation(
        "gradients-of-cloning-unclipped",
        LEARNING,
        "tmrl_core/training/agents/behavior_cloning.py",
        "minimise(self.optimizer, loss, self.settings.max_grad_norm)",
        "minimise(self.optimizer, loss, None and self.settings.max_grad_norm)",
        ("tests/training/agents/test_behavior_cloning.py::test_a_step_is_no_longer_than_the_clipped_gradient",),
    ),
    Mutation(
        "normalized-rewards-without-their-limit",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        "(reward_T / scale).clamp(-REWARD_LIMIT, REWARD_LIMIT)",
        "(reward_T / scale).clamp(max=REWARD_LIMIT)",
        ("tests/training/agents/test_ppo.py::test_normalized_rewards_are_cut_at_ten_at_both_ends",),
    ),
    Mutation(
        "values-clipped-in-their-favour",
        LEARNING,
        "tmrl_core/training/agents/ppo_losses.py",
        "torch.maximum(error_B, (clipped_B - return_B).square())",
        "torch.minimum(error_B, (clipped_B - return_B).square())",
        ("tests/training/agents/test_ppo_losses.py::test_the_value_loss_as_a_slow_loop",),
    ),
    Mutation(
        "noise-of-the-target-policy-unclipped",
        LEARNING,
        "tmrl_core/training/agents/losses.py",
        "(scale * noise_BA).clamp(-clip, clip)",
        "(scale * noise_BA).clamp(max=clip)",
        ("tests/training/agents/test_losses.py::test_the_noise_of_a_smoothed_action_is_clipped_and_so_is_the_action",),
    ),
    Mutation(
        "entropy-of-the-first-choice-only",
        LEARNING,
        "tmrl_core/actor/policies/torch/categorical.py",
        "entropy_BM.sum(dim=-1)",
        "entropy_BM[..., 0]",
        ("tests/actor/policies/test_action_spaces.py::test_log_probabilities_and_entropies_of_choices_add_up",),
    ),
    Mutation(
        "mask-of-one-choice-suffices",
        LEARNING,
        "tmrl_core/actor/policies/masks.py",
        "np.asarray(each.all(axis=-1))",
        "np.asarray(each.any(axis=-1))",
        ("tests/actor/policies/test_action_spaces.py::test_a_mask_of_each_choice_limits_it",),
    ),
    Mutation(
        "exploration-lost-with-a-file",
        LEARNING,
        "tmrl_core/actor/policies/weights.py",
        "    if not exploration or _header(data) is None:\n",
        "    if exploration or _header(data) is None:\n",
        ("tests/actor/policies/test_weights.py::test_a_file_holds_the_exploration_of_its_policy",),
    ),
    Mutation(
        "resume-with-another-layout",
        LEARNING,
        "tmrl_core/training/checkpoints/restore.py",
        "            if before.get(key) != now.get(key):\n",
        '            if before.get(key) != now.get(key) and key != "layout":\n',
        ("tests/training/checkpoints/test_restore.py::test_another_layout_of_bytes_is_refused_and_changes_nothing",),
    ),
    Mutation(
        "policy-that-cannot-act-is-restarted",
        LEARNING,
        "tmrl_core/actor/rollout/runner.py",
        "if not self._has_acted and not isinstance",
        "if self._has_acted and not isinstance",
        ("tests/actor/rollout/test_runner.py::test_a_policy_whose_first_action_fails_cannot_act_in_its_space",),
    ),
    Mutation(
        "one-hot-of-a-value-too-many",
        LEARNING,
        "tmrl_core/actor/policies/flattening.py",
        "            if not 0 <= index < count:\n",
        "            if not 0 <= index <= count:\n",
        ("tests/actor/policies/test_flattening.py::test_integers_just_outside_their_space_are_refused",),
    ),
    Mutation(
        "spread-of-advice-without-its-limit",
        LEARNING,
        "tmrl_core/actor/policies/torch/squashed_gaussian.py",
        "torch.clamp(log_std_BA, LOG_STD_MIN, LOG_STD_MAX)",
        "torch.clamp(log_std_BA, LOG_STD_MIN)",
        ("tests/gateway/advice/test_policies.py::test_the_spread_of_advice_has_the_bounds_of_the_policy",),
    ),
    Mutation(
        "advice-without-noise-is-infinitely-precise",
        LEARNING,
        "tmrl_core/gateway/advice/policies.py",
        "max(actor.noise, 1e-3)",
        "max(actor.noise, 1e-9)",
        ("tests/gateway/advice/test_policies.py::test_a_policy_without_noise_can_still_be_advised",),
    ),
    Mutation(
        "orders-are-repeated",
        ORIGIN,
        "tmrl_core/networking/trainer/orders.py",
        "if order.id in self._ids:",
        "if False:",
        (f"{RELAY}/test_viewers.py::test_an_order_is_carried_out_once_and_its_outcome_shown",),
    ),
    Mutation(
        "orders-are-used-late",
        ORIGIN,
        "tmrl_core/networking/trainer/orders.py",
        "not now - RECENT_S <= envelope.scene_s",
        "not envelope.scene_s",
        (f"{RELAY}/test_viewers.py::test_an_order_to_a_trainer_that_was_seen_long_ago_is_refused",),
    ),
    Mutation(
        "orders-of-anybody",
        ORIGIN,
        "tmrl_core/networking/end_to_end/signed.py",
        "if not is_signed(peer.key, message.proof, _covered(message)):",
        "if False:",
        ("tests/networking/end_to_end/test_telemetry_proofs.py::test_an_order_cannot_be_changed",),
    ),
    Mutation(
        "old-scenes-after-newer-ones",
        ORIGIN,
        "tmrl_core/networking/observer/seal.py",
        "if version < self._newest.get(part, (0, 0)):",
        "if False:",
        (
            "tests/networking/end_to_end/test_telemetry_proofs.py"
            "::test_a_scene_is_no_history_and_an_old_one_not_the_latest",
        ),
    ),
    Mutation(
        "viewers-wait-after-a-lost-link",
        NOTICED,
        "tmrl_core/networking/trainer/telemetry.py",
        'self._due["scene"] = min(self._due["scene"], now + SCENE_S)',
        "pass",
        (f"{RELAY}/test_viewers.py::test_a_trainer_that_hears_late_of_viewers_shows_the_next_scene_soon",),
    ),
    Mutation(
        "value-loss-of-another-weight",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        "loss_actor + 2.0 * s.value_coef",
        "loss_actor + s.value_coef",
        ("tests/training/agents/test_ppo.py::test_the_loss_is_the_sum_of_three_with_their_coefficients",),
    ),
    Mutation(
        "entropy-without-its-coefficient",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        "- s.entropy_coef * entropy",
        "- entropy",
        ("tests/training/agents/test_ppo.py::test_the_loss_is_the_sum_of_three_with_their_coefficients",),
    ),
    Mutation(
        "clip-fraction-of-another-range",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        ".abs() > s.clip_ratio",
        ".abs() > 2.0 * s.clip_ratio",
        ("tests/training/agents/test_ppo.py::test_the_loss_is_the_sum_of_three_with_their_coefficients",),
    ),
    Mutation(
        "random-share-halved-in-batches-of-numpy",
        LEARNING,
        "tmrl_core/actor/policies/spaces.py",
        "at = rng.random(len(action_BA)) < share",
        "at = rng.random(len(action_BA)) < 0.5 * share",
        (f"{BOUNDS}::test_a_share_of_the_actions_of_a_batch_is_uniform",),
    ),
    Mutation(
        "random-share-halved-in-batches",
        LEARNING,
        "tmrl_core/actor/policies/torch/mlp.py",
        "self._rng.random(len(action_B)) < share",
        "self._rng.random(len(action_B)) < 0.5 * share",
        (f"{BOUNDS}::test_a_share_of_the_actions_of_a_batch_is_uniform",),
    ),
    Mutation(
        "first-actions-depend-on-observations",
        LEARNING,
        "tmrl_core/actor/policies/torch/mlp.py",
        "orthogonal(head, 0.01)",
        "orthogonal(head, 1.0)",
        ("tests/training/agents/test_ppo.py::test_networks_begin_with_orthogonal_layers_of_their_gains",),
    ),
    Mutation(
        "requested-action-recorded-for-the-executed-one",
        UNCHANGED,
        "tmrl_core/actor/rollout/takeover.py",
        "if self._says_executed is not None:",
        "if False:",
        (f"{TAKEOVER}::test_recorded_is_what_the_environment_says_it_has_executed",),
    ),
    Mutation(
        "discarded-episode-sent",
        UNCHANGED,
        "tmrl_core/actor/rollout/takeover.py",
        "dropped = recorder.drop_unsent()",
        "dropped = 0",
        (f"{TAKEOVER}::test_a_discarded_episode_leaves_nothing_and_another_one_follows",),
    ),
    Mutation(
        "persons-steps-trained-on-policy",
        LEARNING,
        "tmrl_core/training/agents/ppo.py",
        "return taken_T == 0, torch",
        "return taken_T >= 0, torch",
        ("tests/training/agents/test_ppo.py::test_steps_of_persons_are_left_out",),
    ),
    Mutation(
        "all-steps-kept-as-interventions",
        LEARNING,
        "tmrl_core/training/memories/interventions.py",
        "keep = extras.pop(IS_INTERVENTION)[0] > 0",
        "keep = extras.pop(IS_INTERVENTION)[0] >= 0",
        ("tests/training/memories/test_interventions.py::test_only_steps_of_persons_are_kept_however_chunks_are_cut",),
    ),
    Mutation(
        "policy-sees-other-pixels",
        UNCHANGED,
        "tmrl_core/envs/sent_images.py",
        "seen[path] = decode_image(self._files[path], made)",
        "seen[path] = resize(array, shape, made)",
        ("tests/envs/test_sent_images.py::test_what_is_stored_is_what_the_policy_saw",),
    ),
    Mutation(
        "image-of-any-size",
        BOUNDED,
        "tmrl_core/samples/images.py",
        "if found == wanted and",
        "if",
        ("tests/samples/test_images.py::test_other_files_are_refused",),
    ),
    Mutation(
        "pixels-not-counted",
        BOUNDED,
        "tmrl_core/samples/images.py",
        "chunk.rows * row_bytes > self._max_bytes",
        "row_bytes > self._max_bytes",
        ("tests/samples/test_images.py::test_too_many_pixels_in_one_message_are_refused_before_they_are_decoded",),
    ),
    Mutation(
        "held-out-sessions-trained-on",
        LEARNING,
        "tmrl_core/success/examples.py",
        "training += [alike[index] for index in order[count:]]",
        "training += [alike[index] for index in order]",
        (
            "tests/success/test_success.py::test_no_session_is_on_both_sides_and_the_moment_before_a_success_is_left_out",
        ),
    ),
    # --- several Servers and ranks -----------------------------------------------------------------------------------
    Mutation(
        "worker-moves-before-its-samples-are-delivered",
        ONCE,
        f"{_P}/spools/own_server.py",
        "            own = server\n",
        "            own = chosen\n",
        ("tests/networking/spools/test_own_server.py::test_a_worker_moves_when_its_samples_are_delivered",),
    ),
    Mutation(
        "servers-change-their-ranks",
        ONCE,
        "tmrl_core/ranks/resharding.py",
        "servers.index(server) != rank",
        "servers.index(server) < 0",
        ("tests/ranks/test_resharding.py::test_what_cannot_be_resumed_is_refused",),
    ),
    Mutation(
        "late-call-is-a-lost-rank",
        NOTICED,
        "tmrl_core/ranks/process_group.py",
        "        if not work.is_completed():\n            return False",
        "        if work.is_completed():\n            raise\n        return False",
        ("tests/ranks/test_process_group.py::test_a_call_that_ends_just_after_a_limit_is_no_failure",),
    ),
    Mutation(
        "ranks-normalize-their-own-rows",
        LEARNING,
        "tmrl_core/training/agents/batch_renorm.py",
        "if (ranks := RANK_GROUP.get()) is None:",
        "if (ranks := RANK_GROUP.get()) is None or ranks.size:",
        ("tests/ranks/test_updates.py::test_ranks_learn_as_one_process",),
    ),
)
