"""Finds bcc, a package of the distribution's Python, and the kernel headers that its compiler requires.

A virtual environment does not see the distribution's packages; only bcc is loaded from there. The traced program reads
the layout of kernel structures from the running kernel, so headers of any version work.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from umstack.errors import Unsupported

DISTRIBUTION_PACKAGES = (Path("/usr/lib/python3/dist-packages"), Path("/usr/lib/python3/site-packages"))
SOURCES = Path("/usr/src")
_HINT = (
    "Debian: apt-get install python3-bpfcc linux-headers-amd64 (or -arm64); "
    "Ubuntu: python3-bpfcc linux-headers-generic; Fedora: python3-bcc kernel-devel"
)
_ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64", "ppc64le": "powerpc", "s390x": "s390"}
_SOURCE_VARIABLE = "BCC_KERNEL_SOURCE"


@dataclass(frozen=True, slots=True)
class Headers:
    """Kernel headers. `source` is None if bcc finds those of the running kernel itself."""

    source: Path | None = None
    include_flags: tuple[str, ...] = ()


def load_bcc() -> Any:
    """Return the bcc module with its library loaded; raise with a hint if it is not installed."""
    module = _imported() or _from_distribution()
    if module is None:
        raise Unsupported("bcc is not installed for this host's Python", hint=_HINT)
    return module


def find_headers(release: str | None = None, sources: Path = SOURCES) -> Headers:
    """Find headers to compile with: those of the running kernel, or any others on the host."""
    modules = Path("/lib/modules", release or os.uname().release)
    if (modules / "build").exists() or Path("/sys/kernel/kheaders.tar.xz").exists():
        return Headers()
    for build in sorted(sources.glob("*/"), key=_version, reverse=True):
        source = _common_half(build)
        if source is not None and (build / "include/generated/autoconf.h").exists():
            return Headers(source, tuple(_include_flags(build)))
    raise Unsupported(f"there are no kernel headers in {modules} or {sources}", hint=_HINT)


@contextmanager
def compiling_with(headers: Headers) -> Iterator[list[str]]:
    """Let bcc's compiler use these headers in the block; yield its flags."""
    before = os.environ.get(_SOURCE_VARIABLE)
    if headers.source is not None:
        os.environ[_SOURCE_VARIABLE] = str(headers.source)
    try:
        yield list(headers.include_flags)
    finally:
        if before is None:
            os.environ.pop(_SOURCE_VARIABLE, None)
        else:
            os.environ[_SOURCE_VARIABLE] = before


def _imported() -> Any:
    try:
        module = import_module("bcc")
    except ImportError:
        return None
    return module if hasattr(module, "BPF") else None


def _from_distribution() -> Any:
    for packages in DISTRIBUTION_PACKAGES:
        file = packages / "bcc" / "__init__.py"
        spec = spec_from_file_location("bcc", file, submodule_search_locations=[str(file.parent)])
        if not file.exists() or spec is None or spec.loader is None:
            continue
        module = module_from_spec(spec)
        sys.modules["bcc"] = module
        try:
            spec.loader.exec_module(module)
        except (ImportError, OSError) as error:
            for name in [name for name in sys.modules if name == "bcc" or name.startswith("bcc.")]:
                del sys.modules[name]
            raise Unsupported(f"bcc cannot be loaded from {packages}: {error}", hint=_HINT) from error
        return module
    return None


def _version(build: Path) -> list[int]:
    """Return the numbers in a directory's name, so that 6.10 sorts after 6.9."""
    digits = "".join(letter if letter.isdigit() else " " for letter in build.name)
    return [int(number) for number in digits.split()]


def _common_half(build: Path) -> Path | None:
    """Return the directory of the headers proper: `build`, or the sibling to which Debian splits them off."""
    for candidate in (build, build.with_name(f"{build.name.rpartition('-')[0]}-common")):
        if (candidate / "include/linux/kconfig.h").exists():
            return candidate
    return None


def _include_flags(build: Path) -> Iterator[str]:
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    generated = f"arch/{architecture}/include/generated"
    for directory in (generated, f"{generated}/uapi", "include", "include/generated/uapi"):
        yield f"-I{build / directory}"


def libbpf_in(bcc: Any) -> ctypes.CDLL:
    """Return the library with libbpf's functions that bcc has mapped."""
    with suppress(AttributeError):
        library = bcc.libbcc.lib
        if hasattr(library, "btf__load_vmlinux_btf"):
            return library  # type: ignore[no-any-return]
    raise Unsupported("this bcc has no libbpf in it", hint="install bcc 0.18 or later")
