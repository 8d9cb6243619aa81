"""An A2A agent of the official library that counts what reaches it. Arguments: name, address, port."""

import asyncio
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, Part, Role, TaskState
from starlette.applications import Starlette

NAME, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
counts: dict[str, int] = {}


class Counter(AgentExecutor):
    async def execute(self, context, event_queue):
        counts[context.context_id] = counts.get(context.context_id, 0) + 1
        said = f"{NAME} {counts[context.context_id]}"
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await asyncio.sleep(0.02)
        await updater.add_artifact([Part(text=said)])
        text = new_text_message(said, role=Role.ROLE_AGENT, context_id=task.context_id, task_id=task.id)
        if context.get_user_input() == "go on":
            await updater.requires_input(text)
        else:
            await updater.complete(text)

    async def cancel(self, context, event_queue):
        task = context.current_task
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


card = AgentCard(name="counter", capabilities=AgentCapabilities(streaming=True))
handler = DefaultRequestHandler(agent_executor=Counter(), task_store=InMemoryTaskStore(), agent_card=card)
routes = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)
routes += create_rest_routes(handler, enable_v0_3_compat=True, path_prefix="/rest")
uvicorn.run(Starlette(routes=routes), host=HOST, port=PORT, log_level="warning")
