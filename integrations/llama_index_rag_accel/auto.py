"""LlamaIndex accelerated in this process: ``import llama_index_rag_accel.auto``.

Everything is scheduled from then on that ``activate()`` would schedule, until ``switch_off()``.
One line on standard error then says which classes engines run, and why they do not run others.
"""

from llama_index_rag_accel.switch import switch_on
from rag_accel.interception.start_summary import summarise

switch_on()
summarise()
