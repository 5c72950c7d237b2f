"""The options of an event queue: its warnings and counters (UX-20). Its size is an option of the receiver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from umstack.config.option import Kind, Scope, option

_OFF = "off"


@dataclass(frozen=True, slots=True)
class EventQueueOptions:
    """Options of scope `event_queue`, as Config.event_queue_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.EVENT_QUEUE

    queue_size_warning: int = option(
        Kind.INTEGER,
        um=0,
        maximum=2**31 - 1,
        zero=_OFF,
        doc="A read that finds more rows waiting is counted (size_warnings) and logged, once until a read finds "
        "fewer.",
    )
    queue_delay_warning_ns: int = option(
        Kind.MICROSECONDS,
        um=0,
        maximum=3_600_000_000,
        zero=_OFF,
        doc="A read whose first row has waited longer is counted (delay_warnings) and logged, once until a row has "
        "waited less.",
    )
    queue_age_enabled: bool = option(
        Kind.SWITCH, um=0, doc="Count how long rows wait in the queue: age_min, age_mean and age_max."
    )
    queue_service_time_enabled: bool = option(
        Kind.SWITCH, um=0, doc="Count how long on_message takes per row: events_svc_min, _mean and _max."
    )
