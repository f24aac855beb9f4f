"""The README's picture of a report, from a recorded run: one made by hand shows a page that no longer exists.

    python docs/picture.py results/runs/RUN docs/report.png [--width 1080] [--height 1400] [--dark]

Needs Chromium on the path, or named in HARNESS_CHROMIUM. Run from the repository's root.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.errors import HarnessError
from harness.report.html import write_html
from harness.store import load_run
from suites.instrument.browser import chromium


def main() -> int:
    parser = argparse.ArgumentParser(description="A picture of a run's report.")
    parser.add_argument("run", type=Path, help="a run's folder, or its records file")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--width", type=int, default=1080, help="pixels, at least 500")
    parser.add_argument("--height", type=int, default=1400, help="pixels from the top of the page")
    parser.add_argument("--dark", action="store_true", help="the dark colour scheme")
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            write_html(load_run(asked.run), page)
            chromium.screenshot(page, asked.picture.resolve(), asked.width, asked.height, dark=asked.dark)
    except (HarnessError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{asked.picture}: {asked.picture.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
