"""AF_XDP rings from Python: a ring set, which is a socket on every receive queue of an interface, with its frames.

A ring set can send at once. It receives once its sockets are in the map of a steering program on the interface
(`umstack_xdp.steering`). C code uses the rings (ffi/xsk/); Python opens and closes them and passes their address. Works
on the network namespace of the calling thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any, Self

from pyroute2 import IPRoute
from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError

from umstack_xdp.closing import Closing
from umstack_xdp.errors import NotBuiltError, RingError
from umstack_xdp.ethtool import Ethtool
from umstack_xdp.facts import Unknown
from umstack_xdp.interface import Interface, find_interface
from umstack_xdp.ring_place import RingPlace
from umstack_xdp.steering import FrameTimes

_HEADROOM_BYTES = 256
"""Bytes that the kernel leaves free before each received frame."""
_FRAME_HEADERS_BYTES = 22
"""Bytes of the Ethernet header and two VLAN tags, which the MTU does not include."""
_OWN_BUSY_S = 0.1
_SMALL_FRAME_BYTES, _LARGE_FRAME_BYTES = 2048, 4096

_HINTS = {
    errno.EOPNOTSUPP: "its driver cannot do this mode: use another (`umstack doctor` shows which)",
    errno.EBUSY: "another AF_XDP socket has the queue: end its process (`ss --xdp -e` shows it), or use other queues",
    errno.EINVAL: "check the number of queues (`ethtool -l IFACE`) and that the kernel is 5.11 or later",
    errno.EPERM: "run as root, or give the process CAP_NET_RAW",
    errno.ENOBUFS: "too little locked memory: raise `ulimit -l`, or give the process CAP_IPC_LOCK",
    errno.ENODEV: "the interface is gone: name another",
    errno.ENXIO: "the interface is gone: name another",
    errno.ENETDOWN: "bring the interface up: `ip link set IFACE up`",
    errno.ENOMEM: "free memory, or use fewer frames or queues",
    errno.EAFNOSUPPORT: "this kernel has no AF_XDP: it needs CONFIG_XDP_SOCKETS",
}

_ADOPTING_HINTS = {
    errno.EBUSY: "rings of another process's socket take Linux 6.4: give this process the capabilities itself",
    errno.ENOMEM: "free memory, or use fewer frames or queues",
    errno.EPROTO: "use a broker of the same version",
}


class RingMode(StrEnum):
    """How frames reach the rings.

    Example:
        ```python
        xdp.RingSet("eth0", xdp.RingMode.COPY).close()
        ```
    """

    ZERO_COPY = "zero-copy"
    """Written by the NIC (zero-copy)."""
    COPY = "copy"
    """Copied by the kernel."""


@dataclass(frozen=True, slots=True)
class RingSettings:
    """Settings of a ring set.

    Example:
        ```python
        settings = xdp.RingSettings(receive_frames=1024, send_frames=512)
        print(xdp.ring_bytes(xdp.find_interface("eth0"), settings))
        ```
    """

    receive_frames: int = 4096
    """Receive frames per queue, a power of two: how many datagrams can wait."""
    send_frames: int = 2048
    queues: int = 0
    """Number of receive queues from `first_queue` on; 0: all."""
    first_queue: int = 0
    verify_checksum: bool = True
    huge_pages: bool = True
    busy_poll_us: int = 0
    """Microseconds for which a receive that finds the rings empty runs the driver (preferred busy polling); 0: off."""
    busy_poll_budget: int = 64
    busy_timeout: float = 1.0
    """Seconds for which a busy queue is retried: it stays busy for a moment after its last user."""
    kernel_times: bool = False
    """True to use the kernel's time of each frame, noted by the steering program, as arrival time."""
    nic_times: bool = False
    """True to also use the NIC's timestamps if its driver provides them."""

    @property
    def frame_times(self) -> FrameTimes:
        """The times that the steering program notes."""
        if self.nic_times:
            return FrameTimes.NIC
        return FrameTimes.KERNEL if self.kernel_times else FrameTimes.NONE

    def for_program(self, frame_times: FrameTimes) -> RingSettings:
        """Return the settings for a program that notes these times.

        Args:
            frame_times: The times of the loaded steering program.

        Returns:
            A copy of the settings with these times.

        Example:
            ```python
            settings = xdp.RingSettings().for_program(xdp.FrameTimes.KERNEL)
            assert settings.kernel_times
            ```
        """
        return replace(
            self,
            kernel_times=frame_times is not FrameTimes.NONE,
            nic_times=frame_times is FrameTimes.NIC,
        )


@dataclass(frozen=True, slots=True)
class RingFacts:
    """Properties of an open ring set.

    Example:
        ```python
        with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
            facts: xdp.RingFacts = rings.facts
            print(facts.queues, facts.datagram_max_bytes)
        ```
    """

    mode: RingMode
    queues: int
    multi_buffer: bool
    """True if a datagram may take several frames (jumbo)."""
    huge_pages: bool
    busy_poll: bool
    datagram_max_bytes: int
    """The largest UDP payload it can carry."""
    locked_bytes: int
    nic_clock: str
    """The NIC clock used to convert its timestamps, or why there is none; empty if not requested."""


@dataclass(frozen=True, slots=True)
class RingShape:
    """Parameters of an opened ring set for the process that adopts it."""

    first_queue: int
    queues: int
    frame_bytes: int
    receive_frames: int
    send_frames: int
    multi_buffer: bool
    verify_checksum: bool
    huge_pages: bool
    busy_poll: bool
    headroom_bytes: int
    reads_times: bool
    nic_clock: int | None
    """Number of the NIC's clock (/dev/ptpN) if its times are requested and it has one."""
    reads_nic_times: bool


@dataclass(frozen=True, slots=True)
class LentRings:
    """The parts of a ring set that another process needs; the descriptors are those of the opened ring set."""

    shape: RingShape
    sockets: tuple[int, ...]
    memory: int
    """The descriptor of the frames."""


def unavailable() -> str | None:
    """Return why this installation has no AF_XDP, or None if it has (privileges and kernel aside)."""
    try:
        binding()
    except NotBuiltError as error:
        return str(error)
    return None


def queue_count(interface: Interface | str) -> int:
    """Return the number of receive queues of the interface."""
    name = interface if isinstance(interface, str) else interface.name
    with contextlib.suppress(OSError, NotSupportedError):
        ethtool = IoctlEthtool(name)
        try:
            channels = ethtool.get_channels()
            if count := int(channels["combined_count"]) + int(channels["rx_count"]):
                return count
        finally:
            ethtool.close()
    with IPRoute() as route:
        link = route.get_links(ifname=name)[0]
    return int(link.get_attr("IFLA_NUM_RX_QUEUES") or 1)


def ring_bytes(device: Interface, settings: RingSettings) -> int:
    """Return how many bytes a ring set with these settings locks on a NIC.

    Args:
        device: The NIC.
        settings: Settings of the ring set.

    Returns:
        The number of bytes.

    Example:
        ```python
        print(xdp.ring_bytes(xdp.find_interface("eth0"), xdp.RingSettings()))
        ```
    """
    queues = settings.queues or queue_count(device) - settings.first_queue
    return (
        queues
        * (settings.receive_frames + settings.send_frames)
        * _frame_bytes(device, _times_headroom(settings))
    )


class RingSet(Closing):
    """A socket on every receive queue of an interface, with its frames.

    Context manager. Close it after all users of its `address`.

    Example:
        ```python
        with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
            print(rings.facts.mode, rings.sockets)
        ```
    """

    __slots__ = ("_handle", "_shape", "facts", "first_queue", "place")

    def __init__(
        self,
        place: RingPlace | Interface | str,
        mode: RingMode,
        settings: RingSettings | None = None,
        *,
        lent: bool = False,
    ) -> None:
        """Open the rings in exactly this mode, with multi-buffer if kernel and driver support it.

        Args:
            place: The place of the rings; an interface stands for rings on its own queues.
            mode: How frames reach the rings. No other mode is tried.
            settings: Settings; None: the defaults.
            lent: True to open them for another process, which adopts the result of `lend`; this process never
                uses them.

        Raises:
            RingError: The kernel or the driver refuses; `errno` and `step` have the reason.
            NotBuiltError: This build has no AF_XDP.
        """
        if not isinstance(place, RingPlace):
            interface = place if isinstance(place, Interface) else find_interface(place)
            place = RingPlace(interface, interface)
        settings = settings or RingSettings()
        self._start(place, *_open(place, mode, settings, lent=lent))

    @classmethod
    def adopt(cls, place: RingPlace, rings: LentRings) -> Self:
        """Create a ring set from one lent by another process.

        Needs no privilege. The descriptors are duplicated.

        Args:
            place: The place of the rings.
            rings: The result of `lend`.

        Returns:
            The ring set.

        Raises:
            RingError: The kernel refuses; rings of another process need Linux 6.4.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY, lent=True) as rings:
                with xdp.RingSet.adopt(rings.place, rings.lend()) as adopted:
                    print(adopted.facts.queues)
            ```
        """
        rings_here = cls.__new__(cls)
        config = _config(place, rings.shape)
        adopted = binding().ffi.new("um_xsk_rings **")
        result = binding().lib.um_xsk_rings_adopt(config, rings.sockets, rings.memory, adopted)
        rings_here._start(place, _opened(place.device, int(result), adopted, "lent"), rings.shape)
        return rings_here

    def lend(self) -> LentRings:
        """Return what another process needs to adopt this ring set.

        The ring set must have been opened with `lent`, and may be closed here once it is adopted.

        Returns:
            Parameters and descriptors; the descriptors are those of this ring set.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY, lent=True) as rings:
                print(rings.lend().shape.queues)
            ```
        """
        shape = replace(self._shape, huge_pages=self.facts.huge_pages, busy_poll=self.facts.busy_poll)
        memory = int(binding().lib.um_xsk_rings_memory(self._handle))
        return LentRings(shape, tuple(self.sockets.values()), memory)

    def _start(self, place: RingPlace, handle: Any, shape: RingShape) -> None:
        self._handle, self._shape, self.place = handle, shape, place
        self.first_queue = shape.first_queue
        found = binding().ffi.new("um_xsk_facts *")
        binding().lib.um_xsk_rings_facts(handle, found)
        self.facts = RingFacts(
            RingMode.ZERO_COPY if found.zero_copy else RingMode.COPY,
            shape.queues,
            bool(found.multi_buffer),
            bool(found.huge_pages),
            bool(found.busy_poll),
            int(found.datagram_max_bytes),
            int(found.locked_bytes),
            _nic_clock_shown(shape, int(found.nic_clock_error)),
        )

    @property
    def handle(self) -> Any:
        """The um_xsk_rings, for functions of the same library."""
        return self._handle

    @property
    def address(self) -> int:
        """The um_rings, as a number, for um_context_create."""
        lib = binding().lib
        return int(binding().ffi.cast("uintptr_t", lib.um_xsk_rings_base(self._handle)))

    @property
    def sockets(self) -> dict[int, int]:
        """The descriptor of the socket of each receive queue, for the steering program's map."""
        socket_of = binding().lib.um_xsk_rings_socket
        return {
            self.first_queue + index: int(socket_of(self._handle, index))
            for index in range(self.facts.queues)
        }

    def learn_address(self) -> None:
        """Send from the interface's current Ethernet address. Any thread.

        If the interface is gone, the last address is kept; nothing is sent from it.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                rings.learn_address()
            ```
        """
        binding().lib.um_xsk_rings_learn_address(self._handle)

    def send_by_socket(self, is_by_socket: bool) -> None:
        """Send through the kernel's sockets from now on, or through the rings again. Any thread.

        Frames of a ring leave the host and do not reach its own receivers; datagrams of a socket do both.

        Args:
            is_by_socket: True: through the sockets.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                rings.send_by_socket(True)
            ```
        """
        binding().lib.um_xsk_rings_send_by_socket(self._handle, is_by_socket)

    def received(self) -> dict[int, int]:
        """Return the number of datagrams received per queue.

        Returns:
            The count by queue.

        Example:
            ```python
            with xdp.RingSet("eth0", xdp.RingMode.COPY) as rings:
                print(sum(rings.received().values()))
            ```
        """
        received_on = binding().lib.um_xsk_rings_received
        return {self.first_queue + i: int(received_on(self._handle, i)) for i in range(self.facts.queues)}

    def close(self) -> None:
        """Close the sockets and free the frames; a second call does nothing.

        Example:
            ```python
            xdp.RingSet("eth0", xdp.RingMode.COPY).close()
            ```
        """
        if self._handle is not None:
            binding().lib.um_xsk_rings_close(self._handle)
            self._handle = None


def _open(place: RingPlace, mode: RingMode, settings: RingSettings, *, lent: bool) -> tuple[Any, RingShape]:
    device = place.device
    headroom = _times_headroom(settings) if mode is RingMode.COPY else 0
    needs_multi_buffer = _frame_space(_LARGE_FRAME_BYTES, headroom) < device.mtu_bytes
    shape = RingShape(
        first_queue=settings.first_queue,
        queues=max(settings.queues or queue_count(device) - settings.first_queue, 0),
        frame_bytes=_frame_bytes(device, headroom),
        receive_frames=settings.receive_frames,
        send_frames=settings.send_frames,
        multi_buffer=True,
        verify_checksum=settings.verify_checksum,
        huge_pages=settings.huge_pages,
        busy_poll=settings.busy_poll_us > 0,
        headroom_bytes=headroom,
        reads_times=settings.frame_times is not FrameTimes.NONE,
        nic_clock=_nic_clock(device) if settings.nic_times else None,
        reads_nic_times=settings.nic_times,
    )
    try:
        return _attempt(place, mode, settings, shape, lent=lent), shape
    except RingError as error:
        # Kernels before 6.6 do not know the flag; drivers without multi-buffer refuse zero copy with it.
        if needs_multi_buffer or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        shape = replace(shape, multi_buffer=False)
        # The queues bound by the failed attempt stay busy for a moment.
        settings = replace(settings, busy_timeout=max(settings.busy_timeout, _OWN_BUSY_S))
        return _attempt(place, mode, settings, shape, lent=lent), shape


def _attempt(
    place: RingPlace, mode: RingMode, settings: RingSettings, shape: RingShape, *, lent: bool
) -> Any:
    ffi, lib = binding().ffi, binding().lib
    config = _config(place, shape)
    config.mode = lib.UM_XSK_ZERO_COPY if mode == RingMode.ZERO_COPY else lib.UM_XSK_COPY
    config.busy_poll_us, config.busy_poll_budget = settings.busy_poll_us, settings.busy_poll_budget
    config.busy_deadline_ns = int(settings.busy_timeout * 1e9)
    config.is_lent = lent
    opened = ffi.new("um_xsk_rings **")
    return _opened(place.device, int(lib.um_xsk_rings_open(config, opened)), opened, mode)


def _config(place: RingPlace, shape: RingShape) -> Any:
    config = binding().ffi.new("um_xsk_config *")
    config.interface, config.device = place.interface.name.encode(), place.device.name.encode()
    config.tag_control = place.tag_control
    config.first_queue, config.queue_count = shape.first_queue, shape.queues
    config.frame_bytes = shape.frame_bytes
    config.receive_frame_count, config.send_frame_count = shape.receive_frames, shape.send_frames
    config.multi_buffer = shape.multi_buffer
    config.verify_checksum = shape.verify_checksum
    config.huge_pages, config.busy_poll = shape.huge_pages, shape.busy_poll
    config.has_nic_clock, config.nic_clock = shape.nic_clock is not None, shape.nic_clock or 0
    config.headroom_bytes, config.reads_times = shape.headroom_bytes, shape.reads_times
    return config


def _opened(device: Interface, result: int, opened: Any, mode: str) -> Any:
    """Return the opened ring set, or close its parts and raise an error with the failed step."""
    ffi, lib = binding().ffi, binding().lib
    if result == 0:
        return opened[0]
    step, number = "memory", -result
    if opened[0] != ffi.NULL:
        step = ffi.string(lib.um_xsk_rings_failed_step(opened[0])).decode()
        lib.um_xsk_rings_close(opened[0])
    hints = _ADOPTING_HINTS if mode == "lent" else _HINTS
    hint = hints.get(number, "see `umstack doctor`").replace("IFACE", device.name)
    message = f"AF_XDP rings on {device.name} in {mode} mode: {step}: {os.strerror(number)}"
    raise RingError(message, hint=hint, errno=number, step=step)


def _nic_clock(device: Interface) -> int | None:
    with Ethtool(device.name) as ethtool:
        found = ethtool.timestamping()
    return None if isinstance(found, Unknown) else found.hardware_clock


def _nic_clock_shown(shape: RingShape, error: int) -> str:
    if not shape.reads_nic_times:
        return ""
    if shape.nic_clock is None:
        return "none: the NIC has no clock, the kernel's times are used"
    path = f"/dev/ptp{shape.nic_clock}"
    return path if error == 0 else f"none: {path}: {os.strerror(error)}, the kernel's times are used"


def _times_headroom(settings: RingSettings) -> int:
    return int(binding().lib.UM_XSK_TIMES_BYTES) if settings.frame_times is not FrameTimes.NONE else 0


def _frame_bytes(device: Interface, headroom: int) -> int:
    is_small = device.mtu_bytes <= _frame_space(_SMALL_FRAME_BYTES, headroom)
    return _SMALL_FRAME_BYTES if is_small else _LARGE_FRAME_BYTES


def _frame_space(frame_bytes: int, headroom: int) -> int:
    """Return the largest MTU whose frames fit into our frames with this headroom beyond the kernel's."""
    return frame_bytes - _HEADROOM_BYTES - headroom - _FRAME_HEADERS_BYTES


def binding() -> Any:
    """Import the compiled rings; builds without libxdp do not have them."""
    try:
        return import_module("umstack_xdp._xsk")
    except ImportError as error:
        raise NotBuiltError(
            f"AF_XDP rings are not available ({error})",
            hint="apt-get install libxdp-dev libbpf-dev libelf-dev, then build again "
            "(`pip install .`, or `python ffi/build.py` in a checkout)",
        ) from error
