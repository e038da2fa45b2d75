"""The start of the command line: ``python -m rag_accel.cli``."""

import sys

from rag_accel.cli import main

sys.exit(main())
