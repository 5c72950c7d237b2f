"""The set-up script: its commands as root, and the packages it installs."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "scripts/setup.sh"
LOCKS = ("run", "test", "package")
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def sourced(script: str, **environment: str) -> str:
    """Return bash's output after sourcing the set-up."""
    command = ["bash", "-c", f"source {SETUP}; {script}"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_program(path: Path, text: str) -> None:
    """Make an executable script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def fake_sudo(tmp_path: Path) -> Path:
    """Make a sudo that runs its arguments without becoming root."""
    make_program(tmp_path / "sudo", '[ "$1" = -n ] && shift\nexec "$@"')
    return tmp_path / "sudo"


def test_root_does_not_use_the_users_path(tmp_path: Path, fake_sudo: Path) -> None:
    """Root runs no program from the user's PATH, neither `sudo` nor the command run by sudo; our own variables and
    those for package registries reach it."""
    planted = tmp_path / "planted"
    for name in ("sudo", "env", "find", "chown", "apt-get"):
        make_program(planted / name, f"echo planted {name}")
    script = 'through_sudo sh -c "command -v find; echo \\$PATH \\$UMSTACK_X \\$PIP_INDEX_URL"'
    for preparation in ("", f"id() {{ echo 1000; }}; SUDO={fake_sudo};"):
        said = sourced(
            f"{preparation} ROOT={tmp_path}; {script}; echo $SUDO",
            PATH=f"{planted}:{os.environ['PATH']}",
            UMSTACK_X="passed",
            PIP_INDEX_URL="index",
        ).splitlines()
        found, variables, sudo = said
        assert not found.startswith(str(planted))
        assert variables.startswith(f"{ROOT_PATH} passed index")
        assert sudo != str(planted / "sudo")


def test_set_up_runs_only_the_package_manager_as_root(fake_sudo: Path) -> None:
    """Every command run through sudo is apt-get, found on root's path: neither the checkout nor pip."""
    record = fake_sudo.parent / "record"
    make_program(fake_sudo, f'printf "%s\\n" "$*" >>{record}')
    sourced(
        f"id() {{ echo 1000; }}; SUDO={fake_sudo}; package_installed() {{ false; }}; package_exists() {{ true; }};"
        "unpack_prometheus() { :; }; system_packages test python3"
    )
    commands = record.read_text().splitlines()
    assert any(" install " in command for command in commands)
    prefix = f"/usr/bin/env PATH={ROOT_PATH} DEBIAN_FRONTEND=noninteractive apt-get "
    assert [command for command in commands if command != "-n true" and not command.startswith(prefix)] == []


def test_a_failed_installation_of_java_does_not_end_the_set_up() -> None:
    """Only Spark needs Java; the demo reports that it is missing. `plain` does not try to install it."""
    apt = "apt_get() { echo tried $* >&2; false; }; package_installed() { [[ $1 != openjdk* ]]; };"
    hidden = "package_exists() { true; }; command() { [ $2 != java ] && builtin command $*; };"
    for purpose, tries in (("run", True), ("plain", False)):
        script = f"{apt} {hidden} system_packages {purpose} {sys.executable} 2>&1; echo done"
        said = sourced(script)
        assert ("install --no-install-recommends openjdk-17" in said) == tries, said
        assert ("everything but Spark works" in said) == tries
        assert said.endswith("done\n")


def test_the_set_up_without_spark_leaves_out_only_its_packages() -> None:
    """Its requirements are those of `run` without PySpark and Py4J, with their hashes."""
    lines = {purpose: sourced(f"requirements {purpose}").splitlines() for purpose in ("run", "plain")}
    left_out = [line for line in lines["run"] if line not in lines["plain"]]
    assert [line.split("==")[0] for line in left_out if "==" in line] == ["py4j", "pyspark"]
    assert all(re.match(r"(pyspark|py4j)==| +--hash=", line) for line in left_out)
    assert [line for line in lines["run"] if line not in left_out] == lines["plain"]


def locked(name: str) -> Mapping[str, list[str]]:
    """Return the requirements of a lock with their hashes."""
    text = (ROOT / "packaging/locks" / f"{name}.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {
        line.split(" --hash=")[0].strip(): re.findall(r"--hash=sha256:([0-9a-f]{64})", line) for line in lines
    }


@pytest.mark.parametrize("name", LOCKS)
def test_locks_pin_versions_and_hashes(name: str) -> None:
    """Each requirement has one version and the hashes of its files; no index URL is set."""
    requirements = locked(name)
    assert requirements
    for requirement, hashes in requirements.items():
        assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==[^ ;]+( ;|$)", requirement), requirement
        assert hashes, requirement
    text = (ROOT / "packaging/locks" / f"{name}.lock").read_text()
    assert "://" not in text
    assert "index" not in text.replace("tomli", "")


def distributions(requirements: Mapping[str, list[str]]) -> set[str]:
    """Return only the names."""
    return {re.split(r"[\[=]", requirement)[0] for requirement in requirements}


def test_locks_contain_the_declared_dependencies() -> None:
    """Each dependency in pyproject.toml is in the lock that set-up installs, in one version everywhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    always = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted = {
        "test": [*always, *(one for extra in extras.values() for one in extra)],
        "run": [*always, *extras["spark"], *extras["report"]],
    }
    for name, requirements in wanted.items():
        names = {re.split(r"[\[<>=~!; ]", one)[0].lower() for one in requirements} - {"umstack"}
        assert names <= distributions(locked(name)), name
    pinned = {one.split(" ;")[0] for one in locked("test")}
    for name in ("run", "package"):
        shared = [one for one in locked(name) if distributions({one: []}) <= distributions(locked("test"))]
        assert {one.split(" ;")[0] for one in shared} <= pinned


def test_a_file_that_is_not_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    """pip compares each file's hash with the lock: a modified wheel is refused."""
    wheel = tmp_path / "locked_thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("locked_thing.py", "")
        archive.writestr(
            "locked_thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: locked-thing\nVersion: 1\n"
        )
        archive.writestr(
            "locked_thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("locked_thing-1.dist-info/RECORD", "")
    lock = tmp_path / "packaging/locks/own.lock"
    lock.parent.mkdir(parents=True)
    target = tmp_path / "target"
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_TARGET": str(target)}
    script = f"ROOT={tmp_path}; install_locked {sys.executable} own"
    lock.write_text(f"locked-thing==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        sourced(script, **environment)
    assert "a hash that differs" in refused.value.stderr
    lock.write_text("locked-thing==1\n")
    with pytest.raises(subprocess.CalledProcessError):
        sourced(script, **environment)
    assert not target.exists()
    lock.write_text(f"locked-thing==1 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    sourced(script, **environment)
    assert (target / "locked_thing.py").exists()
