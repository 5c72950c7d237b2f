"""Renders docs/options.md from the option table: `python -m umstack.config > docs/options.md`."""

from __future__ import annotations

from umstack.config.absent_options import ABSENT_OPTIONS, ABSENT_SCOPES
from umstack.config.option import Option, allowed_values
from umstack.config.setting import OPTIONS

_INTRODUCTION = """\
# Options

Generated from `umstack/config/` by `python -m umstack.config`; edit the tables there.

Set them in a configuration file, one `scope option value` per line, or as keyword arguments with the same names:

    # um.cfg
    context  default_interface                        eth1
    source   transport_lbtrm_transmission_window_size 50331648
    receiver transport_lbtrm_nak_backoff_interval     20

`umstack.Context(config="um.cfg")`, `ctx.source("orders", flow_control="min")`. Names and scopes may be in any
case, `#` starts a comment, quotes enclose a value with blanks, a later line wins. Durations may have
decimals (`0.05`). Options and defaults are Ultra Messaging's; *extension* marks ours, and the last column
gives the reason if a default differs.

Ultra Messaging's [XML configuration](coming-from-ultra-messaging.md#xml-configuration-files) is read, too.

`umstack config check um.cfg` checks every line of a file and the relations between options, `umstack config dump`
shows the values in force and their origin, `umstack config diff` compares two files."""


def render_options_markdown() -> str:
    """Return the text of docs/options.md."""
    lines = [_INTRODUCTION, *_differences()]
    for scope, options in OPTIONS.items():
        lines += [
            "",
            f"## {scope}",
            "",
            "| option | unit | default | UM default | values | meaning | why it differs |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_row(option) for option in options.values()]
    lines += ["", "## UM options without a counterpart", "", "| options | why |", "|---|---|"]
    lines += [f"| {', '.join(f'`{n}`' for n in a.names)} | {a.reason} |" for a in ABSENT_OPTIONS]
    lines += ["", "| scope | why |", "|---|---|"]
    lines += [f"| `{scope}` | {reason} |" for scope, reason in ABSENT_SCOPES.items()]
    return "\n".join(lines) + "\n"


def _differences() -> list[str]:
    """Return the table of the options whose default is not UM's."""
    heading = ["", "## Defaults that differ from UM's", ""]
    table = ["| scope | option | unit | default | UM default | why |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {scope} | `{name}` | {option.spec.kind} | {option.spec.default} | {option.spec.um} | {option.spec.reason} |"
        for scope, options in OPTIONS.items()
        for name, option in options.items()
        if option.spec.um is not None and str(option.spec.um) != str(option.spec.default)
    ]
    return [*heading, *table, *rows]


def _row(option: Option) -> str:
    spec = option.spec
    um = "*extension*" if spec.um is None else str(spec.um)
    zero = f" (0: {spec.zero})" if spec.zero and spec.minimum in (None, 0) else ""
    cells = (
        f"`{option.name}`",
        str(spec.kind),
        str(spec.default),
        um,
        allowed_values(spec) + zero,
        spec.doc,
        spec.reason,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
