"""The contexts of the resolution measurement on one host: each has its own sources, and receivers for another's
topics.

`python -m tests.bench.resolution_ends resolve SPEC`; SPEC is a `ResolutionSpec` in JSON.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import umstack
from umstack.bench.children import receive_order, say
from umstack.bench.endpoint import EndSpec, run

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionSpec(EndSpec):
    """Arguments of one host: it runs `context_count` of `context_total` contexts, starting at number `first`."""

    first: int
    context_count: int
    context_total: int
    topics: int
    """Topics per context."""
    seconds: float
    """Time limit in seconds."""


def _topic(context: int, number: int) -> str:
    return f"bench/resolution/{context}/{number}"


def _resolution(context: umstack.Context) -> dict[str, int]:
    """Return only the counters of topic resolution. Reading those of a hundred receivers and lists of ten thousand
    names would take milliseconds of the CPU time that is measured."""
    return context._resolver.stats()


def _is_resolved(context: umstack.Context, known: int) -> bool:
    counters = _resolution(context)
    return counters["tr_cache_entries"] >= known and not counters["tr_rcv_unresolved_topics"]


def resolve(spec: ResolutionSpec) -> None:
    """Open the contexts; on order, create sources and receivers and report when all topics were known and resolved."""
    numbers = range(spec.first, spec.first + spec.context_count)
    with ExitStack() as stack:
        contexts = {number: stack.enter_context(spec.open_context()) for number in numbers}
        say(ready=True)
        receive_order()
        start, cpu_start, making_start = time.monotonic(), time.process_time(), time.thread_time()
        for number, context in contexts.items():
            other = (number + spec.context_total // 2) % spec.context_total
            queue = context.event_queue()
            for topic in range(spec.topics):
                context.source(_topic(number, topic))
                context.receiver(_topic(other, topic), queue=queue)
        made, making_cpu_seconds = time.monotonic() - start, time.thread_time() - making_start
        # A daemon does not send a context's advertisements back to it, so a context's own topics are not in its
        # cache.
        wanted = spec.topics * (spec.context_total - 1)
        waiting, resolved_at = dict(contexts), 0.0
        while waiting and time.monotonic() - start < spec.seconds:
            time.sleep(_LOOK_SECONDS)
            for number, context in list(waiting.items()):
                if _is_resolved(context, wanted):
                    del waiting[number]
            resolved_at = time.monotonic() - start
        cpu_seconds = time.process_time() - cpu_start
        counters = [_resolution(context) for context in contexts.values()]
        say(
            made_seconds=made,
            making_cpu_seconds=making_cpu_seconds,
            resolved_seconds=None if waiting else resolved_at,
            known=[one["tr_cache_entries"] for one in counters],
            unresolved=[one["tr_rcv_unresolved_topics"] for one in counters],
            cpu_seconds=cpu_seconds,
            sums={name: sum(one[name] for one in counters) for name in counters[0]},
        )
        receive_order()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], ResolutionSpec, {"resolve": resolve}))
