"""Facts a source has about its receivers: NAKs, cutoffs, log lines, and the receivers allowed to count."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.unit.loopback import OWN_ADDRESSES, connect, open_context, write_counters
from tests.waiting import SECONDS, wait_for
from umstack import Context
from umstack._engine.sessions import allowed_networks
from umstack.cli.stat import command as stat_command
from umstack.errors import InvalidArgument, OptionError
from umstack.scapy import LBTRM, LBTRMNak

MESSAGE = bytes(1000)
LISTED = 300


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    """Return a context whose retransmissions are limited to 1 Mbit/s."""
    with open_context(transport_lbtrm_retransmit_rate_limit=1_000_000) as context:
        yield context


class UnknownSender:
    """A socket that sends arbitrary NAKs."""

    def __init__(self, transport: str) -> None:
        _, address, port, session_id, _, _ = transport.split(":")
        self._to = (address, int(port))
        self._session_id = int(session_id, 16)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self.name = f"{address}:{self._socket.getsockname()[1]}"

    def nak(self, *sqns: int) -> int:
        """Send one NAK; return its length in bytes."""
        header = LBTRM(nak_port=self._to[1], session_id=self._session_id)
        return self._socket.sendto(bytes(header / LBTRMNak(sqns=list(sqns))), self._to)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def test_an_unknown_sender_that_floods_is_bounded_named_and_cut_off(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """UM-129, UX-21: events, log and statistics have the sender's address; a cutoff and its end take effect."""
    caplog.set_level(logging.WARNING, "umstack.source")
    source, receiver = connect(context, "flooded")
    with source, receiver:
        for _ in range(LISTED):
            source.send(MESSAGE, flush=True)
        sender = UnknownSender(source.transport)
        started = time.monotonic()
        asked_bytes = sum(sender.nak(*range(LISTED)) for _ in range(20))
        wait_for(lambda: source.stats()["naks_over_share"], "refusals")
        wait_for(lambda: source.stats()["nak_pckts_rcved"] == 20, "all NAKs")
        caused = source.stats()["rx_bytes_sent"] or 0
        assert caused <= 65536 + 100_000 / 8 * (time.monotonic() - started)
        assert caused < 5 * asked_bytes
        events = [(e.kind, e.receiver) for e in source.receiver_events() if e.kind != "receiver_known"]
        assert events == [("receiver_noisy", sender.name)]
        assert source.receiver_events() == []
        (accounts,) = (
            one["nak_accounts"]
            for one in context.stats()["source_transports"]
            if one["transport"] == source.transport
        )
        assert accounts[0]["receiver"] == sender.name
        assert accounts[0]["naks"] == 20 * LISTED
        wait_for(
            lambda: any(f"receiver_noisy {sender.name}" in r.getMessage() for r in caplog.records),
            "a record",
        )
        source.nak_cutoff(sender.name)
        sender.nak(1)
        wait_for(lambda: source.stats()["naks_cut_off"] == 1, "the cutoff")
        assert source.receiver_events()[0].kind == "receiver_cut_off"
        source.nak_cutoff(sender.name, enabled=False)
        sender.nak(1)
        wait_for(lambda: source.stats()["nak_pckts_rcved"] == 22, "one more NAK")
        assert source.stats()["naks_cut_off"] == 1
        with pytest.raises(InvalidArgument, match="not a receiver"):
            source.nak_cutoff("nobody")
        sender.close()


def test_stat_names_the_receivers(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """UX-21: `umstack stat PID` prints a line for each receiver that sends NAKs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Context("lo", statistics=True, **OWN_ADDRESSES) as context:
        source = context.source("shown")
        sender = UnknownSender(source.transport)
        sender.nak(1)
        wait_for(lambda: source.stats()["nak_pckts_rcved"], "the NAK")
        write_counters(context)
        import os

        shown = CliRunner().invoke(stat_command, [str(os.getpid())])
        assert f"receiver {sender.name}" in shown.output
        as_json = CliRunner().invoke(stat_command, [str(os.getpid()), "--json"])
        transports = json.loads(as_json.output)["contexts"][-1]["source_transports"]
        assert transports[0]["nak_accounts"][0]["receiver"] == sender.name
        sender.close()


def test_a_disallowed_receiver_does_not_count(context: Context) -> None:
    """AE-19: status messages of a receiver that may not count are dropped and counted."""
    source = context.source("listed", flow_control="min", flow_control_receivers_allowed="10.99.0.0/16")
    receiver = context.receiver("listed")
    with source, receiver:
        wait_for(lambda: source.stats()["status_not_allowed"], "a status message")
        assert not source.is_connected


@pytest.mark.parametrize("text", ["10.0.0.1/8", "nobody", "10.0.0.1,", ",".join(["10.0.0.1"] * 17)])
def test_invalid_networks_are_refused(text: str) -> None:
    """W10: the error names the option."""
    with pytest.raises(OptionError, match="flow_control_receivers_allowed"):
        allowed_networks(text)


def test_networks_are_parsed() -> None:
    """W10: `any` is an empty tuple, and an address is a network of one address."""
    assert allowed_networks("any") == ()
    assert [str(one) for one in allowed_networks("10.1.0.0/16, 10.2.0.7")] == ["10.1.0.0/16", "10.2.0.7/32"]


def test_a_send_without_receivers_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AE-12: refused sends are counted in the log; a blocking one is a warning of its own (test_source.py)."""
    monkeypatch.setattr("umstack.telemetry.counter_log._INTERVAL_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "umstack.source")
    with open_context() as context, context.source("lonely", flow_control="min") as source:
        with pytest.raises(Exception, match="receiver"):
            source.send(b"x", timeout=0)
        wait_for(
            lambda: any("not_connected" in record.getMessage() for record in caplog.records),
            "a record",
            SECONDS,
        )
        assert source.stats()["not_connected"]
