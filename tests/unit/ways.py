"""The ways of a message from a source to a receiver, for the fixture `way`: through a driver, or without one.

A module of tests of the public API uses the fixture for all of its tests (pytestmark), which then run with contexts of
their own links and with contexts that are attached to a driver. Marks choose other ways for single tests.
"""

from __future__ import annotations

import pytest

WAYS = {
    "alone": ("none",),
    "attached": ("driver",),
    "from a driver": ("driver", "none"),
    "to a driver": ("none", "driver"),
}
"""The contexts that a test opens take these in turn."""

EVERY_WAY = pytest.mark.parametrize("way", [*WAYS], indirect=True)


OVER_THE_NETWORK = pytest.mark.parametrize("way", ["alone", "from a driver"], indirect=True)
"""For tests of what a source learns of receivers of other hosts; they open its context first."""


FROM_AND_TO_A_DRIVER = ("alone", "from a driver", "to a driver")
"""USUAL_WAYS of a module about a transport of the network."""

ATTACHED_TOO = pytest.mark.parametrize("way", ["alone", "attached"], indirect=True)
"""For single tests of a module that usually runs without a driver."""


# Why a test runs without a driver only: what it observes is different through a driver (docs/driver.md).
ITS_FRAGMENTS = "messages of up to 64 KiB are not fragmented in a log"
SMALL_WINDOW = "the transmission window is smaller than the longest message of a log"
ONE_LOG = "each source has a log of its own, so topics are not in one order"
FULL_LOG = "sends wait once the log is full, not at the window or rate of the network"
UNREAD_END = "a source that has ended is listed until its last message is read"
ITS_SESSION = "the session of the network is the driver's"
MAPS_HERE = "the test stops mapping in its process, which the driver's thread needs"
MAPS_ITSELF = "it maps a source without topic resolution"
ITS_LOSSES = "the datagrams are lost in the driver, not in a context of the test"
ITS_COUNTERS = "the counters are those of the driver"
ITS_PEERS = "it is about connections of the application's own process"
OPENS_ITSELF = "it opens its contexts by itself, or in another process"
LONG = "it opens thousands of objects"


def alone(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that runs without a driver only, and the reason."""
    assert why
    return pytest.mark.parametrize("way", ["alone"], indirect=True)


def from_own_link(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test whose source has no driver, because of the reason; its receivers may have one."""
    assert why
    return pytest.mark.parametrize("way", ["alone", "to a driver"], indirect=True)


WITHOUT_A_DRIVER: dict[str, str] = {
    "about the driver, with drivers of its own": "driver driver_keys driver_logs driver_restart driver_stores "
    "driver_threads",
    "about the Store's process": "store_many_receivers store_copies store_kills store_metrics store_process "
    "store_server cli_send_store",
    "datagrams, peers, or the counters of sessions, which are the driver's": "authentication clock_steps "
    "forged_advertisements interface_options receiver_events receiver_window session_mapping system_counters tap "
    "tcp_connections_allowed tcp_peers tcp_random timers turns leading link publication source_numbers",
    "topic resolution, which each process has of its own": "resolution_flood resolution_report resolver_daemon",
    "files, counters and log records of one process": "event_queue_warnings logging metrics operations_faults "
    "prometheus public_reports statistics_files top",
    "commands and programs in other processes": "cli_send_recv first_steps fork recorder lazy_names",
    "types, texts, options and events of the process itself": "api_types docstrings interface_events "
    "xml_configuration",
}
"""Modules of tests that open contexts without a driver only, by the reason."""
