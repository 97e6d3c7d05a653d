"""What the training interface says over a link."""

from __future__ import annotations

import math
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tests.waiting import until
from tmrl_core.actor import ActorModule
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.policies.weights import encode_arrays
from tmrl_core.config import from_values
from tmrl_core.metrics import MemorySink, ProgressDisplay, Recorder, names
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
from tmrl_core.networking.protocol.delivery import Received
from tmrl_core.networking.protocol.messages import (
    NEXT_ROUND,
    Blob,
    Collect,
    Evaluation,
    Lateness,
    PolicyUpdate,
    Progress,
    decode_body,
    turn_text,
)
from tmrl_core.networking.trainer import Member
from tmrl_core.networking.trainer.inbox import TAKEN_BYTES
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord
from tmrl_core.samples.codec import decoded_bytes, encode_message
from tmrl_core.samples.images import ImageDecoder, ImageShape, encode_image
from tmrl_core.training.loops.episode_metrics import MAX_NAMES_EACH
from tmrl_core.training.loops.evaluation import Evaluator
from tmrl_core.training.remote.interface import (
    MAX_CHARTED_NAMES,
    MAX_CHARTED_NAMES_EACH,
    MAX_RECORDS,
    WORKERS_CHARTED,
    RemoteInterface,
    episode_label,
    lateness_metrics,
)


class Noisy(ActorModule):
    """A policy that workers are to explore with."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return 0

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(b"weights")

    def exploration(self) -> dict[str, float]:
        return {"noise": 0.25}


class Bare:
    """An actor of the fewest methods."""

    def to_blob(self) -> tuple[str, bytes]:
        return "file", b"weights"


def published(actor: Any, **settings: Any) -> PolicyUpdate:
    link = TrainerLink(LinkSettings(transport="local", **settings), name="t", run="run")
    RemoteInterface(link).broadcast_model(actor)
    assert link.trainer.policy is not None
    update: PolicyUpdate = decode_body(link.trainer.policy[1], PolicyUpdate)
    return update


def _link_workers(interface: RemoteInterface, workers: Mapping[bytes, str]) -> None:
    """Let these be the linked workers, by stream, and the interface notice it."""
    members = interface.link.trainer.members
    members.clear()
    for stream, name in workers.items():
        members[stream] = Member(stream, name, b"", 0.0)
    interface.receive()


def test_a_policy_is_published_with_its_exploration_parameters() -> None:
    update = published(Noisy(None, None))
    assert update.exploration == {"noise": 0.25}
    assert update.policies["policy"].data == b"weights"


def test_most_policies_have_no_exploration_parameters() -> None:
    assert published(Bare()).exploration == {}


def test_several_policies_are_published_as_one_version() -> None:
    blobs = {"ships": Blob("safetensors", encode_arrays({"w": np.ones(2)}, {})), "ports": Blob("file", b"2")}
    update = published(PolicyBundle(blobs, {"port 1": 0.5}))
    assert update.policies == blobs
    assert update.exploration == {"port 1": 0.5}


def episode(value: float, mode: Any = "train", end: Any = "truncated", **kwargs: Any) -> EpisodeRecord:
    return EpisodeRecord("", value, 10, mode, end, worker="robot", **kwargs)


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ("robot", "gateway"),
        ("gateway/ab12", "gateway/ab12"),
        ("gateway2/ab12", "gateway"),
        ("gateway/" + "x" * 99, None),
    ],
)
def test_a_gateway_adds_its_sessions_to_the_servers_label(chosen: str, shown: str | None) -> None:
    found = episode_label("gateway", chosen)
    assert found == (shown or "gateway/" + "x" * 32)


def test_a_round_is_recorded_with_the_means_of_the_latest_training_episodes() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(TrainerLink(LinkSettings(transport="local"), name="t", run="run"), recorder=recorder)
    interface.record_round({"return_train": math.nan, "samples_received": 0, "updates": 1})
    row = {"return_train": 149.0, "samples_received": 1500, "updates": 2}
    interface.record_round(row, [episode(float(n)) for n in range(50, 150)])
    recorder.close()
    first, *_, last = [record for record in sink.records if record.kind == "round"]
    assert set(first.values) == {"time/total_timesteps", "train/n_updates"}
    assert last.env_steps == 1500
    assert [first.step, last.step] == [1, 2]  # the row's, whatever was reported last
    assert last.number("rollout/ep_rew_mean") == 99.5  # of the latest hundred
    assert last.number("rollout/ep_len_mean") == 10.0
    assert last.number("rollout/ep_rew") == 149.0


def test_the_lateness_of_workers_is_recorded_for_those_that_report_it() -> None:
    workers = {b"a": "robot/7", b"b": "simulator"}
    lateness = {b"a": Lateness(3, 1_000, 12, 2_500), b"gone": Lateness(4, 1, 1, 1)}
    assert lateness_metrics(workers, lateness) == {
        "worker/robot_7/late_steps": 12,
        "worker/robot_7/lateness_p999": 0.0025,
    }
    many = {number.to_bytes(2, "big"): str(number) for number in range(1_000)}
    assert len(lateness_metrics(many, dict.fromkeys(many, Lateness(0, 1, 1, 1)))) == 2 * WORKERS_CHARTED


def test_workers_that_change_their_names_make_a_bounded_number_of_series() -> None:
    interface = RemoteInterface(TrainerLink(LinkSettings(transport="local"), name="t", run="run"))
    series: set[str] = set()
    for number in range(40):
        workers = {bytes([number, n]): f"worker {n if n < 4 else 1_000 * number + n}" for n in range(WORKERS_CHARTED)}
        _link_workers(interface, workers)
        rates = interface._worker_rates()
        assert {f"worker/worker {n}/steps_per_s" for n in range(4)} <= rates.keys()
        series |= rates.keys()
    assert len(series) == MAX_CHARTED_NAMES


def test_a_worker_that_changes_its_name_leaves_series_for_others() -> None:
    interface = RemoteInterface(TrainerLink(LinkSettings(transport="local"), name="t", run="run"))
    stream = bytes(16)
    series: set[str] = set()
    interface.link.trainer.names[stream] = "thief"  # stands for the name in its certificate
    for number in range(1_000):
        _link_workers(interface, {stream: f"worker {number}"})
        series |= interface._worker_rates().keys()
    assert len(series) == MAX_CHARTED_NAMES_EACH
    thieves = {stream + bytes([n]): f"thief {n}" for n in range(WORKERS_CHARTED)}
    interface.link.trainer.names.update(dict.fromkeys(thieves, "thief"))
    _link_workers(interface, {**thieves, b"honest": "robot7"})
    assert interface._worker_rates().keys() == {"worker/robot7/steps_per_s"}


def test_a_target_is_not_confirmed_by_the_evaluation_that_reached_it() -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    evaluator = Evaluator(1, 7, 0, ask=lambda evaluation, stream: None)
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(link, evaluator=evaluator, recorder=recorder, target_return=-200.0)

    def play(value: float) -> None:
        evaluator.start(1, (1, 1), [b"robot"])
        played = Buffer(maxlen=None)
        played.extend([], [episode(value, mode="test", seed=7, evaluation=evaluator.next_id - 1)])
        interface._note_episodes(played.episodes, b"robot")

    play(-100.0)
    assert not interface.confirm_target()  # the workers left: no second one was finished
    assert not interface.reached_target
    play(-120.0)
    interface.evaluate_now()
    play(-110.0)
    assert interface.confirm_target()
    recorder.close()
    said = [str(record.values["message"]) for record in sink.records if record.values.get("event") == "target"]
    assert any("no second evaluation was finished" in message for message in said)


def test_an_episode_is_recorded_with_the_numbers_of_its_infos() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = RemoteInterface(TrainerLink(LinkSettings(transport="local"), name="t", run="run"), recorder=recorder)
    played = Buffer(maxlen=None)
    metrics = {"is_success": 1.0, "arm/angle": 0.5, "line\nbreak": 2.0}
    played.extend([], [episode(1.0, metrics=metrics), episode(1.0, mode="test", evaluation=3, metrics=metrics)])
    interface._note_episodes(played.episodes, b"robot")
    recorder.close()
    training, evaluated = [record for record in sink.records if record.kind == "episode"]
    assert training.number("rollout/ep_info/is_success") == 1.0
    assert training.number("rollout/ep_info/arm/angle") == 0.5
    assert evaluated.number("eval/ep_info/arm/angle") == 0.5
    assert not any("\n" in name for name in training.values)


@pytest.mark.parametrize("lost", ["missing", "refused", "none"])
def test_an_evaluation_whose_record_may_be_lost_is_requested_again_from_the_only_worker(lost: str) -> None:
    stream, now = bytes(16), [0.0]
    requested = []
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    state = link.trainer
    state.members[stream] = Member(stream, "robot", b"", 0.0)
    evaluator = Evaluator(1, 7, 0, lambda evaluation, _: requested.append(evaluation.id), 60.0, lambda: now[0])
    interface = RemoteInterface(link, evaluator=evaluator)
    evaluator.start(0, (1, 1), [stream])
    for number in (3, 5 if lost == "missing" else 4):
        payload = b"no message" if lost == "refused" else encode_message(None, [])
        state.inbox.append(Received(stream, number, 0, memoryview(payload), len(payload)))
    interface.receive()
    assert len(requested) == 1
    now[0] = 60.0
    interface._tick()
    assert len(requested) == (1 if lost == "none" else 2)


def test_episodes_that_arrive_together_have_each_its_place() -> None:
    """After an outage, hundreds of messages do."""
    sink = MemorySink()
    with Recorder([sink]) as recorder:
        link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
        interface = RemoteInterface(link, recorder=recorder, progress=Progress(samples=1_000))
        for number in range(3):
            buffer = Buffer()
            for step in range(5):
                buffer.append_sample((np.zeros(1), np.zeros(1), 0.0, False, step == 4, {}))
            payload = memoryview(encode_message(buffer.chunks[0], [episode(1.0)]))
            link.trainer.inbox.append(Received(bytes(16), number, 5 * number, payload, len(payload)))
        interface.receive()
    assert [record.env_steps for record in sink.records if record.kind == "episode"] == [1_000, 1_005, 1_010]


def test_encoded_images_are_decoded_and_bombs_are_refused() -> None:
    pytest.importorskip("PIL")
    shape = ImageShape(0, 32, 32, 3)
    interface = RemoteInterface(TrainerLink(LinkSettings(transport="local"), name="t", run="run"))
    interface.images = ImageDecoder(spaces.Box(0, 255, shape.shape, np.uint8), 20_000)
    image = np.full(shape.shape, 90, np.uint8)
    files = [encode_image(image, shape, 75)] * 4
    for number, sent in enumerate((files, [*files, b"\xff\xd8"], files * 2)):
        buffer = Buffer()
        for file in sent:
            buffer.append_sample((np.zeros(1), file, 0.0, False, False, {}))
        payload = memoryview(encode_message(buffer.chunks[0], []))
        interface.link.trainer.inbox.append(Received(bytes(16), number, len(sent), payload, len(payload)))
    (honest,) = interface.receive()
    (chunk,) = honest.chunks
    assert np.array_equal(np.asarray(chunk.observation), np.stack([image] * 4))
    _, damaged, many = (delivery.refusal or "" for _, delivery in interface._outstanding)
    assert "in a file of less than 1/64" in damaged
    assert "8 samples with images of 3072 bytes, more than 20000" in many


def test_a_worker_is_idle_when_it_waits_for_a_round_and_not_for_a_policy() -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link)
    stream = bytes(16)
    for text, idle in (
        ("", False),
        (Collect(1, (1, 1), 5).done, True),
        (NEXT_ROUND, True),
        ("version 1.2 of the policy, to collect round 2 with; it has 1.1", False),
    ):
        link.trainer.waits[stream] = text
        assert interface.says_idle(stream) == idle


class Linear(Bare):
    """An actor with one matrix, and one that is stored as a file of its own."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def to_blob(self) -> tuple[str, bytes]:
        return self._tag, encode_arrays({"matrix": np.full((2, 2), 1 / 3, np.float32)}, {})


@pytest.mark.parametrize(
    ("weights", "tag", "exact"),
    [
        ("whole", "safetensors", True),
        ("delta", "safetensors", True),
        ("bfloat16", "safetensors", False),
        ("bfloat16", "file", True),
    ],
)
def test_the_setting_rounds_published_weights_whose_format_is_known(weights: Any, tag: str, exact: bool) -> None:
    actor = Linear(tag)
    (blob,) = published(actor, weights=weights).policies.values()
    assert (blob.data == actor.to_blob()[1]) is exact
    assert len(blob.data) == len(actor.to_blob()[1])


@pytest.mark.parametrize("weights", ["delta", "bfloat16"])
def test_a_worker_gets_packed_policies_over_a_link(weights: Any) -> None:
    with Server(config=from_values({"network": {"transport": "local"}, "server": {"port": 0}})) as server:
        settings = LinkSettings(transport="local", port=server.port, weights=weights)
        link, worker = TrainerLink(settings, name="t", run="run"), WorkerLink(settings, name="w", run="run")
        link.start()
        worker.start()
        try:
            for step in range(3):
                data = encode_arrays({"matrix": np.full((2, 200), 1 / (step + 3), np.float32)}, {})
                version = link.publish({"": Blob("safetensors", data)})
                until(lambda: worker.wait_policy(1.0))
                update = worker.take_policy()
                assert update is not None
                assert (update.version[1], update.policies[""].data) == (version[1], data)
        finally:
            worker.close()
            link.close()


def test_the_turn_follows_a_policy_that_gets_its_number_from_the_server() -> None:
    """A worker knows the policy by the Server's number only, and waits for a turn of that number without a report."""
    with Server(config=from_values({"network": {"transport": "local"}, "server": {"port": 0}})) as server:
        link = TrainerLink(LinkSettings(transport="local", port=server.port), name="t", run="run")
        interface = RemoteInterface(link)
        interface.broadcast_model(Bare())  # before the Server admits this trainer
        interface.give_turn()
        published = link.trainer.version
        link.start()
        try:
            until(lambda: link.trainer.version != published)
            assert interface.has_turn()
            assert interface.progress.turn == link.trainer.version
        finally:
            link.close()


def test_the_report_of_the_worker_ends_the_wait_for_the_turn() -> None:
    with Server(config=from_values({"network": {"transport": "local"}, "server": {"port": 0}})) as server:
        settings = LinkSettings(transport="local", port=server.port)
        link, worker = TrainerLink(settings, name="t", run="run"), WorkerLink(settings, name="w", run="run")
        interface = RemoteInterface(link)
        interface.broadcast_model(Bare())
        link.start()
        worker.start()
        try:
            until(lambda: interface.workers())
            interface.give_turn()
            worker.say_waits(turn_text((0, 0)))
            until(lambda: not interface.has_turn())
            threading.Timer(0.1, worker.say_waits, [turn_text(link.trainer.version)]).start()
            started = time.monotonic()
            interface.wait_for_turn(60.0)
            assert time.monotonic() - started < 30.0
            assert interface.has_turn()
        finally:
            worker.close()
            link.close()


def test_what_arrives_is_shown_while_the_training_thread_is_busy() -> None:
    """An update may take any time, in which nothing calls the interface."""
    sink = MemorySink()
    config = from_values({"network": {"transport": "local"}, "server": {"port": 0}})
    with Server(config=config) as server, Recorder([sink]) as recorder:
        settings = LinkSettings(transport="local", port=server.port)
        link = TrainerLink(settings, name="t", run="run")
        RemoteInterface(link, recorder=recorder, progress=Progress(samples=1_000))
        worker = WorkerLink(settings, name="robot", run="run")
        link.start()
        worker.start()
        try:
            for shown in ("1,005", "1,010"):
                buffer = Buffer(maxlen=None)
                for step in range(5):
                    buffer.append_sample((np.zeros(1), np.zeros(1), 0.0, False, step == 4, {}))
                worker.send(*buffer.take())
                until(partial(_shows, sink, f"workers 1 | samples {shown} ("))
        finally:
            worker.close(drain=False)
            link.close()
    assert {record.values[names.SAMPLES_RECEIVED] for record in sink.records} == {1_000}  # none is in the memory


def _shows(sink: MemorySink, text: str) -> bool:
    display = ProgressDisplay()
    display.update(list(sink.records))
    return text in display.line()


def test_the_links_thread_writes_records_in_time_if_the_training_thread_does_not() -> None:
    now = 0.0
    sink = MemorySink()
    recorder = Recorder([sink])
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link, recorder=recorder, clock=lambda: now)
    written = []
    for now in (0.0, 1.0, 1.5, 2.9, 3.0, 3.25):
        if now == 3.25:
            interface.receive()
        assert interface._record_while_busy() <= 1.5
        recorder.flush()
        written.append(len(sink.records))
    assert written == [0, 0, 1, 1, 2, 3]
    recorder.close()


def test_a_worker_plays_if_it_has_sent_something_lately_or_waits(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    sink = MemorySink()
    with Recorder([sink]) as recorder:
        link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
        interface = RemoteInterface(link, recorder=recorder, clock=lambda: now)
        plays, waits, idle = (bytes([number]) * 16 for number in range(3))
        _link_workers(interface, {plays: "plays", waits: "waits", idle: "idle"})
        link.trainer.names.update({waits: "waits", idle: "idle"})
        link.trainer.waits[waits] = NEXT_ROUND
        link.trainer.inbox.append(Received(plays, 0, 0, memoryview(encode_message(None, [])), 1))
        interface.receive()
        assert [interface.plays(stream) for stream in (plays, waits, idle)] == [True, True, False]
        now = 60.0
        assert not interface.plays(plays)
        interface.note_silence(Evaluation(3, (1,)), idle, 10.0)
        interface.note_silence(Evaluation(3, (1,)), waits, 10.0)
    told = [record for record in caplog.records if "evaluation 3 waits for worker" in record.getMessage()]
    assert [(one.levelname, "is it running?" in one.getMessage()) for one in told] == [("WARNING", True)]
    assert [record.text("message") for record in sink.records if "evaluation" in record.text("event")] == [
        "evaluation 3 waits for worker idle, which has ended none of its episodes for 10 s and sends nothing: is it "
        "running?",
        "evaluation 3 waits for worker waits, which has ended none of its episodes for 10 s",
    ]


def test_thousands_of_linked_streams_are_not_looked_at_in_each_call() -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    evaluator = Evaluator(1, 7, 0, lambda evaluation, _: None)
    interface = RemoteInterface(link, evaluator=evaluator)
    streams = [number.to_bytes(16, "big") for number in range(5_000)]
    _link_workers(interface, dict.fromkeys(streams, "wolf"))
    evaluator.start(0, (1, 1), streams)
    tracemalloc.start()
    try:
        interface.receive()
        interface.wait(0.0)
        interface.has_turn()
        assert tracemalloc.get_traced_memory()[1] < 8 * len(streams), "not even a list of them was made"
    finally:
        tracemalloc.stop()
    assert len(interface.workers()) == len(streams)


def test_requests_to_streams_that_have_left_are_not_kept_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.training.remote.interface.MAX_STREAMS", 400)
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link)
    for number in range(500):
        stream = number.to_bytes(16, "big")
        link.trainer.members.clear()
        link.trainer.members[stream] = Member(stream, "robot", b"", 0.0)
        interface.receive()
        interface.collect(Collect(1, (1, 1), 5), stream)
    assert stream in interface._shares
    assert len(interface._shares) <= 401


def test_the_numbers_of_streams_that_have_left_are_not_kept() -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link)
    payload = memoryview(encode_message(None, []))
    streams = [number.to_bytes(16, "big") for number in range(100)]
    for stream in streams:
        link.trainer.members[stream] = Member(stream, "robot", b"", 0.0)
        interface.receive()
        link.trainer.members.clear()
        link.trainer.inbox.append(Received(stream, 0, 0, payload, len(payload)))
        assert len(interface.receive()) == 1  # its samples are used nevertheless
    assert not interface._next_numbers


def test_refused_streams_that_have_left_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    monkeypatch.setattr(link, "refuse", lambda received, reason: None)
    interface = RemoteInterface(link)
    for number in range(100):
        stream = number.to_bytes(16, "big")
        _link_workers(interface, {stream: "robot"})
        _link_workers(interface, {})
        link.trainer.inbox.append(Received(stream, 0, 0, memoryview(b"no message"), 10))
        assert interface.receive() == []
        interface.commit()
    assert not interface._strange


def test_a_worker_that_invents_metrics_makes_a_bounded_number_of_series() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link, recorder=recorder)
    stream = bytes(16)
    link.trainer.members[stream] = Member(stream, "robot", b"", 0.0)
    for number in range(20):
        metrics = {f"made_up_{number}_{key}": 1.0 for key in range(32)} | {"is_success": 1.0}
        metrics.pop(f"made_up_{number}_0")
        payload = encode_message(None, [episode(0.0, metrics=metrics)])
        link.trainer.inbox.append(Received(stream, number, 0, memoryview(payload), len(payload)))
    deliveries = interface.receive()
    recorder.close()
    series = {name for record in sink.records for name in record.values if "/ep_info/" in name}
    assert len(series) == MAX_NAMES_EACH + 1
    assert all("is_success" in one.metrics for delivery in deliveries for one in delivery.records)


def test_messages_that_stand_for_much_are_read_a_few_at_a_time(make_rows: Callable[..., Chunk]) -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run", cost_of=decoded_bytes)
    interface = RemoteInterface(link)
    chunk = make_rows(1, 0, 0, 20_000)
    chunk.observation = np.zeros((20_000, 200), np.float32)
    payload = memoryview(encode_message(chunk, []))
    assert len(payload) < decoded_bytes(payload) // 100
    for number in range(30):
        link.trainer.receiver(bytes(16))
        link.trainer.inbox.append(Received(bytes(16), number, 20_000, payload, len(payload)))
    rows = 0
    for _ in range(30):
        deliveries = interface.receive()
        assert sum(decoded_bytes(payload) for _ in deliveries) <= TAKEN_BYTES + decoded_bytes(payload)
        rows += sum(chunk.rows for one in deliveries for chunk in one.chunks)
        interface._outstanding.clear()
        if not link.trainer.inbox:
            break
    assert rows == 600_000


def test_names_in_episode_records_are_kept_as_one_short_line() -> None:
    """The records of the latest episodes stay, and a compressed message of 300 bytes may hold a name of 16 MB."""
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    sink, stream = MemorySink(), bytes(16)
    recorder = Recorder([sink])
    evaluator = Evaluator(1, 7, 0, ask=lambda evaluation, stream: None)
    interface = RemoteInterface(link, evaluator=evaluator, recorder=recorder)
    link.trainer.names[stream] = "gateway"
    evaluator.start(1, (1, 1), [stream])
    played = [episode(1.0), episode(1.0, mode="test", seed=7, evaluation=evaluator.next_id - 1)]
    records = [msgspec.structs.replace(one, agent="a" * 1_000_000, worker="gateway/\x9b2J") for one in played]
    payload = encode_message(None, records)
    link.trainer.inbox.append(Received(stream, 0, 0, memoryview(payload), len(payload)))
    ((latest, _),) = [delivery.records for delivery in interface.receive()]
    recorder.close()
    assert len(latest.agent) <= 1_000  # a loop keeps it for its means
    shown = [record.text("worker") for record in sink.records if record.kind in ("episode", "evaluation")]
    assert shown == ["gateway/?2J"] * 3


def test_a_message_has_a_bounded_number_of_episode_records() -> None:
    link = TrainerLink(LinkSettings(transport="local"), name="t", run="run")
    interface = RemoteInterface(link)
    for number, records in enumerate((250, 60_000)):
        payload = encode_message(None, [episode(1.0)] * records)
        link.trainer.inbox.append(Received(bytes(16), number, 0, memoryview(payload), len(payload)))
    honest, hostile = interface.receive()
    assert len(honest.records) == 250
    assert len(hostile.records) == MAX_RECORDS
