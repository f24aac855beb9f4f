"""Checks of what a user wrote. Each takes any object, and returns a typed copy or raises a `ValueError` with a way out.

A parsed file gives `"false"` for False and True for 1; both pass through Python without a word and change what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


def check_flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{field} {value!r}: must be True or False; any text, 'false' too, would count as true")


def check_positive_int(field: str, value: object, way_out: str) -> None:
    """Raise unless `value` is an int of at least 1. True is an int to Python, and never what was meant."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} {value!r}: must be an integer of at least 1; {way_out}")


def check_dtype(field: str, value: object) -> None:
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise ValueError(f"{field} {value!r}: must be a floating-point torch.dtype, such as torch.bfloat16")


def check_device(field: str, value: object) -> None:
    """Raise unless `value` names a device that records graphs: "cpu", "cuda" or "cuda:<index>"."""
    try:
        kind = torch.device(value).type if isinstance(value, str) else ""
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"{field} {value!r}: no such device here; use 'cpu' or 'cuda' (an AMD GPU is 'cuda' too)")


def check_choice(field: str, value: object, choices: Iterable[str]) -> None:
    if value not in list(choices):
        raise ValueError(f"{field} {value!r}: no such choice; choose one of {', '.join(choices)}")


def checked_sizes(field: str, value: object) -> list[int]:
    """A copy of a list of sizes, in its order. Zero, negative, repeated or non-integer entries and [] raise."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ValueError(f"{field}={value!r}: must be a list of positive integers, such as [1, 2, 4]")
    if not value:
        raise ValueError(f"{field}=[]: must hold at least one size; leave it out for the default")
    for size in value:
        check_positive_int(f"{field} entry", size, "list the sizes as whole numbers, such as [1, 2, 4]")
    repeated = [size for size in value if value.count(size) > 1]
    if repeated:
        raise ValueError(f"{field}={list(value)}: {repeated[0]} occurs more than once; name every size once")
    return list(value)


def checked_compile_sizes(field: str, value: object, ladder_name: str) -> list[int | str]:
    """A copy of a list of integers and of `ladder_name`, the one string that stands for sizes."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ValueError(f"{field}={value!r}: must be a list of positive integers, or of the name {ladder_name!r}")
    for size in value:
        if not isinstance(size, str):
            check_positive_int(f"{field} entry", size, f"use whole numbers, or the name {ladder_name!r}")
        elif size != ladder_name:
            raise ValueError(
                f"Unrecognized size type in {field}, expect {ladder_name!r}, got {size!r}; name the sizes as numbers"
            )
    return list(value)


def checked_names(field: str, value: object) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not all(isinstance(n, str) for n in value):
        raise ValueError(f"{field}={value!r}: must be a list of names, such as ['aiter.mla_attention']")
    return list(value)


def checked_options(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{field}={value!r}: must be a dict of options, such as {{'max_autotune': True}}")
    return dict(value)


def check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{field} {value!r}: must be text; leave it out for the default")


def check_type(field: str, value: object, types: tuple[type, ...]) -> None:
    if not isinstance(value, types):
        names = " or ".join(kind.__name__ for kind in types)
        raise ValueError(
            f"{field} {value!r}: is a {type(value).__name__} and must be {names}; build one from its fields"
        )
