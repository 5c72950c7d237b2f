"""The wheel, installed in an empty Debian root, needs only python3 and its venv module."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 900


@pytest.fixture(scope="module")
def said() -> str:
    """Return the output of scripts/package, which must succeed."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap: scripts/test installs it where the distribution has it")
    command = [ROOT / "scripts" / "package", "--prove"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.timeout(LIMIT_SECONDS)
def test_the_wheel_works_in_an_empty_root(said: str) -> None:
    """The doctor, a publisher and a subscriber over loopback, and a decode run without compiler, headers or
    libbpf.
    """
    steps = [line for line in said.splitlines() if line.startswith("--- ")]
    assert steps[-1] == "--- proved"
    assert "1000 messages" in said


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
