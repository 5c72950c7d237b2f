"""Configurations: read or refused with the line that is wrong, and what is read survives being written again."""

from __future__ import annotations

from umstack.config import Config
from umstack.errors import UmError

INSTRUMENTED = ("umstack.config",)


def one_input(data: bytes) -> None:
    """A text in UTF-8, or in Latin-1 if it is none."""
    try:
        text = data.decode()
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
    config.lint()
    for build in (config.context_options, config.source_options, config.receiver_options):
        try:
            build()
        except UmError:
            pass
