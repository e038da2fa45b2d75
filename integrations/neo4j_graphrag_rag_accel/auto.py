"""neo4j-graphrag accelerated in this process: ``import neo4j_graphrag_rag_accel.auto``.

From the import on, everything is scheduled that ``activate()`` would schedule, whatever made it and
when. ``neo4j_graphrag_rag_accel.switch.switch_off()`` ends it.
"""

from neo4j_graphrag_rag_accel.switch import switch_on

switch_on()
