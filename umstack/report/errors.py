"""Errors of reports."""

from __future__ import annotations

from umstack.errors import UmError


class ReportError(UmError):
    """The report cannot be made."""

    default_hint = "see docs/analysis.md for what a report needs"
