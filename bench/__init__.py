"""Measure the product against the plain program, fairly, and record what was measured.

``python -m bench SUITE|all [--quick] [--processes N] [--json FILE]`` runs suites (``all`` into a
folder, a file a suite, of which ``--resume`` runs only what is not there; with ``--set NAME=VALUE``
on other parameters, where a suite has some), ``python -m bench.compare OLD NEW`` shows what changed
between two result files, ``python -m bench.report FILE`` prints one, and ``python -m bench.publish
FILE`` checks results, keeps them and writes the pages of ``docs/results`` and the figures of the
documents. With ``--processes`` each suite runs in that many fresh processes, one after another; of
every figure the median, the lowest and the highest are given, and the file keeps the medians of
each process (``bench/results.py``). With ``--append`` they join those that FILE has, if commit,
sizes and surroundings are the same, so that the processes of one figure can be hours apart.

A suite whose answers are not what they must be (``bench/answers.py``) ends with exit code 1, and
its result is not written.

A suite is one module in ``bench/suites`` with a function ``run(quick) -> SuiteResult`` and a
docstring whose section ``Ratios:`` defines every ratio it returns and names its opponent.
"""
