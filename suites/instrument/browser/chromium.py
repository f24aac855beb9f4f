"""Chromium without a window: screenshots, prints and measurements of a page on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "HARNESS_CHROMIUM"
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def find() -> str | None:
    """The browser's path: the one that `HARNESS_CHROMIUM` names, else the first on the path, else none."""
    named = os.environ.get(VARIABLE)
    if not named:
        return next((path for name in NAMES if (path := shutil.which(name))), None)
    found = shutil.which(named)
    if found is None:
        raise FileNotFoundError(f"{VARIABLE}={named} is not a program; name Chromium's, or unset it to do without")
    return found


def screenshot(page: Path, picture: Path, width: int, height: int, *, dark: bool = False) -> None:
    """A PNG of the top `height` pixels of `page`, at least 500 wide: the browser makes no narrower window."""
    _run(page, f"--window-size={width},{height}", f"--screenshot={picture}", dark=dark)


def print_pdf(page: Path, pdf: Path) -> None:
    _run(page, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")


def dom(page: Path, *, dark: bool = False) -> str:
    """The document after its scripts have run, as HTML."""
    return _run(page, "--virtual-time-budget=10000", "--dump-dom", dark=dark)


def _run(page: Path, *options: str, dark: bool = False) -> str:
    program = find()
    if program is None:
        raise FileNotFoundError(f"no Chromium found: install one, or name it in {VARIABLE}")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        command = [program, *_QUIET, scheme, f"--user-data-dir={profile}", *options, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
