"""Measure the product against the plain program, fairly, and record what was measured.

``python -m bench SUITE|all [--quick] [--processes N] [--json FILE] [--plots DIR]`` runs suites,
``python -m bench.compare OLD NEW`` shows what changed between two result files and
``python -m bench.table`` writes the results table of the README. With ``--processes`` each suite
runs in that many fresh processes, one after another; of every ratio the median, the lowest and the
highest are given, and the file keeps what each process found (``bench/results.py``).

A suite is one module in ``bench/suites`` with a function ``run(quick) -> SuiteResult`` and a
docstring whose section ``Ratios:`` defines every ratio it returns.
"""
