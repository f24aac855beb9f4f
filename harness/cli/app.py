"""The one typer application, to which each module of commands adds its own."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Signs off the compilation and graph layers of an engine: every cell measured, compared and accounted for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
