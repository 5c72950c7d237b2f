"""The wheel and the Debian package, installed in an empty root that has only python3 and its venv module."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 1200
UNITS = sorted(path.name for path in (ROOT / "packaging/systemd").glob("*.service"))


@pytest.fixture(scope="module")
def said() -> str:
    """Return the output of scripts/package, which must succeed."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap: scripts/test installs it where the distribution has it")
    if shutil.which("dh") is None:
        pytest.skip("no debhelper: scripts/test installs it where the distribution has it")
    command = [ROOT / "scripts" / "package", "--prove", "--deb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.timeout(LIMIT_SECONDS)
def test_the_wheel_works_in_an_empty_root(said: str) -> None:
    """The doctor, a publisher and a subscriber over loopback, and a decode run without compiler, headers or
    libbpf.
    """
    steps = [line for line in said.splitlines() if line.startswith("--- ")]
    assert "--- proved" in steps
    assert "1000 messages" in said
    assert "20000 messages of 4 threads" in said


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_of_the_debian_package_works(said: str, unit: str) -> None:
    """Its command starts with the unit's user and capabilities, announces its readiness, does its work, and ends."""
    assert "--- package proved" in said
    assert f"{unit}: ready, used, ended" in said


def interpreters() -> list[str]:
    """Return the interpreters of this machine that the wheel is for."""
    found = {shutil.which(f"python3.{minor}") for minor in range(11, 20)}
    found |= {str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python")}
    # The limited API of free-threaded builds is another one.
    check = "import ensurepip, sys, sysconfig\nassert sys.version_info >= (3, 11)"
    check += "\nassert not sysconfig.get_config_var('Py_GIL_DISABLED')"
    programs = sorted(filter(None, found))
    return [one for one in programs if not subprocess.run([one, "-c", check], capture_output=True).returncode]


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.usefixtures("said")
def test_the_wheel_runs_on_every_python_here(tmp_path: Path) -> None:
    """One wheel for all versions: four threads publish, another reads everything."""
    (wheel,) = (ROOT / "dist").glob("umstack-*.whl")
    versions = {}
    for number, python in enumerate(interpreters()):
        version = subprocess.check_output(
            [python, "-c", "import sys; print(sys.version_info[:2])"], text=True
        )
        if version in versions:
            continue
        venv = tmp_path / str(number)
        subprocess.run([python, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "--only-binary", ":all:", wheel], check=True)
        proof = [venv / "bin/python", ROOT / "packaging/prove-python"]
        versions[version] = subprocess.run(proof, capture_output=True, text=True, cwd=tmp_path)
    assert versions
    for done in versions.values():
        assert done.returncode == 0, done.stderr
        assert "20000 messages of 4 threads" in done.stdout


@pytest.mark.usefixtures("said")
def test_the_wheel_brings_its_libraries_and_their_licences() -> None:
    """The wheel is tagged for manylinux and contains the BPF objects, the bundled libraries and the licence
    of each.
    """
    (wheel,) = (ROOT / "dist").glob("umstack-*.whl")
    assert "manylinux_2_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [name for name in names if name.startswith("umstack.libs/")]
    for library in ("libbpf", "libxdp", "libelf"):
        assert any(library in name for name in libraries), library
    assert sum("licenses/bundled/" in name for name in names) == len(libraries)
    assert {"steering.bpf.o", "egress_tap.bpf.o"} <= {name.rpartition("/")[2] for name in names}
    assert "umstack/commit.txt" in names


@pytest.mark.usefixtures("said")
def test_the_wheel_occupies_no_name_but_its_own() -> None:
    """Everything that the wheel installs has a name that begins with umstack, and no module imports a bare xdp."""
    (wheel,) = (ROOT / "dist").glob("umstack-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        top_level = {re.sub(r"-.*(?=\.dist-info$)", "", name.partition("/")[0]) for name in names}
        assert top_level == {"umstack", "umstack_xdp", "umstack.libs", "umstack.dist-info"}
        texts = {name: archive.read(name).decode() for name in names if name.endswith((".py", ".pyi"))}
    bare = re.compile(r"^\s*(?:from|import) xdp\b|[\"']xdp\._", re.MULTILINE)
    assert not [name for name, text in texts.items() if bare.search(text)]


@pytest.mark.usefixtures("said")
def test_the_sdist_holds_what_a_build_needs() -> None:
    """The wheel was built from the source archive, which contains no build result and nothing of git."""
    (sdist,) = (ROOT / "dist").glob("umstack-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("ffi/core/source/source_session.c") for name in names)
    assert any(name.endswith("bpf/steering.bpf.c") for name in names)
    assert not [name for name in names if name.endswith((".so", ".o")) or "/.git/" in name]
