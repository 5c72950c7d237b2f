"""Datagrams that a Store loses come again over its connection, and are no loss of the publisher's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.netns.contexts import members, store_on
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

MESSAGES = 3000
SECONDS = 60.0


def test_datagrams_that_a_store_gave_up_are_no_problem_of_a_send(make_lab: MakeLab, tmp_path: Path) -> None:
    """UP-53: they are sent again to the Store, so that every message is stable, and `umstack send` ends with 0."""
    lab = make_lab(hosts=2, loss=0.4)
    config = tmp_path / "store.cfg"
    config.write_text("receiver transport_lbtrm_nak_generation_interval 5\n")
    publishing, storing = lab.hosts
    lines = "".join(f"message {number}\n" for number in range(MESSAGES))
    with members(storing, config=str(config)) as (member,), store_on(member, tmp_path / "store") as store:
        command = [
            sys.executable,
            "-m",
            "umstack",
            "send",
            "kept",
            "--interface",
            publishing.interface,
            "--json",
        ]
        command += ["--store", "{}:{}".format(*store.endpoint), "--session-id", "desk7"]
        command += ["-o", "transport_lbtrm_datagram_max_size=500"]
        sender = publishing.run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said, _ = sender.communicate(lines, timeout=SECONDS)
    summary = json.loads(said)
    assert summary["given_up"], "the Store lost nothing: the test shows nothing"
    assert (sender.returncode, summary["problems"]) == (0, [])
