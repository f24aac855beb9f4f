"""The cheap check in front of code without guards.

Guard-free code computes on whatever it is given. Called with another dtype it reads wrong bytes, with a mask where
there was none it ignores it, and with a changed attribute it uses the old value; each gave plausible tokens. This
check costs a few microseconds and raises instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from atom_impl.compilation.traced_inputs import same_layout


class SignatureMismatch(RuntimeError):
    """A call that the compiled code was not traced for.

    The message names the argument, what was traced, and what came.
    """


class SizeRules:
    """What the trace assumed about dynamic sizes, such as that two arguments have the same number of rows.

    `symbols` gives, for each (argument, dimension), the symbol that stood for its size; `guards` are (expression,
    site).
    """

    def __init__(self, symbols: Mapping[tuple[str, int], sympy.Expr], guards: Sequence[tuple[sympy.Expr, str]]) -> None:
        self.places = list(symbols)
        self._symbols = [symbols[place] for place in self.places]
        known = {symbol for symbol in self._symbols if isinstance(symbol, sympy.Symbol)}
        self._guards = [(expr, site) for expr, site in guards if expr.free_symbols and expr.free_symbols <= known]
        self._passed: set[tuple[int, ...]] = set()

    def check(self, sizes: tuple[int, ...]) -> None:
        """`sizes` in the order of `places`. A combination that passed once is not evaluated again."""
        if sizes in self._passed:
            return
        values: dict[sympy.Expr, int] = {}
        for place, symbol, size in zip(self.places, self._symbols, sizes, strict=True):
            if values.setdefault(symbol, size) != size:
                raise SignatureMismatch(self._unequal(place, symbol, sizes))
        for expr, site in self._guards:
            if not _holds(expr, values):
                shown = ", ".join(f"{name} dim {dim} = {n}" for (name, dim), n in zip(self.places, sizes, strict=True))
                raise SignatureMismatch(
                    f"sizes {shown} break {expr}, which was assumed when the model was traced{site and f' at {site}'}; "
                    "the compiled code is for sizes that keep it: remove the dependence on the size, or pad the batch"
                )
        self._passed.add(sizes)

    def _unequal(self, place: tuple[str, int], symbol: sympy.Expr, sizes: tuple[int, ...]) -> str:
        same = [
            f"{name} dim {dim} = {size}"
            for (name, dim), other, size in zip(self.places, self._symbols, sizes, strict=True)
            if other == symbol
        ]
        return f"{place[0]}: {', '.join(same)} were one size when the model was traced and must stay equal"


def _holds(expr: sympy.Expr, values: Mapping[sympy.Expr, int]) -> bool:
    numbers = {symbol: sympy.Integer(values[symbol]) for symbol in expr.free_symbols}
    return bool(expr.xreplace(numbers) == sympy.true or expr.subs(numbers) == sympy.true)


class CallSignature:
    """The arguments of the traced call, as far as compiled code depends on them."""

    def __init__(
        self,
        function: Callable[..., Any],
        traced: Mapping[str, Any],
        dynamic_dims: Mapping[str, Sequence[int]],
        size_rules: SizeRules,
    ) -> None:
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())[1:]
        self._names = [parameter.name for parameter in parameters]
        self._positional = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._checks = [_check_for(name, traced[name], dynamic_dims.get(name, ())) for name in self._names]
        self._sizes = size_rules
        self._size_at = [(self._names.index(name), dim) for name, dim in size_rules.places]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The call's arguments in the order of the parameters, defaults filled in."""
        if not kwargs and len(args) == len(self._names) and self._positional:
            return args
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self._names)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """The call's dynamic sizes. Raises `SignatureMismatch` unless the compiled code is right for the call."""
        values = self.bind(args, kwargs)
        for check, value in zip(self._checks, values, strict=True):
            check(value)
        sizes = tuple([values[index].shape[dim] for index, dim in self._size_at])
        self._sizes.check(sizes)
        return sizes


def _check_for(name: str, traced: Any, dynamic: Sequence[int]) -> Callable[[Any], None]:
    if isinstance(traced, torch.Tensor):
        return _tensor_check(name, traced, {dim % traced.dim() for dim in dynamic})
    held = getattr(traced, "tensors", None)
    if isinstance(held, dict):
        return _holder_check(name, held)
    return _value_check(name, traced)


def _tensor_check(name: str, traced: torch.Tensor, dynamic: set[int]) -> Callable[[Any], None]:
    dtype, rank, device, grad = traced.dtype, traced.dim(), traced.device, traced.requires_grad
    fixed = [(dim, size) for dim, size in enumerate(traced.shape) if dim not in dynamic]
    contiguous = traced.is_contiguous()
    layout = torch.empty_strided(traced.shape, traced.stride(), dtype=dtype, device="meta", requires_grad=grad)

    def check(value: Any) -> None:
        if (
            not isinstance(value, torch.Tensor)
            or value.dtype is not dtype
            or value.dim() != rank
            or value.device != device
            or value.requires_grad is not grad
        ):
            raise SignatureMismatch(f"argument {name}: {_difference(value, layout, device)}")
        for dim, size in fixed:
            if value.shape[dim] != size:
                raise SignatureMismatch(f"argument {name}: {_was(f'size of dimension {dim}', size, value.shape[dim])}")
        if not (value.is_contiguous() if contiguous else same_layout(value, layout)):
            was = f"{layout.stride()} for {tuple(layout.shape)}"
            raise SignatureMismatch(
                f"argument {name}: {_was('stride', was, f'{value.stride()} for {tuple(value.shape)}')}"
            )

    return check


def _was(what: str, was: object, now: object) -> str:
    return f"{what} was {was} when the model was traced and is {now} now"


def _difference(value: Any, traced: torch.Tensor, device: torch.device) -> str:
    """Which property of a tensor argument differs; one does."""
    if not isinstance(value, torch.Tensor):
        return _was("it", "a tensor", "None" if value is None else f"a {type(value).__name__}")
    if value.dtype is not traced.dtype:
        return _was("dtype", traced.dtype, value.dtype)
    if value.dim() != traced.dim():
        return _was("rank", traced.dim(), value.dim())
    if value.device != device:
        return _was("device", device, value.device)
    return _was("requires_grad", traced.requires_grad, value.requires_grad)


def _holder_check(name: str, held: Mapping[str, torch.Tensor]) -> Callable[[Any], None]:
    checks = {key: _tensor_check(f"{name}[{key!r}]", tensor, {0}) for key, tensor in held.items()}

    def check(value: Any) -> None:
        tensors = getattr(value, "tensors", None)
        if not isinstance(tensors, dict) or tensors.keys() != checks.keys():
            came = sorted(tensors) if isinstance(tensors, dict) else type(value).__name__
            raise SignatureMismatch(f"argument {name}: traced with tensors {sorted(checks)}, called with {came}")
        for key, check_one in checks.items():
            check_one(tensors[key])

    return check


def _value_check(name: str, traced: Any) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if value is traced:
            return
        if type(value) is not type(traced) or isinstance(value, torch.Tensor) or value != traced:
            now = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
            raise SignatureMismatch(
                f"argument {name} was {traced!r} when the model was traced, which is part of the compiled code, "
                f"and is {now} now"
            )

    return check
