"""The HTTP package that clients of the installed ``openai`` send with, under one name."""

from __future__ import annotations

import importlib
from typing import Any

import openai

#: httpx2 since openai 3; both have the same names
httpx: Any = importlib.import_module(openai.DefaultHttpxClient.__base__.__module__.split(".")[0])
