"""Linters, formatters and the type checker run as tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_SHOWN = 40
C_FOLDERS = ("ffi", "bpf", "tests", "umstack")


def check(*command: str) -> None:
    """Run a checker from the checkout's root; a failure shows the start of its output."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        printed = "\n".join(done.stdout.splitlines()[:LINES_SHOWN])
        pytest.fail(
            f"{' '.join(command[:6])}\n{printed}\n`scripts/dev format` fixes the layout", pytrace=False
        )


def test_ruff_finds_nothing() -> None:
    """Python code follows the selected rules."""
    check(sys.executable, "-m", "ruff", "check", "--output-format=concise", ".")


def test_python_is_formatted() -> None:
    """Python code is formatted by `ruff format`."""
    check(sys.executable, "-m", "ruff", "format", "--check", "--quiet", ".")


def test_c_is_formatted() -> None:
    """C and BPF sources are formatted by .clang-format."""
    files = sorted(str(path) for folder in C_FOLDERS for path in (ROOT / folder).rglob("*.[ch]"))
    check(str(Path(sys.executable).with_name("clang-format")), "--dry-run", "-Werror", *files)


@pytest.mark.timeout(300)
def test_types_are_strict() -> None:
    """Every function of both packages is typed, and the types agree."""
    check(sys.executable, "-m", "mypy", "--strict", "umstack", "umstack_xdp")
