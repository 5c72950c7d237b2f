"""Commands end in order when they are asked to, whatever they were at."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time

import pytest

from umstack.cli.interruption import stoppable, terminable

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedInItsFinaliser:
    """Something that is collected just as the signal comes."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        """Be interrupted where Python drops every exception."""
        signal.raise_signal(self.number)


def _be_interrupted_late(number: signal.Signals) -> None:
    InterruptedInItsFinaliser(number)
    time.sleep(20)


@pytest.mark.parametrize("number", _SIGNALS)
@pytest.mark.parametrize("once", [False, True])
def test_an_interrupt_within_a_finaliser_is_not_lost(number: signal.Signals, once: bool) -> None:
    """It is raised a moment later, where it is handled; afterwards everything is as it was."""
    before = (sys.unraisablehook, [signal.getsignal(each) for each in _SIGNALS])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), terminable(once=once):
        _be_interrupted_late(number)
    assert time.monotonic() - began < 10
    assert (sys.unraisablehook, [signal.getsignal(each) for each in _SIGNALS]) == before


def test_other_errors_of_a_finaliser_are_reported_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only interrupts come again."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    with terminable():
        Failing()
    assert printed == [ValueError]


@pytest.mark.parametrize("number", _SIGNALS)
def test_what_can_stop_is_not_interrupted(number: signal.Signals) -> None:
    """A request to stop is forwarded, each time, and raises nothing; asked again on the way out, nothing happens."""
    before = [signal.getsignal(each) for each in _SIGNALS]
    asked = []
    with terminable(once=True):
        with stoppable(lambda: asked.append(number)) as request:
            assert not request.has_come
            signal.raise_signal(number)
            signal.raise_signal(number)
        signal.raise_signal(number)
    assert (request.has_come, asked) == (True, [number, number])
    assert [signal.getsignal(each) for each in _SIGNALS] == before


def test_what_was_not_asked_to_stop_can_still_be_interrupted() -> None:
    """After the part that can stop, a signal is an interrupt as before it."""
    with terminable(once=True):
        with stoppable(lambda: None) as request:
            pass
        assert not request.has_come
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def _interrupt_here(number: signal.Signals) -> None:
    time.sleep(0.1)  # the main thread waits by now; if not, this shows nothing
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize("number", _SIGNALS)
def test_a_stop_reaches_a_call_that_was_about_to_wait(number: signal.Signals) -> None:
    """Its handler runs only after the call, so the stop must end the call. Another thread takes the signal here."""
    stopping, wake = socket.socketpair()
    stopping.settimeout(10)
    with stopping, wake, terminable(once=True), stoppable(lambda: wake.sendall(b"\0")) as asked:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        unblocked = threading.Thread(target=_interrupt_here, args=(number,))
        try:
            unblocked.start()
            assert stopping.recv(1) == b"\0"
        finally:
            unblocked.join()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    assert asked.has_come


def test_a_signal_that_asks_for_no_stop_causes_none() -> None:
    """The wakeup descriptor reports every signal that has a handler."""
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(0))
    try:
        with stoppable(lambda: calls.append(1)) as asked:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert (calls, asked.has_come) == ([0], False)
    finally:
        signal.signal(signal.SIGUSR1, before)
