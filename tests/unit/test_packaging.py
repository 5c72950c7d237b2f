"""Service files: units that systemd accepts and rates well, commands that exist, valid shell scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from umstack.cli import command as root
from umstack.telemetry.dashboard import render_dashboard

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
EXPOSURE_OK = 5.0
"""systemd-analyze rates an exposure below this as "OK" or better."""
_BETWEEN_VERSIONS = 0.5
"""Messages that differ between systemd versions, because newer ones know more settings."""


def tool(name: str) -> str:
    """Return the path of a program, or skip the test with the name of the missing one."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def commands(text: str) -> list[list[str]]:
    """Return the command lines of a unit that run umstack, without the program."""
    lines = re.findall(r"^ExecStart=/usr/bin/umstack (.*)$", text, re.MULTILINE)
    return [line.split() for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_run_commands_that_exist(unit: Path) -> None:
    """Each word of a unit's command line is a command or one of its options."""
    found = commands(unit.read_text())
    assert found
    for name, *words in found:
        command = root.get_command(click.Context(root), name)  # type: ignore[attr-defined]
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, name


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_have_limits(unit: Path) -> None:
    """Memory and tasks are bounded, and IP traffic is denied except that of the networks that a unit serves."""
    settings = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)
    assert settings["MemoryMax"].endswith(("M", "G"))
    is_driver = unit.name == "umstack-driver@.service"  # a thread for each topic and source
    assert 0 < int(settings["TasksMax"]) <= (4096 if is_driver else 64)
    assert settings["IPAddressDeny"] == "any"
    allowed = settings.get("IPAddressAllow", "").split()
    serving = ("umstack-resolver.service", "umstack-record@.service", "umstack-store@.service")
    needs_network = is_driver or unit.name in serving
    assert ("10.0.0.0/8" in allowed) is needs_network
    assert "any" not in allowed


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_rated_ok(unit: Path) -> None:
    """`systemd-analyze security` reports an exposure below 5."""
    done = subprocess.run(
        [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={int(EXPOSURE_OK * 10)}", unit],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    (score,) = re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(score) < EXPOSURE_OK
    documented = (PACKAGING.parent / "docs/operations-services.md").read_text()
    (documented_score,) = re.findall(rf"^\| `{unit.stem}` \| ([\d.]+) \|", documented, re.MULTILINE)
    assert abs(float(documented_score) - float(score)) <= _BETWEEN_VERSIONS


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` has no complaint about any of our lines."""
    analyze = tool("systemd-analyze")
    for file in (PACKAGING / "systemd").iterdir():
        if file.suffix in (".service", ".socket"):
            text = file.read_text().replace("/usr/bin/umstack", sys.executable)
            (tmp_path / file.name.replace("@.", "@x.")).write_text(text)
    units = sorted(tmp_path.iterdir())
    assert len(units) == 9
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "umstack" in line]
    assert not complaints, "\n".join(complaints)


def test_a_wrong_unit_is_detected(tmp_path: Path) -> None:
    """This test proves that the check above can fail."""
    unit = tmp_path / "umstack-wrong.service"
    unit.write_text(UNITS[0].read_text().replace("NoNewPrivileges=true", "NoNewPrivilege=true"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", unit], capture_output=True, text=True, timeout=60
    )
    assert "NoNewPrivilege" in done.stderr


@pytest.mark.parametrize("script", ["debian/postinst", "debian/prerm", "prove-wheel", "prove-deb"])
def test_scripts_are_valid_shell(script: str) -> None:
    """The shell parses the scripts completely."""
    done = subprocess.run(["sh", "-n", PACKAGING / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sysusers_and_tmpfiles_are_accepted(tmp_path: Path) -> None:
    """systemd-sysusers and systemd-tmpfiles create, below another root, the users and folders of the units."""
    (tmp_path / "etc").mkdir()
    sysusers = [
        tool("systemd-sysusers"),
        f"--root={tmp_path}",
        "--dry-run",
        PACKAGING / "systemd" / "umstack.sysusers",
    ]
    done = subprocess.run(sysusers, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    tmpfiles = [
        tool("systemd-tmpfiles"),
        f"--root={tmp_path}",
        "--create",
        PACKAGING / "systemd" / "umstack.tmpfiles",
    ]
    done = subprocess.run(tmpfiles, capture_output=True, text=True, timeout=30)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()}
    assert {"run/umstack", "run/umstack/stat", "etc/umstack"} <= made, done.stderr
    assert (tmp_path / "run/umstack/stat").stat().st_mode & 0o777 == 0o700


def test_the_version_lists_the_compiled_parts() -> None:
    """The version lists the commit, interpreter and kernel, library versions and BPF programs."""
    output_lines = CliRunner().invoke(root, ["--version"]).output.splitlines()
    assert re.fullmatch(r"umstack \d+\.\d+\.\d+ \(commit ([0-9a-f]{12}|unknown)\)", output_lines[0])
    assert output_lines[1].startswith("Python 3.")
    assert output_lines[2].startswith("libbpf")
    assert output_lines[3].startswith("libxdp")
    assert re.fullmatch(r"libcrypto \d+\.\d+\.\d+.* \(OpenSSL\)", output_lines[4])
    assert output_lines[5].startswith("BPF programs:")


def test_the_containerfile_passes_its_linter() -> None:
    """hadolint accepts the container file and rejects a wrong one."""
    hadolint = tool("hadolint")
    path = PACKAGING / "container" / "Containerfile"
    done = subprocess.run([hadolint, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert not done.stdout
    wrong = path.read_text().replace("pip install --no-cache-dir", "sudo pip install")
    done = subprocess.run([hadolint, "-"], input=wrong, capture_output=True, text=True, timeout=60)
    assert "DL3004" in done.stdout


def test_the_kubernetes_example_follows_the_schemas(tmp_path: Path) -> None:
    """The manifests are checked strictly by the published schemas; an unknown field is detected."""
    validate = tool("kubernetes-validate")
    path = PACKAGING / "kubernetes" / "umstack.yaml"
    for text, status in ((path.read_text(), 0), (path.read_text().replace("hostNetwork", "hostNetworks"), 1)):
        copy = tmp_path / "umstack.yaml"
        copy.write_text(text)
        done = subprocess.run(
            [validate, "--strict", "-k", "1.30", copy], capture_output=True, text=True, timeout=100
        )
        assert (done.returncode != 0) == bool(status), done.stdout + done.stderr


def test_the_kubernetes_example_runs_commands_that_exist() -> None:
    """Each container's arguments are a command and its options, and the application has no privileges."""
    containers = [
        container
        for document in yaml.safe_load_all((PACKAGING / "kubernetes" / "umstack.yaml").read_text())
        for container in document["spec"].get("template", document)["spec"]["containers"]
    ]
    assert {container["name"] for container in containers} == {"broker", "subscriber", "metrics"}
    for container in containers:
        name, *words = container["args"]
        command = root.get_command(click.Context(root), name)  # type: ignore[attr-defined]
        command.make_context(name, words, resilient_parsing=False).close()
        if container["name"] != "broker":
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["runAsNonRoot"] is True


def test_the_dashboard_is_json() -> None:
    """The Grafana dashboard is JSON; the Debian package generates it with its own command."""
    assert json.loads(render_dashboard())["title"] == "umstack"
    assert "-m umstack exporter --print dashboard" in (PACKAGING / "debian/rules").read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_proved_from_the_package(unit: Path) -> None:
    """packaging/prove-units, which a test of the netns tier runs, names each unit; all announce their readiness."""
    assert f'"{unit.name}": prove_' in (PACKAGING / "prove-units").read_text()
    assert re.search(r"^Type=notify$", unit.read_text(), re.MULTILINE)
