"""Where a recording unit's call and other decorators of its class meet.

`@support_torch_compile` gives a class a `__call__` of its own. Put above `@token_graph`, or on a subclass of a unit, it
once took the unit's call away: the model ran eagerly with all buckets recorded, and nothing failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Name of the attribute of a unit's class that puts the recording around a call.
WRAP_CALL = "__wrap_token_graph_call__"


def replace_call(cls: Any, call: Callable[..., Any]) -> None:
    """Make `call` the `__call__` of `cls`, and keep it behind the recordings where `cls` is a recording unit."""
    wrap = getattr(cls, WRAP_CALL, None)
    cls.__call__ = call if wrap is None else wrap(call)
