"""How a command speaks and ends: what it prints, and the one exit code for each way in which it can end badly.

A command that ended in a traceback with code 1 was read as "the engine is wrong", and it was a typing mistake.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from harness import errors
from harness.store import list_runs


@contextmanager
def one_ending() -> Iterator[None]:
    """Turn every way in which a command can end badly into one message on stderr and its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        yield
    except errors.HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted; whatever was recorded is kept", file=sys.stderr)
        code = errors.INCOMPLETE
    except Exception:
        traceback.print_exc()
        print("harness: a fault of the harness itself, see above; nothing is said about the engine", file=sys.stderr)
        code = errors.FAULT
    else:
        return
    sys.stdout.flush()
    sys.exit(code)


def end_with(code: int) -> None:
    """End the process, unless all is well."""
    if code:
        sys.exit(code)


def console() -> Console:
    """Output to a file or a pipe is not folded at the width of a terminal that is not there."""
    found = Console()
    return found if found.is_terminal else Console(width=120)


def say(text: str) -> None:
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def command_line() -> tuple[str, ...]:
    return ("harness", *sys.argv[1:])


def run_folder(run: str | None, results: Path) -> Path:
    """The folder of a run by its name or path, or the newest one. Raises `UsageError` if there is none."""
    if run is not None:
        named = results / "runs" / run
        return named if named.is_dir() else Path(run)
    newest = next(iter(list_runs(results / "runs")), None)
    if newest is None:
        raise errors.UsageError(f"no run below {results / 'runs'}; make one with `harness signoff`")
    return newest


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
