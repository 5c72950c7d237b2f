"""Run a fuzzer written in Python under Atheris: `python_fuzzer.py NAME [LIBFUZZER ARGUMENT]...`.

A fuzzer is a module fuzz_NAME.py with `INSTRUMENTED`, the packages whose branches guide the search, and
`one_input(data)`, which raises an exception if a check fails. `python_fuzzer.py --check` reports if fuzzers can run
here: exit status 0, or 77 with the reason.
"""

from __future__ import annotations

import ast
import importlib
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIP_STATUS = 77


def instrumented(name: str) -> list[str]:
    """Read INSTRUMENTED of a fuzzer without importing it."""
    for statement in ast.parse((HERE / f"fuzz_{name}.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "INSTRUMENTED":
            return list(ast.literal_eval(statement.value))
    raise SystemExit(f"fuzz_{name}.py has no INSTRUMENTED")


def main() -> None:
    try:
        import atheris
    except ImportError:
        print("no Atheris: pip install '.[test]'")
        raise SystemExit(SKIP_STATUS) from None
    if sys.argv[1:] == ["--check"]:
        return
    name = sys.argv[1]
    sys.path[:0] = [str(HERE.parent.parent), str(HERE)]
    with atheris.instrument_imports(include=instrumented(name), enable_loader_override=False):
        fuzzer = importlib.import_module(f"fuzz_{name}")
    # When merging, libFuzzer restarts its program through a shell.
    this = shlex.join([sys.executable, str(HERE / "python_fuzzer.py"), name])
    atheris.Setup([this, *sys.argv[2:]], fuzzer.one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
