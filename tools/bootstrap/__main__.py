"""Says which Python is needed before importing anything that an older one cannot read."""

import sys

if sys.version_info < (3, 11):
    found = ".".join(map(str, sys.version_info[:3]))
    sys.stderr.write(
        "env: Python 3.11 or later is needed, and {} is {}. Name another: make PYTHON=python3.11\n".format(
            sys.executable, found
        )
    )
    raise SystemExit(4)

from tools.bootstrap.cli import main

raise SystemExit(main())
