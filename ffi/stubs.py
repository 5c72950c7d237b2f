"""Type stubs of the extension modules, made from the declarations that cffi has read.

The build writes them beside the modules: umstack/_core.pyi and its siblings, and umstack_xdp/_cffi_types.pyi with
the types that all of them use. They are not under version control. A struct is one class, whether Python holds it or a
pointer to it, because cffi reads fields through both. `Pointer[uint64_t]` is an array or a pointer of a primitive type,
`Pointer[um_context]` the type of an out parameter. Numbers are int, float and bool; enums are int.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from cffi import model
from modules import MODULES, ROOT, Module

from build import ffi_of

BYTES = {"char", "uint8_t", "void"}
COMMON = "umstack_xdp._cffi_types"
PRIMITIVES = (
    *(
        "_Bool",
        "char",
        "c_int",
        "double",
        "int32_t",
        "int64_t",
        "size_t",
        "uint16_t",
        "uint32_t",
        "uint64_t",
        "uint8_t",
    ),
    *("unsigned_char", "unsigned_int", "unsigned_long_long", "unsigned_short", "void"),
)
BASE = """
class CData:
    def __getitem__(self, index: Any) -> Any: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __add__(self, count: int) -> Self: ...
    def __sub__(self, count: int) -> Self: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __int__(self) -> int: ...

_Element_co = TypeVar("_Element_co", covariant=True)
_CData = TypeVar("_CData", bound=CData)

class Pointer(CData, Generic[_Element_co]):
    @overload
    def __getitem__(self, index: int) -> _Element_co: ...
    @overload
    def __getitem__(self, index: slice) -> Pointer[_Element_co]: ...
"""
METHODS = """class Ffi:
    NULL: Any
    errno: int
    def from_buffer(self, cdecl: Any, python_buffer: Any = ..., require_writable: bool = False) -> Any: ...
    def buffer(self, cdata: CData, size: int = -1) -> Any: ...
    def string(self, cdata: CData, maxlen: int = -1) -> bytes: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def gc(self, cdata: _CData, destructor: Any, size: int = 0) -> _CData: ...
    def release(self, cdata: CData) -> None: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def sizeof(self, cdecl: str | CData) -> int: ...
    def typeof(self, cdecl: str | CData) -> Any: ...
    def addressof(self, cdata: CData, *fields: str | int) -> Any: ...
"""
SPELLED = {"_Bool": "bool", "c_int": "int"}
PRIMITIVE_BASES = {"_Bool": "int", "double": "float", "float": "float", "char": "bytes", "void": "bytes"}


def primitive_name(kind: Any) -> str:
    """Return the name of a primitive type, as a class of the stub."""
    if isinstance(kind, model.VoidType):
        return "void"
    if isinstance(kind, model.EnumType):
        return "unsigned_int"
    name = str(kind.name).replace(" ", "_")
    return f"c_{name}" if name == "int" else name


def is_pointer(kind: Any) -> bool:
    """Return true for a pointer or an array."""
    return isinstance(kind, model.PointerType | model.ArrayType)


def target(kind: Any) -> Any:
    """Return the type that a pointer points to, or of an array's items."""
    return kind.item if isinstance(kind, model.ArrayType) else kind.totype


def element(kind: Any) -> str:
    """Return the text in the brackets of `Pointer[...]`."""
    if isinstance(kind, model.StructOrUnion):
        return str(kind.name)
    return result(kind) if is_pointer(kind) else primitive_name(kind)


def result(kind: Any) -> str:
    """Return the Python type of a result or a field."""
    if isinstance(kind, model.VoidType):
        return "None"
    if isinstance(kind, model.StructOrUnion):
        return str(kind.name)
    if is_pointer(kind):
        pointed = target(kind)
        return (
            element(pointed) if isinstance(pointed, model.StructOrUnion) else f"Pointer[{element(pointed)}]"
        )
    if isinstance(kind, model.PrimitiveType):
        return {"_Bool": "bool", "double": "float", "float": "float", "char": "bytes"}.get(kind.name, "int")
    return "int" if isinstance(kind, model.EnumType) else "CData"


def argument(kind: Any) -> str:
    """Return the Python type of an argument; a pointer to bytes accepts bytes as well."""
    if isinstance(kind, model.StructOrUnion):
        return f"{kind.name} | dict[str, Any]"
    if not is_pointer(kind):
        return result(kind)
    pointed = target(kind)
    if isinstance(pointed, model.VoidType):
        return "CData | bytes"
    if isinstance(pointed, model.PrimitiveType) and pointed.name in BYTES:
        return "Pointer[char] | Pointer[uint8_t] | bytes"
    return result(kind)


def pieces(module: Module) -> dict[str, Any]:
    """Return the module's declarations without those of the module that it includes."""
    parser = ffi_of(module)._parser
    found = {key: kind for key, (kind, _) in parser._declarations.items()}
    return {key: kind for key, kind in sorted(found.items()) if kind not in parser._included_declarations}


def structs_of(declared: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return each struct by the name of its class: its C spelling, and cffi's model."""
    found: dict[str, tuple[str, Any]] = {}
    for key, kind in declared.items():
        space, _, name = key.partition(" ")
        if isinstance(kind, model.StructOrUnion) and space in ("struct", "typedef", "anonymous"):
            spelled = name if space == "typedef" or f"typedef {name}" in declared else f"struct {name}"
            found.setdefault(name, (spelled, kind))
    return found


def struct_lines(name: str, kind: Any) -> Iterator[str]:
    """Yield the class of a struct."""
    if name != kind.name:
        yield f"{name} = {kind.name}"
        return
    fields = list(zip(kind.fldnames or (), kind.fldtypes or (), strict=True))
    yield f"class {name}(CData):" + ("" if fields else " ...")
    for field, of in fields:
        if iskeyword(field):
            continue
        if isinstance(of, model.ArrayType | model.StructOrUnion):
            yield "    @property"
            yield f"    def {field}(self) -> {result(of)}: ..."
            yield f"    @{field}.setter"
            yield f"    def {field}(self, value: {argument(of)} | Sequence[Any]) -> None: ..."
        else:
            yield f"    {field}: {result(of)}"


def function_line(name: str, kind: Any) -> str:
    """Return the method for a C function."""
    arguments = [f"{letter}: {argument(of)}" for letter, of in zip(letters(), kind.args, strict=False)]
    signature = ", ".join(["self", *arguments, "/"] if arguments else ["self"])
    return f"    def {name}({signature}) -> {result(kind.result)}: ..."


def letters() -> Iterator[str]:
    """Return names for positional parameters."""
    return (f"a{number}" for number in range(1, 100))


def constants_of(declared: dict[str, Any]) -> list[str]:
    """Return all enumerators and integer macros."""
    found = {key.split()[1] for key in declared if key.startswith(("macro ", "constant "))}
    for kind in declared.values():
        if isinstance(kind, model.EnumType):
            found.update(kind.enumerators)
    return sorted(found)


def allocation_lines(
    method: str, structs: dict[str, tuple[str, Any]], primitives: Sequence[str]
) -> Iterator[str]:
    """Yield the overloads of `ffi.new` or `ffi.cast`."""
    value = "init: Any = ..." if method == "new" else "source: Any"
    shapes = [(f"{spelled} ", name) for name, (spelled, _) in structs.items()]
    shapes += [(f"{SPELLED.get(name, name)} ", f"Pointer[{name}]") for name in primitives]
    for spelled, of in shapes:
        base = spelled.strip()
        yield "    @overload"
        yield f'    def {method}(self, cdecl: Literal["{base} *", "{base}[]"], {value}) -> {of}: ...'
        if not of.startswith("Pointer"):
            yield "    @overload"
            yield f'    def {method}(self, cdecl: Literal["{base} **"], {value}) -> Pointer[{of}]: ...'
    yield "    @overload"
    yield f"    def {method}(self, cdecl: Any, {value}) -> Any: ..."


def common_stub() -> str:
    """Return the text of the stub with the types that all modules use."""
    lines = [
        "from collections.abc import Iterator",
        "from typing import Any, Generic, Self, TypeVar, overload",
        BASE,
    ]
    lines += [f"class {name}({PRIMITIVE_BASES.get(name, 'int')}): ..." for name in PRIMITIVES]
    return "\n".join([*lines, "", METHODS])


def imported(module: str, names: Iterable[str]) -> str:
    """Return an import that exports the names again."""
    return f"from {module} import (\n" + "".join(f"    {name} as {name},\n" for name in sorted(names)) + ")"


def stub_of(module: Module) -> str:
    """Return the text of a module's stub."""
    declared = pieces(module)
    structs = structs_of(declared)
    functions = {key.split()[1]: kind for key, kind in declared.items() if key.startswith("function ")}
    shared = structs_of(pieces(module.includes)) if module.includes else {}
    lines = ["from collections.abc import Sequence", "from typing import Any, Literal, overload", ""]
    lines += [imported(COMMON, ["CData", "Ffi", "Pointer", *PRIMITIVES])]
    if module.includes:
        lines += [imported(module.includes.name, ["_Lib", *shared])]
    for name, (_, kind) in structs.items():
        lines += ["", *struct_lines(name, kind)]
    lines += ["", "class _ModuleLib(_Lib):" if module.includes else "class _Lib:"]
    lines += [f"    {name}: int" for name in constants_of(declared)]
    lines += [function_line(name, kind) for name, kind in functions.items()]
    lines += ["", "class _Ffi(Ffi):"]
    lines += allocation_lines("new", {**shared, **structs}, PRIMITIVES)
    lines += allocation_lines("cast", {**shared, **structs}, PRIMITIVES)
    lines += ["", "ffi: _Ffi", f"lib: {'_ModuleLib' if module.includes else '_Lib'}", ""]
    return "\n".join(lines)


def stub_path(name: str, destination: Path = ROOT) -> Path:
    """Return the path of a module's stub."""
    return destination / (name.replace(".", "/") + ".pyi")


def write_stubs(destination: Path = ROOT) -> None:
    """Write the stubs that have changed."""
    texts = {COMMON: common_stub(), **{module.name: stub_of(module) for module in MODULES}}
    for name, text in texts.items():
        path = stub_path(name, destination)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
