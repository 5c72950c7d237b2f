"""The output of `umstack --version`: version, commit, libraries, and the kernel features that are compiled in."""

from __future__ import annotations

import platform
import subprocess
from importlib import import_module, metadata, resources
from pathlib import Path

from umstack._core import ffi, lib

_BPF_PROGRAMS = {
    "steering": "AF_XDP steering",
    "egress_tap": "capture of what goes out",
    "lossy_port": "loss in the lab",
}


def commit() -> str:
    """Return the commit of this build: recorded by scripts/package, or the checkout's; else `unknown`."""
    written = resources.files("umstack") / "commit.txt"
    if written.is_file():
        return written.read_text(encoding="ascii").strip()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / ".git").exists():
        asked = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
        try:
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass
    return "unknown"


def _mapped_library(module: str, library: str) -> str | None:
    """Return a library's version from its file name, after loading the module; None without the module."""
    try:
        import_module(module)
    except ImportError:
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith(library):
            return path.resolve().name.partition(".so.")[2] or "bundled"
    return "linked in"


def lines() -> list[str]:
    """Return one line per item."""
    said = [f"umstack {metadata.version('umstack')} (commit {commit()})"]
    said.append(f"Python {platform.python_version()}, Linux {platform.release()}, {platform.machine()}")
    for module, library in (("umstack_xdp._libbpf", "libbpf"), ("umstack_xdp._xsk", "libxdp")):
        version = _mapped_library(module, library)
        said.append(f"{library} {version}" if version else f"{library}: not compiled in (no AF_XDP)")
    said.append(f"libcrypto {ffi.string(lib.um_mac_library()).decode()} (OpenSSL)")
    objects = resources.files("umstack_xdp") / "objects"
    there = [what for name, what in _BPF_PROGRAMS.items() if (objects / f"{name}.bpf.o").is_file()]
    said.append(f"BPF programs: {', '.join(there) or 'none compiled in'}")
    return said
