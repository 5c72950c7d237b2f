"""Answer requests inside an asyncio program: python examples/asyncio_echo.py lo.

Receivers are asynchronous iterators; `send_async()` and `wait_connected_async()` wait without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import sys

import umstack

COUNT = 5


async def serve(requests: umstack.Receiver, answers: umstack.Source) -> None:
    """Answer each request, until there were COUNT of them."""
    served = 0
    async for request in requests:
        await answers.send_async(request.data.upper(), flush=True)
        served += 1
        if served == COUNT:
            return


async def ask(requests: umstack.Source, answers: umstack.Receiver) -> None:
    """Send requests one at a time and print the answers."""
    for number in range(COUNT):
        await requests.send_async(f"request {number}".encode(), flush=True)
        batch = await answers.poll_async(1)
        while not batch.messages():  # the beginning of the session is a row as well
            batch = await answers.poll_async(1)
        print(batch.messages()[0].data.decode())


async def run(interface: str, config: str | None) -> None:
    """Open a context and run both ends in one event loop."""
    async with umstack.Context(interface, config=config) as context:
        requests_in, answers_in = context.receiver("requests"), context.receiver("answers")
        requests_out = context.source("requests", flow_control="min")
        answers_out = context.source("answers", flow_control="min")
        await requests_out.wait_connected_async(timeout=10)
        await answers_out.wait_connected_async(timeout=10)
        await asyncio.gather(serve(requests_in, answers_out), ask(requests_out, answers_in))


def main(interface: str, *, config: str | None = None) -> None:
    """Run the event loop."""
    asyncio.run(run(interface, config))


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
