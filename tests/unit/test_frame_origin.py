"""Captures contain only certain facts about how frames arrived."""

from __future__ import annotations

import time

import pytest

from umstack.capture.writing import frame_origin
from umstack.capture.writing.frame_origin import FrameOrigin
from umstack_xdp import BpfError

UNKNOWN, XDP_PASS = -1, 2


def verdicts(monkeypatch: pytest.MonkeyPatch, found: list[tuple[int, ...] | Exception]) -> list[int]:
    """Return the facts after each of these readings of the interface's programs."""
    looks = iter(found)

    def program_ids(_: object) -> tuple[int, ...]:
        if isinstance(look := next(looks), Exception):
            raise look
        return look

    monkeypatch.setattr(frame_origin, "program_ids", program_ids)
    origin = FrameOrigin("lo")
    return [origin.look().verdict for _ in found]


def test_a_program_that_stays_has_passed_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is known once three looks agree, and not around the moment a program changes."""
    found = [(7,), (7,), (7,), (7,), (8,), (8,), (8,), (), (), (), (7,)]
    expected = [UNKNOWN, UNKNOWN, XDP_PASS, XDP_PASS, UNKNOWN, UNKNOWN, XDP_PASS, *[UNKNOWN] * 4]
    assert verdicts(monkeypatch, list(found)) == expected


def test_what_may_not_be_asked_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the loader or the permission to ask there is no verdict, and no failure."""
    refused = BpfError("asking", 1)
    assert verdicts(monkeypatch, [(7,), (7,), refused, (7,), (7,), (7,)]) == [UNKNOWN] * 5 + [XDP_PASS]


def test_frames_wait_for_a_look_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames later than the last look stay in the ring while a program is there, and never otherwise."""
    programs: tuple[int, ...] = (7,)
    monkeypatch.setattr(frame_origin, "program_ids", lambda _: programs)
    origin = FrameOrigin("lo")
    before_ns = time.time_ns()
    known = [origin.look() for _ in range(3)][-1]
    assert before_ns <= known.until_ns <= time.time_ns()
    programs = ()
    assert origin.look().until_ns > time.time_ns() + 10**18


def test_the_queue_is_known_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet socket does not get the queue, so the queue is known only on an interface with one."""
    monkeypatch.setattr(frame_origin, "program_ids", lambda _: ())
    for count, queue in ((1, 0), (2, UNKNOWN)):
        monkeypatch.setattr(frame_origin, "queue_count", lambda _, count=count: count)
        assert FrameOrigin("lo").look().queue == queue
    assert FrameOrigin("nowhere0").look() == (2**63 - 1, UNKNOWN, UNKNOWN)
