"""Configurations: they are read, or refused with the wrong line, and settings read survive being written again."""

from __future__ import annotations

import contextlib

from umstack.config import Config, ContextOptions, ReceiverOptions, SourceOptions
from umstack.config.option import options_of
from umstack.errors import UmError

INSTRUMENTED = ("umstack.config",)


_OPTIONS = [
    option
    for holder in (ContextOptions, SourceOptions, ReceiverOptions)
    for option in options_of(holder).values()
]
_VALUES = (
    "0",
    "1",
    "-1",
    "1e99",
    "nan",
    "0.5",
    "65535",
    "4294967296",
    "224.10.10.10",
    "0.0.0.0",
    '""',
    '"a b"',
    "x" * 300,
)


def _lines(data: bytes) -> str:
    """Return lines of existing options: three bytes choose the option, its value and the rest of the line."""
    lines = []
    for which, value, extra in zip(data[::3], data[1::3], data[2::3], strict=False):
        option = _OPTIONS[(which + 256 * (extra & 1)) % len(_OPTIONS)]
        values = (*_VALUES, str(option.spec.default), str(option.spec.minimum), str(option.spec.maximum))
        text = f"{option.scope} {option.name} {values[value % len(values)]}"
        lines.append(
            text + (" # " + chr(extra) if extra & 2 else "") + (" more" if extra & 252 == 252 else "")
        )
    return "\n".join(lines)


def one_input(data: bytes) -> None:
    """Parse lines of options, or a text in UTF-8, or in Latin-1 if it is not UTF-8."""
    kind, data = data[:1], data[1:]
    try:
        text = _lines(data) if kind > b"\x80" else data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        config = Config.parse(text)
    except UmError:
        return
    written = "".join(
        f'{one.option.scope} {one.option.name} "{one.text}"\n'
        for one in config.settings()
        if '"' not in one.text and "\\" not in one.text
    )
    again = {(one.option.scope, one.option.name): one.text for one in Config.parse(written).settings()}
    assert all(config.get(scope, name).text == text for (scope, name), text in again.items())  # type: ignore[union-attr]
    for build in (config.lint, config.context_options, config.source_options, config.receiver_options):
        with contextlib.suppress(UmError):
            build()
