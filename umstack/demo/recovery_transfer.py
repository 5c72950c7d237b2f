"""RecoveryTransfer: the run of the demo in which one subscriber starts in the middle and another's cable is out.

subscriber 1   |=========================================================|
subscriber 2                              |= past by TCP, then as it comes =|   late join
subscriber 3   |==                                                    ==|= rest by TCP =|   off-transport recovery
                 ^ cable out, for longer than NAKs are generated      ^ and in
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from umstack.demo.children import Child, Children, command_of
from umstack.demo.publisher import PublisherTask
from umstack.demo.result import SubscriberResult
from umstack.demo.settings import Options, of_transport
from umstack.demo.transfer import Transfer

SUBSCRIBERS = 3
CUT_SECONDS = 15.0
"""Longer than transport_lbtrm_nak_generation_interval, and than the transmission window lasts."""
_LATE, _CUT = 2, 3
_CUT_AFTER_SECONDS = 1.0
_LATE_AFTER_SECONDS = 8.0
_TRANSFER_SECONDS = 17.0
_BYTES_PER_SECOND_MIN = 12_500
_WINDOW_BYTES = 1 << 20
_TCP_SEND_BUFFER_BYTES = 1 << 18
"""Of each connection. The system's own grows to megabytes, which are more than some trees."""

ROLES = {
    1: "there from the start",
    _LATE: "starts in the middle: late join",
    _CUT: f"cable out for {CUT_SECONDS:.0f} s: off-transport recovery",
}


class RecoveryTransfer(Transfer):
    """The publisher sends slowly, to nobody in particular, and retains everything until every subscriber has it.

    Over TCP it is source-paced: the subscriber whose cable is out loses what its backlog cannot hold, and delays none.
    """

    def carry_out(self) -> None:
        """Start the processes, do what the roles say, and compare what they found."""
        with Children(self._network, self._work) as children:
            subscribers = {number: self._start(children, number) for number in (1, _CUT)}
            self._show("starting", children)
            self._await(children, lambda: all(child.state != "starting" for child in subscribers.values()))
            publisher = children.start("publisher", 0, command_of(self._publisher()))
            self._await(children, lambda: publisher.state != "starting" or publisher.has_failed)
            self._show("transferring", children)
            self._play(children, subscribers)
            start = time.monotonic()
            self._await(
                children,
                lambda: (
                    publisher.has_failed
                    or (
                        publisher.result is not None
                        and all(child.status is not None for child in subscribers.values())
                    )
                ),
            )
            self.result.transfer_seconds += time.monotonic() - start
            publisher.process.terminate()
            self._await(children, lambda: publisher.status is not None)
            self._conclude(publisher, [subscribers[number] for number in sorted(subscribers)])
        for subscriber in self.result.subscribers:
            self._check(subscriber)

    def _start(self, children: Children, number: int) -> Child:
        return children.start(f"subscriber {number}", number, command_of(self._subscriber(number)))

    def _play(self, children: Children, subscribers: dict[int, Child]) -> None:
        """Take the cable out, start the late subscriber, and put the cable in."""

        def start_late() -> None:
            subscribers[_LATE] = self._start(children, _LATE)

        scenes: list[tuple[float, Callable[[], None]]] = [
            (_CUT_AFTER_SECONDS, lambda: self._network.cut(_CUT)),
            (_LATE_AFTER_SECONDS, start_late),
            (_CUT_AFTER_SECONDS + CUT_SECONDS, lambda: self._network.mend(_CUT)),
        ]
        began = time.monotonic()
        for at_seconds, scene in scenes:
            due = began + at_seconds
            self._await(children, lambda due=due: time.monotonic() >= due)  # type: ignore[misc]
            scene()
        self.result.transfer_seconds = time.monotonic() - began

    def _check(self, subscriber: SubscriberResult) -> None:
        """That it went the way it was to be shown."""
        subscriber.role = ROLES[subscriber.number]
        if subscriber.problems:
            return
        if subscriber.number == _LATE and not subscriber.late_join_messages:
            subscriber.problems.append("nothing came by late join")
        if subscriber.number == _CUT and not subscriber.otr_messages:
            subscriber.problems.append("nothing came by off-transport recovery")

    def _receiver_options(self) -> Options:
        return {
            **self._network.receiver_options(),
            # A cable that is out is no end of the session.
            **of_transport(self._settings.transport, {"transport_lbtrm_activity_timeout": 60_000}),
        }

    def _publisher(self) -> PublisherTask:
        retained = 2 * self._progress.bytes + (1 << 24)
        options: Options = {
            **super()._publisher().source_options,
            "flow_control": "none",
            "late_join": 1,
            "retransmit_retention_size_threshold": retained,
            "retransmit_retention_size_limit": retained,
            **of_transport(
                self._settings.transport, {"transport_lbtrm_transmission_window_size": _WINDOW_BYTES}
            ),
            "transport_tcp_multiple_receiver_behavior": "source_paced",
            "transport_tcp_sender_socket_buffer": _TCP_SEND_BUFFER_BYTES,
        }
        return replace(
            super()._publisher(),
            subscribers=0,
            stays=True,
            bytes_per_second=max(_BYTES_PER_SECOND_MIN, self._progress.bytes / _TRANSFER_SECONDS),
            source_options=dict(options),
        )
