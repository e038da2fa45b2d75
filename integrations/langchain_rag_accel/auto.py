"""LangChain and LangGraph accelerated in this process: ``import langchain_rag_accel.auto``.

From the import on, everything is scheduled that ``activate()`` would schedule, whatever made it and
when. ``langchain_rag_accel.switch.switch_off()`` ends it.
"""

from langchain_rag_accel.switch import switch_on

switch_on()
