"""The programs of the suite ``ray``, which run where Ray is installed."""
