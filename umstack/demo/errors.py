"""What can go wrong with the demo, other than what it is there to show."""

from __future__ import annotations

from umstack.errors import UmError


class DemoFailed(UmError):
    """The demo could not be carried through."""

    default_hint = "run it again with --json and look at `problems`, or with --loopback to leave the lab out"
