"""Serve an object by an endpoint written for it: ``python -m bench.serving.fastapi_endpoint NAME``.

The first line it prints is the port; it ends with standard input.
"""

from __future__ import annotations

import sys
from typing import Any

from fastapi import FastAPI
from pydantic import create_model

from bench.serving import objects
from bench.serving.server import serve_app


def make_endpoint(fast: Any, name: str) -> FastAPI:
    """Return an application that answers at ``/invoke`` as ``rag-accel serve`` does."""
    app = FastAPI()
    fields: Any = {objects.INPUTS[name]: (str, ...)}
    asked = create_model("Asked", **fields)

    async def invoke(body: Any) -> Any:
        question = getattr(body, objects.INPUTS[name])
        return {"output": await fast.ainvoke(objects.value_of(name, question))}

    invoke.__annotations__["body"] = asked
    app.post("/invoke")(invoke)
    return app


def main() -> None:
    """Serve."""
    name = sys.argv[1]
    serve_app(make_endpoint(getattr(objects, name)(), name))


if __name__ == "__main__":
    main()
