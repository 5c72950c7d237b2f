"""Reads and changes ethtool settings of one interface in the calling thread's namespace.

A setting that the driver does not have reads as `Unknown`; a refused change raises `SettingError`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from pyroute2.ethtool.ioctl import EthtoolError, IoctlEthtool, NotSupportedError

from umstack_xdp.closing import Closing
from umstack_xdp.errors import SettingError
from umstack_xdp.facts import Coalescing, QueueCounts, RingSizes, Timestamping, Unknown

T = TypeVar("T")
QueueKind = Literal["rx", "tx", "combined"]
RingKind = Literal["rx", "tx"]

_GET_DRIVER_INFO = 3
_GET_TIMESTAMPING_INFO = 0x41
_STAMPS_SENT, _STAMPS_RECEIVED = 1 << 0, 1 << 2
"""SOF_TIMESTAMPING_TX_HARDWARE and _RX_HARDWARE."""
_SPEED_UNKNOWN = 0xFFFFFFFF


class _DriverInfo(ctypes.Structure):
    """struct ethtool_drvinfo, which pyroute2 does not have."""

    _fields_ = (
        ("cmd", ctypes.c_uint32),
        ("driver", ctypes.c_char * 32),
        ("version", ctypes.c_char * 32),
        ("firmware_version", ctypes.c_char * 32),
        ("bus", ctypes.c_char * 32),
        ("rest", ctypes.c_char * 64),
    )


class _TimestampingInfo(ctypes.Structure):
    """struct ethtool_ts_info, which pyroute2 does not have."""

    _fields_ = (
        ("cmd", ctypes.c_uint32),
        ("kinds", ctypes.c_uint32),
        ("clock", ctypes.c_int32),
        ("sent_types", ctypes.c_uint32),
        ("sent_reserved", ctypes.c_uint32 * 3),
        ("received_filters", ctypes.c_uint32),
        ("received_reserved", ctypes.c_uint32 * 3),
    )


class Ethtool(Closing):
    """One interface. Context manager; one thread at a time."""

    __slots__ = ("_ioctl", "interface")

    def __init__(self, interface: str) -> None:
        """Open the socket for the requests."""
        self.interface = interface
        self._ioctl = IoctlEthtool(interface)

    def driver(self) -> tuple[str | Unknown, str | Unknown]:
        """Return the driver's name and the bus address of the device."""
        info = _DriverInfo(cmd=_GET_DRIVER_INFO)
        self._ioctl.ifreq.gstrings = ctypes.cast(ctypes.byref(info), ctypes.POINTER(None))
        asked = self._read(self._ioctl.ioctl, "the driver's name is not available here")
        if isinstance(asked, Unknown):
            return asked, asked
        return info.driver.decode(), info.bus.decode() or Unknown("not on a bus")

    def queues(self) -> QueueCounts | Unknown:
        """Return the current and maximum numbers of queues."""
        read = self._read(self._ioctl.get_channels, "the driver does not report its queues")
        if isinstance(read, Unknown):
            return read
        combined = int(read["combined_count"])
        return QueueCounts(
            rx=int(read["rx_count"]) + combined,
            tx=int(read["tx_count"]) + combined,
            rx_max=int(read["max_rx"]) or int(read["max_combined"]),
            tx_max=int(read["max_tx"]) or int(read["max_combined"]),
            combined=combined,
            combined_max=int(read["max_combined"]),
        )

    def rings(self) -> RingSizes | Unknown:
        """Return the current and maximum numbers of descriptors of the rings."""
        read = self._read(self._ioctl.get_rings, "the driver has no rings to size")
        if isinstance(read, Unknown):
            return read
        return RingSizes(*(int(read[name]) for name in ("rx", "tx", "rx_max", "tx_max")))

    def coalescing(self) -> Coalescing | Unknown:
        """Return the interrupt coalescing settings."""
        read = self._read(self._ioctl.get_coalesce, "the driver does not coalesce interrupts")
        if isinstance(read, Unknown):
            return read
        return Coalescing(
            rx_usecs=int(read["rx_coalesce_usecs"]),
            rx_frames=int(read["rx_max_coalesced_frames"]),
            tx_usecs=int(read["tx_coalesce_usecs"]),
            tx_frames=int(read["tx_max_coalesced_frames"]),
            is_rx_adaptive=bool(read["use_adaptive_rx_coalesce"]),
            is_tx_adaptive=bool(read["use_adaptive_tx_coalesce"]),
        )

    def features(self) -> Mapping[str, bool] | Unknown:
        """Return every offload by name, and whether it is on."""
        read = self._read(self._ioctl.get_features, "the interface has no offloads")
        if isinstance(read, Unknown):
            return read
        return {name: bool(read[name]) for name in read.keys() if name}  # noqa: SIM118

    def changeable_features(self) -> frozenset[str]:
        """Return the offloads that can be changed here."""
        read = self._read(self._ioctl.get_features, "the interface has no offloads")
        if isinstance(read, Unknown):
            return frozenset()
        return frozenset(
            name
            for name in read.keys()  # noqa: SIM118
            if name and read.is_available(name) and not read.is_never_changed(name)
        )

    def speed_mbps(self) -> int | Unknown:
        """Return the link speed."""
        read = self._read(self._ioctl.get_link_settings, "the interface has no speed")
        if isinstance(read, Unknown):
            return read
        speed = int(read["speed"])
        return Unknown("the link does not report its speed") if speed in (0, _SPEED_UNKNOWN) else speed

    def timestamping(self) -> Timestamping | Unknown:
        """Return the NIC's clock, and the frames that it timestamps."""
        info = _TimestampingInfo(cmd=_GET_TIMESTAMPING_INFO)
        self._ioctl.ifreq.gstrings = ctypes.cast(ctypes.byref(info), ctypes.POINTER(None))
        asked = self._read(self._ioctl.ioctl, "the driver does not report its timestamps")
        if isinstance(asked, Unknown):
            return asked
        clock = int(info.clock)
        return Timestamping(
            None if clock < 0 else clock,
            receives=bool(info.kinds & _STAMPS_RECEIVED),
            sends=bool(info.kinds & _STAMPS_SENT),
        )

    def set_queues(self, kind: QueueKind, count: int) -> None:
        """Set the number of queues of that kind."""
        channels = self._change(self._ioctl.get_channels, "reading the queues")
        channels[f"{kind}_count"] = count
        self._change(lambda: self._ioctl.set_channels(channels), f"setting {count} {kind} queues")

    def set_ring(self, kind: RingKind, size: int) -> None:
        """Set the number of descriptors of the receive or transmit ring."""
        rings = self._change(self._ioctl.get_rings, "reading the rings")
        rings[kind] = size
        self._change(lambda: self._ioctl.set_rings(rings), f"setting a {kind} ring of {size}")

    def set_rx_usecs(self, microseconds: int) -> None:
        """Set the delay of receive interrupts."""
        coalescing = self._change(self._ioctl.get_coalesce, "reading the coalescing")
        coalescing["rx_coalesce_usecs"] = microseconds
        self._change(lambda: self._ioctl.set_coalesce(coalescing), f"setting rx-usecs {microseconds}")

    def set_rx_adaptive(self, is_on: bool) -> None:
        """Set whether the NIC adapts the delay of receive interrupts."""
        coalescing = self._change(self._ioctl.get_coalesce, "reading the coalescing")
        coalescing["use_adaptive_rx_coalesce"] = int(is_on)
        self._change(lambda: self._ioctl.set_coalesce(coalescing), "setting adaptive-rx")

    def set_feature(self, feature: str, is_on: bool) -> None:
        """Turn one offload on or off."""
        features = self._change(self._ioctl.get_features, "reading the offloads")
        features[feature] = is_on
        self._change(
            lambda: self._ioctl.set_features(features), f"turning {feature} {'on' if is_on else 'off'}"
        )
        now = self.features()
        if isinstance(now, Unknown) or now.get(feature) is not is_on:
            raise SettingError(f"{self.interface}: {feature} stays {'off' if is_on else 'on'}", "the driver")

    def close(self) -> None:
        """Close the socket."""
        self._ioctl.close()

    def _read(self, ask: Callable[[], T], absent: str) -> T | Unknown:
        try:
            return ask()
        except NotSupportedError:
            return Unknown(absent)
        except (EthtoolError, OSError) as error:
            return Unknown(f"{absent}: {error}")

    def _change(self, act: Callable[[], Any], what: str) -> Any:
        try:
            return act()
        except NotSupportedError as error:
            raise SettingError(f"{self.interface}: {what}", "the driver does not support it") from error
        except EthtoolError as error:
            raise SettingError(f"{self.interface}: {what}", str(error)) from error
        except OSError as error:
            raise SettingError(
                f"{self.interface}: {what}", error.strerror or str(error), error.errno or 0
            ) from error
