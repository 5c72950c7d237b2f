"""A type checker accepts programs that use the public names and rejects names that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import umstack
import umstack.errors

pytest.importorskip("mypy", reason="mypy is not installed")

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
import umstack
import xdp

def publish(context: umstack.Context) -> None:
    try:
        context.source("orders").send(b"data")
    except (umstack.OptionError, umstack.MessageTooLong) as error:
        print(error.hint)

print(xdp.Attachment)
"""

WRONG = """
import umstack
import xdp

umstack.Nonsense()
xdp.Nonsense()
try:
    pass
except umstack.OptionErorr:
    pass
"""


def _checked(folder: Path, program: str) -> list[str]:
    """Return the errors that mypy reports for a program, one per line."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_a_right_program_is_accepted(tmp_path: Path) -> None:
    assert _checked(tmp_path, RIGHT) == []


def test_names_that_do_not_exist_are_rejected(tmp_path: Path) -> None:
    errors = _checked(tmp_path, WRONG)
    assert [line.split(":")[1] for line in errors] == ["5", "6", "9"], errors


def test_every_error_class_is_exported() -> None:
    classes = {name for name, one in vars(umstack.errors).items() if isinstance(one, type)}
    errors = {name for name in classes if issubclass(getattr(umstack.errors, name), umstack.UmError)}
    assert len(errors) > 20
    for name in errors:
        assert name in umstack.__all__
        assert getattr(umstack, name) is getattr(umstack.errors, name)
