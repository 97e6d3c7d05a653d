from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor import TorchActorModule
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.errors import LinkClosedError, PolicyFailedError, RefusedError, RemoteProtocolError, WeightsError
from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Blob, Directive, Evaluation, PolicyUpdate
from tmrl_core.sessions import SessionWriter, read_sessions


@pytest.fixture
def make(counting_env: Any, constant_actor: Any, link: Any) -> Any:
    def make(linked: bool = True, actor: Any = constant_actor, **kwargs: Any) -> Worker:
        return compose(lambda: counting_env(length=3), actor, link=link if linked else None, **kwargs)

    return make


def test_update_returns_the_number_of_published_versions_including_skipped_ones(make: Any, link: Any) -> None:
    worker = make()
    assert worker.update_actor_weights() == 0
    for value in (0.5, 0.6, 0.7):
        link.publish(value)
    assert worker.update_actor_weights() == 3
    assert worker.actor.value == 0.7
    assert worker.policy_version == (1, 3)
    assert worker.update_actor_weights() == 0
    link.publish(0.8)
    assert worker.ignore_actor_weights() == 1
    assert worker.actor.value == 0.7
    assert worker.update_actor_weights() == 0


def test_a_version_that_arrives_during_the_call_counts_once_it_is_loaded(
    make: Any, link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make()
    take = link.take_policy

    def take_then_publish() -> Any:
        taken = take()
        if not link.versions_published:
            link.publish(0.5)
        return taken

    monkeypatch.setattr(link, "take_policy", take_then_publish)
    assert worker.update_actor_weights(blocking=True) == 1
    assert worker.actor.value == 0.5
    assert worker.policy_version == (1, 1)


def test_exploration_parameters_are_set_after_the_weights_are_loaded(make: Any, link: Any, constant_actor: Any) -> None:
    told: list[tuple[float, dict[str, float]]] = []

    class Noisy(constant_actor):  # type: ignore[misc]
        def set_exploration(self, parameters: Any) -> None:
            told.append((self.value, dict(parameters)))

    worker = make(actor=Noisy)
    link.publish(0.5)
    worker.update_actor_weights()
    assert told == [], "the trainer said nothing of it"
    link.publish(0.75)
    link.policy = PolicyUpdate(link.policy.version, link.policy.policies, {"noise": 0.1})
    worker.update_actor_weights()
    assert told == [(0.75, {"noise": 0.1})]
    make_quiet = make()
    link.policy = PolicyUpdate((1, 9), {"policy": Blob("file", b"0.5")}, {"noise": 0.1})
    make_quiet.update_actor_weights()
    assert make_quiet.actor.value == 0.5, "an actor that does not explore by numbers takes no notice"


def test_a_blocking_update_waits_for_a_version(make: Any, link: Any) -> None:
    worker = make()
    link.on_wait = lambda link: link.publish(0.5) if link.waits == 3 else None
    assert worker.update_actor_weights(blocking=True) == 1
    assert link.waits == 3
    assert worker.actor.value == 0.5


@pytest.mark.parametrize("end", ["finish", "stop"])
def test_the_end_of_the_run_ends_the_wait(end: str, make: Any, link: Any) -> None:
    worker = make()
    link.on_wait = lambda link: (
        worker.stop() if end == "stop" else setattr(link, "directive", Directive(1, finish=True))
    )
    assert worker.update_actor_weights(blocking=True) == 0
    assert link.waits == 1


def test_a_version_of_several_policies_is_refused(make: Any, link: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = make()
    link.publish(0.5)
    worker.update_actor_weights()
    link.publish(0.7)
    link.policy = PolicyUpdate((1, 2), {"a": Blob("file", b"0.7"), "b": Blob("file", b"0.7")})
    worker.update_actor_weights()
    assert "the version contains the policies ['a', 'b']; this worker uses one policy" in caplog.text
    assert worker.actor.value == 0.5
    assert worker.uplink.policies_refused == 1


def test_weights_that_do_not_fit_are_refused_and_counted(
    make: Any, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make()
    link.publish(0.5)
    worker.update_actor_weights()
    link.publish(data=b"garbage")
    with caplog.at_level(logging.ERROR):
        assert worker.update_actor_weights() == 1
    assert "version 1.2 of the policy is refused, the old one stays: 'garbage' is no number" in caplog.text
    assert worker.actor.value == 0.5
    assert worker.policy_version == (1, 1)


@pytest.mark.parametrize(
    "policies", [{}, {"left": Blob("file", b"1"), "right": Blob("file", b"2")}, {"policy": Blob("safetensors", b"")}]
)
def test_an_update_that_is_not_for_this_worker_is_refused(
    policies: dict[str, Blob], make: Any, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make()
    link.versions_published = 1
    link.policy = PolicyUpdate((1, 1), policies)
    assert worker.update_actor_weights() == 1
    assert worker.policy_version == (0, 0)
    assert "is refused" in caplog.text


def test_a_policy_that_loads_as_another_object_is_adopted(make: Any, link: Any, constant_actor: Any) -> None:
    class Renewed(constant_actor):  # type: ignore[misc]
        devices: list[Any] = []  # noqa: RUF012

        def load(self, path: Any, device: Any) -> Any:
            other = Renewed(None, None)
            super(Renewed, other).load(path, device)
            return other

        def to_device(self, device: Any) -> Any:
            self.devices.append(device)
            return self

    worker = make(actor=Renewed, device="cuda:7")
    first = worker.actor
    link.publish(0.5)
    worker.update_actor_weights()
    assert worker.actor is not first
    assert worker.actor.value == 0.5
    assert Renewed.devices == ["cuda:7"] * 2


def test_the_local_copy_is_kept_and_loaded(make: Any, link: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.tmod"
    worker = make(files=PolicyFiles(path, str(tmp_path / "old" / "p_"), every=2))
    assert worker.model_path == path
    assert not path.exists()
    for value in (0.5, 0.6, 0.7):
        link.publish(value)
        worker.update_actor_weights()
    worker.update_actor_weights()
    assert path.read_bytes() == b"0.7"
    assert [copy.read_bytes() for copy in (tmp_path / "old").iterdir()] == [b"0.6"]
    assert make(files=PolicyFiles(path), linked=False, needs_policy=True).actor.value == 0.7


def test_refused_weights_are_not_stored(make: Any, link: Any, tmp_path: Path) -> None:
    worker = make(files=PolicyFiles(tmp_path / "policy"))
    link.publish(data=b"garbage")
    worker.update_actor_weights()
    assert list(tmp_path.iterdir()) == []


def test_a_stored_policy_that_does_not_fit_is_an_error_only_without_a_server(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_bytes(b"garbage")
    assert make(files=PolicyFiles(path)).actor.value == 0.25
    with pytest.raises(WeightsError, match="garbage"):
        make(files=PolicyFiles(path), linked=False, needs_policy=True)


class TextActor(TorchActorModule):
    """Has a format of its own, which raises what it likes."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.value = 0.0

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.full(1, self.value, np.float32)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(str(self.value))

    def load(self, path: str | Path, device: Any) -> TextActor:
        self.value = float(Path(path).read_text())
        return self


def test_a_torch_policys_custom_format_is_received_and_stored(make: Any, link: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_bytes(b"of before")
    worker = make(actor=TextActor, files=PolicyFiles(path))
    link.publish(0.5)
    worker.update_actor_weights()
    assert worker.actor.value == 0.5
    assert path.read_bytes() == b"0.5"
    assert make(actor=TextActor, files=PolicyFiles(path), linked=False, needs_policy=True).actor.value == 0.5


def test_published_models_count_for_dated_copies_also_if_they_are_skipped(make: Any, link: Any, tmp_path: Path) -> None:
    worker = make(files=PolicyFiles(None, str(tmp_path / "p_"), every=3))
    copies = []
    for published in (10, 1, 1, 0, 4):
        for _ in range(published):
            link.publish(0.5)
        worker.update_actor_weights(verbose=False)
        copies.append(len(list(tmp_path.iterdir())))
    assert copies == [1, 1, 2, 2, 3]  # the latest of 10, of 12 and of 16


def test_a_copy_that_cannot_be_written_does_not_stop_the_worker(
    make: Any, link: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    worker = make(files=PolicyFiles(tmp_path / "file" / "policy"))
    for value in (0.4, 0.5):
        link.publish(value)
        assert worker.update_actor_weights() == 1
        assert worker.actor.value == value
    assert caplog.text.count("could not be kept") == 1
    (tmp_path / "file").unlink()
    link.publish(0.6)
    assert worker.update_actor_weights() == 1
    assert (tmp_path / "file" / "policy").exists()
    assert caplog.text.count("could not be kept") == 1


def test_send_takes_all_samples_and_keeps_the_statistics(make: Any, link: Any) -> None:
    worker = make()
    worker.collect_train_episode()
    worker.run_episode()
    worker.send_and_clear_buffer()
    assert len(worker.buffer) == 0
    assert link.sends == [4]
    assert [record.mode for record in link.records] == ["train", "test"]
    assert worker.buffer.stat_train_return == worker.buffer.stat_test_return == 6.0
    worker.send_and_clear_buffer()
    assert link.sends == [4]


def test_a_full_queue_is_retried_until_there_is_space(make: Any, link: Any) -> None:
    worker = make()
    worker.collect_train_episode()
    tries = []

    def full_at_first(chunks: Any, records: Any, timeout_s: Any) -> None:
        tries.append(timeout_s)
        if len(tries) < 3:
            raise LinkClosedError("no space became free in time")
        type(link).send(link, chunks, records, timeout_s)

    link.send = full_at_first
    worker.send_and_clear_buffer()
    assert len(tries) == 3
    assert len(link) == 4


def test_unsent_samples_return_to_the_buffer_on_stop_and_are_sent_at_the_end(make: Any, link: Any) -> None:
    worker = make()
    worker.collect_train_episode()

    def full(chunks: Any, records: Any, timeout_s: Any) -> None:
        worker.stop()
        raise LinkClosedError("no space became free in time")

    link.send = full
    worker.send_and_clear_buffer()
    assert len(worker.buffer) == 4
    assert len(worker.buffer.episodes) == 1
    del link.send
    worker.close()
    assert link.sends == [4]
    assert len(link.records) == 1


def test_close_sends_remaining_samples_and_reports(make: Any, link: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = make()
    obs, _ = worker.reset(collect_samples=True)
    worker.step(obs, test=False, collect_samples=True)
    with caplog.at_level(logging.INFO):
        assert worker.close() == CloseReport(2, 0, 0)
    assert "2 samples acknowledged, 0 handed over to the Server, 0 lost" in caplog.text
    assert [record.end for record in link.records] == ["aborted"]
    assert worker.env.is_closed
    assert worker.close() is None
    with pytest.raises(LinkClosedError, match="closed"):
        worker.run()


def test_the_last_line_names_the_samples_that_were_dropped_before(
    make: Any, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make()
    link.counts = link.counts._replace(samples_dropped=818)
    with caplog.at_level(logging.WARNING):
        worker.close()
    assert "0 lost, 818 dropped earlier for lack of space" in caplog.text


def test_samples_without_space_at_the_end_count_as_lost(make: Any, link: Any) -> None:
    worker = make(drain_timeout_s=0.0)
    worker.collect_train_episode()

    def full(chunks: Any, records: Any, timeout_s: Any) -> None:
        raise LinkClosedError("no space became free in time")

    link.send = full
    assert worker.close() == CloseReport(0, 0, 4)


def test_samples_that_a_failed_link_did_not_take_are_recorded_and_count_as_lost(
    make: Any, link: Any, tmp_path: Path, counting_env: Any
) -> None:
    recording = Recording(SessionWriter(tmp_path, counting_env.observation_space, counting_env.action_space))
    worker = make(recording=recording)
    worker.collect_train_episode()

    def refused(chunks: Any, records: Any, timeout_s: Any) -> None:
        raise RefusedError("certificate", "it was revoked")

    link.send = refused
    with pytest.raises(RefusedError):
        worker.send_and_clear_buffer()
    assert len(worker.buffer) == 4
    assert worker.close() == CloseReport(0, 0, 4)
    assert [len(session) for session in read_sessions(tmp_path)] == [3]  # steps


def test_close_from_another_thread_waits_for_the_step_and_ends_the_run(make: Any, link: Any) -> None:
    worker = make()
    worker.env.length = 10**9
    playing = threading.Event()
    worker.env.on_step = playing.set
    thread = threading.Thread(target=worker.run, kwargs={"verbose": False})
    thread.start()
    assert playing.wait(10)
    report = worker.close()
    thread.join(10)
    assert not thread.is_alive()
    assert report.acknowledged == worker.env.steps + 1 == len(link)
    assert worker.env.is_closed


def test_close_from_within_the_run_does_not_wait_for_itself(make: Any, link: Any) -> None:
    worker = make()
    worker.env.on_step = worker.close  # as a signal handler does
    worker.run(nb_episodes=1, verbose=False)
    assert link.closed


def test_a_worker_is_a_context_manager(make: Any, link: Any) -> None:
    with make() as worker:
        worker.collect_train_episode()
    assert link.closed
    assert link.sends == [4]


class BrokenActor:
    """Acts with NaN in the episode's third step while its value is not 0.5."""

    def __new__(cls, base: Any) -> Any:
        class Broken(base):  # type: ignore[misc]
            def act(self, obs: Any, test: bool = False) -> Any:
                action = super().act(obs, test)
                return action if self.value == 0.5 or obs[1] < 2 else action * np.nan

        return Broken


@pytest.mark.parametrize("fast", [True, False])
def test_an_action_that_is_not_finite_is_never_executed_and_the_episodes_samples_are_kept(
    make: Any, link: Any, constant_actor: Any, caplog: pytest.LogCaptureFixture, fast: bool
) -> None:
    worker = make(actor=BrokenActor(constant_actor), max_failures=1, **({} if fast else {"crc_debug": True}))

    def heal(link: Any) -> None:
        assert worker.loop.policy_failures == 2, "one more than max_failures, then it waits"
        link.publish(0.5)

    link.on_wait = heal
    worker.run(nb_episodes=4, verbose=False)
    assert np.isfinite(worker.env.actions).all()
    assert [record.end for record in link.records] == ["aborted", "aborted", "truncated", "truncated"]
    assert len(link) == 3 + 3 + 4 + 4, "what was collected before it is kept"
    assert worker.policy_version == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 2
    assert "the policy's action is not finite, so it is not executed: [nan]" in said[0]
    assert "waits for another" in said[1]


def test_an_evaluation_whose_policy_fails_is_played_again_with_the_next_policy(
    make: Any, link: Any, constant_actor: Any
) -> None:
    worker = make(actor=BrokenActor(constant_actor), send_pause_s=0.0)
    link.directive = Directive(1, Evaluation(1, (100, 101)))
    link.on_send = lambda link: link.publish(0.5) if len(link.sends) == 3 else None
    worker.run(nb_episodes=5, verbose=False)
    assert [(record.seed, record.version) for record in link.records if record.evaluation] == [
        (100, (1, 1)),
        (101, (1, 1)),
    ]
    assert worker.env.seeds.count(100) == 2, "it is not tried again before that"


def test_an_action_that_is_not_finite_ends_a_worker_without_a_server(make: Any, constant_actor: Any) -> None:
    worker = make(linked=False, actor=BrokenActor(constant_actor))
    with pytest.raises(PolicyFailedError, match="not finite"):
        worker.run_episode()
    assert not worker.recorder.recording
    worker.reset(collect_samples=False)
    with pytest.raises(PolicyFailedError, match="not finite"):
        worker.step(np.array([0, 2, 0], np.float32), test=False, collect_samples=False)
    assert len(worker.env.actions) == 2


def test_an_unreadable_policy_is_refused_logged_once_and_counted(
    make: Any, link: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make()
    link.publish(0.5)
    worker.update_actor_weights()
    take = link.take_policy

    def unreadable() -> Any:
        raise RemoteProtocolError("a PolicyUpdate could not be decoded")

    monkeypatch.setattr(link, "take_policy", unreadable)
    for _ in range(3):
        link.publish(0.75)
        worker.update_actor_weights()
        worker.ignore_actor_weights()
    assert (worker.actor.value, worker.policy_version, worker.uplink.policies_refused) == (0.5, (1, 1), 3)
    assert caplog.text.count("could not be decoded") == 1
    monkeypatch.setattr(link, "take_policy", take)
    link.policy = PolicyUpdate((1, 5), link.policy.policies, {"noise": float("nan")})
    worker.update_actor_weights()
    assert (worker.policy_version, worker.uplink.policies_refused) == ((1, 1), 4)
    link.publish(0.75)
    worker.update_actor_weights()
    assert (worker.actor.value, worker.uplink.policies_refused) == (0.75, 4)
