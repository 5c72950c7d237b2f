"""The report page: one self-contained HTML file that opens without network access."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence

from umstack.charts import chart_library
from umstack.foreign_text import displayed
from umstack.report import plots
from umstack.report.figures import Figures, shown_figures, where_seen_best
from umstack.report.findings import RECOVERIES, Finding, topic_name
from umstack.report.quantities import bit_rate, count, duration, moment, session_name, several, share, volume
from umstack.report.stall_text import stall_cause
from umstack.report.summary import Row, Summary
from umstack.report.verdict import Verdict, problems_of

Column = tuple[str, Callable[[Row], str]]

_NAMED = 3
_CAPTURES = 5
_RUNS = 8

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2530; margin: 0 auto; max-width: 72rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.under { color: #5a6673; margin: .2rem 0 1rem; }
.side { display: flex; flex-wrap: wrap; gap: 1.5rem; } .side > div { flex: 1 1 22rem; min-width: 0; }
.verdict { border-left: 6px solid #b6c2cd; padding: .1rem 0 .1rem .9rem; }
.verdict h1 { font-size: 1.45rem; line-height: 1.3; overflow-wrap: anywhere; }
.verdict.bad, .problems li.bad { border-color: #c23b3b; }
.verdict.worth_a_look, .problems li { border-color: #e08a1e; }
.verdict.good { border-color: #3d8f4f; }
.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: .8rem; margin: 1.2rem 0 0; }
.figures div { background: #f6f8fa; padding: .6rem .8rem; min-width: 0; overflow-wrap: anywhere; }
.figures dt, .figures dd + dd { color: #5a6673; font-size: .85rem; }
.figures dd { margin: 0; } .figures dd.value { font-size: 1.45rem; font-weight: 600; color: #1c2530; }
ol.problems, ul.plain { list-style: none; padding: 0; margin: .4rem 0; overflow-wrap: anywhere; }
ol.problems li { border-left: 4px solid #e08a1e; padding: .45rem .8rem; margin: .5rem 0; background: #f6f8fa; }
ol.problems p { margin: .15rem 0; } ul.plain li { padding: .25rem 0; border-bottom: 1px solid #e6ebef; }
details { border-top: 1px solid #ccd5dd; padding: .45rem 0; } summary { cursor: pointer; font-weight: 600; }
summary span { color: #5a6673; font-weight: 400; }
table { border-collapse: collapse; font-size: .88rem; } .scroll { overflow-x: auto; }
th { text-align: left; border-bottom: 2px solid #ccd5dd; } td { border-bottom: 1px solid #e6ebef; }
th, td { padding: .25rem .7rem .25rem 0; vertical-align: top; }
td { white-space: nowrap; } td.text { white-space: normal; min-width: 9rem; overflow-wrap: break-word; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; }
@media (max-width: 40rem) { body { padding: .8rem; } .figures { grid-template-columns: repeat(2, 1fr); gap: .5rem; }
  .verdict h1 { font-size: 1.15rem; } .figures dd.value { font-size: 1.2rem; }
  td.text { min-width: 8.5rem; } table { font-size: .8rem; } }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { color: #5a6673; font-size: .85rem; margin-top: 2.5rem; }
"""


def _text(name: str, key: str | Callable[[Row], object]) -> Column:
    value = key if callable(key) else lambda row: row[key]
    return name, lambda row: html.escape(str(value(row)))


def _number(name: str, key: str, shown: Callable[[float | None], str] = count) -> Column:
    return f"#{name}", lambda row: html.escape(shown(row[key]))


_SESSION = _text("session", session_name)
_POINT = _text("captured at", "point")
_RECEIVER = _text("receiver", lambda row: row["receiver"] or "unknown")

# Title, table, explanation, columns.
_TABLES: tuple[tuple[str, str, str, Sequence[Column]], ...] = (
    (
        "Receivers",
        "recovery_latency",
        "Losses and waiting times of each receiver: from its first NAK to the retransmission, and from the loss.",
        (
            _SESSION,
            _RECEIVER,
            _number("lost", "lost"),
            _number("repaired", "repaired"),
            _number("NAKs per loss", "naks_per_loss", lambda value: f"{value:.2f}"),
            _number("NAK to repair p50", "request_p50", duration),
            _number("p99", "request_p99", duration),
            _number("longest", "request_max", duration),
            _number("loss to repair p50", "recovery_p50", duration),
            _number("p99", "recovery_p99", duration),
            _number("longest", "recovery_max", duration),
        ),
    ),
    (
        "Loss incidents",
        "incidents",
        "Losses of one receiver close together in time, the largest incident first.",
        (
            _text("start", lambda row: moment(row["start_ns"])),
            _text("cause", "cause"),
            _RECEIVER,
            _SESSION,
            _number("lost", "lost"),
            _number("in a row", "longest_run"),
            _number("no repair seen", "unrepaired"),
            ("#duration", lambda row: duration(row["end_ns"] - row["start_ns"])),
        ),
    ),
    (
        "Stalls",
        "stalls",
        "Pauses of a publisher of more than 5 ms that ended when a receiver's loss was repaired, the longest first.",
        (
            _text("start", lambda row: moment(row["start_ns"])),
            _SESSION,
            _number("stood still", "stall_ns", duration),
            _text("held by", "receiver"),
            _number("at", "sqn", lambda value: str(value)),
            _number("NAKs", "naks"),
            _text("cause", stall_cause),
        ),
    ),
    (
        "Sessions",
        "sessions",
        "Traffic of each session at each capture point.",
        (
            _SESSION,
            _text("transport", "transport"),
            _text("group", lambda row: row["group"] or "-"),
            _POINT,
            _number("datagrams", "datagrams"),
            _number("messages", "messages"),
            _number("volume", "data_bytes", volume),
            _number("seconds", "seconds", lambda value: "-" if value is None else f"{value:,.1f}"),
            _number("datagrams/s", "datagrams_per_second"),
            _number("rate", "bits_per_second", lambda value: "-" if value is None else bit_rate(value / 8)),
            _number("retransmissions", "retransmissions"),
            _number("NAKs", "naks"),
            _number("receivers", "receivers"),
        ),
    ),
    (
        "Topics",
        "topics",
        "Messages by topic, without retransmissions. Names are those advertised in the captures.",
        (
            _text("topic", lambda row: displayed(row["topic"] or "-")),
            _SESSION,
            _number("topic index", "topic_index", lambda value: str(value)),
            _number("messages", "messages"),
            _number("fragments", "fragments"),
            _number("payload", "payload_bytes", volume),
            _text("from", lambda row: moment(row["first_ns"])),
            _text("to", lambda row: moment(row["last_ns"])),
        ),
    ),
    (
        "Receivers of LBT-RU and LBT-TCP",
        "clients",
        "Each receiver has its own datagrams or connection. Missing: topic sequence numbers that a connection skipped.",
        (
            _RECEIVER,
            _SESSION,
            _text("transport", "transport"),
            _number("messages", "messages"),
            _number("datagrams", "datagrams"),
            _number("segments", "segments"),
            _number("connects", "connects"),
            _number("disconnects", "closes"),
            _number("NAKs", "naks"),
            _number("missing", "missing"),
            _text("from", lambda row: moment(row["first_ns"])),
            _text("to", lambda row: moment(row["last_ns"])),
        ),
    ),
    (
        "Rates per millisecond",
        "rate_summary",
        "Only milliseconds in which something was sent count.",
        (
            _SESSION,
            _POINT,
            _number("mean", "busy_bytes_per_second", bit_rate),
            _number("p50", "p50_bytes_per_second", bit_rate),
            _number("p99", "p99_bytes_per_second", bit_rate),
            _number("peak", "peak_bytes_per_second", bit_rate),
            _number("peak datagrams/s", "peak_datagrams_per_second"),
        ),
    ),
    (
        "Batching",
        "datagram_fill",
        "How full datagrams are.",
        (
            _SESSION,
            _POINT,
            _number("messages per datagram", "messages_per_datagram", lambda value: f"{value:.1f}"),
            _number("fill of the MTU", "fill", share),
            _number("payload on the wire", "payload_share", share),
            _number("less than half full", "half_empty"),
            _number("over the MTU", "over_mtu"),
        ),
    ),
    (
        "Retransmissions",
        "repairs",
        "Retransmissions on the transport, those that no receiver can have needed, and requests the source refused. "
        "Where no NAK was captured, the need for them is unknown.",
        (
            _SESSION,
            _POINT,
            _number("retransmissions", "retransmissions"),
            _number("volume", "retransmitted_bytes", volume),
            _number("not requested", "unrequested"),
            _number("repeated", "repeated"),
            _number("unnecessary", "useless_bytes", volume),
            _number("refused: ignore", "refused_ignored"),
            _number("delayed", "refused_rx_delay"),
            _number("shed", "refused_shed"),
        ),
    ),
    (
        "Lost retransmissions",
        "lost_repairs",
        "Retransmissions that passed one capture point and did not arrive at another.",
        (
            _SESSION,
            _text("from", "from_point"),
            _text("to", "to_point"),
            _number("retransmissions", "retransmissions"),
            _number("lost", "lost"),
        ),
    ),
    (
        "Late join, off-transport recovery and Stores",
        "recoveries",
        "Messages that receivers fetched from sources and Stores over TCP; not included in the retransmissions above.",
        (
            _text("recovery", lambda row: RECOVERIES[row["recovery"]].lower()),
            _RECEIVER,
            _text("topic", topic_name),
            _number("messages", "messages"),
            _number("payload", "payload_bytes", volume),
            ("#duration", lambda row: duration(row["end_ns"] - row["start_ns"])),
            _text("start", lambda row: moment(row["start_ns"])),
            _number("fragments", "fragments"),
            _number("requested", "requests"),
            _number("connections", "connections"),
            _text("source", "publisher"),
        ),
    ),
    (
        "Stores",
        "stores",
        "Registrations at Stores, and the messages that they acknowledged as stable or gave up.",
        (
            _text("store", lambda row: f"{row['store']}:{row['store_port']}"),
            _text("client", "client"),
            _number("topic index", "topic_index"),
            _number("registered", "registered"),
            _number("refused", "refused"),
            _number("stable", "stable"),
            _number("p50 until stable", "stability_p50", duration),
            _number("p99 until stable", "stability_p99", duration),
            _number("lost", "lost"),
            _number("acknowledgements", "acknowledgements"),
            _number("consumptions", "consumptions"),
            _number("keepalives", "keepalives"),
        ),
    ),
    (
        "NAK storms",
        "nak_storms",
        "Periods with more requests than recovery needs, and the receivers that sent them.",
        (
            _text("start", lambda row: moment(row["start_ns"])),
            _SESSION,
            ("#duration", lambda row: duration(row["end_ns"] - row["start_ns"])),
            _number("NAKs", "naks"),
            _number("requested", "requests"),
            _number("repeated", "repeated"),
            _text("receivers", lambda row: _behind(row["receivers"])),
        ),
    ),
    (
        "Latency between capture points",
        "latency",
        "Time of the same datagram from one point to another; clocks are compared by the NAKs that pass both.",
        (
            _SESSION,
            _text("from", "from_point"),
            _text("to", "to_point"),
            _number("datagrams", "datagrams"),
            _number("p50", "latency_p50", duration),
            _number("p99", "latency_p99", duration),
            _number("longest", "latency_max", duration),
            _number("negative", "negative"),
            _number("clock ahead", "offset_ns", duration),
            _number("within", "uncertainty_ns", duration),
        ),
    ),
    (
        "Options that would have helped",
        "suggestions",
        "Values by the vendor's rules, computed from the captures.",
        (
            _SESSION,
            _text("option", "option"),
            ("#value", lambda row: f"{row['value']:,} {row['unit']}"),
            _text("why", "reason"),
            _number("losses", "losses_helped"),
            _number("receivers", "receivers_helped"),
            _text("which receivers", lambda row: several(row["receivers"], _NAMED) or "-"),
        ),
    ),
    (
        "IP fragments",
        "ip_fragments",
        "Datagrams that were fragmented on the way.",
        (
            _text("from", "source_address"),
            _text("to", "destination_address"),
            _number("fragments", "fragments"),
            _number("volume", "bytes", volume),
        ),
    ),
    (
        "Other packets in the captures",
        "remarks",
        "Packets that belong to no session, and packets that could not be decoded.",
        (
            _text("captured at", "point"),
            _text("kind", lambda row: (row["status"] or "").removeprefix("note: ")),
            _number("packets", "packets"),
        ),
    ),
)


def _behind(receivers: list[Row]) -> str:
    return several([f"{one['receiver']} {share(one['share'])}" for one in receivers], _NAMED)


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    def cell(tag: str, name: str, text: str) -> str:
        kind = ' class="number"' if name.startswith("#") else ' class="text"'
        return f"<{tag}{kind}>{text}</{tag}>"

    head = "".join(cell("th", name, html.escape(name.removeprefix("#"))) for name, _ in columns)
    body = "".join(
        "<tr>" + "".join(cell("td", name, value(row)) for name, value in columns) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>'


def _plots(summary: Summary) -> str:
    parts = []
    for number, run in enumerate(summary.runs[:_RUNS], 1):
        of = f", run {number} of {len(summary.runs)}" if len(summary.runs) > 1 else ""
        under = f"{duration(run.end_ns - run.start_ns)} from {moment(run.start_ns)}"
        parts.append(f'<h2>Rate and loss{of}</h2>\n<p class="under">{under}</p>\n{plots.timeline(run)}')
    side = []
    if summary["recovery_histogram"]:
        side.append(f"<div><h2>Time to repair</h2>\n{plots.recovery(summary)}</div>")
    if summary["fill_histogram"]:
        side.append(f"<div><h2>Fill of datagrams</h2>\n{plots.fill(summary)}</div>")
    if side:
        parts.append(f'<div class="side">{"".join(side)}</div>')
    return "\n".join(parts)


def _figures(summary: Summary, figures: Figures | None) -> str:
    if figures is None:
        return ""
    parts = [
        f'<div><dt>{one.name}</dt><dd class="value">{html.escape(one.value)}</dd><dd>{html.escape(one.note)}</dd></div>'
        for one in shown_figures(summary, figures)
    ]
    return f'<dl class="figures">{"".join(parts)}</dl>'


def _problems(problems: Sequence[Finding]) -> str:
    if not problems:
        return ""
    items = "\n".join(
        f'<li class="{one.severity.name.lower()}"><p><b>{html.escape(one.cost.text)}</b></p>'
        f"<p>{html.escape(one.text)}</p><p><b>What to do:</b> {html.escape(one.remedy or '')}</p></li>"
        for one in problems
        if one.cost is not None
    )
    return f'<h2>Problems, the most expensive first</h2>\n<ol class="problems">\n{items}\n</ol>'


def _sentences(found: Sequence[Finding]) -> str:
    items = "\n".join(f"<li>{html.escape(one.text)}</li>" for one in found)
    return f'<ul class="plain">\n{items}\n</ul>'


def _folded(title: str, note: str, content: str) -> str:
    return f"<details><summary>{title} <span>{html.escape(note)}</span></summary>\n{content}</details>"


def _tables(summary: Summary) -> Iterator[str]:
    for title, name, under, columns in _TABLES:
        rows = summary[name]
        if not rows:
            continue
        total = summary.totals.get(name, len(rows))
        more = f" The first {len(rows)} of {total:,}; all are in {name}/." if total > len(rows) else ""
        yield _folded(
            title, f"{total:,}", f'<p class="under">{html.escape(under + more)}</p>\n{_table(rows, columns)}'
        )


def _clock(summary: Summary) -> str:
    """Return the sentence that names the points of capture and the clock of all times."""
    points = sorted({row["point"] for row in summary["sessions"]})
    if not points:
        return "no session data"
    clocks = sorted({row["point"] for row in where_seen_best(summary["sessions"], "datagrams")})
    first_ns, last_ns = (
        pick(row[time] for row in summary["sessions"]) for pick, time in ((min, "first_ns"), (max, "last_ns"))
    )
    span = f"{moment(first_ns)} to {moment(last_ns)} UTC"
    at = f"Captured at {several([displayed(point) for point in points], _CAPTURES)}, {span}."
    if len(points) == 1:
        return f"{at} All times are those of its clock."
    if len(clocks) == 1:
        return f"{at} All times are those of the clock of {displayed(clocks[0])}."
    return f"{at} The times of a session are those of the clock of the point that saw most of it."


def page(
    summary: Summary,
    verdict: Verdict,
    figures: Figures | None,
    findings: Sequence[Finding],
    captures: Sequence[str],
    version: str,
) -> str:
    """Return the page as text: verdict, figures, problems, settings, charts; facts and tables are folded."""
    advice = [one for one in findings if one.is_advice]
    facts = [one for one in findings if not one.is_problem and not one.is_advice]
    settings = f"<h2>Settings that would help</h2>\n{_sentences(advice)}" if advice else ""
    files = several(captures, _CAPTURES)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>umstack report</title>
<style>{_STYLE}</style>
{chart_library()}
</head>
<body>
<div class="verdict {verdict.severity.name.lower()}"><h1>{html.escape(verdict.text)}</h1></div>
<p class="under">{html.escape(_clock(summary))}</p>
{_figures(summary, figures)}
{_problems(problems_of(findings))}
{settings}
{_plots(summary)}
<h2>Facts and tables</h2>
{_folded("Other findings", f"{len(facts)}", _sentences(facts)) if facts else ""}
{"".join(_tables(summary))}
{plots.drawing()}
<footer>Made by umstack {html.escape(version)} from {html.escape(files)}. Each table is in a Parquet folder of its name
beside this page.</footer>
</body>
</html>
"""
