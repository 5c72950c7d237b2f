"""`umstack decode`: rows for a person, counts for a program, files for a pipeline, and an honest exit status."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.capture_bytes import (
    RECEIVER,
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    message,
    pcap,
    sm,
    udp,
)
from tests.unit.capture_bytes import nak as nak_datagram
from tests.unit.capture_bytes import ncf as ncf_datagram

pytest.importorskip("pyarrow")

import pyarrow.parquet as parquet

from umstack.capture import SCHEMA
from umstack.cli.decode import command
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """One packet of each kind, and one of another protocol."""
    nak = ethernet(ipv4(udp(nak_datagram(7, 8), 14395, 14390), RECEIVER, SOURCE))
    frames = [frame(data(7, message(1, 2, b"hello"))), frame(sm(1, 7, 0)), nak, frame(ncf_datagram(2, 0, 7))]
    frames.append(frame(b"query", destination_port=53))
    path = tmp_path / "some.pcap"
    path.write_bytes(pcap([Packet(START_NS + i, content) for i, content in enumerate(frames)]))
    return path


def test_rows_for_a_person(capture: Path) -> None:
    """One line per packet: time, ends, type, session and the main fields of the type."""
    done = CliRunner().invoke(command, [str(capture)])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert len(lines) == 4
    assert lines[0].startswith("2023-11-14 22:13:20.123456789  10.0.0.1:14390 > 224.10.10.10:14400")
    assert "DATA   5eed0001 sqn 7 trail 0 1 message, 5 bytes" in lines[0]
    assert "SM     5eed0001 1 lead 7 trail 0" in lines[1]
    assert "NAK    5eed0001 7 8" in lines[2]
    assert "NCF    5eed0001 rx_delay 7" in lines[3]


def test_types_all_and_limit(capture: Path) -> None:
    """Less, more, or the first few."""
    runner = CliRunner()
    assert (
        len(runner.invoke(command, [str(capture), "--type", "NAK", "--type", "SM"]).stdout.splitlines()) == 2
    )
    assert "[not ours]" in runner.invoke(command, [str(capture), "--all"]).stdout
    assert len(runner.invoke(command, [str(capture), str(capture), "--limit", "5"]).stdout.splitlines()) == 5


def test_json_is_one_object(capture: Path) -> None:
    """Counts by type and each file's notes."""
    done = CliRunner().invoke(command, [str(capture), "--json"])
    report = json.loads(done.stdout)
    assert report["packets"] == {"DATA": 1, "SM": 1, "NAK": 1, "NCF": 1}
    assert report["files"][0]["packets"] == 5
    assert report["files"][0]["notes"] == []


def test_parquet_and_csv(capture: Path, tmp_path: Path) -> None:
    """All columns as they are; as CSV all but the lists."""
    out, table = tmp_path / "o.parquet", tmp_path / "o.csv"
    done = CliRunner().invoke(command, [str(capture), "--parquet", str(out), "--csv", str(table)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert parquet.read_table(out).to_pylist()[0]["messages"][0]["topic_sqn"] == 2
    assert parquet.read_schema(out).names == SCHEMA.names
    with table.open(newline="") as file:
        assert [row["packet_type"] for row in csv.DictReader(file)] == ["DATA", "SM", "NAK", "NCF"]


def test_what_is_missing_is_the_exit_status(capture: Path) -> None:
    """For a truncated file the command shows the packets, reports the truncation on standard error, and fails."""
    capture.write_bytes(capture.read_bytes()[:-3])
    done = CliRunner().invoke(command, [str(capture)])
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 4
    assert "truncated" in done.stderr
    report = json.loads(CliRunner().invoke(command, [str(capture), "--json"]).stdout)
    assert report["files"][0]["notes"][0]["kind"] == "truncated"


def test_ports(capture: Path) -> None:
    """Ports are a number or a range, and said so when they are not."""
    done = CliRunner().invoke(command, [str(capture), "--lbtrm-ports", "53"])
    assert "[LBT-RM: shorter than its fields say]" in done.stdout
    assert CliRunner().invoke(command, [str(capture), "--lbtrm-ports", "9-3"]).exit_code == 2


def test_topic_names_do_not_act_on_the_terminal(tmp_path: Path) -> None:
    """A topic advertised with escape sequences and line feeds stays one line of what prints."""
    address = LbtrmAddress("10.0.0.7", "239.1.2.3", 7, 14400, 14395)
    topic = "\x1b]0;owned\x07\n2023 forged line [/red]"
    datagram = encode(ResolutionDatagram((), (Advertisement(topic, 3, 0, address),)))
    path = tmp_path / "hostile.pcap"
    path.write_bytes(pcap([Packet(START_NS, frame(datagram, destination_port=12965))]))
    (line,) = CliRunner().invoke(command, [str(path)]).output.splitlines()
    assert line.isprintable()
    assert "\\x1b]0;owned\\x07\\x0a2023 forged line [/red]=3" in line
