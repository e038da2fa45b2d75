"""``rag-accel serve``: one object behind HTTP."""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_accel.serving.app import ServingApp

_SHOWN_AFTER_S = 1.0

#: options of the command that ``ServingOptions`` has by the same names, with their types
_BOUNDS: dict[str, tuple[type, str, str]] = {
    "host": (str, "ADDRESS", "127.0.0.1; another one only with --token-file"),
    "port": (int, "N", "8000; 0 for any free one"),
    "token_file": (Path, "FILE", "bearer tokens: a line TOKEN or TOKEN TENANT each; mode 600"),
    "namespace": (str, "NAME", "tenant of requests whose token names none"),
    "max_requests": (int, "N", "requests under way at once; beyond, HTTP 429; 256"),
    "max_requests_per_tenant": (int, "N", "of these, those of one tenant; by default any number"),
    "max_connections": (int, "N", "open connections; 1024"),
    "max_body_bytes": (int, "N", "largest body of a request; 1048576"),
    "deadline_s": (float, "S", "longest that a request may take, whatever it asks for"),
    "head_timeout_s": (float, "S", "within which a connection sends the head of a request; 10"),
    "body_timeout_s": (float, "S", "within which the body follows; 30"),
    "write_timeout_s": (float, "S", "within which a client reads what it was sent; 30"),
    "prepare_timeout_s": (
        float,
        "S",
        "how long models may be compiled and placed before /healthz is ready; 0: none are; 300",
    ),
    "drain_s": (float, "S", "how long requests under way may take after SIGTERM; 30"),
}


def add_serve_command(commands: Any) -> None:
    serve = commands.add_parser("serve", help="serve a chain, graph, engine or embedder over HTTP")
    serve.add_argument("object", metavar="MODULE:NAME", help="the object, or a function making it")
    serve.add_argument("--accelerator", metavar="MODULE:NAME", help="what a RAGraph runs on")
    serve.add_argument(
        "--input",
        metavar="NAME",
        action="append",
        help="an input that a client sets; repeatable; 'messages' takes a chat",
    )
    serve.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that clients may call the server by, besides those of loopback; repeatable",
    )
    serve.add_argument(
        "--model-name",
        metavar="NAME",
        help="what clients call it; by default NAME, of what a function makes MODULE",
    )
    serve.add_argument("--plain", action="store_true", help="leave the object unaccelerated")
    for name, (kind, metavar, text) in _BOUNDS.items():
        option = f"--{name.replace('_', '-')}"
        serve.add_argument(option, metavar=metavar, type=kind, help=text)
    serve.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # What the extra brings is needed by this command alone.
    try:
        from rag_accel.serving.app import ServingApp
        from rag_accel.serving.http_server import run_server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (
            "starlette",
            "uvicorn",
            "prometheus_client",
        ):
            raise
        raise ImportError(
            f"rag-accel serve needs {error.name}: pip install 'rag-accel[serve]'", name=error.name
        ) from error
    from rag_accel.serving.serving_options import ServingOptions
    from rag_accel.serving.target import find_target
    from rag_accel.serving.tenants import ServedTenants
    from rag_accel.serving.tokens import TokenFile

    logging.basicConfig(level=logging.WARNING)
    given = {name: getattr(arguments, name) for name in _BOUNDS}
    options = ServingOptions(
        **{name: value for name, value in given.items() if value is not None},
        allow_hosts=tuple(arguments.allow_host),
    )
    tokens = options.token_file and TokenFile(options.token_file, options.namespace)
    target = find_target(arguments.object, arguments.accelerator, arguments.model_name)
    tenants = ServedTenants(
        target, inputs=arguments.input and tuple(arguments.input), plain=arguments.plain
    )
    try:
        app = ServingApp(tenants, options, tokens)
        # The interpreter collects all that was ever loaded as it ends, which takes seconds.
        atexit.register(gc.freeze)
        run_server(app, options, partial(_tell, app, target.name))
    finally:
        tenants.close()
    return 0


def _tell(app: ServingApp, name: str, url: str) -> None:
    print(f"serving {name} on {url}", flush=True)
    threading.Thread(target=_show_preparation, args=(app,), daemon=True).start()


def _show_preparation(app: ServingApp) -> None:
    began = time.monotonic()
    if not app.wait_prepared(_SHOWN_AFTER_S):
        print("preparing: /healthz is not ready yet", file=sys.stderr, flush=True)
        app.wait_prepared(None)
        print(f"prepared in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
