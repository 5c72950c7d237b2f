"""The setuptools commands of `pip install .`: ffi/build.py builds, and the wheel is tagged for what was built."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE_PATTERNS = ("ffi/**/*.py", "ffi/**/*.[ch]", "bpf/*.[ch]")


class BdistWheel(bdist_wheel):
    """Tag the wheel for every CPython from 3.11 on, or for one free-threaded version (ffi/build.py)."""

    def initialize_options(self) -> None:
        """Choose the limited API where the interpreter has it."""
        super().initialize_options()
        if not sysconfig.get_config_var("Py_GIL_DISABLED"):
            self.py_limited_api = "cp311"


class BuildExt(build_ext):
    """Build the extension modules and the BPF objects in one step, in place for an editable install."""

    def run(self) -> None:
        """Build into the checkout (editable) or into the tree the wheel is made from."""
        destination = "." if self.inplace or self.editable_mode else self.build_lib
        if subprocess.run([sys.executable, "ffi/build.py", "--into", destination]).returncode != 0:
            raise CompileError(
                "the C core did not build; the compiler's output is above (pip install -v shows it)"
            )

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs for the build."""
        return sorted({str(path) for pattern in SOURCE_PATTERNS for path in Path().glob(pattern)})

    def get_outputs(self) -> list[str]:
        """Return the files that were built; modules and objects without their tools are not among them."""
        patterns = (
            "umstack/_*.so",
            "umstack_xdp/_*.so",
            "umstack/*.pyi",
            "umstack_xdp/*.pyi",
            "umstack_xdp/objects/*.bpf.o",
        )
        return [] if self.inplace else sorted(str(p) for q in patterns for p in Path(self.build_lib).glob(q))

    def get_output_mapping(self) -> dict[str, str]:
        """Return no mapping: an editable install uses the files where they were built."""
        return {}
