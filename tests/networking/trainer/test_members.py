"""Changes of a trainer's members: a consumer that applies them knows the same members, whatever has happened."""

from __future__ import annotations

from random import Random

from tmrl_core.networking.trainer.members import Member, Members


def test_changes_lead_to_the_same_members_after_any_sequence() -> None:
    rng = Random(0)
    members, known = Members(), dict[bytes, Member]()
    for number in range(5_000):
        stream = bytes([rng.randrange(6)])
        match rng.randrange(8):
            case 0 | 1 | 2:
                members[stream] = Member(stream, str(number), b"", 0.0)
            case 3 | 4:
                members.pop(stream, None)
            case 5 if rng.random() < 0.2:
                members.clear()
            case _:
                joined, left = members.take_changes()
                assert left <= known.keys()
                assert known.keys() & joined.keys() <= left
                for gone in left:
                    del known[gone]
                known.update(joined)
                assert known == members
                assert list(known) == list(members), "in the order in which they joined"


def test_members_that_nobody_takes_note_of_leave_no_trace() -> None:
    members = Members()
    for number in range(1_000):
        stream = number.to_bytes(16, "big")
        members[stream] = Member(stream, "wolf", b"", 0.0)
        del members[stream]
    assert members.take_changes() == ({}, set())
