"""When are two pieces the same code?

A thirty-layer model has about three distinct pieces and used to compile every one of them; and a cache keyed by
position alone served the code of another graph. A piece's fingerprint covers all that its code depends on, and no
name that only tells layers apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import torch.fx

from atom_impl.compilation.operator_identity import operator_facts, triton_constants, triton_facts
from atom_impl.compilation.split_ops import op_names
from atom_impl.compilation.torch_compat import symbol_hint
from atom_impl.utils.stable_hash import stable_hash

FORMAT = "piece-3"
_TRITON = "triton_kernel_wrapper_"
_PLACES = ("kernel_idx", "constant_args_idx")


def piece_fingerprint(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: object = None,
    ranges: Mapping[sympy.Symbol, Any] | None = None,
) -> str:
    """SHA-256 hex digest of a piece: its operations in order, its inputs' metadata, its constants, and `options`.

    Nodes and symbols count by their order of appearance, so equal layers are equal. `options` are what `stable_hash`
    takes. `ranges` are the symbols' as they were when the model was traced: compiling one piece may narrow them, and
    what a piece is must not depend on whether the one before it was compiled or loaded.
    """
    digest = hashlib.sha256()
    symbols = _Symbols(ranges or {})
    for line in _lines(graph, example_inputs, symbols):
        digest.update(line.encode())
        digest.update(b"\n")
    digest.update(stable_hash(options).encode())
    return digest.hexdigest()


def operators_digest(graph: torch.fx.GraphModule) -> str:
    """Hex digest of what the code of `graph` takes from operators that are not torch's own; "" when it calls none.

    Caches below this one name an operator and look no closer, so their keys need it too.
    """
    symbols = _Symbols(None)
    found = [line for node in _all_nodes(graph) for line in _called(node, symbols)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if found else ""


class _Symbols:
    """Symbols of a shape environment, renamed by order of appearance. Without `ranges` they are names and no more."""

    def __init__(self, ranges: Mapping[sympy.Symbol, Any] | None) -> None:
        self.ranges = ranges
        self.names: dict[sympy.Symbol, sympy.Symbol] = {}

    def text(self, expr: Any) -> str:
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self.names:
                assumptions = {"integer": symbol.is_integer, "positive": symbol.is_positive}
                self.names[symbol] = sympy.Symbol(f"n{len(self.names)}", **assumptions)
        return str(expr.xreplace(self.names))

    def scalar(self, value: Any) -> str:
        """A SymInt with its range and hint: Inductor's code depends on both."""
        node = getattr(value, "node", None)
        if node is None or not hasattr(node, "expr"):
            return f"{type(value).__name__} {value!r}"
        expr = node.expr
        if self.ranges is None:
            return f"{type(value).__name__} {self.text(expr)}"
        env = node.shape_env
        facts = [
            (str(self.ranges.get(symbol, env.var_to_range.get(symbol))), str(symbol_hint(env, symbol)))
            for symbol in sorted(expr.free_symbols, key=str)
        ]
        return f"{type(value).__name__} {self.text(expr)} {facts}"


def _lines(graph: torch.fx.GraphModule, example_inputs: Iterable[Any], symbols: _Symbols) -> Iterable[str]:
    yield FORMAT
    yield f"inference {torch.is_inference_mode_enabled()} grad {torch.is_grad_enabled()}"
    yield f"default {torch.get_default_dtype()} autocast {[torch.is_autocast_enabled(d) for d in ('cpu', 'cuda')]}"
    for value in example_inputs:
        yield "input " + (str(_metadata(value, symbols)) if isinstance(value, torch.Tensor) else symbols.scalar(value))
    order: dict[torch.fx.Node, int] = {}
    for node in graph.graph.nodes:
        target = "" if node.op == "placeholder" else _target(graph, node, symbols)
        keywords = {key: value for key, value in node.kwargs.items() if not (key in _PLACES and _is_triton(node))}
        arguments = "" if node.op == "placeholder" else _argument((node.args, keywords), order, symbols)
        yield f"{node.op} {target} {arguments}"
        yield from _called(node, symbols)
        order[node] = len(order)


def _all_nodes(graph: torch.fx.GraphModule) -> Iterable[torch.fx.Node]:
    """The nodes of a graph and of those that it holds, for a branch or a loop is one."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _called(node: torch.fx.Node, symbols: _Symbols) -> Iterable[str]:
    """What a call takes from the operator behind it: its facts, and the layout that its fake gives its results."""
    facts = operator_facts(node.target) if node.op == "call_function" else []
    if _is_triton(node):
        facts = triton_facts(node.kwargs["kernel_idx"])  # type: ignore[arg-type]
        constants = triton_constants(node.kwargs["constant_args_idx"])  # type: ignore[arg-type]
        facts.append(_argument(constants, {}, symbols))
    if facts:
        yield f"calls {node.target} {facts} -> {_layout(node.meta.get('example_value'), symbols)}"


def _is_triton(node: torch.fx.Node) -> bool:
    """Whether a node is a user's Triton kernel: its source is in a table of this process, and only its place in it is
    in the graph.
    """
    return str(node.target).startswith(_TRITON)


def _layout(value: Any, symbols: _Symbols) -> str:
    """Shapes, strides and dtypes of a traced value, however nested."""
    if isinstance(value, torch.Tensor):
        return str(_metadata(value, symbols))
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_layout(item, symbols) for item in value)})"
    return symbols.scalar(value)


def _target(graph: torch.fx.GraphModule, node: torch.fx.Node, symbols: _Symbols) -> str:
    if node.op == "output":
        return ""
    if node.op in ("get_attr", "call_module"):
        held = graph
        for name in str(node.target).split("."):
            held = getattr(held, name)
        return _value(held, symbols)
    if callable(node.target):
        module = getattr(node.target, "__module__", "")
        qualified = f"{module}.{getattr(node.target, '__qualname__', node.target)}"
        return qualified + " " + " ".join(sorted(op_names(node.target)))
    return str(node.target)


def _value(value: Any, symbols: _Symbols) -> str:
    """Something that the graph holds: a nested graph, a constant with its content, or a scalar."""
    if isinstance(value, torch.fx.GraphModule):
        return "graph " + "; ".join(_lines(value, (), symbols))
    if not isinstance(value, torch.Tensor):
        return symbols.scalar(value)
    facts = _metadata(value, symbols)
    if not isinstance(value, torch._subclasses.FakeTensor) and not value.is_meta:
        content = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        facts.append(hashlib.sha256(content).hexdigest())
    return str(facts)


def _metadata(value: torch.Tensor, symbols: _Symbols) -> list[Any]:
    facts: list[Any] = [
        "parameter" if isinstance(value, torch.nn.Parameter) else "tensor",
        str(value.dtype),
        str(value.device),
        str(value.layout),
        [symbols.scalar(size) for size in value.shape],
        f"grad {value.requires_grad} conj {value.is_conj()} neg {value.is_neg()}",
    ]
    if value.layout is torch.strided:
        facts += [[symbols.scalar(stride) for stride in value.stride()], symbols.scalar(value.storage_offset())]
    return facts


def _argument(value: Any, order: Mapping[torch.fx.Node, int], symbols: _Symbols) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{order[value]}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_argument(item, order, symbols) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item, order, symbols)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return "slice" + _argument((value.start, value.stop, value.step), order, symbols)
    return symbols.scalar(value)
