"""Ultra Messaging's XML configuration files as a checked tree: known elements and attributes only, entities refused.

The vendor's Configuration Guide documents the elements. A file from an untrusted writer costs no more than its length,
because expat expands no entity and loads no other file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from umstack.errors import OptionError

ROOT = "um-configuration"
_TEXTS = frozenset({"license", "application-data", "allow", "deny"})
_CHILDREN: Mapping[str, frozenset[str]] = {
    name: frozenset(children.split())
    for name, children in {
        ROOT: "license templates applications",
        "templates": "template",
        "template": "options",
        "options": "option application-data",
        "option": "allow deny",
        "applications": "application",
        "application": "contexts event-queues hfxs application-data",
        "contexts": "context",
        "context": "sources receivers wildcard-receivers options",
        "sources": "topic",
        "receivers": "topic",
        "hfxs": "topic",
        "topic": "options",
        "wildcard-receivers": "wildcard-receiver",
        "wildcard-receiver": "options",
        "event-queues": "event-queue",
        "event-queue": "options",
        **dict.fromkeys(_TEXTS, ""),
    }.items()
}
_GROUP, _MEMBER = ("template", "order"), ("template", "rule")
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    ROOT: ("version",),
    "license": ("format",),
    "template": ("name",),
    "options": ("type",),
    "option": ("name", "default-value", "order"),
    "application": ("name", "template"),
    **dict.fromkeys(
        ("contexts", "sources", "receivers", "hfxs", "wildcard-receivers", "event-queues"), _GROUP
    ),
    "context": ("name", *_MEMBER),
    "event-queue": ("name", *_MEMBER),
    "topic": ("topicname", "pattern", *_MEMBER),
    "wildcard-receiver": ("pattern", "pattern-type", *_MEMBER),
}
_REQUIRED = {"template": "name", "options": "type", "option": "name"}
_VALUES = {"order": ("deny,allow", "allow,deny"), "rule": ("allow", "deny")}
_DEPTH_MAX = 16


class XmlError(OptionError):
    """An OptionError at a line of an XML document."""

    def __init__(self, message: str, line: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line


@dataclass(slots=True)
class Element:
    """An element, its attributes, its line (from 1), and its contents."""

    name: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, attribute: str) -> str | None:
        """Return an attribute's value without surrounding blanks, or None; `order` and `rule` without any blanks."""
        value = self.attributes.get(attribute)
        if value is None:
            return None
        return "".join(value.split()) if attribute in _VALUES else value.strip()

    def named(self, *names: str) -> Iterator[Element]:
        """Yield the children with one of these names."""
        return (child for child in self.children if child.name in names)

    def all(self, name: str) -> Iterator[Element]:
        """Yield the elements below this one with this name, at any depth."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.all(name)

    def __str__(self) -> str:
        shown = next(
            (one for one in ("name", "topicname", "pattern", "type") if one in self.attributes), None
        )
        return f"<{self.name}>" if shown is None else f'<{self.name} {shown}="{self.attributes[shown]}">'


def is_xml(text: str) -> bool:
    """Return true if a configuration text is an XML document."""
    return text.lstrip().startswith("<")


def parse_document(text: str) -> Element:
    """Return the root of a document. Raises XmlError for what is not XML, and for unknown elements and attributes."""
    builder = _Builder()
    try:
        builder.parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        message = f"not well-formed XML: {expat.ErrorString(error.code)}"
        raise XmlError(message, error.lineno, hint="correct the file at this line") from None
    return builder.root


class _Builder:
    """Builds the tree of one document."""

    def __init__(self) -> None:
        # The text is passed in UTF-8, whatever encoding is declared.
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.EntityDeclHandler = self._entity
        self.root = Element("", {}, 0)
        self._open: list[Element] = []

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        element = Element(name, attributes, self.parser.CurrentLineNumber)
        parent = self._open[-1] if self._open else None
        if len(self._open) == _DEPTH_MAX:
            raise XmlError("elements are nested too deeply", element.line)
        known = _CHILDREN[parent.name] if parent is not None else frozenset({ROOT})
        if name not in known:
            raise _unknown_element(element, parent, known)
        _check_attributes(element)
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._open.pop()

    def _characters(self, data: str) -> None:
        element = self._open[-1]
        if element.name in _TEXTS:
            element.text += data
        elif data.strip():
            line = self.parser.CurrentLineNumber
            raise XmlError(
                f"{element} has no text", line, hint='write <option name="..." default-value="..."/>'
            )

    def _entity(self, name: str, *_: object) -> None:
        raise XmlError(
            f"the entity {name} is declared", self.parser.CurrentLineNumber, hint="write its text instead"
        )


def _unknown_element(element: Element, parent: Element | None, known: frozenset[str]) -> XmlError:
    place = "the document's root" if parent is None else str(parent)
    if element.name.endswith(":include"):
        hint = "put the elements of that file here"
        return XmlError(f"{element} in {place}: other files are not included", element.line, hint=hint)
    hint = f"there can be {', '.join(f'<{one}>' for one in sorted(known))}" if known else "it has text only"
    return XmlError(f"{place} has no element {element}", element.line, hint=hint)


def _check_attributes(element: Element) -> None:
    known = (*_ATTRIBUTES.get(element.name, ()), "xml:space")
    for name, value in element.attributes.items():
        if name.startswith("xmlns"):
            continue
        if name not in known:
            hint = f"there can be {', '.join(known[:-1]) or 'none'}"
            raise XmlError(f"<{element.name}> has no attribute {name}", element.line, hint=hint)
        allowed = _VALUES.get(name)
        if allowed is not None and element.get(name) not in allowed:
            hint = f"it can be {' or '.join(allowed)}"
            raise XmlError(f'{element}: {name} is "{value}"', element.line, hint=hint)
    required = _REQUIRED.get(element.name)
    if required is not None and not element.attributes.get(required, "").strip():
        raise XmlError(f"<{element.name}> has no {required}", element.line, hint=f'write {required}="..."')
    if "topicname" in element.attributes and "pattern" in element.attributes:
        hint = "a topic is matched by its name or by a regular expression"
        raise XmlError(f"{element} has a topicname and a pattern", element.line, hint=hint)
