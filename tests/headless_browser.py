"""A headless browser, where the machine has one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WAIT_S = 90
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)


def dumped(url: str, expected: str) -> str:
    """Return a page as the browser has it once its scripts have made what a pattern matches.

    ``--dump-dom`` gives the page as it was when it was loaded, before a stream that its scripts
    read has said anything; the page is asked over the browser's debugging port instead.
    """
    ends, page = time.monotonic() + WAIT_S, ""
    with _opened(url, ends) as tab:
        while time.monotonic() < ends:
            page = _evaluated(tab, "document.documentElement.outerHTML")
            if re.search(expected, page):
                return page
            time.sleep(0.05)
    raise AssertionError(page)


@contextmanager
def _opened(url: str, ends: float) -> Iterator[ClientConnection]:
    assert CHROMIUM is not None, "no browser"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = subprocess.Popen(
            [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_address(Path(folder), browser, ends), max_size=None) as tab:
                yield tab
        finally:
            browser.kill()
            browser.wait()


def _address(folder: Path, browser: subprocess.Popen[bytes], ends: float) -> str:
    """Return the address of the browser's tab, once it listens."""
    said = folder / "DevToolsActivePort"
    while time.monotonic() < ends:
        assert browser.poll() is None, f"the browser ended with {browser.returncode}"
        port = said.read_text().partition("\n")[0] if said.exists() else ""
        if port:
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", timeout=WAIT_S).json()
            for tab in tabs:
                if tab["type"] == "page":
                    return tab["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("the browser opened no page")


def _evaluated(tab: ClientConnection, expression: str) -> Any:
    call = {"expression": expression, "returnByValue": True}
    tab.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": call}))
    answer = json.loads(tab.recv(timeout=WAIT_S))
    # A page that is just being opened has nothing to evaluate in: an answer without a result.
    return answer.get("result", {}).get("result", {}).get("value", "")
