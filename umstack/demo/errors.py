"""Errors of the demo."""

from __future__ import annotations

from umstack.errors import UmError


class DemoFailed(UmError):
    """The demo could not be completed."""

    default_hint = "run it again with --json and look at `problems`, or with --loopback to leave the lab out"
