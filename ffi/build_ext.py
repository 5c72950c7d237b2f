"""The setuptools command behind `pip install .`: runs ffi/build.py and puts the results where pip looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE_PATTERNS = ("ffi/**/*.py", "ffi/**/*.[ch]", "bpf/*.[ch]")


class BuildExt(build_ext):
    """Build both extension modules and the BPF objects in one step, in place for an editable install."""

    def run(self) -> None:
        """Build into the checkout (editable) or into the tree the wheel is made from."""
        destination = "." if self.inplace or self.editable_mode else self.build_lib
        if subprocess.run([sys.executable, "ffi/build.py", "--into", destination]).returncode != 0:
            raise CompileError(
                "the C core did not build; what the compiler said is above (pip install -v shows it)"
            )

    def get_source_files(self) -> list[str]:
        """Name what a source distribution must carry to be built."""
        return sorted({str(path) for pattern in SOURCE_PATTERNS for path in Path().glob(pattern)})

    def get_outputs(self) -> list[str]:
        """Name what was built: a module or object whose tools are not installed is not among it."""
        patterns = (
            "umstack/_*.abi3.so",
            "xdp/_*.abi3.so",
            "umstack/*.pyi",
            "xdp/*.pyi",
            "xdp/objects/*.bpf.o",
        )
        return [] if self.inplace else sorted(str(p) for q in patterns for p in Path(self.build_lib).glob(q))

    def get_output_mapping(self) -> dict[str, str]:
        """An editable install uses the files where they were built."""
        return {}
