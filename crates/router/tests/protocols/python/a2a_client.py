"""Conversations of the official A2A client. Arguments: address of the Task, binding, version, clients."""

import asyncio
import json
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import new_text_message
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import MethodNotFoundError, TaskNotFoundError

URL, BINDING, VERSION, CLIENTS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
# Every request on a connection of its own, so that each may reach another gateway.
LIMITS = httpx.Limits(max_keepalive_connections=0)


async def say(client, text, context=None, task=None):
    """Sends a message; the ids of its task, and what was said."""
    message = new_text_message(text, role=Role.ROLE_USER, context_id=context, task_id=task)
    ids, words, events = None, set(), 0
    async for event in client.send_message(SendMessageRequest(message=message)):
        events += 1
        which = event.WhichOneof("payload")
        if which == "task":
            ids = (event.task.id, event.task.context_id)
            words |= {part.text for artifact in event.task.artifacts for part in artifact.parts}
        elif which == "status_update":
            ids = (event.status_update.task_id, event.status_update.context_id)
        elif which == "artifact_update":
            words |= {part.text for part in event.artifact_update.artifact.parts}
    return ids, words, events


def last(words):
    """Where the latest was said, and how many there were."""
    at, count = max(words, key=lambda word: int(word.split()[1])).split()
    return at, int(count)


async def converse(number):
    async with httpx.AsyncClient(limits=LIMITS, timeout=15) as http:
        card = await A2ACardResolver(http, URL).get_agent_card()
        interfaces = [i for i in card.supported_interfaces if i.protocol_binding == BINDING and i.protocol_version == VERSION]
        assert interfaces and all(i.url.startswith(URL) for i in interfaces), card
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(interfaces)
        streaming = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=[BINDING], streaming=True))
        whole = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=[BINDING], streaming=False))
        stream, client = streaming.create(card), whole.create(card)

        (task, context), words, _ = await say(client, "begin")
        at, count = last(words)
        places = {at}
        assert count == 1, words
        expected, tasks = 1, {task}
        for turn in range(3):
            # The context goes on in new tasks, by a whole answer and by a stream.
            for way in (client, stream):
                (task, again), words, events = await say(way, "more", context=context)
                expected += 1
                assert again == context and last(words)[1] == expected, (words, expected)
                assert events > 1 or way is client, events
                places.add(last(words)[0])
                tasks.add(task)
            got = await client.get_task(GetTaskRequest(id=task))
            assert got.id == task and got.context_id == context, got
        # A task that waits for more is continued, subscribed to, and cancelled.
        (task, _), words, _ = await say(client, "go on", context=context)
        tasks.add(task)
        (same, _), words, _ = await say(stream, "go on", context=context, task=task)
        expected += 2
        assert same == task and last(words) == (next(iter(places)), expected), (words, expected)
        first = await anext(aiter(stream.subscribe(SubscribeToTaskRequest(id=task))))
        assert first.task.id == task, first
        cancelled = await client.cancel_task(CancelTaskRequest(id=task))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED, cancelled
        if VERSION == "1.0":
            listed = await client.list_tasks(ListTasksRequest(context_id=context))
            assert {task.id for task in listed.tasks} == tasks, (listed, tasks)
        try:
            await client.get_task(GetTaskRequest(id="nobody"))
            raise AssertionError("nobody knows this task")
        except (TaskNotFoundError, MethodNotFoundError):  # the latter by REST of 0.3
            pass
        assert len(places) == 1, places
        return {"at": places.pop(), "context": context, "count": expected}


async def main():
    print(json.dumps(await asyncio.gather(*(converse(number) for number in range(CLIENTS)))))


asyncio.run(main())
