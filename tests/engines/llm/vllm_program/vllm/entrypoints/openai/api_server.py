"""Stands in for vLLM's server: a program that answers chats without a model.

The last message steers it: ``die`` ends the process, ``wait`` never answers; ``told`` is answered
by what the program was started with. ``--fault`` has it fail at its start or never answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = os.environ.get("VLLM_API_KEY")
ASKED: list[dict[str, Any]] = []


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        entry = {"id": option("--model"), "object": "model", "owned_by": "vllm"}
        self._answer({"object": "list", "data": [entry]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {KEY}":
            self._answer({"error": {"message": "Unauthorized"}}, 401)
            return
        ASKED.append(body)
        content = body["messages"][-1]["content"]
        if content == "die":
            print("the engine core has died", flush=True)
            os._exit(9)
        if content == "wait":
            time.sleep(600)
        if content == "told":
            content = json.dumps({"argv": sys.argv, "env": dict(os.environ), "asked": ASKED})
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        self._answer({"object": "chat.completion", "choices": [choice], "usage": usage})

    def _answer(self, value: Any, status: int = 200) -> None:
        sent = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


if option("--fault") == "start":
    sys.exit("no such model")
if option("--fault") == "silence":
    time.sleep(600)
ThreadingHTTPServer((option("--host") or "", int(option("--port") or 0)), Handler).serve_forever()
