"""Run random publishers, subscribers, a recorder, a resolver, a driver and Stores under faults, and account for all.

    python -m tests.chaos [--minutes 10] [--seed N] [--json] [--plan]

Faults: loss, duplication, reordering, corruption and blocking in either direction, unplugged cables, interfaces that go
down, MTU and address changes, kill -9, SIGSTOP, steps of the wall clock, sources and receivers that are made again, a
full disk, a resolver that ends, a driver that is killed, stopped or restarted, rotated keys, a wiped Store. A seed
repeats the processes, their options and the schedule of faults; the traffic differs, as threads and timers do.

At the end every message must have been delivered once, in order and unchanged, or be named as lost by an event. Stores
must hold what they promised (tests/chaos/kept.py). Closed processes, and a driver and Stores without clients, must hold
no more descriptors, threads and memory than before. Exit status 0: nothing was found. 1: findings, which are printed;
the logs stay in build/chaos/seed-N. Needs root.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys

from tests.chaos.plan import make_plan
from tests.chaos.run import ROOT, ChaosRun


def main() -> int:
    """Run once; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/dev chaos", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="length of the run [1]")
    parser.add_argument("--seed", type=int, help="seed of processes and faults [random]")
    parser.add_argument("--json", action="store_true", help="print a JSON summary")
    parser.add_argument("--plan", action="store_true", help="print the plan as JSON and end")
    chosen = parser.parse_args()
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    plan = make_plan(seed, chosen.minutes * 60)
    if chosen.plan:
        print(json.dumps(plan.described(), indent=2))
        return 0
    print(f"chaos: seed {seed}, {chosen.minutes:g} minutes, {len(plan.faults)} faults", file=sys.stderr)
    work = ROOT / "build" / "chaos" / f"seed-{seed}"
    outcome = ChaosRun(plan, work).run()
    summary = {
        "seed": seed,
        "seconds": plan.seconds,
        "counts": dict(sorted(outcome.counts.items())),
        "processes": outcome.processes,
        "findings": outcome.findings,
    }
    if chosen.json:
        print(json.dumps(summary))
    else:
        print(f"{len(outcome.findings)} findings; {summary['counts']}")
    if outcome.findings:
        print(f"logs: {work}; repeat with --seed {seed} --minutes {chosen.minutes:g}", file=sys.stderr)
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
