"""What can go wrong with a report."""

from __future__ import annotations

from umstack.errors import UmError


class ReportError(UmError):
    """A report that cannot be made."""

    default_hint = "docs/analysis.md says what a report needs"
