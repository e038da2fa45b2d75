"""Event loops, as seen by the code that they run."""

from asyncio import _get_running_loop


def runs_in_loop() -> bool:
    """Tell whether an event loop runs in this thread, all of whose tasks a call here holds up."""
    return _get_running_loop() is not None
