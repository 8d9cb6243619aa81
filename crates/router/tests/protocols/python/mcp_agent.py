"""An MCP server of the official library that counts what reaches it. Arguments: name, address, port."""

import json
import sys

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel, Field
from typing_extensions import Annotated

NAME, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
counts: dict[str, int] = {}

# The argument that the header Mcp-Param-who mirrors, for clients without sessions.
Who = Annotated[str, Field(json_schema_extra={"x-mcp-header": "who"})]


class Events(EventStore):
    """Keeps all events, so that streams can be resumed."""

    def __init__(self):
        self.events = []

    async def store_event(self, stream_id, message):
        self.events.append((stream_id, message))
        return str(len(self.events) - 1)

    async def replay_events_after(self, last_event_id, send_callback):
        last = int(last_event_id)
        stream_id = self.events[last][0]
        for number in range(last + 1, len(self.events)):
            of, message = self.events[number]
            if of == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


server = MCPServer("counter")


def count_one(who):
    counts[who] = counts.get(who, 0) + 1
    return json.dumps({"at": NAME, "count": counts[who]})


@server.tool()
async def count(who: Who) -> str:
    """Counts the calls of whoever asks."""
    return count_one(who)


@server.tool()
async def work(who: Who, steps: int, ctx: Context) -> str:
    """Tells of its progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, NAME)
    return count_one(who)


@server.tool()
async def leave(who: Who, ctx: Context) -> str:
    """Closes its stream in the middle: the client has to come back for the answer."""
    await ctx.report_progress(1, 2, NAME)
    await ctx.close_sse_stream()
    await anyio.sleep(0.2)
    return count_one(who)


class Answer(BaseModel):
    word: str


@server.tool()
async def ask(who: Who, ctx: Context) -> str:
    """Asks the client something back."""
    answer = await ctx.elicit("which word?", Answer)
    assert answer.data.word == who, answer
    return count_one(who)


app = server.streamable_http_app(
    event_store=Events(),
    retry_interval=50,
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
uvicorn.run(app, host=HOST, port=PORT, log_level="warning")
