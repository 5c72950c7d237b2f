"""The settings of one application and context in an XML configuration file of Ultra Messaging.

Later settings win, from the outside in: templates of the application, of its contexts and of the context; options of
the context; then, for a topic, the template of its group (`<sources>`, `<receivers>`), and templates and options of
each element that matches its name, in the order of the file. `order` and `rule` restrict topics, `<allow>` and
`<deny>` restrict values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from umstack.config.absent_options import ABSENT_SCOPES
from umstack.config.option import Option, Scope, StoredValue, shown
from umstack.config.setting import Setting, find_option, find_scope
from umstack.config.xml_document import Element, XmlError, parse_document
from umstack.errors import OptionAbsent, OptionError

_GROUPS = {
    "sources": Scope.SOURCE,
    "receivers": Scope.RECEIVER,
    "wildcard-receivers": Scope.WILDCARD_RECEIVER,
}
NO_APPLICATION = "the file has no application"
NO_APPLICATION_HINT = "an application uses its own element: <applications> <application>"


@dataclass(frozen=True, slots=True)
class Limit:
    """The values that a file allows for an option."""

    option: Option
    allowed: tuple[StoredValue, ...]
    denied: tuple[StoredValue, ...]
    is_allowed_otherwise: bool
    origin: str

    def check(self, value: StoredValue) -> None:
        """Raise OptionError for a value that is denied."""
        if not _is_allowed(self.is_allowed_otherwise, value in self.allowed, value in self.denied):
            names = ", ".join(shown(self.option.spec, one) for one in self.allowed)
            raise OptionError(
                f"{self.option.scope} option {self.option.name} must not be {shown(self.option.spec, value)}: "
                f"{self.origin} denies it",
                hint=f"it allows {names}" if names else "use another value, or change the file",
            )


@dataclass(frozen=True, slots=True)
class Content:
    """Settings and limits, in the order of their precedence."""

    settings: tuple[Setting, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __add__(self, other: Content) -> Content:
        return Content(self.settings + other.settings, self.limits + other.limits)


@dataclass(frozen=True, slots=True)
class TopicRule:
    """An element that matches topics by name or pattern; neither: all topics."""

    name: str | None
    pattern: re.Pattern[str] | None
    is_allowed: bool
    content: Content
    line: int

    def matches(self, topic: str) -> bool:
        """Return true if the element is for a topic. A pattern may match anywhere in its name."""
        if self.name is not None:
            return self.name == topic
        return self.pattern is None or self.pattern.search(topic) is not None


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The elements of one group, and what holds for topics that none matches."""

    scope: Scope
    content: Content = field(default_factory=Content)
    rules: tuple[TopicRule, ...] = ()
    is_allowed_otherwise: bool = True
    origin: str = ""

    def content_of(self, topic: str) -> Content:
        """Return what holds for a topic. Raises OptionError if the file denies it."""
        matching = [rule for rule in self.rules if rule.matches(topic)]
        verdicts = {rule.is_allowed for rule in matching}
        if not _is_allowed(self.is_allowed_otherwise, True in verdicts, False in verdicts):
            raise OptionError(
                f"{self.origin} denies {self.scope} topic {topic!r}",
                hint="name it there in a topic element whose rule is allow",
            )
        return sum((rule.content for rule in matching), self.content)


@dataclass(frozen=True, slots=True)
class XmlContext:
    """The content of a file for a context of an application, and for its topics."""

    content: Content
    topics: Mapping[Scope, TopicRules]


class XmlFile:
    """A document of which applications and contexts can be chosen."""

    def __init__(self, text: str, file: str) -> None:
        """Read a text. Raises XmlError for a document that is not an Ultra Messaging configuration."""
        self._root = parse_document(text)
        self._file = file
        self._templates = {
            str(one.get("name")): one for part in self._root.named("templates") for one in part.children
        }
        self.applications = [one for part in self._root.named("applications") for one in part.children]

    def options(self) -> Iterator[tuple[Element, Element]]:
        """Yield each option of the file with its `<options>`."""
        for options in self._root.all("options"):
            for option in options.named("option"):
                yield options, option

    def application(self, name: str | None) -> Element:
        """Return an application; None: the one without a name, or the only one."""
        if not self.applications:
            raise XmlError(NO_APPLICATION, self._root.line, hint=NO_APPLICATION_HINT)
        named = {one.get("name"): one for one in self.applications}
        if name in named:
            return named[name]
        if name is None and len(self.applications) == 1:
            return self.applications[0]
        names = ", ".join(sorted(str(one) for one in named if one is not None)) or "none with a name"
        wanted = "several applications" if name is None else f"no application {name!r}"
        hint = f'choose with "{self._file}#NAME" or application=; there are {names}'
        raise XmlError(f"the file has {wanted}", self._root.line, hint=hint)

    def contexts(self, application: Element) -> list[Element]:
        """Return the contexts of an application."""
        return [one for part in application.named("contexts") for one in part.children]

    def context(self, application: Element, name: str | None) -> Element | None:
        """Return a context of an application; None as name: the one without, or the only one."""
        contexts = self.contexts(application)
        named = {one.get("name"): one for one in contexts}
        if name in named:
            found: Element | None = named[name]
        else:
            found = contexts[0] if name is None and len(contexts) == 1 else None
        if found is None and name is None and contexts:
            names = ", ".join(str(one) for one in named)
            raise XmlError(
                f"{application} has several contexts", application.line, hint=f"choose with context=: {names}"
            )
        groups = list(application.named("contexts"))
        is_denied = _denies(found) if found is not None else not all(map(_allows_otherwise, groups))
        if is_denied:
            what = "a context without a name" if name is None else f"context {name!r}"
            raise XmlError(
                f"{application} denies {what}", application.line, hint="allow it there, or use another"
            )
        return found

    def chosen(self, application: str | None, context: str | None) -> XmlContext:
        """Return what holds for a context of an application. Raises XmlError for the first wrong option."""
        chosen = self.application(application)
        return self.read(chosen, self.context(chosen, context))

    def read(self, application: Element, context: Element | None) -> XmlContext:
        """The same for elements of this file."""
        content = self._template_of(application)
        for group in application.named("contexts"):
            content += self._template_of(group)
        topics = {}
        if context is not None:
            content += self._template_of(context) + self._own(context)
            topics = {
                _GROUPS[group.name]: self._group(group, _GROUPS[group.name])
                for group in context.named(*_GROUPS)
            }
        for group in application.named("event-queues"):
            content += self._template_of(group)
            for queue in group.named("event-queue"):
                if queue.get("name") and queue.children:
                    raise _Absent(queue.line, f"{queue} exists only without a name here", "remove the name")
                content += self._template_of(queue) + self._own(queue)
        if any(group.children for group in application.named("hfxs")):
            raise _Absent(application.line, f"{application} has <hfxs>", f"remove it: {ABSENT_SCOPES['hfx']}")
        return XmlContext(content, topics)

    def _group(self, group: Element, scope: Scope) -> TopicRules:
        rules = tuple(self._rule(one) for one in group.children)
        content = self._template_of(group)
        return TopicRules(scope, content, rules, _allows_otherwise(group), f"{self._file}:{group.line}")

    def _rule(self, element: Element) -> TopicRule:
        pattern = element.get("pattern")
        try:
            compiled = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise XmlError(f"{element}: not a regular expression: {error}", element.line) from None
        content = self._template_of(element) + self._own(element)
        name = element.get("topicname")
        if element.name == "wildcard-receiver":
            # Patterns of receivers are compared as texts.
            name, compiled = pattern, None
        return TopicRule(name, compiled, not _denies(element), content, element.line)

    def _template_of(self, element: Element) -> Content:
        name = element.get("template")
        if not name:
            return Content()
        if name not in self._templates:
            names = ", ".join(self._templates) or "none"
            raise XmlError(
                f"{element}: there is no template {name!r}", element.line, hint=f"there are: {names}"
            )
        return self._own(self._templates[name])

    def _own(self, element: Element) -> Content:
        content = Content()
        for options in element.named("options"):
            for option in options.named("option"):
                content += read_option(options, option, self._file)
        return content


class _Absent(XmlError, OptionAbsent):
    """Something that the vendor's files have and this stack does not."""

    def __init__(self, line: int, message: str, hint: str) -> None:
        super().__init__(message, line, hint=hint)


def read_option(options: Element, option: Element, file: str) -> Content:
    """Return an option's setting, if it has a value, and its limit. Raises XmlError with the option's line."""
    origin = f"{file}:{option.line}"
    try:
        scope = find_scope(str(options.get("type")).replace("-", "_"))
        known = find_option(scope, str(option.get("name")))
        text = option.get("default-value")
        settings = () if text is None else (Setting(known, known.read(text), origin),)
        allowed = tuple(known.read(_text(one)) for one in option.named("allow"))
        denied = tuple(known.read(_text(one)) for one in option.named("deny"))
    except OptionAbsent as error:
        raise _Absent(option.line, f"{option}: {error.message}", str(error.hint)) from None
    except OptionError as error:
        raise XmlError(f"{option}: {error.message}", option.line, hint=error.hint) from None
    otherwise = _allows_otherwise(option)
    is_limited = bool(allowed or denied or not otherwise)
    limits = (Limit(known, allowed, denied, otherwise, origin),) if is_limited else ()
    return Content(settings, limits)


def _text(element: Element) -> str:
    return (
        element.text if element.attributes.get("xml:space") == "preserve" else " ".join(element.text.split())
    )


def _denies(element: Element) -> bool:
    return element.get("rule") == "deny"


def _allows_otherwise(element: Element) -> bool:
    """Return true if what no rule names is allowed: `order` names the kind of rule that is applied last."""
    return element.get("order") != "allow,deny"


def _is_allowed(is_allowed_otherwise: bool, is_allowed: bool, is_denied: bool) -> bool:
    """Return the verdict on what rules allow, deny, or both: the kind that `order` names last decides."""
    return is_allowed or not is_denied if is_allowed_otherwise else is_allowed and not is_denied
