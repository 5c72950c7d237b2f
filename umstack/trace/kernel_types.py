"""Types of the running kernel, through libbpf: the offsets of fields and the names of enumeration values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from umstack.errors import Unsupported

_KIND_ARRAY, _KIND_STRUCT, _KIND_UNION, _KIND_ENUM, _KIND_TYPEDEF = 3, 4, 5, 6, 8
_MODIFIERS = (_KIND_TYPEDEF, 9, 10, 11, 18)


class _Type(ctypes.Structure):
    """struct btf_type."""

    _fields_ = (("name", ctypes.c_uint32), ("info", ctypes.c_uint32), ("size_or_type", ctypes.c_uint32))


class _Member(ctypes.Structure):
    """struct btf_member."""

    _fields_ = (("name", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32))


class _EnumValue(ctypes.Structure):
    """struct btf_enum."""

    _fields_ = (("name", ctypes.c_uint32), ("value", ctypes.c_int32))


class KernelTypes:
    """Type information of the running kernel. Close it when done."""

    __slots__ = ("_btf", "_lib")

    def __init__(self, library: ctypes.CDLL) -> None:
        """Load it from /sys/kernel/btf/vmlinux."""
        self._lib = library
        library.btf__load_vmlinux_btf.restype = ctypes.c_void_p
        library.btf__type_by_id.restype = ctypes.c_void_p
        library.btf__type_by_id.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        library.btf__name_by_offset.restype = ctypes.c_char_p
        library.btf__name_by_offset.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        library.btf__find_by_name_kind.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32)
        library.btf__free.argtypes = (ctypes.c_void_p,)
        library.libbpf_get_error.restype = ctypes.c_long
        library.libbpf_get_error.argtypes = (ctypes.c_void_p,)
        self._btf = library.btf__load_vmlinux_btf()
        if not self._btf or library.libbpf_get_error(self._btf):
            raise Unsupported(
                "this kernel has no type information",
                hint="run a kernel with CONFIG_DEBUG_INFO_BTF, as distributions do",
            )

    def close(self) -> None:
        """Free the type information; a second call has no effect."""
        if self._btf:
            self._lib.btf__free(self._btf)
            self._btf = None

    def offset(self, structure: str, *path: str) -> int:
        """Return the offset of a field in bytes; each further name is a field of the previous one."""
        number = self._lib.btf__find_by_name_kind(self._btf, structure.encode(), _KIND_STRUCT)
        total = 0
        for name in path:
            found = self._member(number, name) if number > 0 else None
            if found is None:
                raise Unsupported(
                    f"this kernel's {structure} has no {'.'.join(path)}",
                    hint="report it with the output of `uname -r`",
                )
            offset, number = found
            total += offset
        return total

    def has_tracepoint(self, name: str) -> bool:
        """Return True if the kernel has a tracepoint of that name."""
        found = self._lib.btf__find_by_name_kind(self._btf, f"btf_trace_{name}".encode(), _KIND_TYPEDEF)
        return int(found) > 0

    def enumeration(self, name: str) -> dict[int, str]:
        """Return the names of an enumeration's values; empty if the kernel does not have it."""
        number = self._lib.btf__find_by_name_kind(self._btf, name.encode(), _KIND_ENUM)
        if number <= 0:
            return {}
        address, described = self._type(number)
        values = (_EnumValue * (described.info & 0xFFFF)).from_address(address + ctypes.sizeof(_Type))
        return {item.value: self._name(item.name) for item in values}

    def _type(self, number: int) -> tuple[int, _Type]:
        address = self._lib.btf__type_by_id(self._btf, number)
        return address, _Type.from_address(address)

    def _name(self, offset: int) -> str:
        return str(self._lib.btf__name_by_offset(self._btf, offset).decode())

    def _member(self, number: int, wanted: str) -> tuple[int, int] | None:
        """Find a field and its type, also in unnamed members."""
        for name, type_number, offset in self._members(number):
            if name == wanted:
                return offset, type_number
            if not name and (inner := self._member(type_number, wanted)) is not None:
                return offset + inner[0], inner[1]
        return None

    def _members(self, number: int) -> Iterator[tuple[str, int, int]]:
        address, described = self._type(number)
        while (kind := described.info >> 24 & 0x1F) in _MODIFIERS:
            address, described = self._type(described.size_or_type)
        if kind not in (_KIND_STRUCT, _KIND_UNION):
            return
        has_bit_fields = bool(described.info >> 31)
        members = (_Member * (described.info & 0xFFFF)).from_address(address + ctypes.sizeof(_Type))
        for member in members:
            bits = member.offset & 0xFFFFFF if has_bit_fields else member.offset
            yield self._name(member.name), member.type, bits // 8
