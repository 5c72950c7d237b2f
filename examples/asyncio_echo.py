"""Answer requests inside an asyncio program: python examples/asyncio_echo.py lo.

Receivers are asynchronous iterators, `send_async()` waits for flow control without blocking the event loop.
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


async def run(context: umstack.Context) -> None:
    """Run both ends in one event loop."""
    requests_in, answers_in = context.receiver("requests"), context.receiver("answers")
    requests_out = context.source("requests", flow_control="min")
    answers_out = context.source("answers", flow_control="min")
    await asyncio.to_thread(requests_out.wait_connected, 1, 10)
    await asyncio.to_thread(answers_out.wait_connected, 1, 10)
    await asyncio.gather(serve(requests_in, answers_out), ask(requests_out, answers_in))


def main(interface: str, *, config: str | None = None) -> None:
    """Open a context and run the event loop."""
    with umstack.Context(interface, config=config) as context:
        asyncio.run(run(context))


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
