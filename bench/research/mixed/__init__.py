"""Measure mixed workflows under load: the trace, the systems under test, and the search for limits.

``trace`` says what is asked, ``index_files`` what is searched, ``programs`` the workflows as plain
async programs, ``expected`` what they must answer, ``systems`` who runs them, ``load`` one run,
``sweep`` the rate a system sustains, ``bench`` all of that in one setting, ``sizes`` how much is
measured.
"""
