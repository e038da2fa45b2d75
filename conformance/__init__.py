"""Run the frameworks' own tests plain and under ``activate()``, and compare: ``make conformance``.

Needs the standard library only: what the suites need stands in an environment of its own.
"""
