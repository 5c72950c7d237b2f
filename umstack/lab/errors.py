"""Errors of labs."""

from __future__ import annotations

from umstack.errors import UmError


class LabError(UmError):
    """A lab cannot be created, found or changed as requested."""

    default_hint = "`umstack lab status` lists the labs"
