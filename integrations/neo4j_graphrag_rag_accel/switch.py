"""Acceleration of neo4j-graphrag for the rest of this process."""

from __future__ import annotations

from neo4j_graphrag_rag_accel import upstream
from rag_accel.interception.switch import ProcessSwitch

# Not from the package itself: a program may be importing it, which is what imports neo4j-graphrag,
# whose import may be what switches on.
if upstream.missing_module() is None:
    from rag_accel.interception import activate
else:
    from rag_accel.interception.plain import activate

_switch = ProcessSwitch(activate)


def switch_on() -> None:
    """Open a block of ``activate()`` that is never closed; once is enough."""
    _switch.on()


def switch_off() -> None:
    """Close it again."""
    _switch.off()
