"""The processes of the demo: `python -m umstack.demo.child publisher|subscriber TASK`, started by their parent."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from umstack.demo.publisher import PublisherTask, publish
from umstack.demo.reporting import Reporter
from umstack.demo.subscriber import SubscriberTask, subscribe


def main(role: str, task: str) -> None:
    """Carry a task out; SIGTERM ends it in order."""
    signal.signal(signal.SIGTERM, _leave)
    reporter = Reporter()
    if role == "publisher":
        publish(PublisherTask(**json.loads(task)), reporter)
    else:
        subscribe(SubscriberTask(**json.loads(task)), reporter)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
