"""One principal gets a share of the Server's processor for everything but samples. Sans-I/O."""

from __future__ import annotations

from functools import partial

import pytest

from tests.networking.relay.test_one_principal import MB, End, Place, is_closed
from tmrl_core.networking.protocol.framing import HEADER, Kind, cut
from tmrl_core.networking.protocol.messages import (
    SAMPLES_HEAD,
    Bye,
    CloseStream,
    Control,
    Credit,
    HandOver,
    Have,
    Hello,
    Lateness,
    OpenStream,
    Probe,
    Resume,
    StatusRequest,
    Stored,
    Waits,
    Want,
    control_frame,
)
from tmrl_core.networking.relay import MemorySpool
from tmrl_core.networking.relay.membership_log import MembershipLog
from tmrl_core.networking.relay.message_queue import SMALL_BYTES
from tmrl_core.networking.relay.processor_time import (
    AT_ONCE_S,
    BURST_S,
    EFFECTS,
    IN_VAIN_BYTE_S,
    LOG_AGAIN_S,
    MAX_PAUSE_S,
    MAX_READ_BYTES,
    MIN_PAUSE_S,
    MIN_READ_BYTES,
    MOST_SHARES,
    PAUSE_S,
    READ_S,
    SHARE,
    SHARE_AT_ONCE,
    SIGNATURE_BYTE_S,
    STATUS_BYTE_S,
    STREAM_S,
    TRAINER_BURST_S,
    TRAINER_SHARE,
    WAITS_BYTE_S,
    WAITS_S,
    ProcessorTime,
    ReadSize,
)
from tmrl_core.networking.relay.stream_budget import LINKS_OF_ONE


def test_a_principal_gets_a_burst_and_then_its_share() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while not account.overspent("wolf", now):
        used += AT_ONCE_S
        now += account.charge("wolf", AT_ONCE_S, now)
    assert used == pytest.approx(BURST_S + SHARE * now, abs=2 * AT_ONCE_S)
    pause_s = account.charge("wolf", 0.1, now)
    assert 0.1 / SHARE <= pause_s <= (0.1 + AT_ONCE_S) / SHARE
    assert account.charge("wolf", 0.0, now + pause_s + 0.001) == 0.0
    assert account.charge("honest", AT_ONCE_S, now) == 0.0


def test_a_burst_leaves_half_of_the_time_to_others() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while now < 1.0:
        used += READ_S
        pause_s = account.charge("wolf", READ_S, now)
        assert pause_s == 0.0 or pause_s >= MIN_PAUSE_S
        now += READ_S + pause_s
    assert used <= SHARE_AT_ONCE * now + AT_ONCE_S + READ_S


def test_reads_of_tiny_messages_become_small_and_others_grow_again() -> None:
    size = ReadSize()
    while size.bytes < MAX_READ_BYTES:
        size.spent(READ_S / 10, size.bytes)
    size.spent(MAX_READ_BYTES * 400e-9, MAX_READ_BYTES)
    for _ in range(5):
        assert size.bytes <= 2 * READ_S / 400e-9
        size.spent(size.bytes * 400e-9, size.bytes)
    size.spent(1.0, 100)
    assert size.bytes == MIN_READ_BYTES


def test_short_reads_do_not_allow_long_ones() -> None:
    size = ReadSize()
    size.spent(1.0, MIN_READ_BYTES)
    for _ in range(20):
        size.spent(READ_S / 100, 12)  # a heartbeat
    assert size.bytes == MIN_READ_BYTES


def test_no_pause_is_as_long_as_the_silence_that_closes_a_link() -> None:
    assert ProcessorTime().charge("wolf", 100.0, 0.0) == MAX_PAUSE_S


def test_in_any_minute_the_share_is_not_exceeded_by_more_than_the_burst() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while now < 60.0:
        used += 0.05
        now += account.charge("wolf", 0.05, now) + 0.05
    assert used <= 60.0 * SHARE + BURST_S + 0.1


def test_a_charge_of_an_earlier_time_refills_no_account() -> None:
    account = ProcessorTime()
    account.charge("wolf", 2 * BURST_S, 100.0)
    for _ in range(100):
        account.charge("wolf", 0.0, 90.0)  # of a link that another one has replaced
        account.charge("wolf", 0.0, 100.0)
        assert account.overspent("wolf", 90.0)
    assert account.overspent("wolf", 100.0)
    assert account.should_log("wolf", 100.0 - LOG_AGAIN_S)
    assert not account.should_log("wolf", 100.0 + LOG_AGAIN_S / 2)


class Paused:
    """The pauses that a link asks its transport for."""

    def __init__(self, end: End) -> None:
        self.pauses: list[float] = []
        end.link.pause = self.pauses.append


def test_all_links_of_the_principal_pause_and_no_other() -> None:
    place = Place()
    first, second, honest = place.worker("wolf"), place.worker("wolf", number=1), place.worker("honest")
    paused = [Paused(end) for end in (first, second, honest, place.trainer)]
    first.tell(Have(1, 1))
    first.link.charge(BURST_S + 0.1, 20, 0.0)
    assert [len(one.pauses) for one in paused] == [1, 1, 0, 0]
    assert first.link.overspent
    assert not honest.link.overspent


def test_the_link_that_was_read_longest_ago_is_read_first_after_a_pause() -> None:
    """A transport resumes links in the order of their pauses, and the first one's input may pause all again."""
    place = Place()
    ends = [place.worker("wolf", number=number) for number in range(3)]
    order: list[int] = []

    def note(number: int, seconds: float) -> None:
        if seconds:
            order.append(number)

    for number, end in enumerate(ends):
        end.link.pause = partial(note, number)
    read = [0]
    for turn in range(5):
        ends[read[-1]].tell(Have(1, 1))
        ends[read[-1]].link.charge(BURST_S + 0.1, 20, 100.0 * (turn + 1))
        read.append(order[0])
        order.clear()
    assert read == [0, 1, 2, 0, 1, 2]


def test_reads_of_a_link_become_shorter_after_one_that_took_long() -> None:
    place = Place()
    end = place.worker("w")
    before = end.link.read_bytes
    end.link.charge(READ_S / 2, before, 0.0)
    assert end.link.read_bytes == 2 * before
    end.link.charge(2 * READ_S, before, 0.0)
    assert end.link.read_bytes == before // 2


def test_the_trainer_is_read_before_others_that_wait() -> None:
    place = Place()
    assert place.trainer.link.is_first
    assert not place.worker("w").link.is_first


def test_samples_are_not_charged() -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("busy")
    end.link.charge(0.0, end.link.bytes_in, 0.0)  # for its greeting
    paused = Paused(end)
    for number in range(4):
        before = end.link.bytes_in
        place.send(end, number, 10_000)
        end.link.charge(10.0, end.link.bytes_in - before, 0.0)
    assert paused.pauses == []


@pytest.mark.parametrize("wire", [1, 40])
def test_samples_in_tiny_records_and_frames_of_no_epoch_are_charged(wire: int) -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    paused = Paused(end)
    if wire == 1:
        end.resumes[0] = Resume(0, 0, 77)
    before = end.link.bytes_in
    place.send(end, 0, 10_000)
    end.link.charge(BURST_S + 1.0, wire * (end.link.bytes_in - before), 0.0)
    assert len(paused.pauses) == 1


@pytest.mark.parametrize("how", ["closed", "opened again", "requested again", "link lost", "refused by the spool"])
def test_samples_that_were_received_in_vain_are_charged(how: str) -> None:
    spooled = how == "refused by the spool"
    place = Place(MemorySpool(MB // 2), budget_bytes=64 * MB)
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    if spooled:
        place.trainer.link.lost(None, 0.0)
        end.tell(HandOver(0))
        end.resumes.update({told.channel: told for told in end.heard() if isinstance(told, Resume)})
    before, _ = left(place, "certificate worker wolf")
    place.want(end, MB)
    if how == "opened again" or spooled:
        place.send(end, 0, MB - 1_000)
    else:
        *wires, _ = cut(Kind.DATA, SAMPLES_HEAD.pack(0, 0, 0, 1, MB), [bytes(MB)], epoch=1, channel=0)
        end.write(b"".join(bytes(wire) for wire in wires))
    assert spooled or left(place, "certificate worker wolf")[0] == before
    (stream,) = place.relay.streams.values()
    if how == "closed":
        end.tell(CloseStream(0))
    elif how == "opened again":
        end.tell(OpenStream(1, stream.id, "wolf"))
    elif how == "requested again":
        place.trainer.tell(Resume(stream.trainer_channel, 0))
    elif how == "link lost":
        end.link.lost(None, 0.0)
    else:
        assert any(isinstance(message, Stored) and message.refusal for message in end.heard())
    assert not is_closed(end) or how == "link lost"
    spent = before - left(place, "certificate worker wolf")[0]
    assert spent == pytest.approx(MB * IN_VAIN_BYTE_S, rel=0.07)


def test_samples_that_are_lost_with_the_trainer_are_not_charged() -> None:
    place = Place(budget_bytes=64 * MB)
    end = place.worker("honest")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, "certificate worker honest")
    place.want(end, MB)
    place.send(end, 0, MB - 1_000)
    place.trainer.link.lost(None, 0.0)
    assert place.relay.flow.queued_bytes == 0
    assert left(place, "certificate worker honest")[0] == before


def test_samples_that_the_trainer_receives_are_not_charged_when_their_stream_ends() -> None:
    place = Place(budget_bytes=64 * MB)
    end = place.worker("honest")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, "certificate worker honest")
    place.want(end, MB)
    place.send(end, 0, MB - 1_000)
    end.link.lost(None, 0.0)
    place.trainer.tell(Credit(0, 0, 1 << 40))
    assert any(frame.kind == Kind.DATA for frame in place.trainer.read())
    assert place.relay.streams == {}
    assert left(place, "certificate worker honest")[0] == before


def records(place: Place, end: End, *, size: int, content: int, rounds: int) -> float:
    """The part of the time that is charged for messages of `size` bytes in TLS records with at most `content`."""
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, f"certificate worker {end.link.identity.name}")
    for number in range(rounds):
        begun = end.link.bytes_in
        place.send(end, number, size)
        sent = end.link.bytes_in - begun
        end.link.charge(0.001, sent + 22 * -(-sent // content), 0.0)
    after, _ = left(place, f"certificate worker {end.link.identity.name}")
    return (before - after) / (EFFECTS * 0.001 * rounds)


@pytest.mark.parametrize(
    ("size", "content", "least", "most"),
    [
        (10_000, 1, 0.99, 1.01),
        (10_000, 24, 0.8, 0.96),
        (10_000, 100, 0.6, 0.81),
        (10_000, 512, 0.0, 0.02),
        (10_000, 16_384, 0.0, 0.0),
        (65_500, 16_384, 0.0, 0.0),  # whose last frame is small
        (600, 16_384, 0.0, 0.0),
        (250, 16_384, 0.42, 0.45),  # as much as without TLS
    ],
)
def test_samples_in_small_records_are_charged_in_part(size: int, content: int, least: float, most: float) -> None:
    place = Place(budget_bytes=64 << 20)
    place.trainer.tell(Credit(0, 0, 1 << 40))
    end = place.worker("w")
    place.want(end, 6 << 20)
    assert least <= records(place, end, size=size, content=content, rounds=80) <= most


def test_records_that_end_with_the_next_read_are_not_charged() -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("busy")
    place.want(end, 4 << 20)
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, "certificate worker busy")
    arrived = 0
    for number in range(100):
        begun = end.link.bytes_in
        place.send(end, number, 40_000)
        sent = end.link.bytes_in - begun
        ahead = number * 7_919 % 16_384  # of a record that is not complete
        end.link.charge(0.001, sent + 66 + ahead - arrived, 0.0)
        arrived = ahead
    assert before - left(place, "certificate worker busy")[0] <= 0.01 * EFFECTS * 0.1


def left(place: Place, principal: str) -> tuple[float, float]:
    """Processor time of a principal's bursts that is left, of the Server and of the trainer."""
    account = place.relay.processor_time._accounts[principal]
    return account.share.available(0.0), account.trainer.available(0.0)


@pytest.mark.parametrize(
    ("messages", "price_s"),
    [
        ([OpenStream(9, b"w" * 16, "w", bytes(50_000))], STREAM_S + 50_000 * SIGNATURE_BYTE_S),
        ([OpenStream(9, b"w" * 16, "w"), CloseStream(9)] * 3, 3 * STREAM_S),
        ([Waits(0, "later")] * 5, 5 * (WAITS_S + 5 * WAITS_BYTE_S)),
        ([Waits(0, "\N{GRINNING FACE}" * 1_000)] * 5, 5 * (WAITS_S + 800 * WAITS_BYTE_S)),
        ([Lateness(0, 100, 3, 250)] * 5, 5 * WAITS_S),
        ([Want(0, 0, 1)] * 5, 0.0),
    ],
)
def test_messages_are_charged_with_what_they_cost_the_trainer(messages: list[Control], price_s: float) -> None:
    place = Place()
    end = place.worker("wolf")
    end.link.charge(0.0, 100, 0.0)
    server_s, trainer_s = left(place, "certificate worker wolf")
    end.tell(*messages)
    end.link.charge(0.001, 100, 0.0)
    server_after_s, trainer_after_s = left(place, "certificate worker wolf")
    assert server_s - server_after_s == pytest.approx(EFFECTS * 0.001)
    assert trainer_s - trainer_after_s == pytest.approx(price_s)


def test_a_principal_beyond_its_share_is_logged_once_a_minute() -> None:
    lines: list[str] = []
    place = Place()
    place.relay.membership_log = MembershipLog(lines.append)
    end = place.worker("wolf")
    lines.clear()
    for now in (0.0, 1.0, 2.0, LOG_AGAIN_S + 1.0):
        end.tell(Have(1, 1), now=now)
        end.link.charge(BURST_S, 100, now)
    assert len(lines) == 2
    assert lines[0].startswith("worker wolf (wolf's certificate, there) is read slowly: connections, streams and")


def test_a_pause_is_charged_for_each_link() -> None:
    place = Place()
    ends = [place.worker("wolf", number=number) for number in range(8)]
    for end in ends:
        end.link.charge(0.0, 100, 0.0)
    before, _ = left(place, "certificate worker wolf")
    ends[0].tell(Have(1, 1))
    ends[0].link.charge(2 * AT_ONCE_S, 100, 0.0)
    assert before - left(place, "certificate worker wolf")[0] == pytest.approx(EFFECTS * 2 * AT_ONCE_S + 8 * PAUSE_S)


def test_the_streams_of_one_certificate_leave_the_trainer_most_of_its_time() -> None:
    """The trainer checks the proof of each in the thread that takes the honest workers' samples."""
    account, now, opened = ProcessorTime(), 0.0, 0
    while now < 30.0:
        first = opened
        pause_s = 0.0
        while not pause_s:
            opened += 1
            pause_s = account.charge("wolf", 0.0, now, STREAM_S)
        now += pause_s
        assert (opened - first) * STREAM_S <= AT_ONCE_S + 2 * STREAM_S
        assert opened * STREAM_S <= SHARE_AT_ONCE * now + AT_ONCE_S
    assert opened * STREAM_S <= TRAINER_BURST_S + TRAINER_SHARE * now + STREAM_S
    assert account.overspent("wolf", now - pause_s)
    assert not account.overspent("honest", now)


def test_the_trainer_is_not_charged() -> None:
    place = Place()
    paused = Paused(place.trainer)
    place.trainer.tell()
    place.trainer.link.charge(100.0, 20, 0.0)
    assert paused.pauses == []


def test_the_bytes_of_the_status_are_charged_although_its_requests_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    price_s = 1_000 * STATUS_BYTE_S
    monkeypatch.setattr("tmrl_core.networking.relay.core.STATUS_BYTE_S", price_s)
    place = Place()
    wolf, sent, now = End(place.relay, "trainer", "wolf", request="observer"), 0, 0.0
    paused = Paused(wolf)
    while now < 60.0:
        wolf.tell(StatusRequest(0), now=now)
        sent += sum(len(frame.payload) for frame in wolf.read(now))
        wolf.link.charge(0.0, 20, now)
        now += sum(paused.pauses) + 0.001
        paused.pauses.clear()
    assert sent * price_s <= 1.1 * (BURST_S + SHARE * 60.0)


@pytest.mark.parametrize(("role", "of_each"), [("worker", 2 * EFFECTS * 0.003), (None, EFFECTS * 0.001)])
def test_handshakes_are_charged_to_certificates_only(role: str | None, of_each: float) -> None:
    place = Place()
    spent = 0.0
    principal = "certificate worker wolf" if role else "token worker"
    for number in range(100):
        link = place.relay.connection()
        link.charge(0.003, 500, 0.0)  # before the certificate is known
        link.connected(place.trainer.link.identity._replace(role=role, name=role and "wolf"), 0.0)
        link.charge(0.002, 2_000, 0.0)
        hello = control_frame(Hello((1,), "worker", "", "run", "wolf", b"wolf%12d" % number))
        link.get_buffer()[: len(hello)] = hello
        link.received(len(hello), 0.0)
        link.charge(0.001, 100, 0.0)
        link.lost(None, 0.0)
        spent += of_each
        assert BURST_S - left(place, principal)[0] == pytest.approx(spent, rel=0.2)


@pytest.mark.parametrize("says", ["nothing", "half a Hello", "another role"])
@pytest.mark.parametrize("certificate", [True, False])
def test_handshakes_without_a_login_are_charged_to_certificates_only(says: str, certificate: bool) -> None:
    place = Place()
    link = place.relay.connection()
    holder = {"role": "worker", "name": "wolf"} if certificate else {"role": None, "name": None}
    link.charge(0.003, 500, 0.0)
    link.connected(place.trainer.link.identity._replace(**holder), 0.0)
    link.charge(0.002, 2_000, 0.0)
    place.relay.authenticate = lambda hello, connection: ("role", "it cannot act as trainer")
    hello = control_frame(Hello((1,), "trainer", "", "run", "wolf", bytes(16)))
    sent = {"nothing": b"", "half a Hello": hello[:20], "another role": hello}[says]
    if sent:
        link.get_buffer()[: len(sent)] = sent
        link.received(len(sent), 0.0)
        link.charge(0.0, len(sent), 0.0)
    link.lost(None, 0.0)
    link.lost(None, 0.0)
    accounts = place.relay.processor_time._accounts
    if not certificate:
        assert accounts.keys() <= {""}
        return
    assert 0.005 <= BURST_S - left(place, "certificate worker wolf")[0] <= EFFECTS * 0.0051


def test_links_with_one_token_come_back_together_without_a_pause() -> None:
    place = Place()
    pauses: list[float] = []

    def write(*messages: Control) -> None:
        sent = b"".join(map(control_frame, messages))
        link.get_buffer()[: len(sent)] = sent
        link.received(len(sent), now)
        link.charge(0.0001, len(sent), now)

    for number in range(600):
        now = 0.001 * number
        link = place.relay.connection()
        link.charge(0.005, 2_500, now)
        link.connected(place.trainer.link.identity._replace(role=None, name=None), now)
        link.pause = pauses.append
        peer = b"peer%12d" % number
        write(Hello((1,), "worker", "", "run", "robot", peer), OpenStream(0, peer, "robot", bytes(2_000)))
    assert not any(pauses)
    write(OpenStream(1, b"robber's" * 2, "robot"))
    of_one = STREAM_S / (600 / LINKS_OF_ONE)
    assert left(place, "token worker")[1] == pytest.approx(TRAINER_BURST_S - of_one), "only first streams are free"


@pytest.mark.parametrize(("links", "shares"), [(1, 1.0), (LINKS_OF_ONE, 1.0), (1_000, 3.9), (100_000, MOST_SHARES)])
def test_a_share_grows_with_the_links_of_a_token(links: int, shares: float) -> None:
    """One token may belong to a fleet of thousands, whose heartbeats alone take more than the share of one worker."""
    account, now, used = ProcessorTime({"token worker": links}), 0.0, 0.0
    while now < 100.0:
        used += 0.001
        now += 0.001 + account.charge("token worker", 0.001, now)
    assert used == pytest.approx(shares * (BURST_S + SHARE * 100.0), rel=0.05)


def test_the_burst_of_a_token_with_very_many_links_ends() -> None:
    account, now = ProcessorTime({"token worker": 100_000}), 0.0
    while not account.charge("token worker", READ_S, now):
        now += READ_S
    assert now == pytest.approx(MOST_SHARES * BURST_S / (1.0 - MOST_SHARES * SHARE), rel=0.01)


def test_links_that_join_during_a_pause_pause_alone() -> None:
    """A pause of all costs time for each; with one for each newcomer, a large fleet would never come to rest."""
    place = Place()
    ends = [place.worker("wolf", number=number) for number in range(8)]
    paused = [Paused(end) for end in ends]
    ends[0].tell(Have(1, 1))
    ends[0].link.charge(BURST_S + 0.1, 20, 0.0)
    newcomer = place.worker("wolf", number=8)
    alone = Paused(newcomer)
    before, _ = left(place, "certificate worker wolf")
    newcomer.link.charge(0.0, 100, 0.5)
    after, _ = left(place, "certificate worker wolf")
    assert [len(one.pauses) for one in (*paused, alone)] == 8 * [1] + [1]
    assert before - after <= PAUSE_S
    ends[0].tell(Have(1, 2), now=MAX_PAUSE_S + 0.1)
    ends[0].link.charge(0.0, 20, MAX_PAUSE_S + 0.1)
    assert [len(one.pauses) for one in (*paused, alone)] == 8 * [2] + [2], "after it, all pause together again"


def test_probes_are_charged_to_their_certificate() -> None:
    place = Place()
    link = place.relay.connection()
    link.connected(place.trainer.link.identity._replace(role="worker", name="wolf"), 0.0)
    link.charge(0.005, 2_000, 0.0)  # the handshake
    probe = control_frame(Probe((1,), "worker", "", "run"))
    link.get_buffer()[: len(probe)] = probe
    link.received(len(probe), 0.0)
    link.charge(0.001, 100, 0.0)
    assert BURST_S - left(place, "certificate worker wolf")[0] == pytest.approx(EFFECTS * 0.006)


def test_probes_pause_with_the_other_links_of_their_certificate() -> None:
    place = Place()
    worker, probe = place.worker("wolf"), place.relay.connection()
    probe.connected(worker.link.identity, 0.0)
    pauses: list[float] = []
    probe.pause = pauses.append
    sent = control_frame(Probe((1,), "worker", "", "run"))
    probe.get_buffer()[: len(sent)] = sent
    probe.received(len(sent), 0.0)
    probe.charge(BURST_S + 0.1, 100, 0.0)
    worker.tell(Have(1, 1))
    worker.link.charge(0.1, 20, MAX_PAUSE_S)
    assert len([seconds for seconds in pauses if seconds]) == 2


@pytest.mark.parametrize("ends", [False, True])
def test_a_frame_in_tiny_records_that_is_never_finished_is_charged(ends: bool) -> None:
    place = Place()
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, "certificate worker wolf")
    head = HEADER.pack(60_000, Kind.CONTROL, 3, 0, 0)
    for part in range(20):
        end.write(head if part == 0 else bytes(12))
        end.link.charge(0.001, 40 * 12, 0.0)
    if ends:
        end.link.lost(None, 0.0)
    spent = before - left(place, "certificate worker wolf")[0]
    assert EFFECTS * (0.020 if ends else 0.010) <= spent <= EFFECTS * 0.021


def test_a_large_frame_that_comes_in_many_reads_is_not_charged_before_its_end() -> None:
    place = Place()
    end = place.worker("honest")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    before, _ = left(place, "certificate worker honest")
    end.write(HEADER.pack(60_000, Kind.DATA, 3, 0, 0))
    for _ in range(40):
        end.write(bytes(1_400))
        end.link.charge(0.001, 1_450, 0.0)
    end.link.lost(None, 0.0)
    assert left(place, "certificate worker honest")[0] == before


@pytest.mark.parametrize(("size", "part"), [(SMALL_BYTES, 0.0), (0, 0.9)])
def test_small_messages_are_charged_in_part(size: int, part: float) -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("w")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    account, _ = left(place, "certificate worker w")
    before = end.link.bytes_in
    for number in range(10):
        place.send(end, number, size)
    end.link.charge(0.1, end.link.bytes_in - before, 0.0)
    spent = account - left(place, "certificate worker w")[0]
    assert spent == pytest.approx(part * EFFECTS * 0.1, rel=0.03)


class Behind(MemorySpool):
    """A spool of which the messages of one principal wait for the disk."""

    def unwritten_bytes(self, principal: str) -> int:
        return self.used_bytes if principal == "certificate worker wolf" else 0


def test_links_that_hand_over_faster_than_the_disk_writes_are_not_read() -> None:
    place = Place(Behind(64 * MB), budget_bytes=4 * MB)
    first, second, idle = (place.worker("wolf", number=number) for number in range(3))
    honest = place.worker("honest")
    place.trainer.link.lost(None, 0.0)
    for end in (first, second, honest):
        end.tell(HandOver(0))
        end.resumes.update({told.channel: told for told in end.heard() if isinstance(told, Resume)})
    paused = [Paused(end) for end in (first, second, idle, honest)]
    for number in range(3):
        place.send(honest, number, 10)
        first.link.charge(0.0, 20, 0.0)
        honest.link.charge(0.0, 20, 0.0)
    assert [one.pauses for one in paused] == [[]] * 4
    place.want(first, 2 * MB)
    for number in range(2_000):
        place.send(first, number, 10)
    assert len([pause for pause in paused[0].pauses if pause]) == 0
    first.link.charge(0.0, 20, 0.0)
    assert [bool(one.pauses) for one in paused] == [True, True, False, False]


def test_what_a_link_sends_after_its_end_is_charged() -> None:
    place = Place()
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    end.link.refuse("misuse", "no such thing")
    before, _ = left(place, "certificate worker wolf")
    for _ in range(10):
        end.link.charge(0.002, 1 << 20, 0.0)
    assert before - left(place, "certificate worker wolf")[0] == pytest.approx(0.02)


@pytest.mark.parametrize("certificate", [True, False])
def test_the_handshake_of_a_link_that_ends_with_its_first_read_is_charged(certificate: bool) -> None:
    place = Place()
    link = place.relay.connection()
    holder = {"role": "worker", "name": "wolf"} if certificate else {"role": None, "name": None}
    link.connected(place.trainer.link.identity._replace(**holder), 0.0)
    link.charge(0.005, 2_000, 0.0)  # the handshake
    first = control_frame(Hello((1,), "worker", "", "run", "wolf", bytes(16))) + control_frame(CloseStream(99))
    link.get_buffer()[: len(first)] = first
    link.received(len(first), 0.0)
    assert link.closing
    link.charge(0.001, len(first), 0.0)
    principal, seconds = ("certificate worker wolf", 0.006) if certificate else ("token worker", 0.001)
    assert BURST_S - left(place, principal)[0] == pytest.approx(EFFECTS * seconds)


@pytest.mark.parametrize("ends", [False, True])
def test_the_read_in_which_a_link_ends_has_the_price_of_any_other(ends: bool) -> None:
    place = Place()
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    server_s, trainer_s = left(place, "certificate worker wolf")
    openings = [OpenStream(channel, b"wolf%12d" % channel, "wolf") for channel in range(1, 101)]
    end.tell(*openings, *[CloseStream(999)] * ends)
    assert end.link.closing == ends
    end.link.charge(0.01, 5_000, 0.0)
    for _ in range(10 * ends):
        end.link.charge(0.001, 1 << 20, 0.0)
    server_after_s, trainer_after_s = left(place, "certificate worker wolf")
    assert trainer_s - trainer_after_s == pytest.approx(100 * STREAM_S)
    assert server_s - server_after_s == pytest.approx(EFFECTS * 0.01 + 0.01 * ends, abs=2 * PAUSE_S)


def test_the_end_of_the_trainers_link_charges_nothing_of_its_session() -> None:
    place = Place()
    for _ in range(100):
        place.trainer.tell(Credit(0, 0, 1))
        place.trainer.link.charge(0.1, 100, 0.0)
    place.trainer.tell(Bye())
    place.trainer.link.charge(0.001, 20, 0.0)
    assert place.trainer.link.closing
    assert not place.trainer.link.overspent
