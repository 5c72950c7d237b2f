"""Options of the data source `umstack`, for reading live topics and for publishing rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from umstack.config import Config
from umstack.errors import OptionError
from umstack.recorder.background import BackgroundRecorder
from umstack.recorder.groups import GroupSet
from umstack.spark.option_names import unknown_options

_HINT = "docs/recording.md lists the options of the umstack data source"
STARTS = ("earliest", "latest")


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower(), str(default))
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"{name} is {text}: it must be a whole number above 0", hint=_HINT)
    return int(text)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower(), str(default))
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{name} is {text}: it must be a number of seconds", hint=_HINT) from None


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is {text}: it can be true or false", hint=_HINT)
    return text == "true"


def _list(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, (item.strip() for item in options.get(name, "").split(","))))


READ_OPTION_NAMES = (
    *("path", "journal", "topics", "topicPattern", "group", "startingOffset", "interface", "config"),
    *("journalMebibytes", "unreadSeconds", "maxRowsPerTrigger", "rowsPerPartition", "forgetCommitted"),
)
"""All options for reading live topics."""
PUBLISH_OPTION_NAMES = (
    *("path", "topic", "interface", "config", "waitReceivers", "timeout", "onRetry"),
    "checkpointLocation",
)
"""All options for publishing rows; the checkpoint is Spark's."""


def _lowered(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    if unknown := unknown_options(options, known):
        raise OptionError(
            f"the umstack data source has no option {', '.join(unknown)}",
            hint=f"there are {', '.join(known)}; docs/recording.md explains them",
        )
    return {name.lower(): value for name, value in options.items()}


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """A journal to read, and the recorder to start for it, if any."""

    journal: Path
    recorder: BackgroundRecorder | None
    start: str
    rows_per_trigger: int
    rows_per_partition: int
    forgets: bool
    """True if rows that a query has committed are released."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> LiveOptions:
        """Parse Spark's options, whose names are case-insensitive."""
        options = _lowered(given, READ_OPTION_NAMES)
        path = options.get("journal") or options.get("path")
        if not path:
            raise OptionError("no journal is named", hint='load("/var/journal"), or option("journal", ...)')
        topics, groups = _list(options, "topics"), _list(options, "group")
        pattern = options.get("topicpattern")
        if topics and pattern:
            raise OptionError("topics and topicPattern exclude each other", hint=_HINT)
        if groups and not (topics or pattern):
            raise OptionError(
                "group chooses what a recorder of the query's own subscribes to, and it has none",
                hint='name topics or topicPattern; or give the group to "umstack record --group"',
            )
        GroupSet.of(groups)  # check the groups now, even if a recorder runs already
        start = options.get("startingoffset", "earliest")
        if start not in STARTS:
            raise OptionError(f"startingOffset is {start}: it can be earliest or latest", hint=_HINT)
        recorder = None
        if topics or pattern:
            recorder = BackgroundRecorder(
                Path(path),
                (pattern,) if pattern else topics,
                regex=pattern is not None,
                groups=groups,
                interface=options.get("interface"),
                config_file=options.get("config"),
                journal_mebibytes=_count(options, "journalMebibytes", 1024),
                unread_seconds=_seconds(options, "unreadSeconds", 600.0),
            )
        return cls(
            journal=Path(path),
            recorder=recorder,
            start=start,
            rows_per_trigger=_count(options, "maxRowsPerTrigger", 2_000_000),
            rows_per_partition=_count(options, "rowsPerPartition", 100_000),
            forgets=_flag(options, "forgetCommitted")
            if "forgetcommitted" in options
            else recorder is not None,
        )


ON_RETRY = ("publish", "fail")


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The topics to publish rows to, and the receivers to wait for."""

    topic: str | None
    """The topic; None: the column `topic` of each row."""
    interface: str | None
    config: Config
    receivers: int
    timeout: float
    publishes_again: bool = True
    """True if a task that Spark repeats publishes all its rows again; the failed attempt may have sent some of them."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> PublishOptions:
        """Parse Spark's options."""
        options = _lowered(given, PUBLISH_OPTION_NAMES)
        receivers = options.get("waitreceivers", "1")
        if not receivers.isdecimal():
            raise OptionError(f"waitReceivers is {receivers}: it must be a whole number", hint=_HINT)
        on_retry = options.get("onretry", "publish")
        if on_retry not in ON_RETRY:
            raise OptionError(f"onRetry is {on_retry}: it can be publish or fail", hint=_HINT)
        file = options.get("config")
        return cls(
            topic=options.get("topic") or options.get("path"),
            interface=options.get("interface"),
            config=Config.load(file) if file else Config(),
            receivers=int(receivers),
            timeout=_seconds(options, "timeout", 60.0),
            publishes_again=on_retry == "publish",
        )
