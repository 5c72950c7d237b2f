"""Build the C half in place: the extension modules of ffi/modules.py and the BPF objects under `umstack_xdp/objects/`.

Run as `python ffi/build.py` (or `scripts/dev build`); `pip install` runs it through ffi/build_ext.py. It requires
only cffi, a C compiler and libcrypto. Parts that require more (libbpf, libxdp, clang) are skipped with a warning that
names the packages to install. Only changed parts are compiled again: every object has a list of the files it depends
on. C tests and fuzzers are built in the same way (tests/c/run, tests/fuzz/run). compile_commands.json records the
command for each file.

Environment: CC, CLANG, CFLAGS and LDFLAGS as usual (CFLAGS come last, so `CFLAGS=-Wno-error` wins);
UMSTACK_BUILD=debug for -O1 and UM_DEBUG checks; UMSTACK_SANITIZE=address,undefined for an instrumented core.
"""

from __future__ import annotations

import argparse
import fcntl
import filecmp
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cffi
from cffi import recompiler
from declarations import names_in, select
from modules import CORE, LIBBPF, MODULES, SIM_BENCH, XSK, Module

ROOT = Path(__file__).resolve().parent.parent
WARNINGS = ("-Wall", "-Wextra", "-Werror")
# cffi passes every wrapper the same arguments, even if unused.
GENERATED_WARNINGS = (*WARNINGS, "-Wno-unused-parameter")
LANGUAGE = ("-std=c11", "-D_GNU_SOURCE", "-pthread", "-fPIC", "-fvisibility=hidden", "-Iffi")
# For C tests and fuzzers.
CHECKED = ("-DUM_DEBUG=1", "-O1", "-g1", "-fno-omit-frame-pointer")
# One module for every CPython from 3.11 on; calls through it are as fast as through one for a single version. A
# free-threaded CPython has no limited API that cffi can use: its module is for its version.
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
LIMITED_API = () if IS_FREE_THREADED else ("-DPy_LIMITED_API=0x030b0000",)
MODULE_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX")) if IS_FREE_THREADED else ".abi3.so"
PROGRESS_SECONDS = 5.0
REPRODUCIBLE = (f"-ffile-prefix-map={ROOT}=.",)
MACHINE_TO_BPF_ARCH = {
    "x86_64": "x86",
    "aarch64": "arm64",
    "ppc64le": "powerpc",
    "riscv64": "riscv",
    "s390x": "s390",
}


class BuildError(Exception):
    """A compiler or linker failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The C compiler and the flags of the requested build; `key` names the directory its objects live in."""

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    key: str


def say(text: str) -> None:
    """Report a step on stderr: stdout belongs to the caller of the build."""
    print(f"build: {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str], **options: Any) -> None:
    """Run a tool in the checkout's root; raise BuildError with its output if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{done.stdout}")
    if done.stdout.strip():
        print(done.stdout, file=sys.stderr)


def compiles(compiler: Sequence[str], program: str, flags: Sequence[str]) -> bool:
    """Return true if a whole program compiles and links with these flags."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [*compiler, "-x", "c", "-", "-o", f"{scratch}/probe", *flags]
        return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


@cache
def toolchain() -> Toolchain:
    """Choose compiler and flags from the environment."""
    compiler = tuple(shlex.split(os.environ.get("CC", "cc" if shutil.which("cc") else "gcc")))
    if shutil.which(compiler[0]) is None:
        raise BuildError(f"no C compiler ({compiler[0]}): apt-get install gcc")
    sanitize = os.environ.get("UMSTACK_SANITIZE", "")
    build = os.environ.get("UMSTACK_BUILD", "debug" if sanitize else "release")
    if build not in ("release", "debug"):
        raise BuildError(f"UMSTACK_BUILD={build}: use release or debug")
    link: tuple[str, ...] = ("-shared", "-pthread")
    if build == "debug":
        flags: tuple[str, ...] = ("-O1", "-g3", "-fno-omit-frame-pointer", "-DUM_DEBUG=1")
    else:
        flags = ("-O3", "-g1")
        if compiles(compiler, "int main(void) { return 0; }", ("-O2", "-flto=auto")):
            flags, link = (*flags, "-flto=auto"), (*link, *flags, "-flto=auto")
    if sanitize:
        flags = (*flags, f"-fsanitize={sanitize}", "-fno-sanitize-recover=all")
        link = (*link, f"-fsanitize={sanitize}")
    flags = (*flags, *shlex.split(os.environ.get("CFLAGS", "")))
    link = (*link, *shlex.split(os.environ.get("LDFLAGS", "")))
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[:1]
    identity = repr((compiler, version, flags, link, LIMITED_API, MODULE_SUFFIX))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return Toolchain(compiler, flags, link, f"{build}-{digest}")


def declarations_for(module: Module) -> tuple[str, str, set[str]]:
    """Return the C includes that the wrapper needs, the declarations that cffi reads, and the names they declare."""
    lines = [line for name in module.cdefs for line in (ROOT / name).read_text().splitlines()]
    written = [line for line in lines if not line.startswith("#include")]
    includes = [line for line in lines if line.startswith("#include")]
    includes += [f'#include "{header.path}"' for header in module.headers]
    outside = names_in("\n".join(written))
    if module.includes is not None:
        preamble, _, shared = declarations_for(module.includes)
        includes[:0] = preamble.splitlines()
        outside |= shared
    selection = select(module.headers, outside)
    text = "\n".join([*written, selection.text()])
    return (
        "\n".join(dict.fromkeys(includes)) + "\n",
        text,
        outside | {*selection.whole, *selection.pointed_to},
    )


@cache
def ffi_of(module: Module) -> cffi.FFI:
    """Return cffi's view of a module's declarations."""
    preamble, text, _ = declarations_for(module)
    ffi = cffi.FFI()
    if module.includes is not None:
        ffi.include(ffi_of(module.includes))
    try:
        ffi.cdef(text)
    except (cffi.CDefError, cffi.FFIError) as error:
        headers = ", ".join(header.path for header in module.headers)
        raise BuildError(f"cffi cannot read the declarations in {headers}: {error}") from error
    ffi.set_source(module.name, preamble)
    return ffi


def generate_wrapper(module: Module, directory: Path) -> Path:
    """Let cffi write the wrapper's C; the file is only touched if its text changes."""
    target = directory / f"{module.name}.c"
    preamble = declarations_for(module)[0]
    recompiler.make_c_source(ffi_of(module), module.name, preamble, str(target), verbose=False)
    return target


def up_to_date(target: Path, depfile: Path) -> bool:
    """Return true if `target` is newer than every file that the compiler read for it."""
    if not target.exists() or not depfile.exists():
        return False
    made = target.stat().st_mtime_ns
    names = depfile.read_text().replace("\\\n", " ").partition(":")[2].split()
    files = [ROOT / name for name in names]
    return all(file.exists() and file.stat().st_mtime_ns < made for file in files)


def compile_one(command: Sequence[str], source: Path, target: Path) -> bool:
    """Compile one file unless its object is fresh; a failed compilation leaves no object behind."""
    depfile = target.with_suffix(".d")
    if up_to_date(target, depfile):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = str(source.relative_to(ROOT))
    unfinished = target.with_suffix(".tmp")
    run([*command, "-MMD", "-MF", str(depfile), "-c", shown, "-o", str(unfinished)])
    unfinished.replace(target)
    return True


def attempt_all(action: Callable[[Path], bool], sources: Sequence[Path], doing: str = "") -> list[bool]:
    """Run the action on all files, one per CPU at a time, and report every failure.

    `doing` names the action in a report of progress every few seconds.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        attempts = [pool.submit(action, source) for source in sources]
        while doing and (unfinished := wait(attempts, PROGRESS_SECONDS).not_done):
            say(f"{doing}: {len(attempts) - len(unfinished)} of {len(attempts)}")
    if errors := [str(error) for attempt in attempts if (error := attempt.exception())]:
        raise BuildError("\n".join(errors))
    return [attempt.result() for attempt in attempts]


def publish(made: Path, target: Path) -> bool:
    """Put a finished file in place by rename, so that a process that has mapped the old one keeps it whole."""
    if target.exists() and filecmp.cmp(made, target, shallow=False):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.tmp")
    shutil.copy(made, unfinished)
    unfinished.replace(target)
    return True


def link(command: Sequence[str], objects: Sequence[Path], target: Path) -> None:
    """Link, unless the target is newer than its objects and was linked from the same ones by the same command.

    A linker that is killed leaves part of a target, but no recipe.
    """
    whole = [command[0], *map(str, objects), "-o", str(target), *command[1:]]
    recipe = target.with_suffix(".recipe")
    fresh = target.exists() and recipe.exists() and recipe.read_text() == shlex.join(whole)
    if fresh and all(path.stat().st_mtime_ns <= target.stat().st_mtime_ns for path in objects):
        return
    recipe.unlink(missing_ok=True)
    run(whole)
    recipe.write_text(shlex.join(whole))


def checked_command(compiler: str, folder: str, sanitizers: Sequence[str]) -> list[str]:
    """Return the compiler command for C tests and fuzzers, and for the product's sources in them."""
    return [compiler, *LANGUAGE, f"-I{folder}", *REPRODUCIBLE, *WARNINGS, *CHECKED, *sanitizers]


def build_programs(
    compile_command: Sequence[str],
    link_command: Sequence[str],
    programs: Mapping[Path, Sequence[Path]],
    directory: Path,
) -> None:
    """Build programs from their C files, as the product is built; programs share objects. Progress is on stderr."""
    sources = sorted({source for made_of in programs.values() for source in made_of})
    objects = {source: directory / source.relative_to(ROOT).with_suffix(".o") for source in sources}
    attempt_all(
        lambda source: compile_one(compile_command, source, objects[source]),
        sources,
        f"{directory.name}: compiled",
    )

    def link_one(program: Path) -> bool:
        link(link_command, [objects[source] for source in programs[program]], program)
        return True

    attempt_all(link_one, list(programs), f"{directory.name}: linked")


def write_compile_commands() -> None:
    """Record for editors and analyzers how each C file is compiled."""
    tools = toolchain()
    product = [*tools.compiler, *LANGUAGE, *WARNINGS, *tools.flags]
    folders = {folder: checked_command(tools.compiler[0], folder, ()) for folder in ("tests/c", "tests/fuzz")}
    commands = {source: product for module in MODULES for source in module.source_files()}
    commands |= {source: words for name, words in folders.items() for source in (ROOT / name).glob("*.c")}
    commands |= dict.fromkeys((ROOT / "bpf").glob("*.bpf.c"), bpf_command())
    entries = [
        {"directory": str(ROOT), "file": str(source), "arguments": [*words, "-c", str(source)]}
        for source, words in sorted(commands.items())
    ]
    text = json.dumps(entries, indent=1)
    target = ROOT / "compile_commands.json"
    if not target.exists() or target.read_text() != text:
        target.write_text(text)


def build_module(module: Module, tools: Toolchain, destination: Path) -> None:
    """Build one extension module and put it under `destination`, as `import` expects it."""
    directory = ROOT / "build/ffi" / tools.key
    directory.mkdir(parents=True, exist_ok=True)
    wrapper = generate_wrapper(module, directory)
    sources = module.source_files()
    python = f"-I{sysconfig.get_path('include')}"
    common = (*tools.compiler, *LANGUAGE, *REPRODUCIBLE)
    written = [*common, *WARNINGS, *tools.flags]
    generated = [*common, python, *LIMITED_API, *GENERATED_WARNINGS, *tools.flags]
    objects = {source: directory / source.relative_to(ROOT).with_suffix(".o") for source in sources}
    objects[wrapper] = wrapper.with_suffix(".o")

    def compile_source(source: Path) -> bool:
        return compile_one(generated if source == wrapper else written, source, objects[source])

    compiled = sum(attempt_all(compile_source, list(objects)))
    built = directory / f"{module.name}{MODULE_SUFFIX}"
    libraries = [f"-l{name}" for name in module.libraries]
    link([*tools.compiler, *REPRODUCIBLE, *tools.link_flags, *libraries], list(objects.values()), built)
    package, _, name = module.name.rpartition(".")
    target = destination / package.replace(".", "/") / f"{name}{MODULE_SUFFIX}"
    changed = publish(built, target)
    # Python would prefer a module that an earlier build made for a single version.
    for superseded in target.parent.glob(f"{name}.cpython-*.so"):
        if superseded != target:
            superseded.unlink()
    outcome = "installed" if changed else "unchanged"
    say(f"{module.name}: {compiled} of {len(objects)} files compiled, {outcome}")


def libbpf_is_usable(tools: Toolchain) -> bool:
    """Return true if the headers and libraries of libbpf and libelf are installed."""
    program = """
        #include <bpf/bpf.h>
        #include <bpf/libbpf.h>
        #include <libelf.h>
        int main(void) { char text[64]; return libbpf_strerror(1, text, 64) + (int)elf_version(EV_CURRENT); }
    """
    return compiles(tools.compiler, program, [f"-l{name}" for name in LIBBPF.libraries])


def libxdp_is_usable(tools: Toolchain) -> bool:
    """Return true if the headers and the library of libxdp are installed."""
    program = "#include <xdp/xsk.h>\nint main(void) { xsk_socket__delete(0); return 0; }\n"
    return compiles(tools.compiler, program, [f"-l{name}" for name in XSK.libraries])


def require_libcrypto(tools: Toolchain) -> None:
    """Raise BuildError if libcrypto is missing; the core requires it to tag datagrams."""
    program = (
        '#include <openssl/evp.h>\nint main(void) { EVP_MAC_free(EVP_MAC_fetch(0, "HMAC", 0)); return 0; }\n'
    )
    if not compiles(tools.compiler, program, [f"-l{name}" for name in CORE.libraries]):
        raise BuildError(
            "libcrypto of OpenSSL 3 is not installed: apt-get install libssl-dev, then build again"
        )


def build_core(destination: Path) -> None:
    """Build the module that every machine needs."""
    require_libcrypto(toolchain())
    build_module(CORE, toolchain(), destination)


def build_sim_bench(destination: Path) -> None:
    """Build the simulator and the raw baselines."""
    build_module(SIM_BENCH, toolchain(), destination)


def build_libbpf(destination: Path) -> None:
    """Build the loader module if libbpf is installed."""
    tools = toolchain()
    if libbpf_is_usable(tools):
        build_module(LIBBPF, tools, destination)
    else:
        say(
            "WARNING: umstack_xdp._libbpf is skipped (no kernel bypass, no lossy switch): libbpf is not installed"
        )
        say("         apt-get install libbpf-dev libelf-dev, then build again")


def build_xsk(destination: Path) -> None:
    """Build the AF_XDP module if libxdp is installed."""
    tools = toolchain()
    if libxdp_is_usable(tools):
        build_module(XSK, tools, destination)
    else:
        say("WARNING: umstack_xdp._xsk is skipped (no AF_XDP link): libxdp is not installed")
        say("         apt-get install libxdp-dev libbpf-dev libelf-dev, then build again")


def bpf_command() -> list[str]:
    """Return the clang command line for a BPF object, without its file names."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    arch = MACHINE_TO_BPF_ARCH.get(platform.machine(), platform.machine())
    code = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", f"-D__TARGET_ARCH_{arch}"]
    paths = ["-Ibpf", f"-isystem/usr/include/{multiarch}", *REPRODUCIBLE]
    return [*shlex.split(os.environ.get("CLANG", "clang")), *code, *WARNINGS, *paths]


def build_bpf_objects(destination: Path) -> None:
    """Compile bpf/*.bpf.c if clang and the libbpf headers are installed."""
    sources = sorted((ROOT / "bpf").glob("*.bpf.c"))
    command = bpf_command()
    probe = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n"
    if sources and not (shutil.which(command[0]) and compiles(command, probe, ["-c"])):
        say(f"WARNING: the {len(sources)} BPF programs are skipped: clang or the libbpf headers are missing")
        say("         apt-get install clang llvm libbpf-dev, then build again")
        return
    strip = shutil.which("llvm-strip")
    directory = ROOT / "build/bpf" / hashlib.sha256(repr(command).encode()).hexdigest()[:8]
    for source in sources:
        target = directory / source.with_suffix(".o").name
        if compile_one(command, source, target) and strip:
            run([strip, "-g", str(target)])
        changed = publish(target, destination / "umstack_xdp/objects" / target.name)
        say(f"umstack_xdp/objects/{target.name}: {'installed' if changed else 'unchanged'}")


def write_type_stubs(destination: Path) -> None:
    """Write the type stubs of the extension modules."""
    from stubs import write_stubs  # imports this module

    write_stubs(destination)


STEPS = {
    "stubs": write_type_stubs,
    "core": build_core,
    "sim_bench": build_sim_bench,
    "libbpf": build_libbpf,
    "xsk": build_xsk,
    "bpf": build_bpf_objects,
}


@contextmanager
def exclusive() -> Iterator[None]:
    """Lock the checkout, so that only one build runs in it at a time."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build everything that this machine can build."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into", type=Path, default=ROOT, help="directory that receives umstack/ and umstack_xdp/"
    )
    parser.add_argument("--only", choices=list(STEPS), help="build only this part")
    arguments = parser.parse_args()
    destination = arguments.into.resolve()
    failures: list[str] = []
    with exclusive():
        for step in [STEPS[arguments.only]] if arguments.only else STEPS.values():
            try:
                step(destination)
            except BuildError as error:
                failures.append(str(error))
        write_compile_commands()
    if failures:
        print("build failed", *dict.fromkeys(failures), sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
