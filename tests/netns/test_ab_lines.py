"""`umstack send` and `recv --hot-failover` run over two interfaces, one of which is cut (A/B lines)."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyroute2 import IPRoute

from tests.waiting import wait_for
from umstack.lab import Host, Lab

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 40
LINES = ("eth0", "eth1")


@pytest.fixture(scope="module")
def two_cables() -> Iterator[Lab]:
    """Return two hosts with a switch between their eth0, and a cable between their eth1."""
    with Lab(hosts=2) as lab:
        print(f"lab {lab.name}")
        sending, receiving = lab.hosts

        def lay() -> None:
            with IPRoute() as route:
                other_end = {"ifname": "eth1", "net_ns_fd": receiving.namespace}
                route.link("add", ifname="eth1", kind="veth", peer=other_end)

        sending.call(lay)
        for number, host in enumerate(lab.hosts, start=1):
            host.call(lambda number=number: _configure(number))
        yield lab


def _configure(number: int) -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname="eth1")[0]
        route.addr("add", index=index, address=f"10.78.0.{number}", prefixlen=24)
        route.link("set", index=index, state="up")


def set_link(host: Host, interface: str, state: str) -> None:
    """Cut a line at that host, or restore it."""

    def change() -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname=interface)[0], state=state)

    host.call(change)


@contextmanager
def umstack(host: Host, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the product on that host, over both of its interfaces; kill it at the end if it still runs."""
    lines = [word for interface in LINES for word in ("-i", interface)]
    command = [sys.executable, "-m", "umstack", *words, "--hot-failover", *lines, "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with host.run(command, cwd=ROOT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(stream: IO[str]) -> queue.Queue[str]:
    """Return a queue of the lines that a process writes."""
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [said.put(line) for line in stream], daemon=True).start()
    return said


def has_said(said: queue.Queue[str], text: str) -> bool:
    """Return true if a line with this text arrives within a moment."""
    try:
        return text in said.get(timeout=0.2)
    except queue.Empty:
        return False


@pytest.mark.parametrize("cut", LINES)
def test_a_line_that_is_cut_costs_nothing(two_cables: Lab, tmp_path: Path, cut: str) -> None:
    """Every message arrives once and in order while either line is cut and restored; the sender reports when a line is
    out, when it is back, and the messages that were not sent on it."""
    sending, receiving = two_cables.hosts
    messages = [f"message {number} " + "." * 200 for number in range(6000)]
    output = tmp_path / "received"
    quick = ("-o", "flow_control_receiver_timeout=4000")
    arguments = ("--count", str(len(messages)), "--output", str(output), "--timeout", str(SECONDS))
    with (
        umstack(receiving, "recv", "orders", *arguments) as receiver,
        umstack(sending, "send", "orders", *quick) as sender,
    ):
        said = said_by(sender.stderr)
        sent = 0

        def write(end: int) -> None:
            nonlocal sent
            sender.stdin.write("".join(f"{message}\n" for message in messages[sent:end]))
            sender.stdin.flush()
            sent = end
            wait_for(lambda: received() >= end, f"{end} messages", seconds=SECONDS)

        def received() -> int:
            return output.read_bytes().count(b"\n") if output.exists() else 0

        write(2000)
        set_link(receiving, cut, "down")
        write(4000)
        while not has_said(said, f"line {cut} is out"):
            write(sent + 1)
        set_link(receiving, cut, "up")
        while not has_said(said, f"line {cut} is back"):
            write(sent + 1)
        write(len(messages))
        sender.stdin.close()
        assert receiver.wait(timeout=SECONDS) == 0, receiver.stderr.read()
        assert sender.wait(timeout=SECONDS) == 0, list(said.queue)
        summary = json.loads(sender.stdout.read())
    assert output.read_text().splitlines() == messages
    lines = {line["interface"]: line for line in summary["lines"]}
    whole = lines.pop(next(name for name in LINES if name != cut))
    # A receiver that has everything closes, and may close one of the lines later than the other.
    assert (whole["messages_sent"] + whole["left_out"], whole["outages"]) == (len(messages), 0)
    assert lines[cut]["outages"] == 1
    assert lines[cut]["left_out"] > 0
    assert lines[cut]["messages_sent"] + lines[cut]["left_out"] == len(messages)
    assert summary["messages"] == len(messages)
