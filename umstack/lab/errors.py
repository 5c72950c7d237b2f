"""What can go wrong with a lab."""

from __future__ import annotations

from umstack.errors import UmError


class LabError(UmError):
    """A lab cannot be made, found or changed as asked."""

    default_hint = "`umstack lab status` shows the labs there are"
