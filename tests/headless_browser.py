"""A headless browser, where the machine has one."""

from __future__ import annotations

import re
import shutil
import subprocess

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def dumped(url: str, expected: str) -> str:
    """Return a page as the browser has it once its scripts have made what a pattern matches.

    It is not told when they have: it is asked again, after a longer time.
    """
    assert CHROMIUM is not None, "no browser"
    options, page = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"], ""
    for milliseconds in (3_000, 10_000, 40_000):
        run = subprocess.run(
            [CHROMIUM, *options, f"--timeout={milliseconds}", url],
            capture_output=True,
            text=True,
            timeout=120,
        )
        page = run.stdout
        if re.search(expected, page):
            return page
    raise AssertionError(page)
