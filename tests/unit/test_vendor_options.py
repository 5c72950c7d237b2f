"""Configuration: each Ultra Messaging option for the implemented features exists, or is absent with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from umstack.cli import command as umstack
from umstack.config import Option, Scope
from umstack.config.absent_options import ABSENT_OPTIONS, why_absent
from umstack.config.examination import FindingKind, examine
from umstack.config.setting import OPTIONS

DATA = Path(__file__).parent / "data" / "um_options.txt"
NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class VendorOption:
    """An option of the vendor, with its default in the unit of a configuration file."""

    scope: Scope
    name: str
    default: str

    @property
    def ours(self) -> Option | None:
        """Return our option, if there is one."""
        return OPTIONS[self.scope].get(self.name)

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


def _listed() -> Iterator[VendorOption]:
    for line in DATA.read_text().splitlines():
        if not line.startswith("#"):
            scope, name, default = line.split()
            yield VendorOption(Scope(scope), name, default)


VENDOR = list(_listed())


@pytest.mark.parametrize("option", VENDOR, ids=str)
def test_a_vendor_option_is_known_or_absent_with_a_reason(option: VendorOption) -> None:
    """Name, scope, unit and default are the vendor's, with the default in the same unit."""
    ours, reason = option.ours, why_absent(option.name)
    if ours is None:
        assert reason, f"{option} is neither an option nor absent with a reason"
        assert len(reason.split()) >= 4, "a reason is a sentence"
    elif option.default != NO_VALUE:
        assert str(ours.spec.um) == option.default, f"{option}: the vendor's default or unit differs"


def test_the_list_is_complete() -> None:
    """The list has each option once, and every option here that is marked as the vendor's."""
    names = [(option.scope, option.name) for option in VENDOR]
    assert len(names) == len(set(names)) > 200
    unlisted = [
        f"{scope} {name}"
        for scope, options in OPTIONS.items()
        for name, option in options.items()
        if option.spec.um is not None and (scope, name) not in names
    ]
    assert unlisted == []


def test_an_existing_option_has_no_reason_for_absence() -> None:
    """An option that was added is no longer absent."""
    here = {name for options in OPTIONS.values() for name in options}
    stale = [name for absent in ABSENT_OPTIONS for name in absent.names if name in here]
    assert stale == []


def vendor_file() -> list[str]:
    """Return each option of the list that has a value, at its default, as a user would write it."""
    return [f"{option} {option.default}" for option in VENDOR if option.default != NO_VALUE]


def test_each_line_of_a_vendor_file_runs_or_has_a_reason() -> None:
    """In a file with every option, each line takes effect, or has no counterpart or an impossible value; the
    latter two have a reason. The rest of the file sets up every kind of option.
    """
    lines = vendor_file()
    config, findings = examine("\n".join(lines))
    (wrong,) = [finding for finding in findings if finding.kind is FindingKind.WRONG]
    assert "dynamic_fragmentation_reduction" in wrong.message
    assert "no other way of fragmenting" in wrong.hint, "the impossible value has a reason"
    absent = {finding.line for finding in findings if finding.kind is FindingKind.ABSENT}
    assert absent == {
        number
        for number, line in enumerate(lines, 1)
        if OPTIONS[Scope(line.split()[0])].get(line.split()[1]) is None
    }
    assert all(finding.message for finding in findings)
    contradictions = [finding for finding in findings if finding.kind is FindingKind.CONTRADICTION]
    assert contradictions == []
    config.context_options()
    config.source_options()
    config.receiver_options()
    config.wildcard_receiver_options()


def _runs(line: str) -> bool:
    scope, name, value = line.split()
    option = OPTIONS[Scope(scope)].get(name)
    return option is not None and (name, value) != ("dynamic_fragmentation_reduction", "0")


def test_the_command_checks_it(tmp_path: Path) -> None:
    """`umstack config check FILE` reports the same, and fails for absent options."""
    file = tmp_path / "um.cfg"
    lines = vendor_file()
    file.write_text("# everything\n" + "\n".join(lines) + "\n")
    done = CliRunner().invoke(umstack, ["config", "check", str(file), "--json"])
    (found,) = json.loads(done.stdout)["files"]
    reported_lines = {
        finding["line"] for finding in found["findings"] if finding["kind"] in ("absent", "wrong")
    }
    assert len(reported_lines) == len([line for line in lines if not _runs(line)])
    assert done.exit_code != 0
    file.write_text("".join(f"{line}\n" for line in lines if _runs(line)))
    done = CliRunner().invoke(umstack, ["config", "check", str(file)])
    assert done.exit_code == 0, done.output
