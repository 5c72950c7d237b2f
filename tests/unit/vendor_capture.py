"""The capture of real Ultra Messaging 6.14 contexts, which is not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NAME = "um-6.14-two-sessions.pcap"


def vendor_capture() -> Path:
    """Return the capture's path; skip the test without it. UMSTACK_CAPTURES names its folder."""
    beside = Path(__file__).parents[3] / "shared" / "captures"
    path = Path(os.environ.get("UMSTACK_CAPTURES", beside)) / NAME
    if not path.exists():
        pytest.skip(f"{NAME} is not in {path.parent}: set UMSTACK_CAPTURES to the folder that holds it")
    return path
