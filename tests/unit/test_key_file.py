"""The key file: its contents, refused contents with the reason, and the command that makes one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from umstack.cli.key import command
from umstack.errors import ConfigError, OptionError, UmError
from umstack.key_file import Key, read_key_file, write_new_key_file

A, B, C = "0a" * 32, "0b" * 32, "0c" * 32


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    """A key file with this text."""
    file = folder / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_patterns_keys_and_comments(tmp_path: Path) -> None:
    """The first pattern that matches decides; a pattern's keys keep their order; resolution has its own."""
    text = f"# ours\ntopic orders.* 1 {A}  # the older\n\ntopic * 1 {B}\ntopic orders.* 2 {C}\nresolution 255 {B}\n"
    found = read_key_file(written(tmp_path, text))
    assert found.topics == (
        ("orders.*", (Key(1, bytes.fromhex(A)), Key(2, bytes.fromhex(C)))),
        ("*", (Key(1, bytes.fromhex(B)),)),
    )
    assert found.resolution == (Key(255, bytes.fromhex(B)),)
    assert found.pattern_of("orders.eu") == "orders.*"
    assert found.pattern_of("trades") == "*"
    assert read_key_file(written(tmp_path, f"topic a 1 {A}")).pattern_of("b") is None


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    """Neither a log record nor an error may hold one."""
    assert A not in repr(read_key_file(written(tmp_path, f"topic * 1 {A}")))
    assert "10, 10" not in repr(Key(1, bytes.fromhex(A)))
    with pytest.raises(ConfigError) as refused:
        read_key_file(written(tmp_path, f"topic * 1 {A}0"))
    assert A not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"topics * 1 {A}", "is neither"),
        (f"topic * 1 {A} more", "is neither"),
        (f"topic * 0 {A}", "not 1 to 255"),
        (f"topic * 256 {A}", "not 1 to 255"),
        (f"topic * ² {A}", "not 1 to 255"),
        (f"topic * one {A}", "not 1 to 255"),
        (f"topic * 1 {A[:-2]}", "not 64 hexadecimal digits"),
        (f"topic * 1 {'x' * 64}", "not 64 hexadecimal digits"),
        (f"resolution 1 {A}00", "not 64 hexadecimal digits"),
        (f"topic b 1 {B}", "another key of the same pattern"),
        (f"topic b 3 {B}", "a key more than the 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    """The error has the line's number and what is wrong with it."""
    file = written(tmp_path, f"topic b 1 {A}\ntopic b 2 {C}\n\n{line}\n")
    with pytest.raises(ConfigError, match=said) as refused:
        read_key_file(file)
    assert refused.value.line == 4


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    """It would leave everything without tags."""
    with pytest.raises(OptionError, match="has no key"):
        read_key_file(written(tmp_path, text))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o601, 0o622, 0o644])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """The error contains the remedy."""
    file = written(tmp_path, f"topic * 1 {A}", mode)
    with pytest.raises(OptionError, match=f"chmod 600 {file}"):
        read_key_file(file)
    file.chmod(0o400)
    assert read_key_file(file).topics


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """That user could exchange it."""
    file = written(tmp_path, f"topic * 1 {A}")
    os.chown(file, 12345, -1)
    with pytest.raises(OptionError, match="belongs to user 12345"):
        read_key_file(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory, nothing, a pipe."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UmError, match=r"key file"):
            read_key_file(path)
    with pytest.raises(OptionError, match="not a regular file"):
        read_key_file(Path("/dev/null"))


def test_a_new_file_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    """The file has mode 0600 under any umask, an existing file is not overwritten, and every key is different."""
    file = tmp_path / "keys"
    before = os.umask(0)
    try:
        write_new_key_file(file, ["orders.*", "*"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = read_key_file(file)
    assert [pattern for pattern, _ in found.topics] == ["orders.*", "*"]
    secrets = {key.secret for _, keys in found.topics for key in keys} | {
        key.secret for key in found.resolution
    }
    assert len(secrets) == 3
    text = file.read_text()
    with pytest.raises(UmError, match="key file"):
        write_new_key_file(file, ["*"])
    assert file.read_text() == text


def test_the_command(tmp_path: Path) -> None:
    """`umstack key new` makes a file, `check` lists its contents, and neither shows a key."""
    file = tmp_path / "keys"
    made = CliRunner().invoke(command, ["new", str(file), "--topic", "orders.*", "--topic", "*", "--json"])
    assert made.exit_code == 0
    assert json.loads(made.stdout) == {
        "file": str(file),
        "topics": [{"pattern": "orders.*", "keys": [1]}, {"pattern": "*", "keys": [1]}],
        "resolution": [1],
    }
    file.write_text(file.read_text() + f"topic * 2 {A}\n")
    said = CliRunner().invoke(command, ["check", str(file)])
    assert said.exit_code == 0
    assert "topics *: tags with key 1, accepts key 2 as well" in said.stdout
    assert A not in said.stdout
    file.chmod(0o644)
    refused = CliRunner().invoke(command, ["check", str(file)])
    assert isinstance(refused.exception, OptionError)
