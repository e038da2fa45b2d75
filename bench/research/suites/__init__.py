"""Hold the suites of research; ``bench.suites`` finds and imports them."""
