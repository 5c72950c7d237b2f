"""The architecture: which modules may import or include which, and what may lie where (W2, W11)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 800
LINES_WITHOUT_REASON = 500
TOP_CHARACTERS = 2500
MAX_FILE_BYTES = 1_000_000
CODE_SUFFIXES = {".py", ".pyi", ".c", ".h", ".sh", ".bt"}

# Libraries of others that the package or the site contains, each with its licence beside it.
VENDORED = ("umstack/charts/uplot.", "docs/javascripts/iframe-worker.")

TOP_LEVEL = {
    "pyproject.toml",
    "xdp",
    "bpf",
    "umstack",
    "ffi",
    "tests",
    "scripts",
    "README.md",
    "docs",
    "examples",
    "LICENSE",
    "packaging",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
}
TOP_LEVEL_DOTTED = {
    *(".ci", ".clang-format", ".editorconfig", ".gitattributes", ".github", ".gitignore"),
    ".pre-commit-config.yaml",
}

# The layers of umstack, from the top: a module imports from its own layer and from those below it.
LAYERS = (
    {"cli", "__main__"},
    {"demo", "bench", "monitor", "pipeline", "report", "spark", "analysis", "facts"},
    {"recorder", "store", "files", "lab", "sim", "trace", "scapy", "driving"},
    # the public API
    {
        "umstack",
        "context",
        "source",
        "receiver",
        "event_queue",
        "reader",
        "replay_receiver",
        "unread_rows",
        "batch",
        "events",
        "publisher",
        "attached",
    }
    | {
        "wildcard_receiver",
        "hot_failover_receiver",
        "persistent_source",
        "persistent_receiver",
        "attached_persistent_receiver",
        "context_warnings",
        "interface_moves",
        "context_keywords",
    },
    {
        "resolution",
        "recovery",
        "requests",
        "streams",
        "driver",
        "telemetry",
        "capture",
        "persistence",
        "store.wire",
    },
    {"_engine"},
    {"config", "errors", "sizing", "foreign_text", "key_file", "repeated_records", "error_log"}
    | {"async_closing", "buffers", "message_properties", "charts"},
)
TERMINAL_LIBRARIES = {"click", "rich"}

CORE_SYSTEM_HEADERS = {
    *("assert.h", "endian.h", "errno.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdatomic.h"),
    *("stdbool.h", "stddef.h", "stdint.h", "string.h"),
    "immintrin.h",  # the compiler's: non-temporal stores
}
# Names that would make the core allocate, read a clock, draw random numbers, block, print or call the kernel.
CORE_FORBIDDEN_CALLS = re.compile(
    r"(?<![\w.>])(?:malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|free|alloca|mmap|munmap|strdup"
    r"|clock_gettime|clock|gettimeofday|time|usleep|nanosleep|sleep|sched_yield|rand|random|drand48|getrandom"
    r"|v?[fs]?n?printf|puts|putchar|fputs|fwrite|perror|syslog|abort|exit|getenv|open|close|read|write|ioctl|syscall"
    r"|socket|bind|connect|send|sendto|sendmsg|sendmmsg|recv|recvfrom|recvmsg|recvmmsg|poll|ppoll|select|epoll_\w+"
    r"|eventfd|pthread_\w+|mtx_\w+|thrd_\w+|cnd_\w+)\s*\("
)
# The folders of the core, and those that each may include from besides itself (docs/design.md).
CORE_FOLDERS = {
    "core/foundation": set(),
    "core/wire": {"core/foundation"},
    "core/delivery": {"core/wire", "core/foundation"},
    "core/source": {"core/delivery", "core/wire", "core/foundation"},
    "core/receiver": {"core/delivery", "core/wire", "core/foundation"},
    "core/resolution": {"core/wire", "core/foundation"},
    "core/ipc": {"core/foundation"},
}
CORE_FILES_MAX = 60
CORE = set(CORE_FOLDERS)
# The other C components, and those that each may include from besides itself.
C_COMPONENTS: dict[str, set[str]] = CORE_FOLDERS | {
    "os": CORE,
    "capture/reading": CORE,
    "capture/writing": CORE | {"os", "../bpf"},  # the layout of data that a BPF program writes
    "authentication": CORE | {"os"},
    "store": CORE | {"os"},
    "io": CORE | {"os", "authentication", "capture/writing"},  # tags and the tap wrap its links
    "sim": CORE,
    "bench": CORE | {"os", "io"},
    "bpf": set(),
    "xsk": CORE | {"os", "io", "bench", "../bpf"},  # the layout of data that a BPF program writes
}

# The layers of ffi/io, lowest first. A concept, X, is X.c, X.h and X_private.h; it includes those of layers below.
IO_LAYERS = (
    {"gate", "rings", "authentication", "datagram_batch", "ipc_wakeup"},
    {"link_socket", "tcp_fan_out", "tcp_socket", "ipc_socket"},
    {"ipc_fan_out"},
    {"links"},
    {"control_sender"},
    {"reactor"},
    {"stream_listener"},
    {"tcp_connection", "ipc_connection"},
    {"event_queue", "receiving", "sender", "control", "tcp_server", "ipc_server"},
    {"receiving_connections"},
    {"publication_session", "subscription", "loop_leader"},
    {"publication", "loop"},
    {"late_joining", "flight"},
    {"context"},
    {"relay", "statistics"},
)
# Headers of one concept's users, which say no more of another concept than its name or a configuration.
IO_PUBLIC = {
    "context",
    "event_queue",
    "datagram_batch",
    "late_joining",
    "publication",
    "publication_session",
    "statistics",
    "subscription",
}


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or would be, under version control; without git, every file that was not built."""
    listing = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        found = [ROOT / name for name in names if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        built = {".venv", ".git", "build", "dist", "__pycache__", ".hypothesis"}
        found = [path for path in ROOT.rglob("*") if not built & set(path.relative_to(ROOT).parts)]
        found = [path for path in found if not re.search(r"_cache/|\.egg-info|\.(?:so|o|d)$", str(path))]
    return tuple(sorted(path for path in found if path.is_file()))


def shown(path: Path) -> str:
    """A path as a reader of the report wants it."""
    return str(path.relative_to(ROOT))


def text_files() -> Iterator[tuple[Path, str]]:
    """Every project file that is text and our own, with its text."""
    for path in project_files():
        if shown(path).startswith(VENDORED):
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def c_files(*folders: str) -> list[Path]:
    """The C sources and headers under these folders."""
    inside = tuple(f"{folder}/" for folder in folders)
    return [
        path for path in project_files() if path.suffix in (".c", ".h") and shown(path).startswith(inside)
    ]


def without_comments_and_strings(text: str) -> str:
    """C text of which only the code is left."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL)


@cache
def modules() -> dict[str, Path]:
    """The modules of both packages by their dotted names."""
    found: dict[str, Path] = {}
    for path in project_files():
        name = shown(path)
        if path.suffix == ".py" and name.startswith(("umstack/", "xdp/")):
            dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found[re.sub(r"^xdp\b", "umstack_xdp", dotted)] = path
    return found


def imports(path: Path) -> set[str]:
    """The dotted names a module imports, wherever in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            known = submodules & (
                modules().keys()
                | {"umstack._core", "umstack._sim_bench", "umstack_xdp._libbpf", "umstack_xdp._xsk"}
            )
            found.update(known)
            if len(known) < len(submodules):
                found.add(node.module)
    return found


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of these modules or lies inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def layer_of(name: str) -> int:
    """The number of the layer of a module of umstack, from the top; that of compiled modules is the last."""
    parts = name.split(".")
    component = parts[1] if len(parts) > 1 else name
    for wanted in (".".join(parts[1:3]), component):
        for number, components in enumerate(LAYERS):
            if wanted in components:
                return number
    if component.startswith("_") and name not in modules():
        return len(LAYERS)
    raise LookupError(f"{name} has no layer: add {component} to LAYERS")


def forbidden_imports(importer: str, imported: str) -> str | None:
    """The reason why this import goes up, if it does."""
    if within(importer, "umstack_xdp") and within(imported, "umstack"):
        return "umstack_xdp is a library of its own and knows no topic"
    if within(imported, "umstack._sim_bench") and not within(importer, "umstack.sim", "umstack.bench"):
        return "the product never loads the simulator and the baselines"
    if within(importer, "umstack") and within(imported, "umstack"):
        upper, lower = layer_of(importer), layer_of(imported)
        if upper > lower:
            return f"{sorted(LAYERS[lower])} stand above it"
    if imported.split(".")[0] in TERMINAL_LIBRARIES and not within(importer, "umstack.cli"):
        return "only the command line talks to a terminal"
    return None


def test_arrows_point_down() -> None:
    """W11, components: cli -> API -> {resolution, telemetry} -> _engine -> core; umstack -> umstack_xdp, never back."""
    wrong = [
        f"{importer} imports {imported}: {reason}"
        for importer, path in modules().items()
        for imported in sorted(imports(path))
        if (reason := forbidden_imports(importer, imported))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("umstack_xdp.probe", "umstack.errors"),
        ("umstack.context", "umstack.cli.send"),
        ("umstack.config.options", "umstack.context"),
        ("umstack.source", "click"),
        ("umstack.context", "umstack._sim_bench"),
        ("umstack._engine.registry", "umstack.source"),
        ("umstack._engine.sessions", "umstack.resolution.codec"),
        ("umstack.batch", "umstack.recorder.recorder"),
    ],
)
def test_an_arrow_that_points_up_is_seen(importer: str, imported: str) -> None:
    """The rule above is not vacuous."""
    assert forbidden_imports(importer, imported)


def import_circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One circle of a graph of modules, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_import_cycles() -> None:
    """Modules can be understood from the bottom up: imports in functions and for type checkers count, too."""
    graph = {
        name: {other for other in imports(path) & modules().keys() if other != name}
        for name, path in modules().items()
    }
    circle = import_circle(graph)
    assert circle is None, "import cycle: " + " -> ".join(circle)


def test_an_import_cycle_is_seen(tmp_path: Path) -> None:
    """The rule above sees a circle, and imports for type checkers and in functions are arrows of it."""
    module = tmp_path / "module.py"
    module.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from umstack.context import Context\n"
        "def late():\n    from umstack.source import Source\n"
    )
    assert {"umstack.context", "umstack.source"} <= imports(module)
    assert import_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert import_circle({"a": {"b"}, "b": {"c"}}) is None


def test_every_module_has_a_description() -> None:
    """Every Python module has a docstring, and every C header a comment near its top that is its contract."""
    python = [path for path in project_files() if path.suffix == ".py"]
    silent = [
        shown(path) for path in python if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    headers = [path for path in c_files("ffi", "bpf") if path.suffix == ".h" and path.parent.name != "cdef"]
    silent += [shown(path) for path in headers if "/*" not in path.read_text()[:400]]
    assert not silent, f"no docstring or opening comment: {silent}"


def test_the_core_includes_only_itself_and_plain_c() -> None:
    """W2: no header of ffi/io, of sockets, of threads or of the clock comes into ffi/core."""
    wrong = []
    for path in c_files("ffi/core"):
        for opening, header in re.findall(
            r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.MULTILINE
        ):
            if not (header in CORE_SYSTEM_HEADERS if opening == "<" else header.startswith("core/")):
                wrong.append(f"{shown(path)} includes {header}")
    assert not wrong, "\n".join(wrong)


def test_the_core_makes_no_forbidden_call() -> None:
    """W2: the core neither allocates, nor reads a clock, nor draws randomness, nor prints, nor enters the kernel."""
    wrong = [
        f"{shown(path)} calls {match.group().rstrip('(').strip()}"
        for path in c_files("ffi/core")
        for match in CORE_FORBIDDEN_CALLS.finditer(without_comments_and_strings(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_forbidden_call_is_seen() -> None:
    """The rule above sees calls, and only calls."""
    assert CORE_FORBIDDEN_CALLS.search("p = malloc(9);")
    assert CORE_FORBIDDEN_CALLS.search("if (clock_gettime (0, &t))")
    assert not CORE_FORBIDDEN_CALLS.search("um_time(log->free(x), link.send(y), retime(z))")
    assert "malloc" not in without_comments_and_strings('/* malloc( */ char *s = "malloc("; // malloc(')


def c_arrow_up(importer: str, imported: str) -> bool:
    """True if a C component may not include from another."""
    return imported not in C_COMPONENTS[importer] | {importer}


def test_c_components_include_downwards() -> None:
    """Each component of ffi/, and each folder of the core, includes from itself and from those below it."""
    wrong = [
        f"{shown(path)} includes {header}"
        for component in C_COMPONENTS
        for path in c_files(f"ffi/{component}")
        for header in included(path)
        if c_arrow_up(component, c_component(header))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core/source", "core/receiver"),
        ("core/receiver", "core/source"),
        ("core/delivery", "core/receiver"),
        ("core/wire", "core/source"),
        ("core/foundation", "core/wire"),
        ("core/resolution", "core/delivery"),
        ("sim", "io"),
    ],
)
def test_an_include_of_a_component_above_is_found(importer: str, imported: str) -> None:
    """The rule above is not vacuous."""
    assert c_arrow_up(importer, imported)
    assert not c_arrow_up("core/receiver", "core/delivery")


def test_the_core_has_six_folders_of_moderate_size() -> None:
    """Every file of the core is in one of the folders, and none has more than CORE_FILES_MAX files."""
    files = c_files("ffi/core")
    assert {shown(path.parent).removeprefix("ffi/") for path in files} == CORE
    for folder in sorted(CORE):
        held = [path for path in project_files() if shown(path.parent) == f"ffi/{folder}"]
        assert len(held) <= CORE_FILES_MAX, f"ffi/{folder} has {len(held)} files"


def c_component(header: str) -> str:
    """The component of ffi/ that a header, as it is included, belongs to."""
    return header.rpartition("/")[0]


def included(path: Path) -> list[str]:
    """The project headers a C file includes."""
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE)


def c_concept(name: str) -> str:
    """The concept that a C file or header belongs to."""
    return name.rpartition("/")[2].partition(".")[0].removesuffix("_private")


def io_arrow_up(importer: str, imported: str) -> bool:
    """Whether one concept of ffi/io may not include another."""
    level = {concept: i for i, layer in enumerate(IO_LAYERS) for concept in layer}
    return importer != imported and level[imported] >= level[importer]


def test_the_layers_of_io_look_down() -> None:
    """ffi/io: loop -> receiving | sender | control | event queues -> reactor -> links; siblings are independent."""
    files = c_files("ffi/io")
    assert {c_concept(shown(path)) for path in files} == set().union(*IO_LAYERS)
    wrong = [
        f"{shown(path)} includes {header}"
        for path in files
        for header in included(path)
        if header.startswith("io/") and io_arrow_up(c_concept(shown(path)), c_concept(header))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("importer", "imported"), [("sender", "control"), ("reactor", "loop"), ("event_queue", "context")]
)
def test_an_include_that_points_up_is_seen(importer: str, imported: str) -> None:
    """The rule above is not vacuous."""
    assert io_arrow_up(importer, imported)
    assert not io_arrow_up("loop", "sender")


def include_circle(files: list[Path]) -> list[str] | None:
    """One circle of concepts, a .c file and its headers being one, if there is one."""
    graph: dict[str, set[str]] = {}
    for path in files:
        own = f"{shown(path.parent).removeprefix('ffi/')}/{c_concept(shown(path))}"
        others = {f"{c_component(header)}/{c_concept(header)}" for header in included(path)}
        graph.setdefault(own, set()).update(others - {own})
    return import_circle(graph)


@pytest.mark.parametrize("component", ["core", *sorted(set(C_COMPONENTS) - CORE)])
def test_no_include_cycles_in_a_component(component: str) -> None:
    """The concepts of a component can be understood from the bottom up; so can the whole core."""
    circle = include_circle(c_files(f"ffi/{component}"))
    assert circle is None, "include cycle: " + " -> ".join(circle)


def test_an_include_cycle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle through a .c file is found: a.c includes b.h, and b.h includes a.h."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    folder = tmp_path / "ffi/core/wire"
    folder.mkdir(parents=True)
    (folder / "a.h").write_text("")
    (folder / "a.c").write_text('#include "core/wire/b.h"\n')
    (folder / "b.h").write_text('#include "core/wire/a.h"\n')
    files = [folder / name for name in ("a.c", "a.h", "b.h")]
    assert include_circle(files)
    assert include_circle(files[1:]) is None


def test_public_headers_of_io_are_plain() -> None:
    """cffi can read the parts of ffi/io that applications use: no inline functions, atomics, macros with arguments."""
    code = re.compile(r"\binline\b|\b_Atomic\b|\batomic_\w+|#\s*define\s+\w+\(")
    wrong = [
        f"{concept}.h: {match.group()}"
        for concept in sorted(IO_PUBLIC)
        for match in code.finditer(without_comments_and_strings((ROOT / f"ffi/io/{concept}.h").read_text()))
    ]
    assert not wrong, "\n".join(wrong)


def lines_to_read(path: Path, text: str) -> int:
    """Lines of a file without the docstrings of Python functions and classes, which are the API reference."""
    if path.suffix != ".py":
        return text.count("\n")
    documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    ]
    return text.count("\n") - sum((one.end_lineno or one.lineno) - one.lineno for one in docstrings)


def test_files_can_be_seen_whole() -> None:
    """No source file is longer than a newcomer reads in one sitting."""
    sources = [(path, text) for path, text in text_files() if path.suffix in CODE_SUFFIXES]
    long = [
        f"{shown(path)}: {n} lines" for path, text in sources if (n := lines_to_read(path, text)) > MAX_LINES
    ]
    assert not long, "\n".join(long)


def test_a_long_file_explains_its_length() -> None:
    """A product file of more than 500 lines states at its top why it is one concept."""
    silent = [
        shown(path)
        for path, text in text_files()
        if shown(path).startswith(("ffi/", "umstack/")) and path.suffix in {".py", ".c", ".h"}
        if lines_to_read(path, text) > LINES_WITHOUT_REASON
        and "One file, because" not in text[:TOP_CHARACTERS]
    ]
    assert not silent, f"say at the top why it is 'One file, because ...': {silent}"


def test_nothing_is_left_for_later() -> None:
    """No note to do something another day: it is done, or it is written in docs/ that it is not."""
    note = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    left = [f"{shown(path)}: {match.group()}" for path, text in text_files() if (match := note.search(text))]
    assert not left, "\n".join(left)


def test_no_path_of_one_machine() -> None:
    """Nothing in the tree knows where it was written: no home directory, no path of this checkout."""
    home = re.compile(r"/(?:home|Users)/[a-z]\w*/|/root/\w")
    checkout = re.compile(re.escape(str(ROOT)) + r"/(?:\.venv|ffi|bpf|xdp|umstack|tests|scripts|docs)\b")
    found = [
        f"{shown(path)}: {match.group()}"
        for path, text in text_files()
        if (match := home.search(text) or checkout.search(text))
    ]
    assert not found, "\n".join(found)


def test_no_big_file() -> None:
    """The repository holds sources, not captures or binaries."""
    big = [
        f"{shown(path)}: {n} bytes" for path in project_files() if (n := path.stat().st_size) > MAX_FILE_BYTES
    ]
    assert not big, "\n".join(big)


def test_top_level_is_the_agreed_one() -> None:
    """The top level contains exactly the agreed files and folders."""
    names = {path.relative_to(ROOT).parts[0] for path in project_files()}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL
    assert {name for name in names if name.startswith(".")} <= TOP_LEVEL_DOTTED
