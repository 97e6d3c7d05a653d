"""One principal at full effort: the relay's memory, credit and time that are left to the others. Sans-I/O."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import Frame, FrameReader, Kind, cut
from tmrl_core.networking.protocol.messages import (
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    CloseStream,
    Control,
    Credit,
    HandOver,
    Have,
    Hello,
    OpenStream,
    Refused,
    Resume,
    Stored,
    StreamOpened,
    Waits,
    Want,
    control_frame,
    decode_control,
)
from tmrl_core.networking.relay import MemorySpool, Relay, RelaySettings, Spool, credit_flow
from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.networking.relay.status import snapshot
from tmrl_core.networking.spools.spool import StreamInfo

MB = 1 << 20
STALLED_S = RelaySettings().stalled_s


class End:
    """One peer that sends exactly what a test says."""

    def __init__(
        self,
        relay: Relay,
        role: str,
        name: str,
        number: int = 0,
        weight: int = 1,
        request: str | None = None,
        run: str = "run",
        token: bool = False,
    ) -> None:
        self.link: RelayConnection = relay.connection()
        self.link.connected(Identity("there") if token else Identity("there", role, name, weight=weight), 0.0)
        peer = f"{name}:{number}".encode().ljust(16, b".")[:16]
        self.tell(Hello((1,), request or role, "", run, name, peer))  # type: ignore[arg-type]
        self.resumes: dict[int, Resume] = {}

    def tell(self, *messages: Control, now: float = 0.0) -> None:
        self.write(b"".join(control_frame(message) for message in messages), now)

    def write(self, data: bytes, now: float = 0.0) -> None:
        view = memoryview(data)
        while view and not self.link.closing:
            buffer = self.link.get_buffer()
            n = min(len(buffer), len(view))
            buffer[:n] = view[:n]
            view = view[n:]
            self.link.received(n, now)

    def read(self, now: float = 0.0, most: int = 1 << 30) -> list[Frame]:
        """The frames that the relay has for this peer."""
        reader, frames = FrameReader(), list[Frame]()
        while most > 0 and (buffers := self.link.to_send(now)):
            data = b"".join(buffers)
            most -= len(data)
            view = memoryview(data)
            while view:
                buffer = reader.get_buffer()
                n = min(len(buffer), len(view))
                buffer[:n] = view[:n]
                view = view[n:]
                frames += list(reader.received(n))
        return frames

    def heard(self, now: float = 0.0) -> list[Control]:
        return [decode_control(frame.payload) for frame in self.read(now) if frame.kind == Kind.CONTROL]


class Place:
    """A relay with a trainer, and workers with certificates of their own."""

    def __init__(self, spool: Spool | None = None, **settings: Any) -> None:
        self.relay = Relay(RelaySettings(**{"max_message_bytes": MB, **settings}), spool=spool)
        self.trainer = End(self.relay, "trainer", "trainer")
        self.now = 0.0

    def worker(self, name: str, streams: int = 1, number: int = 0, weight: int = 1, *, token: bool = False) -> End:
        end = End(self.relay, "worker", name, number, weight, token=token)
        for channel in range(streams):
            end.tell(OpenStream(channel, f"{name}:{number}:{channel}".encode().ljust(16, b".")[:16], name))
        for message in self.trainer.heard():
            if isinstance(message, StreamOpened):
                self.trainer.tell(Resume(message.channel, 0))
        for told in end.heard():
            if isinstance(told, Resume):
                end.resumes[told.channel] = told
        return end

    def want(self, end: End, size: int, channel: int = 0, now: float = 0.0) -> None:
        resume = end.resumes[channel]
        end.tell(Want(channel, resume.epoch, resume.credit + size), now=now)

    def send(self, end: End, number: int, size: int, channel: int = 0) -> None:
        head = SAMPLES_HEAD.pack(number, number, number, 1, size)
        wires = cut(Kind.DATA, head, [bytes(size)], epoch=end.resumes[channel].epoch, channel=channel)
        end.write(b"".join(bytes(wire) for wire in wires))

    def publish(self, counter: int, size: int) -> None:
        body = bytes(size)
        head = POLICY_HEAD.pack(self.relay.incarnation, counter, size)
        self.trainer.write(b"".join(bytes(wire) for wire in cut(Kind.WEIGHTS, head, [body], epoch=0, channel=0)))

    def pass_time(self, seconds: int, *awake: End) -> None:
        """Let time pass; peers that are awake send heartbeats and read."""
        for _ in range(seconds):
            self.now += 1
            for end in (self.trainer, *awake):
                end.write(control_heartbeat, self.now)
                end.read(self.now)
            for link in [*self.relay.workers.values(), self.relay.trainer]:
                if link is not None:
                    link.tick(self.now)


control_heartbeat = bytes.fromhex("00000000") + bytes([Kind.PING, 0, 0, 0, 0, 0, 0, 0])


def is_closed(end: End) -> bool:
    return end.link.closing  # a call, since time changes it


def test_a_newcomer_may_try_again_if_the_trainers_link_is_full_of_announcements() -> None:
    place = Place()
    wolf, honest = place.worker("wolf", streams=0), place.worker("honest", streams=0)
    for number in range(300):
        wolf.tell(OpenStream(number, b"w%15d" % number, "w" * 200, bytes(60_000)), now=0.01 * number)
    assert place.trainer.link.unread_bytes > 16 * MB
    honest.tell(OpenStream(0, b"h" * 16, "honest"), now=3.0)
    (refused,) = [message for message in honest.heard(3.0) if isinstance(message, Refused)]
    assert (refused.code, place.relay.protocol_errors) == ("full", 0)


def granted(end: End) -> list[int]:
    return [message.limit for message in end.heard() if isinstance(message, Credit)]


@pytest.mark.parametrize("later", [True, False])
def test_credit_is_left_for_others_whatever_one_principal_wants(later: bool) -> None:
    place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
    honest = None if later else place.worker("honest")
    hoarder = place.worker("hoarder", streams=40)
    for channel in range(40):
        place.want(hoarder, 4 * MB, channel)
    assert len(granted(hoarder)) > 1
    honest = honest or place.worker("honest")
    place.want(honest, 4 * MB)
    assert granted(honest) == [honest.resumes[0].credit + 4 * MB]


def test_a_fleet_sends_large_messages_where_the_pool_is_always_full() -> None:
    place = Place(budget_bytes=16 * MB)
    fleet = place.worker("fleet", streams=64)
    robots = [place.worker(f"robot{number}") for number in range(20)]
    wanted = [robot.resumes[0].credit + MB for robot in robots]
    for robot, limit in zip(robots, wanted, strict=True):
        robot.tell(Want(0, robot.resumes[0].epoch, limit))
    place.want(fleet, MB)
    limits, sent = dict.fromkeys(range(20), 0), 0
    while not granted(fleet):
        assert sent < 60, "each robot had three turns"
        limits.update((number, max(limits[number], *granted(robot), 0)) for number, robot in enumerate(robots))
        number = next(number for number, limit in enumerate(wanted) if limits[number] >= limit)
        place.send(robots[number], wanted[number] // MB - 1, MB - 300)
        wanted[number] += MB
        robots[number].tell(Want(0, robots[number].resumes[0].epoch, wanted[number]))
        sent += 1
        place.trainer.tell(Credit(0, 0, sent * (MB + 2_000)))
        place.trainer.read()


def test_one_principal_alone_gets_most_of_the_pool() -> None:
    place = Place(budget_bytes=64 * MB)
    end = place.worker("alone", streams=100)
    for channel in range(100):
        place.want(end, MB, channel)
    assert place.relay.flow.reserved_bytes > 0.75 * 64 * MB


def test_a_message_of_the_largest_size_is_granted_in_the_smallest_pool() -> None:
    place = Place(budget_bytes=2 * MB + 1_000, max_message_bytes=MB)
    end = place.worker("alone")
    place.want(end, MB)
    assert granted(end) == [end.resumes[0].credit + MB]


def test_each_stream_of_a_large_fleet_has_standing_credit_for_a_small_message() -> None:
    place = Place(budget_bytes=64 * MB)
    fleet = place.worker("fleet", streams=1_000, token=True)
    credits = [resume.credit for resume in fleet.resumes.values()]
    assert (len(credits), min(credits), max(credits)) == (1_000, 8_192, place.relay.settings.standing_bytes)
    assert place.worker("honest").resumes[0].credit == place.relay.settings.standing_bytes


def test_standing_credit_is_left_for_others() -> None:
    place = Place(budget_bytes=16 * MB)
    place.worker("many", streams=500)
    assert place.worker("honest").resumes[0].credit == place.relay.settings.standing_bytes


@pytest.mark.parametrize("weight", [1, 4])
def test_principals_get_shares_of_the_trainers_credit_by_their_weights(weight: int) -> None:
    place = Place(budget_bytes=64 * MB)
    many, one = place.worker("many", streams=40), place.worker("one", weight=weight)
    sizes = {"many": 0, "one": 0}
    for channel in range(40):
        place.send(many, 0, 50_000, channel)
    place.want(one, 2 * MB)
    for number in range(40):
        place.send(one, number, 50_000)
    place.trainer.tell(Credit(0, 0, 20 * 50_200))
    streams = {stream.trainer_channel: stream.name for stream in place.relay.streams.values()}
    for frame in place.trainer.read():
        if frame.kind == Kind.DATA:
            sizes[streams[frame.channel]] += len(frame.payload)
    assert sizes["one"] == pytest.approx(weight * sizes["many"], rel=0.15)


def test_a_large_weight_leaves_credit_and_turns_to_others() -> None:
    place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
    gateway = place.worker("gateway", streams=40, weight=1_000)
    for channel in range(40):
        place.want(gateway, 7 * MB, channel)
    honest = place.worker("honest")
    place.want(honest, 4 * MB)
    assert granted(honest) == [honest.resumes[0].credit + 4 * MB]
    place.send(gateway, 0, MB)
    place.send(gateway, 1, MB)
    place.send(honest, 0, MB)
    place.trainer.tell(Credit(0, 0, 2 * MB + 1_000))
    place.trainer.read()
    assert [stream.relayed_messages for stream in place.relay.streams.values() if stream.name == "honest"] == [1]


def test_a_principal_that_opens_its_stream_again_keeps_its_turn() -> None:
    place = Place(budget_bytes=64 * MB)
    for name in "abcd":
        honest = place.worker(name)
        place.want(honest, 4 * MB)
        for number in range(30):
            place.send(honest, number, 100_000)
    wolf, channel, taken = place.worker("wolf"), 0, 0
    place.want(wolf, MB)
    place.send(wolf, 0, MB - 1_000)
    for step in range(60):
        place.trainer.tell(Credit(0, 0, 200_000 * (step + 1)))
        place.trainer.read()
        (stream,) = wolf.link.streams.values()
        if stream.relayed_messages:
            taken += 1
            channel += 1
            wolf.tell(CloseStream(channel - 1), OpenStream(channel, b"wolf%12d" % channel, "wolf"))
            opened = [message for message in place.trainer.heard() if isinstance(message, StreamOpened)]
            place.trainer.tell(*(Resume(message.channel, 0) for message in opened))
            wolf.resumes.update({told.channel: told for told in wolf.heard() if isinstance(told, Resume)})
            place.want(wolf, MB, channel)
            place.send(wolf, 0, MB - 1_000, channel)
    assert 2 <= taken <= 3  # a fifth of 12 MB


def test_small_messages_take_turns_by_the_time_to_forward_them() -> None:
    place = Place(budget_bytes=64 * MB)
    honest, wolf = place.worker("honest"), place.worker("wolf")
    place.want(honest, 2 * MB)
    place.want(wolf, 2 * MB)
    for number in range(100):
        place.send(honest, number, 10_000)
    for number in range(2_000):
        place.send(wolf, number, 600)
    (stream,), (other,) = honest.link.streams.values(), wolf.link.streams.values()
    place.trainer.tell(Credit(0, 0, 1 << 40))
    while stream.relayed_messages < 100:
        place.trainer.link.to_send(0.0)
    assert 250 <= other.relayed_messages <= 400


def test_spooled_tiny_messages_take_turns_by_the_time_to_read_them() -> None:
    spool = MemorySpool(64 * MB)
    info = StreamInfo(b"w" * 16, "run", "wolf", b"", "certificate worker wolf")
    for number in range(20_000):
        assert not spool.append(info, number=number, floor=0, position=number, samples=1, body=[b""])
    place = Place(spool, budget_bytes=64 * MB)
    honest = place.worker("honest")
    place.want(honest, 4 * MB)
    for number in range(200):
        place.send(honest, number, 10_000)
    (stream,) = honest.link.streams.values()
    place.trainer.tell(Credit(0, 0, 1 << 40))
    while stream.relayed_messages < 200:
        place.trainer.link.to_send(0.0)
    assert 50 <= place.relay.flow.relayed_messages - 200 <= 500


class Counted(int):
    """A number that counts its comparisons."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)


def test_the_work_of_a_message_does_not_grow_with_the_streams_of_others() -> None:
    found = []
    for streams in (16, 1_000):
        place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
        hoarder, honest = place.worker("hoarder", streams=streams), place.worker("honest")
        for stream in place.relay.streams.values():
            stream.turn = Counted(0)
        for channel in range(streams):
            place.want(hoarder, 7 * MB, channel)
        Counted.comparisons = 0
        place.trainer.tell(Credit(0, 0, 60 * MB))
        for number in range(50):
            place.send(honest, number, 1_000)
            place.trainer.read()
        assert place.relay.flow.relayed_messages == 50
        found.append(Counted.comparisons)
    assert found[1] <= 2 * found[0] + 50, found


def test_streams_that_close_while_they_want_credit_leave_nothing_behind() -> None:
    place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
    hoarder = place.worker("hoarder", streams=30)
    for channel in range(30):
        place.want(hoarder, 7 * MB, channel)
    share = next(iter(place.relay.streams.values())).share
    hoarder.tell(*(CloseStream(channel) for channel in range(30)))
    assert (place.relay.flow.reserved_bytes, share.reserved_bytes, share.standing_bytes) == (0, 0, 0)
    assert (share.wants, place.relay.flow._shares) == ([], {})


@pytest.mark.parametrize("others", [0, 1, 200])
def test_streams_that_close_while_the_trainer_takes_nothing_leave_nothing_behind(others: int) -> None:
    place = Place(budget_bytes=64 * MB)
    place.send(place.worker("first"), 0, 50_000)
    wolf = place.worker("wolf", streams=others)
    for channel in range(others):
        place.send(wolf, 0, 10, channel)
    for channel in range(others, others + 1_000):
        wolf.tell(OpenStream(channel, b"the same stream!", "wolf"))
        opened = [message for message in place.trainer.heard() if isinstance(message, StreamOpened)]
        place.trainer.tell(*(Resume(message.channel, 0) for message in opened))
        wolf.resumes.update({told.channel: told for told in wolf.heard() if isinstance(told, Resume)})
        place.send(wolf, 0, 10, channel)
    assert not is_closed(wolf)
    share = place.relay.flow._shares["certificate worker wolf"]
    assert len(share.queued) <= 2 * share.streams + 64
    assert len(place.relay.flow._turns) <= 2
    place.trainer.tell(Credit(0, 0, 1 << 40))
    place.trainer.read()
    assert place.relay.flow.relayed_messages == 1 + others + 1
    assert place.relay.flow.queued_bytes == 0


def test_a_link_with_many_streams_that_want_credit_closes_without_a_search_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
    hoarder, other = place.worker("hoarder", streams=500), place.worker("hoarder", streams=500, number=1)
    for channel in range(500):
        place.want(hoarder, 7 * MB, channel)
        place.want(other, 7 * MB, channel)
    share = next(iter(place.relay.streams.values())).share
    searches: list[int] = []
    monkeypatch.setattr(credit_flow, "heapify", lambda heap: searches.append(len(heap)))
    hoarder.tell(*(CloseStream(channel) for channel in range(500)))
    assert sum(searches) <= 2_000
    assert len(share.wants) <= 2 * share.streams + 64


def test_a_link_that_uses_no_credit_is_closed_when_others_wait() -> None:
    place = Place(budget_bytes=8 * MB, max_message_bytes=3 * MB)
    hoarder, honest = place.worker("hoarder"), place.worker("honest")
    place.want(hoarder, 3 * MB)
    place.pass_time(int(STALLED_S) + 5, hoarder, honest)
    assert not is_closed(hoarder), "nobody waits"
    second = place.worker("second")
    place.want(second, 3 * MB)
    place.want(honest, 3 * MB)
    assert place.relay.flow.waiting
    place.send(second, 0, 2 * MB)
    place.pass_time(int(STALLED_S) - 5, hoarder, honest, second)
    assert not is_closed(hoarder)
    place.pass_time(10, hoarder, honest)
    assert is_closed(hoarder)
    assert "was requested and not used" in str(hoarder.link.reason)


def test_links_that_read_nothing_are_closed_and_hold_few_old_policies() -> None:
    place = Place(budget_bytes=16 * MB, max_policy_bytes=8 * MB)
    silent = []
    for counter in range(1, 21):
        end = place.worker("silent", number=counter)
        silent.append(end)
        end.tell(Have(place.relay.incarnation, counter - 1))  # it has received the version before
        place.publish(counter, 2 * MB)
        end.read(most=1)  # its link begins with this version
    old = {policy.version for policy in place.relay.old_policies().values()}
    assert len(old) <= 2, "a quarter of the budget is two of them"
    budget = snapshot(place.relay, 0.0).budgets["old policies"]
    assert 0 < budget.used_bytes <= 16 * MB // 4 + 1_000
    honest = place.worker("honest")
    for _ in range(int(STALLED_S) + 2):
        place.now += 1
        for end in (*silent, honest, place.trainer):
            end.write(control_heartbeat, place.now)
        honest.read(place.now)
        place.trainer.read(place.now)
        for link in list(place.relay.workers.values()):
            link.tick(place.now)
    assert all(end.link.closing for end in silent)
    assert not honest.link.closing
    assert "old policies" not in snapshot(place.relay, place.now).budgets


def test_acknowledgements_with_refusals_fill_no_memory_of_a_link_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tmrl_core.networking.relay.connection._UNREAD_BYTES", 100_000)
    place = Place(budget_bytes=64 * MB)
    ends = {name: place.worker(name, streams=10) for name in ("wolf", "honest")}
    channels = [stream.trainer_channel for stream in place.relay.streams.values()]
    most = 0
    for number in range(100):
        for channel in channels:
            place.trainer.tell(Ack(channel, number + 1, ((number, "not valid " * 20),)))
        ends["honest"].heard()
        most = max(most, ends["wolf"].link.unread_bytes)
    assert is_closed(ends["wolf"])
    assert most <= 101_000
    assert "acknowledgements were not read" in str(ends["wolf"].link.reason)
    assert not is_closed(ends["honest"])
    assert {stream.name for stream in place.relay.streams.values()} == {"honest"}


@pytest.mark.parametrize("change", ["another run", "a part of a version"])
def test_versions_that_became_old_by_a_change_of_the_trainer_are_limited(change: str) -> None:
    place = Place(budget_bytes=16 * MB, max_policy_bytes=8 * MB)
    for counter in (1, 2):
        silent = place.worker("silent", number=counter)
        silent.tell(Have(place.relay.incarnation, counter - 1))
        place.publish(counter, 3 * MB)
        silent.read(most=1)
    if change == "a part of a version":
        silent = place.worker("silent", number=3)
        silent.tell(Have(place.relay.incarnation, 2))
        head = POLICY_HEAD.pack(place.relay.incarnation, 3, 3 * MB)
        frames = list(cut(Kind.WEIGHTS, head, [bytes(3 * MB)], epoch=0, channel=0))
        place.trainer.write(b"".join(map(bytes, frames[:-1])))
        silent.read(most=1)
        assert silent.link.policy is place.relay.policies.arriving is not None
    place.trainer.link.lost(None, 0.0)
    if change == "another run":
        End(place.relay, "trainer", "trainer", number=1, run="other")
        assert place.relay.policies.latest is None
    held = {id(policy): policy for policy in place.relay.old_policies().values()}
    assert len(held) == 1, "a quarter of the budget is one version"


def test_old_versions_of_one_principal_end_no_transfer_of_another() -> None:
    """Each principal has a quarter of the budget, which is two versions here."""
    place = Place(budget_bytes=16 * MB, max_policy_bytes=8 * MB)
    size = 2 * MB - 10_000
    honest = place.worker("honest")
    begun: list[Frame] = []
    for counter in range(1, 7):
        thief = place.worker("thief", number=counter)
        thief.tell(Have(place.relay.incarnation, counter - 1))
        place.publish(counter, size)
        thief.read(most=1)
        if counter == 3:
            begun = [frame for frame in honest.read(most=1) if frame.kind == Kind.WEIGHTS]
    assert begun
    old = {policy.version[1] for policy in place.relay.old_policies().values()}
    assert old == {1, 2, 3}, "two of the thief, and the honest one's"
    rest = [frame for frame in honest.read() if frame.kind == Kind.WEIGHTS]
    assert POLICY_HEAD.unpack_from(begun[0].payload)[1] == 3
    assert sum(len(frame.payload) for frame in begun + rest) == POLICY_HEAD.size + size


def test_slow_links_receive_a_version_however_often_new_ones_come() -> None:
    place = Place(budget_bytes=8 * MB, max_policy_bytes=8 * MB)
    slow = [place.worker("fleet", number=number) for number in range(6)]
    frames: dict[int, list[Frame]] = {number: [] for number in range(6)}
    received: dict[int, int] = dict.fromkeys(range(6), 0)
    for counter in range(1, 60):
        place.publish(counter, MB)
        for number, end in enumerate(slow):
            if (counter + number) % 3:  # they are not in step
                frames[number] += [frame for frame in end.read(most=1) if frame.kind == Kind.WEIGHTS]
            for frame in frames[number]:
                if frame.flags & 2:  # the last frame of a version
                    received[number] += 1
                    link = end.link
                    assert link.sent is not None
                    end.tell(Have(*link.sent))
            frames[number] = []
    assert min(received.values()) >= 2, received


def test_a_version_is_not_kept_for_a_link_that_does_not_confirm_it() -> None:
    place = Place(budget_bytes=16 * MB)
    end = place.worker("w")
    place.publish(1, MB)
    assert any(frame.kind == Kind.WEIGHTS for frame in end.read())
    place.publish(2, MB)
    assert end.link not in place.relay.old_policies()
    assert end.read() == [], "the next version waits for the confirmation"
    end.tell(Have(place.relay.incarnation, 1))
    assert any(frame.kind == Kind.WEIGHTS for frame in end.read())


def test_the_memory_of_streams_is_what_their_budget_says() -> None:
    place = Place(budget_bytes=64 * MB)
    ends = [End(place.relay, "worker", f"w{number}") for number in range(4)]
    wide = "\N{GRINNING FACE}" * 1_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, end in enumerate(ends):
        for channel in range(250):
            end.tell(OpenStream(channel, f"{number}:{channel}".encode().ljust(16, b"."), wide), Waits(channel, wide))
        place.trainer.read()
        end.read()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(place.relay.streams) == 1_000
    assert used <= place.relay._stream_budget._all


def test_credit_that_comes_free_is_granted_a_few_requests_at_a_time() -> None:
    place = Place(budget_bytes=64 * MB, max_message_bytes=8 * MB)
    hoarder, honest = place.worker("hoarder", streams=400), place.worker("honest")
    full = 0
    while not place.relay.flow.waiting:
        full += 1
        place.want(hoarder, MB, full)
    hoarder.tell(CloseStream(full))
    place.want(honest, 4 * MB)
    for channel in range(full + 1, 400):
        place.want(hoarder, 1, channel)
    waiting = sum(bool(stream.asking) for stream in place.relay.streams.values())
    assert waiting > 300
    granted(hoarder)
    honest.tell(CloseStream(0))  # all of its credit comes free
    assert 0 < len(granted(hoarder)) <= 8
    # A driver calls `tick` at the deadline of each link that had input.
    ticks = 0
    while honest.link.deadline() <= place.now:
        honest.link.tick(place.now)
        ticks += 1
    assert ticks >= waiting / 8 - 1
    assert not any(stream.asking for stream in place.relay.streams.values())
    assert not place.relay.flow.waiting


@pytest.mark.parametrize("how", ["sent", "withheld"])
def test_a_link_that_leaves_thousands_of_messages_costs_as_much_as_they_do(how: str) -> None:
    """Each message that was forwarded looked at all others of its stream."""
    place = Place(budget_bytes=64 * MB)
    wolf = place.worker("wolf")
    place.want(wolf, 4 * MB)
    for number in range(60_000):
        place.send(wolf, number, 0)
    stream = next(iter(place.relay.streams.values()))
    assert stream.held_bytes == 60_000 * 44
    wolf.link.lost(None, 0.0)
    if how == "withheld":
        place.trainer.link.lost(None, 0.0)
    else:
        place.trainer.tell(Credit(0, 0, 4 * MB))
        assert sum(frame.kind == Kind.DATA for frame in place.trainer.read()) == 60_000
    assert (place.relay.flow.queued_bytes, place.relay.flow.reserved_bytes, place.relay.streams) == (0, 0, {})


SMALL = 50_000
"""Bytes of a message that fits the standing credit."""


class SpoolPlace(Place):
    """A relay with a spool, and a trainer that comes later."""

    def __init__(self, spool_bytes: int = 64 * MB) -> None:
        self.spool = MemorySpool(spool_bytes)
        super().__init__(self.spool, budget_bytes=64 * MB)
        self.trainer.link.lost(None, 0.0)

    def hand_over(self, name: str, streams: int = 1, messages: int = 1, number: int = 0) -> tuple[int, str]:
        """A worker hands its streams over and goes. The number of stored messages, and the reason of a refusal."""
        end, stored, refusal = self.worker(name, streams, number), 0, ""
        for channel in range(streams):
            end.tell(HandOver(channel))
            end.resumes |= {told.channel: told for told in end.heard() if isinstance(told, Resume)}
            for message in range(messages):
                self.send(end, message, SMALL, channel)
            told = [one for one in end.heard() if isinstance(one, Stored)]
            stored += max(one.next for one in told)
            refusal = refusal or next((one.refusal for one in told if one.refusal), "")
        end.tell(*(CloseStream(channel) for channel in range(streams)))
        end.link.lost(None, 0.0)
        return stored, refusal

    def trainer_comes(self, *live: End) -> None:
        self.trainer = End(self.relay, "trainer", "trainer", number=1)
        for message in self.trainer.heard():
            if isinstance(message, StreamOpened):
                self.trainer.tell(Resume(message.channel, 0))
        for end in live:
            end.resumes |= {told.channel: told for told in end.heard() if isinstance(told, Resume)}

    def forwarded(self, credit: int) -> dict[str, int]:
        """Give the trainer credit. The bytes of each worker's messages that it receives, by the worker's name."""
        streams = {stream.trainer_channel: stream.name for stream in self.relay.streams.values()}
        self.trainer.tell(Credit(0, 0, credit))
        sizes = dict.fromkeys(streams.values(), 0)
        for frame in self.trainer.read():
            if frame.kind == Kind.DATA:
                sizes[streams[frame.channel]] += len(frame.payload)
        return sizes


def test_one_principal_leaves_places_in_the_spool_to_others() -> None:
    place = SpoolPlace(8 * MB)
    stored, refusal = place.hand_over("thief", streams=10, messages=20)
    assert stored * SMALL > 0.7 * 8 * MB, "alone, it may use most of it"
    assert "these credentials" in refusal
    assert place.hand_over("thief", number=1)[0] == 0, "also from another of its links"
    assert place.hand_over("honest", streams=2, messages=10) == (20, "")


def test_the_spooled_streams_of_one_principal_take_the_turns_of_one() -> None:
    place = SpoolPlace()
    place.hand_over("many", streams=40, messages=2)
    place.hand_over("one", messages=20)
    live = place.worker("live")
    place.trainer_comes(live)
    place.want(live, MB)
    for number in range(20):
        place.send(live, number, SMALL)
    sizes = place.forwarded(30 * (SMALL + 200))
    assert sizes["one"] == pytest.approx(sizes["many"], rel=0.15)
    assert sizes["one"] == pytest.approx(sizes["live"], rel=0.15)


def test_live_and_spooled_streams_of_one_principal_share_its_turns() -> None:
    place = SpoolPlace()
    place.hand_over("both", streams=20, messages=2)
    both, one = place.worker("both", number=1), place.worker("one")
    place.trainer_comes(both, one)
    for end in (both, one):
        place.want(end, MB)
        for number in range(20):
            place.send(end, number, SMALL)
    sizes = place.forwarded(20 * (SMALL + 200))
    assert sizes["one"] == pytest.approx(sizes["both"], rel=0.15)


def test_a_gateway_with_spooled_streams_keeps_its_weight() -> None:
    place = SpoolPlace()
    place.hand_over("gateway", streams=2, messages=40)
    place.hand_over("one", messages=40)
    gateway = place.worker("gateway", number=1, weight=4)
    place.trainer_comes(gateway)
    sizes = place.forwarded(20 * (SMALL + 200))
    assert sizes["gateway"] == pytest.approx(4 * sizes["one"], rel=0.15)
