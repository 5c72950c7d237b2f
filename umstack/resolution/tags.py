"""ResolutionTags: the core's authentication trailers for topic resolution datagrams."""

from __future__ import annotations

from random import SystemRandom
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_address import core_address
from umstack._engine.keyring import core_key_set
from umstack.errors import ResourceLimit
from umstack.key_file import Key
from umstack.resolution.counters import ResolutionCounters
from umstack_xdp.closing import Closing

TRAILER_BYTES: int = lib.UM_TRAILER_BYTES

_COUNTERS = {
    int(lib.UM_TAG_MISSING): "tr_dgrams_dropped_tag_missing",
    int(lib.UM_TAG_KEY_UNKNOWN): "tr_dgrams_dropped_tag_key",
    int(lib.UM_TAG_WRONG): "tr_dgrams_dropped_tag_wrong",
    int(lib.UM_TAG_STALE): "tr_dgrams_dropped_tag_stale",
    int(lib.UM_TAG_REPLAYED): "tr_dgrams_dropped_tag_replayed",
}


def _address(address: tuple[str, int]) -> Any:
    return ffi.new("um_address *", core_address(address))[0]


class ResolutionTags(Closing):
    """Tags datagrams sent from one address, and verifies received ones. One thread at a time."""

    def __init__(self, keys: tuple[Key, ...], tolerance_ns: int, local: tuple[str, int]) -> None:
        """Set up for datagrams sent from `local`; raises ResourceLimit."""
        self._handle: Any = lib.um_resolution_tags_open(
            core_key_set(keys), tolerance_ns, _address(local), SystemRandom().getrandbits(64)
        )
        if self._handle == ffi.NULL:
            raise ResourceLimit("the keys of topic resolution: out of memory")

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Make tags with the first of these keys from now on, and accept all of them. Raises ResourceLimit."""
        if lib.um_resolution_tags_set_keys(self._handle, core_key_set(keys)) != 0:
            raise ResourceLimit("the keys of topic resolution: out of memory")

    def tagged(self, datagram: bytes) -> bytes:
        """Return a datagram with its trailer. Raises ResourceLimit if libcrypto fails."""
        whole = ffi.new("char[]", len(datagram) + TRAILER_BYTES)
        ffi.memmove(whole, datagram, len(datagram))
        if lib.um_resolution_tags_append(self._handle, whole, len(datagram)) != 0:
            raise ResourceLimit("cannot tag a topic resolution datagram: libcrypto failed")
        return bytes(ffi.buffer(whole))

    def verified(
        self, datagram: bytes, source: tuple[str, int], counters: ResolutionCounters
    ) -> bytes | None:
        """Return an authentic datagram without its trailer; count any other by reason and return None."""
        status = lib.um_resolution_tags_verify(
            self._handle, _address(source), ffi.from_buffer(datagram), len(datagram)
        )
        if status == lib.UM_TAG_OK:
            return datagram[:-TRAILER_BYTES]
        counter = _COUNTERS[status]
        setattr(counters, counter, getattr(counters, counter) + 1)
        return None

    def close(self) -> None:
        """Free the core's state. Closing twice does nothing."""
        if self._handle != ffi.NULL:
            lib.um_resolution_tags_close(self._handle)
            self._handle = ffi.NULL
