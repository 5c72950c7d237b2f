"""`umstack config`: a whole file is examined, what is in force is shown, two files are compared (W10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from umstack.cli import command as umstack
from umstack.config import OPTIONS, Config, FindingKind, Scope, examine, in_force

VENDORS = """\
# as a user of Ultra Messaging has it
context  fd_management_type                        epoll
source   transport_lbtrm_transmission_window_size  50331648
receiver transport_lbtrm_nak_backoff_interval      20
hfx      duplicate_delivery                        1
source   transport_lbtrm_sm_minimum_intervall      20
receiver transport_lbtrm_nak_initial_backoff_interval soon
"""


def run(*arguments: str) -> Any:
    """Run the command."""
    return CliRunner().invoke(umstack, ["config", *arguments])


@pytest.fixture
def vendors(tmp_path: Path) -> str:
    """A file with two good lines, two that have no counterpart and two that are wrong."""
    path = tmp_path / "um.cfg"
    path.write_text(VENDORS)
    return str(path)


def test_every_line_of_a_file_is_examined(vendors: str) -> None:
    """A vendor's file runs unchanged or is refused line by line: the first fault does not hide the others."""
    checked = run("check", vendors)
    assert checked.exit_code == 1
    assert [
        line.removeprefix(f"{vendors}:").partition(": ")[0] for line in checked.output.splitlines()[:4]
    ] == [
        "2",
        "5",
        "6",
        "7",
    ]
    assert (
        "5: absent: scope hfx does not exist here; remove the line: a hot failover receiver over several contexts"
        in checked.output
    )
    assert "6: wrong: there is no source option" in checked.output
    assert "did you mean transport_lbtrm_sm_minimum_interval?" in checked.output
    assert f"{vendors}: 2 options set" in checked.output


def test_check_as_json(vendors: str) -> None:
    """One object, with a kind for each finding."""
    (file,) = json.loads(run("check", vendors, "--json").output)["files"]
    kinds = {finding["line"]: finding["kind"] for finding in file["findings"]}
    assert {line: kinds[line] for line in (2, 5, 6, 7)} == {2: "absent", 5: "absent", 6: "wrong", 7: "wrong"}
    assert file["settings"] == 2


def test_unwise_relations_are_warnings_unless_strict(tmp_path: Path) -> None:
    """A violated vendor relation is a warning with file and line, and fails the check only with `--strict`."""
    path = tmp_path / "um.cfg"
    path.write_text("\nsource transport_lbtrm_ignore_interval 400\n")
    checked = run("check", str(path))
    assert checked.exit_code == 0
    assert f"{path}:2: warning: transport_lbtrm_ignore_interval is more than half of" in checked.output
    assert run("check", "--strict", str(path)).exit_code == 1


def test_contradictions_are_found_beside_wrong_lines() -> None:
    """Options that exclude each other are a finding, whatever else is wrong."""
    _, findings = examine(
        "context transport_lbtrm_source_port_low 15000\ncontext transport_lbtrm_source_port_high 14000\nnonsense\n"
    )
    assert [finding.kind for finding in findings] == [FindingKind.WRONG, FindingKind.CONTRADICTION]
    assert "transport_lbtrm_source_port_low is above transport_lbtrm_source_port_high" in findings[1].message


def test_a_good_file_has_no_findings(tmp_path: Path) -> None:
    """Status 0, and how many options it sets."""
    path = tmp_path / "um.cfg"
    path.write_text("source flow_control min\n")
    checked = run("check", str(path))
    assert (checked.exit_code, checked.output) == (0, f"{path}: 1 options set, 0 findings\n")


def test_what_is_dumped_is_a_configuration_again(tmp_path: Path, vendors: str) -> None:
    """Every option is there, and read back it is the same."""
    good = tmp_path / "good.cfg"
    good.write_text("".join(line + "\n" for line in VENDORS.splitlines()[2:4]))
    dumped = tmp_path / "dumped.cfg"
    dumped.write_text(run("dump", str(good), "-o", "receiver.use_late_join=0").output)
    again = Config.load(dumped)
    assert sum(1 for _ in again.settings()) == sum(len(table) for table in OPTIONS.values())
    expected = Config.load(good).with_options(Scope.RECEIVER, {"use_late_join": 0})
    assert [row.value for row in in_force(again)] == [row.value for row in in_force(expected)]


def test_dump_shows_the_origin_of_a_value(tmp_path: Path) -> None:
    """The line of the file, or the argument; --changed leaves the defaults out."""
    path = tmp_path / "um.cfg"
    path.write_text("# one\nsource transport_lbtrm_ignore_interval 4\nsource flow_control none\n")
    shown = run(
        "dump", str(path), "-o", "receiver.transport_lbtrm_nak_backoff_interval=20", "--changed"
    ).output
    assert [line.split()[1] for line in shown.splitlines()] == [
        "transport_lbtrm_ignore_interval",
        "transport_lbtrm_nak_backoff_interval",
    ]
    assert f"# ms; {path}:2; default 100" in shown
    assert "# ms; argument; default 200" in shown
    rows = json.loads(run("dump", str(path), "--json").output)["options"]
    assert len(rows) == sum(len(table) for table in OPTIONS.values())
    assert {row["origin"] for row in rows} == {"default", f"{path}:2", f"{path}:3"}


def test_diff_shows_what_is_in_force_on_either_side(tmp_path: Path) -> None:
    """Compares two files, or one with the defaults; the status shows whether they differ."""
    old, new = tmp_path / "old.cfg", tmp_path / "new.cfg"
    old.write_text("source flow_control none\nsource transport_lbtrm_ignore_interval 4\n")
    new.write_text("source flow_control min\nsource transport_lbtrm_ignore_interval 4.0\n")
    compared = run("diff", str(old), str(new))
    assert compared.exit_code == 1
    assert compared.output == f"source   flow_control none -> min  # {new}:1\n"
    assert run("diff", str(old), str(old)).exit_code == 0
    against_defaults = json.loads(run("diff", str(old), "--json").output)
    assert [(row["before"], row["after"]) for row in against_defaults["differences"]] == [("100", "4")]
