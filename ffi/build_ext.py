"""The setuptools command of `pip install .`: runs ffi/build.py and puts the results where pip expects them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE_PATTERNS = ("ffi/**/*.py", "ffi/**/*.[ch]", "bpf/*.[ch]")


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
            "umstack/_*.abi3.so",
            "umstack_xdp/_*.abi3.so",
            "umstack/*.pyi",
            "umstack_xdp/*.pyi",
            "umstack_xdp/objects/*.bpf.o",
        )
        return [] if self.inplace else sorted(str(p) for q in patterns for p in Path(self.build_lib).glob(q))

    def get_output_mapping(self) -> dict[str, str]:
        """Return no mapping: an editable install uses the files where they were built."""
        return {}
