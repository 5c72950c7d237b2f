"""The slots of a recovery client: fetches are attended in turns, also after others ended; starved ones at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from umstack._core import ffi
from umstack.recovery import client as client_module
from umstack.recovery.client import RecoveryClient

ATTENDED = client_module._ATTENDED_A_LOOK


class _Core:
    """The core's look at slots: it notes which fetches are in them, and ends those that a test names."""

    UM_FETCH_STEP, UM_FETCH_CONNECT, UM_FETCH_DISCONNECT, UM_FETCH_END = range(4)

    def __init__(self) -> None:
        self.attended: list[Any] = []
        self.over: list[Any] = []

    def um_attend_fetches(self, slots: Any, count: int, due: Any) -> int:
        found = 0
        for number in range(count):
            self.attended.append(slots[number].fetch)
            if slots[number].fetch in self.over:
                slots[number].action = self.UM_FETCH_END
                due[found] = number
                found += 1
        return found

    def take_attended(self) -> list[Any]:
        """Return the fetches attended since the last call."""
        taken, self.attended = self.attended, []
        return taken


class _Fetch:
    """A fetch that receives nothing."""

    def __init__(self) -> None:
        self.raw = ffi.new("um_fetch *")
        self.subscription = SimpleNamespace(handle=ffi.NULL)
        self.connection = None
        self.slot = 0
        self.is_over = False
        self.steps = 0

    def work(self) -> None:
        self.steps += 1

    def end(self) -> None:
        self.is_over = True


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> _Core:
    """Replace the core."""
    one = _Core()
    monkeypatch.setattr(client_module, "lib", one)
    return one


def _begun(core: _Core, count: int) -> tuple[RecoveryClient, list[_Fetch]]:
    nothing = cast("Any", None)
    client, fetches = RecoveryClient(nothing, nothing, nothing, 0), [_Fetch() for _ in range(count)]
    for fetch in fetches:
        client.begin(cast("Any", fetch))
    core.take_attended()
    return client, fetches


def test_many_fetches_are_attended_in_turns(core: _Core) -> None:
    """As many in each look as fit one; each once per round, and nothing before the next look is due."""
    client, fetches = _begun(core, 2 * ATTENDED + 5)
    now_ns, sizes = 0, []
    for _ in range(2):
        round_: list[Any] = []
        while len(round_) < len(fetches):
            due_ns = client.run(now_ns)
            taken = core.take_attended()
            sizes.append(len(taken))
            round_ += taken
            assert due_ns is not None
            assert due_ns > now_ns
            client.run(due_ns - 1)
            assert core.take_attended() == []
            now_ns = due_ns
        assert round_ == [fetch.raw for fetch in fetches]
    assert sizes == 2 * [ATTENDED, ATTENDED, 5]


def test_a_fetch_that_ends_leaves_its_slot_to_the_last(core: _Core) -> None:
    """First one in the middle, then the one that was moved there, then the last."""
    client, fetches = _begun(core, 5)
    order = [fetch.raw for fetch in fetches]
    expected = [[0, 4, 2, 3], [0, 3, 2], [0, 3]]
    for now, (ends, left) in enumerate(zip((1, 4, 2), expected, strict=True)):
        core.over = [order[ends]]
        client.run(2 * now * 10**9)
        assert fetches[ends].is_over
        core.take_attended()
        client.run((2 * now + 1) * 10**9)
        assert core.take_attended() == [order[number] for number in left]


def test_starved_fetches_are_worked_on_at_every_look(core: _Core) -> None:
    """Also without anything to do, and sooner than others; no longer once their queue has space."""
    client, (first, second) = _begun(core, 2)
    first.raw.is_starved = True
    client._work(cast("Any", first))
    slow = client.run(0)
    assert (first.steps, second.steps) == (2, 0)
    first.raw.is_starved = False
    fast = client.run(10**9)
    client.run(2 * 10**9)
    assert (first.steps, second.steps) == (3, 0)
    assert slow is not None
    assert fast is not None
    assert slow < fast - 10**9
