"""The C declarations that Python sees, taken from the headers: the text that cffi reads, in the order that it requires.

A `Header` in the list of a module (ffi/modules.py) selects a header and how much of it is read. A header that is read
whole contributes its functions, enums, integer macros and structs; any other contributes only the names listed. Types
that these declarations need follow from the included headers: a type used by value is read whole, a type used only
through pointers stays opaque. Function bodies, inline functions that are not listed, assertions and include guards are
omitted.

cffi asks the compiler for every number: enumerators lose their values, arrays their lengths, and structs end with
`...`, so that the layout is the compiler's. A field that cffi cannot read (atomic, function pointer, a type of a system
header) is omitted from the struct; nothing else changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

FFI = Path(__file__).resolve().parent
PRIMITIVES = {
    *("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned"),
    *("size_t", "ssize_t", "intptr_t", "uintptr_t", "int8_t", "int16_t", "int32_t", "int64_t"),
    *("uint8_t", "uint16_t", "uint32_t", "uint64_t"),
}
QUALIFIERS = {"const", "struct", "enum", "union", "volatile", "restrict", "extern", "static", "inline"}
UNREADABLE = re.compile(r"\b_Atomic\b|\batomic_\w+|\b_Alignas\b|\bUM_CACHE_ALIGNED\b|\(|\{")
INTEGER_MACRO = re.compile(r"\(?\s*-?\s*(?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*(?:\s*<<\s*\d+)?\s*\)?")


class DeclarationError(Exception):
    """A name that no header declares, or a declaration that cffi cannot read."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header of a module's list, by its path as C includes it."""

    path: str
    names: tuple[str, ...] = ()
    """Read only these declarations; empty: read the whole header. `struct.field`: only such fields of that struct."""
    but: tuple[str, ...] = ()
    """Exclude these declarations, which only C uses, from a header that is read whole."""
    inline: tuple[str, ...] = ()
    """Inline functions that Python calls."""
    sized: tuple[str, ...] = ()
    """Structs that Python allocates but whose fields only C uses."""
    opaque: tuple[str, ...] = ()
    """Structs that Python only has pointers to, though their header is read whole."""


@dataclass(slots=True)
class Declaration:
    """One declaration of a header."""

    kind: str
    """struct, enum, alias, function, inline or macro."""
    name: str
    text: str
    """struct, enum: the text between the braces; function: the prototype; alias: the typedef."""
    has_tag: bool = True
    is_typedef: bool = False
    constants: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key in the index: a tag without a typedef is prefixed, because a function may have the same name."""
        return f"struct {self.name}" if self.kind == "struct" and not self.is_typedef else self.name


@dataclass(slots=True)
class Index:
    """The declarations of some headers and of the headers that they include, by name."""

    declarations: dict[str, Declaration] = field(default_factory=dict)
    of_header: dict[str, list[str]] = field(default_factory=dict)

    def read(self, header: str) -> None:
        """Read a header and every header of ours that it includes."""
        if header in self.of_header:
            return
        path = (FFI / header).resolve()
        text = without_comments(path.read_text())
        for included in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
            self.read(included)
        self.of_header[header] = []
        for declaration in declarations_of(text):
            self.add(header, declaration)

    def add(self, header: str, declaration: Declaration) -> None:
        """Add one declaration; the body and the typedef of a struct or enum may be separate declarations."""
        known = self.declarations.get(declaration.name)
        if known is None or known.kind != declaration.kind:
            known = self.declarations.get(declaration.key)
        if known is not None and known.kind == declaration.kind and known.kind in ("struct", "enum"):
            known.is_typedef |= declaration.is_typedef
            if not known.text:
                known.text, known.constants = declaration.text, declaration.constants
            declaration = known
        elif known is None or declaration.kind != "inline":
            self.declarations[declaration.key] = declaration
        for constant in declaration.constants:
            self.declarations[constant] = declaration
        self.of_header[header].append(declaration.key)


def without_comments(text: str) -> str:
    """Return C text without comments and line continuations."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    return text.replace("\\\n", " ")


def statements(text: str) -> Iterator[str]:
    """Split C text without preprocessor lines at the semicolons and function bodies of its top level."""
    depth, begin = 0, 0
    for at, character in enumerate(text):
        if character in "({[":
            depth += 1
        elif character in ")}]":
            depth -= 1
            is_body = character == "}" and ")" in text[begin:at].partition("{")[0]
            if depth == 0 and is_body:
                yield text[begin : at + 1].strip()
                begin = at + 1
        elif character == ";" and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1


def split_list(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def declarations_of(text: str) -> Iterator[Declaration]:
    """Yield the declarations in the text of a header."""
    for name, value in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*)$", text, re.MULTILINE):
        yield Declaration("macro", name, value.strip())
    anonymous_count = 0
    for statement in statements(re.sub(r"^[ \t]*#[^\n]*$", "", text, flags=re.MULTILINE)):
        if aggregate := re.fullmatch(
            r"(typedef\s+)?(struct|enum|union)\s*(\w*)\s*\{(.*)\}\s*(\w*)", statement, re.DOTALL
        ):
            typedef, kind, tag, body, alias = aggregate.groups()
            names = [re.match(r"\w+", part)[0] for part in split_list(body)] if kind == "enum" else []  # type: ignore[index]
            anonymous_count += not (tag or alias)
            name = alias or tag or f"enum of {names[0]}"
            yield Declaration(kind, name, body, bool(tag), bool(typedef), tuple(names))
        elif forward := re.fullmatch(r"(typedef\s+)?(struct|enum)\s+(\w+)(?:\s+\3)?", statement):
            yield Declaration(forward[2], forward[3], "", True, bool(forward[1]))
        elif statement.startswith("typedef"):
            if pointer := re.search(r"\(\s*\*\s*(\w+)\s*\)", statement):
                yield Declaration("alias", pointer[1], statement)
            elif plain := re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", statement):
                yield Declaration("alias", plain[1], statement)
        elif function := re.match(r"(?!_Static_assert)[\w\s*]*?(\w+)\s*\(", statement):
            prototype = re.sub(r"\b(static|inline)\b\s*", "", statement.partition("{")[0]).strip()
            yield Declaration("inline" if statement.endswith("}") else "function", function[1], prototype)


@dataclass(slots=True)
class Selection:
    """The declarations that a module exposes to Python, each with how much of it, in the order that cffi requires."""

    index: Index
    outside: frozenset[str]
    """Names exposed by an included module, or declared in ffi/cdef/."""
    sized: set[str]
    opaque: set[str]
    shown_fields: dict[str, set[str]]
    whole: dict[str, None] = field(default_factory=dict)
    pointed_to: dict[str, None] = field(default_factory=dict)

    def take(self, name: str) -> None:
        """Take a declaration, after the declarations that it needs."""
        if name in self.outside or name in self.whole:
            return
        declaration = self.index.declarations.get(name)
        if declaration is None:
            raise DeclarationError(f"no header that is read declares {name}")
        if declaration.kind == "struct" and (name in self.opaque or not declaration.text):
            self.pointed_to[name] = None
            return
        if declaration.kind == "struct":
            self.pointed_to[name] = None
            for part in self.fields(declaration):
                self.take_types(part)
        elif declaration.kind in ("function", "inline"):
            arguments = declaration.text.partition("(")[2].rpartition(")")[0]
            for part in [declaration.text.partition("(")[0], *split_list(arguments)]:
                self.take_types(part)
        elif declaration.kind == "alias":
            self.take_types(declaration.text.removeprefix("typedef"))
        self.whole[declaration.key] = None

    def take_types(self, text: str) -> None:
        """Take the type of a field, parameter or result: whole, or opaque if it is only pointed to."""
        for name in types_in(text):
            if name in self.outside:
                continue
            declaration = self.index.declarations.get(name)
            if declaration is None:
                raise DeclarationError(f"no header that is read declares the type of `{text.strip()}`")
            if declaration.kind == "struct" and "*" in text:
                self.pointed_to[name] = None
            else:
                self.take(name)

    def fields(self, struct: Declaration) -> list[str]:
        """Return the fields of a struct that cffi can read."""
        if struct.name in self.sized:
            return []
        parts = [part.strip() for part in statements(struct.text)]
        if shown := self.shown_fields.get(struct.name):
            parts = [part for part in parts if shown & set(re.findall(r"\w+", part)[-1:])]
        return [part for part in parts if not UNREADABLE.search(part) and self.is_known(part)]

    def is_known(self, text: str) -> bool:
        """Return true if the type of a field is declared in a header that this module reads."""
        return all(name in self.outside or name in self.index.declarations for name in types_in(text))

    def text(self) -> str:
        """Return the text that cffi reads."""
        lines = []
        for name in self.pointed_to:
            struct = self.index.declarations[name]
            if struct.has_tag:
                lines.append(f"typedef struct {name} {name};" if struct.is_typedef else f"{name};")
        lines += [self.declaration_text(self.index.declarations[name]) for name in self.whole]
        return "\n".join(lines) + "\n"

    def declaration_text(self, declaration: Declaration) -> str:
        """Return the text of one declaration for cffi."""
        name = declaration.name
        if declaration.kind == "enum":
            tag = f" {name}" if declaration.has_tag else ""
            body = f"enum{tag} {{ {', '.join(declaration.constants)}, ... }}"
            return f"typedef {body} {name};" if declaration.is_typedef else f"{body};"
        if declaration.kind == "macro":
            return f"#define {name} ..."
        if declaration.kind == "struct":
            parts = [re.sub(r"\[[^\]]*\]", "[...]", part) for part in self.fields(declaration)]
            body = " ".join(f"{part};" for part in [*parts, "..."])
            return (
                f"struct {name} {{ {body} }};"
                if declaration.has_tag
                else f"typedef struct {{ {body} }} {name};"
            )
        return " ".join(declaration.text.split()) + ";"


def types_in(text: str) -> list[str]:
    """Return the type of a field, parameter, result or alias, in a list that is empty for primitives."""
    words = re.findall(r"\b[A-Za-z_]\w*\b", re.sub(r"\[[^\]]*\]", "", text))
    tags = [f"struct {tag}" for word, tag in pairwise(words) if word == "struct"]
    words = [word for word in words if word not in QUALIFIERS]
    if not words or words[0] in PRIMITIVES:
        return []
    return tags[:1] or words[:1]


def is_integer(declaration: Declaration) -> bool:
    """Return true if a macro stands for a number."""
    return bool(INTEGER_MACRO.fullmatch(declaration.text))


def names_of(header: Header, index: Index) -> Iterator[str]:
    """Yield the names that a module's list selects from one header."""
    yield from header.inline
    yield from header.sized
    if header.names:
        yield from dict.fromkeys(name.partition(".")[0] for name in header.names)
        return
    for name in index.of_header[header.path]:
        declaration = index.declarations[name]
        is_shown = declaration.kind != "inline" and (declaration.kind != "macro" or is_integer(declaration))
        if is_shown and name not in header.but:
            yield name


def select(headers: Iterable[Header], outside: Iterable[str] = ()) -> Selection:
    """Return all declarations that a list of headers exposes; `outside` are names declared elsewhere."""
    headers = list(headers)
    index = Index()
    for header in headers:
        index.read(header.path)
    sized = {name for header in headers for name in header.sized}
    opaque = {name for header in headers for name in header.opaque}
    shown_fields: dict[str, set[str]] = {}
    for name in (name for header in headers for name in header.names if "." in name):
        struct, _, shown = name.partition(".")
        shown_fields.setdefault(struct, set()).add(shown)
    selection = Selection(index, frozenset(outside), sized, opaque, shown_fields)
    for header in headers:
        for name in names_of(header, index):
            selection.take(name)
    return selection


def names_in(text: str) -> set[str]:
    """Return the names declared in the text of a declaration file."""
    return {declaration.key for declaration in declarations_of(without_comments(text))}
