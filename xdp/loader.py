"""BPF objects from Python: find a compiled object, load it, access its programs and maps, run a program once.

Nothing is pinned. A program lives while its object is open or it is attached; any process can open an attached
program by its id (`AttachedProgram`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from umstack_xdp.closing import Closing
from umstack_xdp.errors import BpfError, NotBuiltError

_OBJECT_DIR = Path(__file__).parent / "objects"
_LOG_BYTES = 64 * 1024
_NOTHING_CHANGED: Mapping[str, int] = MappingProxyType({})
_BUILD_AGAIN = "build again (`pip install .`, or `python ffi/build.py` in a checkout)"


def object_path(name: str) -> Path:
    """Return the path of the compiled `bpf/NAME.bpf.c`.

    Args:
        name: Name of the source file without `.bpf.c`.

    Returns:
        The path of the object file.

    Raises:
        NotBuiltError: The file is missing; the hint names the packages to install and the build command.

    Example:
        ```python
        print(xdp.object_path("steering"))
        ```
    """
    path = _OBJECT_DIR / f"{name}.bpf.o"
    if not path.exists():
        raise NotBuiltError(
            f"the BPF program {name} is not built ({path} is missing)",
            hint=f"apt-get install clang llvm libbpf-dev, then {_BUILD_AGAIN}",
        )
    return path


def unavailable(name: str) -> str | None:
    """Return why this installation cannot load a program, or None if it can.

    Privileges are not examined.

    Args:
        name: Name of the source file `bpf/NAME.bpf.c` without `.bpf.c`.

    Returns:
        The reason, or None.

    Example:
        ```python
        assert xdp.unavailable("steering") is None
        ```
    """
    try:
        libbpf()
        object_path(name)
    except NotBuiltError as error:
        return str(error)
    return None


def libbpf() -> Any:
    """Import the compiled loader; builds without libbpf do not have it."""
    try:
        return import_module("umstack_xdp._libbpf")
    except ImportError as error:
        raise NotBuiltError(
            f"the BPF loader is not available ({error})",
            hint=f"apt-get install libbpf-dev libelf-dev, then {_BUILD_AGAIN}",
        ) from error


def checked(result: int, what: str) -> int:
    """Return the result of a loader call; raise if it is an error."""
    if result < 0:
        raise BpfError(what, -result)
    return result


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of one BPF_PROG_TEST_RUN.

    Example:
        ```python
        with xdp.BpfObject("steering") as steering:
            run: xdp.TestRun = steering.program("steering").test_run(bytes(64), is_xdp=True)
            print(run.result, run.duration_ns)
        ```
    """

    __test__ = False

    result: int
    packet: bytes
    mark: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The kernel's facts about a loaded program.

    Example:
        ```python
        with xdp.BpfObject("steering") as steering:
            facts: xdp.ProgramFacts = steering.program("steering").facts()
            print(facts.id, facts.owner_uid)
        ```
    """

    id: int
    name: str
    owner_uid: int


class BpfMap:
    """One map. Any thread may use it.

    Keys and values are bytes in the layout of the BPF program.

    Example:
        ```python
        with xdp.BpfObject("lossy_port") as port:
            print(port.map("lossy_config").max_entries)
        ```
    """

    __slots__ = ("_facts", "_lib", "_new", "fd", "name")

    def __init__(self, name: str, fd: int) -> None:
        """Wrap a descriptor; the caller keeps ownership."""
        binding = libbpf()
        self._lib, self._new = binding.lib, binding.ffi.new
        self.name, self.fd = name, fd
        self._facts = self._new("struct xdp_bpf_map_facts *")
        checked(self._lib.xdp_bpf_map_describe(fd, self._facts), f"map {name}")

    @property
    def max_entries(self) -> int:
        """The maximum number of entries."""
        return int(self._facts.max_entries)

    def read(self, key: bytes = bytes(4)) -> bytes:
        """Return the value at `key`; for a per-CPU map use `read_per_cpu`.

        Args:
            key: Key, in the layout of the BPF program; by default the only entry of an array.

        Returns:
            The value, as bytes.

        Raises:
            BpfError: The kernel refuses, for example because there is no such entry.
            ValueError: The key has the wrong length, or the map has the other kind of value.

        Example:
            ```python
            with xdp.BpfObject("lossy_port") as port:
                print(port.map("lossy_index").read())
            ```
        """
        if self._facts.value_stride:
            raise ValueError(f"map {self.name} holds one value per CPU: use read_per_cpu()")
        return self._read(key, self._facts.value_bytes)

    def read_per_cpu(self, key: bytes = bytes(4)) -> list[bytes]:
        """Return the values of all CPUs at `key`.

        Args:
            key: Key, in the layout of the BPF program; by default the only entry of an array.

        Returns:
            One value for each possible CPU.

        Raises:
            BpfError: The kernel refuses, for example because there is no such entry.
            ValueError: The key has the wrong length, or the map has the other kind of value.

        Example:
            ```python
            with xdp.BpfObject("lossy_port") as port:
                print(len(port.map("lossy_counters").read_per_cpu()))
            ```
        """
        stride, size = self._facts.value_stride, self._facts.value_bytes
        if not stride:
            raise ValueError(f"map {self.name} holds one value for all CPUs: use read()")
        values = self._read(key, stride * self._facts.value_count)
        return [values[start : start + size] for start in range(0, len(values), stride)]

    def write(self, value: bytes, key: bytes = bytes(4)) -> None:
        """Store `value` at `key`.

        Args:
            value: The value; for a per-CPU map the values of all CPUs, one stride apart.
            key: Key, in the layout of the BPF program; by default the only entry of an array.

        Raises:
            BpfError: The kernel refuses, for example because the map is full.
            ValueError: The key or the value has the wrong length.

        Example:
            ```python
            with xdp.BpfObject("lossy_port") as port:
                port.map("lossy_index").write(bytes(8))
            ```
        """
        self._check_key(key)
        expected = (self._facts.value_stride or self._facts.value_bytes) * self._facts.value_count
        if len(value) != expected:
            raise ValueError(f"map {self.name} takes values of {expected} bytes, not {len(value)}")
        checked(self._lib.xdp_bpf_map_write(self.fd, key, value), f"writing map {self.name}")

    def insert(self, value: bytes, key: bytes) -> bool:
        """Store `value` at `key` unless there is an entry.

        Args:
            value: The value.
            key: The key.

        Returns:
            True if the value was stored.

        Raises:
            BpfError: The kernel refuses for another reason.
            ValueError: The key has the wrong length.

        Example:
            ```python
            with xdp.BpfObject("lossy_port") as port:
                assert not port.map("lossy_index").insert(bytes(8), bytes(4))  # an array has all its entries
            ```
        """
        self._check_key(key)
        result = self._lib.xdp_bpf_map_insert(self.fd, key, value)
        if result == -errno.EEXIST:
            return False
        checked(result, f"inserting into map {self.name}")
        return True

    def clear(self, key: bytes = bytes(4)) -> None:
        """Store zeros at `key`, for every CPU in a per-CPU map.

        Args:
            key: Key, in the layout of the BPF program; by default the only entry of an array.

        Raises:
            BpfError: The kernel refuses.
            ValueError: The key has the wrong length.

        Example:
            ```python
            with xdp.BpfObject("lossy_port") as port:
                port.map("lossy_counters").clear()
            ```
        """
        self.write(
            bytes((self._facts.value_stride or self._facts.value_bytes) * self._facts.value_count), key
        )

    def erase(self, key: bytes) -> None:
        """Remove the entry at `key`.

        Args:
            key: The key.

        Raises:
            BpfError: There is no such entry, or it cannot be removed.
            ValueError: The key has the wrong length.

        Example:
            ```python
            try:
                steering.map("rules").erase(bytes(20))
            except (xdp.BpfError, ValueError) as error:
                print(error)
            ```
        """
        self._check_key(key)
        checked(self._lib.xdp_bpf_map_erase(self.fd, key), f"erasing from map {self.name}")

    def _read(self, key: bytes, size: int) -> bytes:
        self._check_key(key)
        space = self._new("char[]", size)
        checked(self._lib.xdp_bpf_map_read(self.fd, key, space), f"reading map {self.name}")
        return bytes(libbpf().ffi.buffer(space, size))

    def _check_key(self, key: bytes) -> None:
        if len(key) != self._facts.key_bytes:
            raise ValueError(f"map {self.name} takes keys of {self._facts.key_bytes} bytes, not {len(key)}")


class BpfProgram:
    """One loaded program; its owner keeps the descriptor open.

    Example:
        ```python
        with xdp.BpfObject("steering") as steering:
            print(steering.program("steering").id)
        ```
    """

    __slots__ = ("fd", "name")

    def __init__(self, name: str, fd: int) -> None:
        """Wrap a descriptor; the caller keeps ownership."""
        self.name, self.fd = name, fd

    @property
    def id(self) -> int:
        """The kernel's id of the program, the same in every process."""
        return self.facts().id

    def facts(self) -> ProgramFacts:
        """Return the kernel's facts about the program.

        Returns:
            The id, the name (at most 15 bytes) and the user who loaded it.

        Raises:
            BpfError: The descriptor is closed.

        Example:
            ```python
            print(steering.program.facts().name)
            ```
        """
        binding = libbpf()
        found = binding.ffi.new("struct xdp_bpf_program_facts *")
        checked(binding.lib.xdp_bpf_program_describe(self.fd, found), f"program {self.name}")
        name = binding.ffi.string(found.name).decode(errors="replace")
        return ProgramFacts(int(found.program_id), name, int(found.owner_uid))

    def test_run(
        self,
        packet: bytes,
        *,
        repeat: int = 1,
        mark: int = 0,
        gso_segments: int = 0,
        is_xdp: bool = False,
        interface_index: int = 0,
        queue: int = 0,
    ) -> TestRun:
        """Run the program over one packet.

        Nothing is sent or received.

        Args:
            packet: The frame, from its Ethernet header on.
            repeat: Number of runs.
            mark: Mark of the packet; for tc programs only.
            gso_segments: Number of GSO segments of the packet; for tc programs only.
            is_xdp: True for an XDP program, false for a tc program.
            interface_index: Simulated origin of the frame, for XDP programs; 0: none.
            queue: Simulated receive queue, for XDP programs.

        Returns:
            The verdict, the packet after the last run, and the mean duration.

        Raises:
            BpfError: The kernel refuses.

        Example:
            ```python
            run = steering.program.test_run(bytes(64), is_xdp=True)
            assert run.result == 2  # XDP_PASS
            ```
        """
        binding = libbpf()
        space = binding.ffi.new("uint8_t[]", len(packet) + 256)
        held = binding.ffi.from_buffer("uint8_t[]", packet)
        run = binding.ffi.new("struct xdp_bpf_test_run *")
        run.packet, run.packet_bytes = held, len(packet)
        run.packet_out, run.packet_out_bytes = space, len(packet) + 256
        run.repeat_count, run.has_skb_context = repeat, not is_xdp
        run.mark, run.gso_segments = mark, gso_segments
        run.interface_index, run.queue = interface_index, queue
        checked(binding.lib.xdp_bpf_test_run(self.fd, run), f"test run of program {self.name}")
        left = bytes(binding.ffi.buffer(space, run.packet_out_bytes))
        return TestRun(int(run.result), left, int(run.mark), int(run.duration_ns))


def _load_options(
    ffi: Any, program: str | None, map_entries: Mapping[str, int], device_index: int
) -> tuple[Any, list[Any]]:
    """Return the options as a C structure, and the objects that must live as long as it is used."""
    names = [ffi.new("char[]", map_name.encode()) for map_name in map_entries]
    sizes = ffi.new("struct xdp_bpf_map_size[]", list(zip(names, map_entries.values(), strict=True)))
    program_name = ffi.NULL if program is None else ffi.new("char[]", program.encode())
    options = ffi.new("struct xdp_bpf_load_options *", (program_name, sizes, len(names), device_index))
    return options, [*names, sizes, program_name]


class BpfObject(Closing):
    """A compiled object in the kernel.

    Context manager. Closing it frees the parts that are not attached.

    Example:
        ```python
        with xdp.BpfObject("steering", map_entries={"rules": 16}) as steering:
            print(steering.map("rules").max_entries)
        ```
    """

    __slots__ = ("_object", "path")

    def __init__(
        self,
        name: str | Path,
        *,
        program: str | None = None,
        map_entries: Mapping[str, int] = _NOTHING_CHANGED,
        device_index: int = 0,
    ) -> None:
        """Load the object.

        Args:
            name: The name of `bpf/NAME.bpf.c`, compiled at build time, or the path of any object file.
            program: Name of the program to load if the file has several; None: all.
            map_entries: Sizes that replace those in the file, by map name.
            device_index: Index of the interface to which the program is bound, which lets it call the driver;
                0: none.

        Raises:
            BpfError: The kernel or the verifier refuses; `log` has the messages.
            NotBuiltError: The object or libbpf is missing.
        """
        binding = libbpf()
        self._object: Any = None
        self.path = name if isinstance(name, Path) else object_path(name)
        options, _kept_alive = _load_options(binding.ffi, program, map_entries, device_index)
        loaded = binding.ffi.new("struct bpf_object **")
        log = binding.ffi.new("char[]", _LOG_BYTES)
        result = binding.lib.xdp_bpf_object_load(os.fsencode(self.path), options, loaded, log, _LOG_BYTES)
        if result < 0:
            raise BpfError(f"loading {self.path}", -result, binding.ffi.string(log).decode(errors="replace"))
        self._object = loaded[0]

    def program(self, name: str) -> BpfProgram:
        """Return the program of that C function.

        Args:
            name: Name of the function.

        Returns:
            The program; valid while the object is open.

        Raises:
            BpfError: There is no such program.
            ValueError: The object was closed.

        Example:
            ```python
            with xdp.BpfObject("steering") as steering:
                print(steering.program("steering").fd)
            ```
        """
        fd = libbpf().lib.xdp_bpf_program_fd(self._opened(), name.encode())
        return BpfProgram(name, checked(fd, f"program {name} in {self.path}"))

    def map(self, name: str) -> BpfMap:
        """Return the map of that C variable.

        Args:
            name: Name of the variable.

        Returns:
            The map; valid while the object is open.

        Raises:
            BpfError: There is no such map.
            ValueError: The object was closed.

        Example:
            ```python
            with xdp.BpfObject("steering") as steering:
                print(steering.map("verdicts").max_entries)
            ```
        """
        fd = libbpf().lib.xdp_bpf_map_fd(self._opened(), name.encode())
        return BpfMap(name, checked(fd, f"map {name} in {self.path}"))

    def close(self) -> None:
        """Free the object and its descriptors; a second call does nothing.

        Example:
            ```python
            loaded = xdp.BpfObject("steering")
            loaded.close()
            ```
        """
        if self._object is not None:
            libbpf().lib.xdp_bpf_object_close(self._object)
            self._object = None

    def _opened(self) -> Any:
        if self._object is None:
            raise ValueError(f"{self.path} was closed")
        return self._object


class AttachedProgram(Closing):
    """An attached program opened by its id, with its maps.

    Context manager. It owns its descriptors.

    Example:
        ```python
        with xdp.AttachedProgram(steering.program.id) as program:
            print(program.program.facts().name)
        ```
    """

    __slots__ = ("_fds", "program")

    def __init__(self, program_id: int) -> None:
        """Open the program with that id.

        Args:
            program_id: The kernel's id, for example of an `Occupant`.

        Raises:
            BpfError: There is no such program, or CAP_SYS_ADMIN is missing.
        """
        fd = checked(libbpf().lib.xdp_bpf_program_fd_by_id(program_id), f"BPF program {program_id}")
        self._fds = [fd]
        self.program = BpfProgram(f"#{program_id}", fd)

    def map(self, name: str) -> BpfMap:
        """Return the program's map of that name.

        Args:
            name: Name of the map, of which the kernel keeps 15 bytes.

        Returns:
            The map; valid while the program is open.

        Raises:
            BpfError: The program has no such map.

        Example:
            ```python
            with xdp.AttachedProgram(steering.program.id) as program:
                print(program.map("verdicts").read_per_cpu(bytes(4)))
            ```
        """
        fd = libbpf().lib.xdp_bpf_program_map_fd(self.program.fd, name.encode())
        self._fds.append(checked(fd, f"map {name} of BPF program {self.program.name}"))
        return BpfMap(name, fd)

    def close(self) -> None:
        """Close the descriptors; the program stays attached.

        Example:
            ```python
            xdp.AttachedProgram(steering.program.id).close()
            ```
        """
        while self._fds:
            os.close(self._fds.pop())
