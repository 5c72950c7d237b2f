"""C declarations for Python exist once: the stubs follow the headers, and mypy checks callers against them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_architecture import project_files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ffi"))

import declarations  # noqa: E402
import modules  # noqa: E402
import stubs  # noqa: E402

import build  # noqa: E402

WRONG_CALLS = """
from umstack._core import ffi, lib

queue = ffi.new("um_event_queue **")[0]
rows = ffi.new("um_rows *")
lib.um_event_queue_poll(queue, 1, 0, rows)
lib.um_event_queue_poll(rows, 1, 0, rows)
lib.um_event_queue_poll(queue, 1, "soon", rows)
lib.um_event_queue_take(queue, 1)
lib.um_event_queue_open_all(queue)
ffi.new("um_context_config *").spin_ns = "long"
"""


@pytest.mark.parametrize("module", modules.MODULES, ids=lambda module: module.name)
def test_the_build_writes_the_stubs(module: modules.Module) -> None:
    """The stub beside each module follows the headers, and none is under version control."""
    assert stubs.stub_path(module.name).read_text() == stubs.stub_of(module)
    assert stubs.stub_path(stubs.COMMON).read_text() == stubs.common_stub()
    assert not [path for path in project_files() if path.suffix == ".pyi"]


def test_mypy_sees_a_wrong_argument(tmp_path: Path) -> None:
    """Another type of handle, text for a number, an argument too few and a name that is not there are errors."""
    snippet = tmp_path / "wrong_calls.py"
    snippet.write_text(WRONG_CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(snippet)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    refused = [line for line in done.stdout.splitlines() if ": error:" in line]
    lines = [int(line.split(":")[1]) for line in refused]
    assert lines == [7, 8, 9, 10, 11], done.stdout + done.stderr


def test_internals_stay_in_c() -> None:
    """A named struct hides what is atomic; one that is only pointed to is opaque; a listed field alone is shown."""
    text = build.declarations_for(modules.CORE)[1]
    assert "typedef struct um_publication um_publication;" in text
    assert "struct um_publication {" not in text
    assert "struct um_event_queue {" not in text
    block = text[text.index("struct um_block {") :].partition("}")[0]
    assert "received_ns" in block
    assert "pinned" not in block
    assert "published_count" not in text
    assert "_Atomic" not in text


def test_a_name_that_no_header_has_is_refused() -> None:
    """A list that is out of date does not build something else."""
    with pytest.raises(declarations.DeclarationError, match="um_nothing"):
        declarations.select([declarations.Header("core/foundation/base.h", names=("um_nothing",))])


def test_the_product_does_not_know_the_simulator() -> None:
    """Neither the simulator nor the baselines are in `umstack._core`; their module shares its types."""
    from umstack import _core, _sim_bench

    assert not [name for name in dir(_core.lib) if name.startswith(("um_sim_", "um_raw_", "um_echo_"))]
    assert _sim_bench.ffi.typeof("um_event_queue *") is _core.ffi.typeof("um_event_queue *")


def test_python_repeats_no_constant_of_c() -> None:
    """A constant of Python that ends as one of C does, and has its value, is taken from `lib`."""
    from umstack._sim_bench import lib

    constants = {name: getattr(lib, name) for name in dir(lib) if name.startswith("UM_") and name.isupper()}
    repeated = []
    for path in sorted((ROOT / "umstack").rglob("*.py")):
        for name, value in re.findall(
            r"^_?([A-Z][A-Z0-9]*_[A-Z0-9_]+) = (\d+)$", path.read_text(), re.MULTILINE
        ):
            same = [
                known
                for known, number in constants.items()
                if known.endswith(f"_{name}") and number == int(value)
            ]
            repeated += [f"{path.relative_to(ROOT)}: {name} is {known}" for known in same]
    assert not repeated, "\n".join(repeated)


def test_shared_object_code_has_no_state() -> None:
    """The core's objects are linked into two modules: a variable in them would be two variables."""
    objects = [
        path
        for component in ("core", "io")
        for path in (ROOT / "build/ffi").glob(f"*/ffi/{component}/**/*.o")
        if path.exists() and not path.relative_to(ROOT / "build/ffi").parts[0].startswith("debug")
    ]
    assert objects
    listing = subprocess.run(["gcc-nm", "-A", *map(str, objects)], text=True, capture_output=True)
    if listing.returncode != 0:
        pytest.skip(f"gcc-nm cannot read the objects: {listing.stderr[:200]}")
    variables = [
        line for line in listing.stdout.splitlines() if line.split()[-2] in ("b", "B", "d", "D", "C")
    ]
    assert not variables, "\n".join(variables)
