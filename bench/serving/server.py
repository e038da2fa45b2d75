"""Serve the chain on a loopback port until standard input ends: ``python -m bench.serving.server``.

The first line it prints is the port, once it is warm.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse

from bench.arms import bench_accelerator
from bench.serving.chain import build_chain
from langchain_rag_accel import accelerate
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.system.files import user_cache
from rag_accel_demo.load import run_load, torch_threads
from rag_accel_demo.material import prepare

WARM_UP = 64
PATIENCE_S = 60.0


def make_app(chain: Any) -> FastAPI:
    """Return an application that answers at ``/sync``, ``/async`` and ``/stream``."""
    app = FastAPI()

    @app.get("/sync", response_class=PlainTextResponse)
    def sync(question: str) -> str:
        return str(chain.invoke(question))

    @app.get("/async", response_class=PlainTextResponse)
    async def from_coroutine(question: str) -> str:
        return str(await chain.ainvoke(question))

    @app.get("/stream")
    async def stream(question: str) -> StreamingResponse:
        async def words() -> AsyncIterator[str]:
            async for word in chain.astream(question):
                yield str(word)

        return StreamingResponse(words(), media_type="text/plain")

    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving.server", description=__doc__)
    parser.add_argument("--accelerated", action="store_true", help="serve accelerate(chain)")
    parser.add_argument("--torch-threads", type=int, help="by default torch's own choice")
    arguments = parser.parse_args(argv)
    material = prepare(None, None, user_cache(), progress=False)
    chain = build_chain(material.store)
    with ExitStack() as stack:
        if arguments.torch_threads:
            stack.enter_context(torch_threads(arguments.torch_threads))
        if arguments.accelerated:
            accelerator = stack.enter_context(bench_accelerator())
            chain = accelerate(chain, accelerator=accelerator)
        for _ in range(2):
            run_load(chain, material.questions[:WARM_UP], WARM_UP, "threads")
            wait_until_compiled(PATIENCE_S)
        serve_app(make_app(chain))


def open_listener() -> socket.socket:
    """Return a listening socket whose connections send each part of a response at once."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    # asyncio sets it for sockets that are made for TCP by name, which this one is not. Without it
    # a response's body waits until the client has acknowledged its head, up to 40 ms. Accepted
    # sockets inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def serve_app(app: FastAPI) -> None:
    """Print the port of an application, and serve it until standard input ends."""
    listener = open_listener()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
