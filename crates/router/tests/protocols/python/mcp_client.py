"""Conversations of the official MCP client. Arguments: address, mode (legacy, auto or a version), clients."""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client import session
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

URL, MODE, CLIENTS = sys.argv[1], sys.argv[2], int(sys.argv[3])
# Every request on a connection of its own, so that each may reach another gateway.
LIMITS = httpx2.Limits(max_keepalive_connections=0)
# The first request starts an instance, which on a busy machine takes longer than the client's 10 s; then it would take the
# server for one of the older generation.
session.DISCOVER_TIMEOUT_SECONDS = 120.0


def said(result):
    assert not result.is_error, result
    return json.loads(result.content[0].text)


async def converse(number):
    who = f"{MODE}-{number}"

    async def answer(context, params):
        return ElicitResult(action="accept", content={"word": who})

    async with httpx2.AsyncClient(limits=LIMITS, timeout=httpx2.Timeout(60)) as http:
        transport = streamable_http_client(URL, http_client=http)
        async with Client(transport, mode=MODE, elicitation_callback=answer) as client:
            tools = await client.list_tools()
            assert len(tools.tools) == 4, tools
            places, expected = set(), 0

            def check(answered):
                nonlocal expected
                expected += 1
                assert answered["count"] == expected, (who, answered, expected)
                places.add(answered["at"])

            for turn in range(4):
                check(said(await client.call_tool("count", {"who": who})))
                heard = []

                async def progress(progress, total, message):
                    heard.append((progress, message))

                check(said(await client.call_tool("work", {"who": who, "steps": 3}, progress_callback=progress)))
                assert [step for step, _ in heard] == [1, 2, 3], heard
                assert {place for _, place in heard} == places, (heard, places)
                if client.protocol_version < "2026-07-28":
                    check(said(await client.call_tool("ask", {"who": who})))
                    check(said(await client.call_tool("leave", {"who": who})))
            assert len(places) == 1, places
            return {"who": who, "at": places.pop(), "count": expected, "version": client.protocol_version}


async def main():
    all_of_them = await asyncio.gather(*(converse(number) for number in range(CLIENTS)))
    print(json.dumps(all_of_them))


asyncio.run(main())
