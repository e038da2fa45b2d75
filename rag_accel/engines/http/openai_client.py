"""The ``openai`` client of remote engines, and the translation of its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rag_accel.engine_api.transient import RetryBudget
from rag_accel.engines.http.errors import ErrorWriter, Secret
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.http.retry_after import retry_after_s
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2
    from openai import APIConnectionError

    from rag_accel.engines.http.bounded_client import BudgetedClient

BREAK_HINT = "look at the server's log; a proxy may end long answers"


def open_client(
    base_url: str,
    secret: Secret | None,
    options: RemoteOptions,
    transport: httpx2.AsyncBaseTransport | None,
    user: str,
    on_refusal: Callable[[], object] | None = None,
) -> BudgetedClient:
    """Return a client for one event loop; ``on_refusal`` is called for each HTTP 429 and 503.

    Raises:
        ImportError: ``openai`` is missing; names the extra that ``user`` needs.
    """
    try:
        from rag_accel.engines.http.bounded_client import BoundedHttpClient, BudgetedClient
    except ImportError as exc:
        raise ImportError(
            f"{user} needs openai and httpx2: pip install 'rag-accel[openai]'"
        ) from exc
    http = BoundedHttpClient(options, transport, on_refusal)
    return BudgetedClient(
        RetryBudget(options.retry_budget),
        api_key=secret.reveal() if secret else "none",
        base_url=base_url,
        max_retries=options.max_retries,
        http_client=http,
        timeout=http.timeout,
    )


def omitted_headers(secret: Secret | None) -> dict[str, Any]:
    """Return headers that are omitted: the environment's values are another server's."""
    from openai import Omit

    names = ["OpenAI-Organization", "OpenAI-Project", *([] if secret else ["Authorization"])]
    return dict.fromkeys(names, Omit())


def failure(error: Exception, errors: ErrorWriter) -> RemoteEngineError | None:
    """Return the error of a failed exchange, None for one that no exchange ends with."""
    from openai import APIConnectionError, APIStatusError

    from rag_accel.engines.http.bounded_client import HttpFault

    if isinstance(error, HttpFault):
        return errors.fault(*error.parts)
    if isinstance(error, APIStatusError):
        response = error.response
        found = errors.status(response.status_code, response.content)
        found.retry_after_s = retry_after_s(response.headers) or None
    elif isinstance(error, APIConnectionError):
        found = _no_connection(error, errors)
    else:
        return None
    if num_retries := count_retries(error.request):
        found.found = f"{found.found} (attempt {num_retries + 1})"
    return found


def count_retries(request: httpx2.Request) -> int:
    """Return the retries of a request, which the openai client writes into its headers."""
    return int(request.headers.get("x-stainless-retry-count", 0))


def cause_of(error: APIConnectionError | httpx2.RequestError) -> str:
    """Return the error of httpx2 by which a connection broke."""
    from openai import APIConnectionError

    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    cause = cause or error
    return f"{type(cause).__name__}: {cause}"


def _no_connection(error: APIConnectionError, errors: ErrorWriter) -> RemoteEngineError:
    import httpx2

    if isinstance(error.__cause__, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        hint = "check base_url and that the server runs"
        return errors.fault("no connection to the server", cause_of(error), hint)
    what = "the connection broke before the answer was complete"
    return errors.fault(what, cause_of(error), BREAK_HINT)
