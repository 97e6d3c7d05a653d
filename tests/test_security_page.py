"""The page that says what is promised names tests that there are, for each promise, and the limits of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.hostile import test_fake_server
from tmrl_core.gateway import api_keys, messages
from tmrl_core.networking.links import remark_log
from tmrl_core.networking.protocol.messages import MAX_BODY_BYTES
from tmrl_core.networking.relay import connection as relay_connection
from tmrl_core.networking.relay import probes, processor_time, sent_weights, stream_budget, viewers
from tmrl_core.networking.relay import status as relay_status
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.security import admission, certificates, credentials
from tmrl_core.networking.spools import spool as spools
from tmrl_core.networking.trainer import connection as peers
from tmrl_core.networking.trainer import inbox, orders
from tmrl_core.networking.transports import base, tls
from tmrl_core.samples import codec
from tmrl_core.training.loops import episode_metrics, evaluation, lockstep, lockstep_round
from tmrl_core.training.memories import held_rows, prioritized, transition_builder
from tmrl_core.training.remote import interface
from tmrl_core.web import connections, logins

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "security.md"

WORDS = {1: "one", 4: "four", 10: "ten", 12: "twelve"}
ORDINALS = {4: "fourth"}
PARTS = {0.5: "half", 0.25: "quarter", 0.1: "tenth", 0.05: "twentieth"}
PATIENCE_S: float = inspect.signature(evaluation.Evaluator).parameters["patience_s"].default


def promises() -> list[list[str]]:
    """The last cell of each promise: the tests in it."""
    rows: list[list[str]] = []
    in_table = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        in_table = line.startswith("|") and (in_table or "| tested in |" in line)
        if in_table and "---" not in line and "| tested in |" not in line:
            rows.append(re.findall(r"`([^`]+)`", line.rstrip("|").rpartition("|")[2]))
    return rows


def test_each_promise_names_existing_tests() -> None:
    rows = promises()
    assert len(rows) > 20
    assert all(rows), "a promise without a test"
    assert [name for row in rows for name in row if not (TESTS / name).exists()] == []


# Each piece of text on the page whose numbers follow from the code, with the numbers in braces.
LIMITS: tuple[tuple[str, tuple[object, ...]], ...] = (
    # An attacker on the network
    (
        "a frame has at most {} kB, and its connection at most {} kB",
        (relay_connection.GREETING_PAYLOAD_BYTES >> 10, tls._GREETING_BYTES >> 10),
    ),
    (
        "From the {} failed login of an address on, refusals take longer each time, up to {:g} s",
        (ORDINALS[admission.FREE_FAILURES + 1], admission.MAX_DELAY_S),
    ),
    ("Tokens ({} random bits)", (8 * credentials._TOKEN_BYTES,)),
    (
        "logs {} different remarks about each certificate (forged messages, refused samples), then one in {:g} minutes",
        (remark_log.LINES_AT_ONCE, 1 / remark_log.LINES_PER_S / 60),
    ),
    # Viewers and operators
    ("looking at values older than {:g} s by the trainer's own clock", (orders.RECENT_S,)),
    ("At most {} observers are linked", (relay_status.MAX_OBSERVERS,)),
    (
        "The Server keeps at most {} kB of each of the latest {} runs",
        (2 * MAX_BODY_BYTES // 1_000, viewers.MAX_RUNS),
    ),
    (
        "passes on one order a second of each certificate or token, after a burst of {}; the trainer keeps at most {}",
        (viewers.COMMANDS_AT_ONCE, orders.MAX_WAITING),
    ),
    # A malicious worker
    ("Credit that is not used for {:g} s while others wait", (RelaySettings().stalled_s,)),
    (
        "stores at most {} times as many bytes in the Server's spool (`server.spool_bytes`) as stay free",
        (WORDS[spools._SHARE_OF_FREE],),
    ),
    ("its weight, from 1 to {:,} workers", (certificates.MAX_WEIGHT,)),
    (
        "has a {} of one core for each bundle or token, after a burst of {} second, in which it has {} of a core",
        (
            PARTS[processor_time.SHARE],
            {1.0: "a"}[processor_time.BURST_S],
            PARTS[processor_time.SHARE_AT_ONCE],
        ),
    ),
    ("reads nothing from its links for up to {:g} s at a time", (processor_time.MAX_PAUSE_S,)),
    ("in turns of about {:g} ms", (1_000 * base._SEND_S,)),
    (
        "A link that reads nothing is closed after {:g} s, or when {} MB of acknowledgements wait for it",
        (RelaySettings().stalled_s, relay_connection._UNREAD_BYTES >> 20),
    ),
    (
        "with {} MB/s after a burst of {} GB",
        (sent_weights.BYTES_PER_S >> 20, sent_weights.BURST_BYTES >> 30),
    ),
    (
        "records {} names of workers as series, {} of one certificate",
        (interface.MAX_CHARTED_NAMES, interface.MAX_CHARTED_NAMES_EACH),
    ),
    (
        "at most {} MB in the trainer's replay memory and its checkpoints ({} GB with sequences or several steps)",
        (held_rows.MAX_HELD_BYTES >> 20, held_rows.MAX_HELD_BYTES * transition_builder.MOST_HELD >> 30),
    ),
    ("an unfinished one has about {} MB at most", (lockstep_round.MAX_EPISODE_BYTES >> 20,)),
    (
        "A message has at most {} episode records and one more for each {} bytes on the wire, and never more than {}",
        (codec.FEW_RECORDS, codec.RECORD_BYTES, interface.MAX_RECORDS),
    ),
    (
        "One bundle opens at most {} links. Besides the samples, its streams use at most {} MB in the Server",
        (stream_budget.LINKS_OF_ONE, stream_budget.OF_ONE_BYTES >> 20),
    ),
    ("all streams together use at most {} MB", (stream_budget.IN_ALL_BYTES >> 20,)),
    ("The trainer keeps at most {} MB of their signatures", (peers.MAX_SIGNATURES_BYTES >> 20,)),
    (
        "announce at most {} MB of signatures at once, then {} kB/s",
        (stream_budget.ANNOUNCED_BYTES >> 20, stream_budget.ANNOUNCED_BYTES_PER_S >> 10),
    ),
    (
        "a turn blocks nothing: turns apply only while it is the only worker, for at most {} minute",
        (WORDS[round(interface.TURN_S / 60)],),
    ),
    (
        "after {} minute, or the time that episodes have shown to be necessary (at most {} hour)",
        ({60.0: "a"}[PATIENCE_S], {3_600.0: "an"}[evaluation.LONGEST * PATIENCE_S]),
    ),
    (
        "it reads {} MB (decompressed) at a time, in turns between certificates. If more than {} GB of one certificate",
        (inbox.TAKEN_BYTES >> 20, inbox.PENDING_BYTES >> 30),
    ),
    (
        "in the last {} rounds, the delay grows with that time, to {:g} times as long at most",
        (lockstep.RECENT_ROUNDS, lockstep_round.LONGEST),
    ),
    ("at the latest {:,} updates after the transition", (2 * prioritized.PERIOD_UPDATES,)),
    (
        "records at most {} names of metrics of one certificate and {:,} in all",
        (episode_metrics.MAX_NAMES_EACH, episode_metrics.MAX_NAMES),
    ),
    # An attacker at the gateway
    ("API keys and the owner's token are {} random bits", (8 * api_keys._SECRET_BYTES,)),
    (
        "an info has at most {} kB and {} values",
        (messages.MAX_INFO_BYTES >> 10, messages.MAX_INFO_VALUES),
    ),
    (
        "TLS handshakes that are not complete are limited to {}, each to {:g} s",
        (connections.MAX_HANDSHAKES, connections.HANDSHAKE_S),
    ),
    ("The login ends after {} hours", (WORDS[round(logins.LOGIN_S / 3_600)],)),
    # A malicious trainer
    ("1 MB of answers counts as {:.0f} ms", (1e6 * processor_time.STATUS_BYTE_S * 1_000,)),
    # A Server that has been taken over
    (
        "Of {:,} random attempts ({:,} with `--full`)",
        (test_fake_server.ATTEMPTS, test_fake_server.ATTEMPTS_FULL),
    ),
    ("receive one message or policy of up to {} GiB", (peers.MOST_MESSAGE_BYTES >> 30,)),
    ("which takes more than {:,} streams", (peers._FORGOTTEN_STREAMS,)),
    ("A list of more than {} kB", (MAX_BODY_BYTES // 1_000,)),
    # Connection checks
    (
        "At most {} checks run at a time, each for at most {} minute",
        (WORDS[probes.MAX_PROBES], WORDS[round(probes.PROBE_S / 60)]),
    ),
)


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [text for text, numbers in LIMITS if text.format(*numbers) not in page] == []
