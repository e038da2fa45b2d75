"""neo4j-graphrag accelerated in this process: ``import neo4j_graphrag_rag_accel.auto``.

Everything is scheduled from then on that ``activate()`` would schedule, until ``switch_off()``.
"""

from neo4j_graphrag_rag_accel.switch import switch_on

switch_on()
