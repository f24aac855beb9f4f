"""Run compiled code without Dynamo's guards: one private copy of the code per instance.

Upstream swapped the class's `forward.__code__` for the length of a call. A forward that raised left every instance of
the class with one instance's code, and two threads ran each other's. Nothing shared is touched here: the copy has its
own code object, Dynamo compiles that, and what it produced is called as an ordinary function.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
import torch.fx
import torch.fx.experimental._config as symbolic_config

from atom_impl.compilation.baked_values import BakedValues
from atom_impl.compilation.call_signature import CallSignature, SignatureMismatch, SizeRules
from atom_impl.compilation.compile_gate import check_may_compile
from atom_impl.compilation.size_assumptions import about_results, by_compiler
from atom_impl.compilation.torch_compat import cache_entries, size_guards
from atom_impl.compilation.traced_inputs import stand_ins
from atom_impl.utils.compilation_counter import compilation_counter

logger = logging.getLogger(__name__)

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class BackendFactory(Protocol):
    """What a dispatch needs from its owner: a backend for one trace, and a look at the bytecode that came of it."""

    def __call__(self, module: torch.nn.Module) -> Backend: ...
    def inspect_code(self, code: CodeType, module: torch.nn.Module) -> None: ...


_numbers = itertools.count()


class _Traced(BaseException):
    """Leaves a compiled function before it runs: its arguments were stand-ins."""


class GuardFreeDispatch:
    """Compiles one instance's forward on its first call and runs the result from then on, in any thread.

    `make_backend` is called once, with the instance, at the trace. `dynamic_dims` maps argument names to the
    dimensions that vary. With `debug` every call also evaluates the guards that were dropped, and names the one that
    fails.
    """

    def __init__(
        self,
        forward: FunctionType,
        make_backend: BackendFactory,
        dynamic_dims: Mapping[str, Sequence[int]],
        debug: bool = False,
    ) -> None:
        self._forward = forward
        self._make_backend = make_backend
        self._dynamic_dims = {name: list(dims) for name, dims in dynamic_dims.items()}
        self.debug = debug
        self._lock = threading.Lock()
        self.codes: list[CodeType] = []
        self._run: FunctionType | None = None
        self._entry: Any = None
        self._signature: CallSignature | None = None
        self._baked: BakedValues | None = None
        self._autocast = False

    def __deepcopy__(self, memo: Any) -> GuardFreeDispatch:
        """A copied instance compiles its own code: what was traced belongs to the original's modules."""
        return GuardFreeDispatch(self._forward, self._make_backend, self._dynamic_dims, self.debug)

    @property
    def is_traced(self) -> bool:
        return self._run is not None

    @property
    def baked_values(self) -> int:
        """How many attribute values are compared on each call."""
        return 0 if self._baked is None else len(self._baked)

    def __call__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward of `module`. Raises `SignatureMismatch` for a call that it was not traced for."""
        run = self._run
        if run is None:
            run = self._trace_once(module, args, kwargs)
        assert self._signature is not None
        assert self._baked is not None
        sizes = self._signature.check(args, kwargs)
        if torch._C._is_any_autocast_enabled() is not self._autocast:
            raise SignatureMismatch(f"autocast was {'on' if self._autocast else 'off'} when the model was traced")
        changed = self._baked.changed()
        if changed is not None:
            raise SignatureMismatch(f"{changed}; restore it, or build a new instance")
        if self.debug:
            self._check_guards(module, args, kwargs)
        if 0 in sizes:
            # Nothing to compute, and on a GPU Inductor's launches divide by the number of rows.
            compilation_counter.num_empty_calls += 1
            return self._forward(module, *args, **kwargs)
        return run(module, *args, **kwargs)

    def _trace_once(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionType:
        """Trace under a lock, which is released before anything runs."""
        with self._lock:
            if self._run is None:
                check_may_compile(f"the forward of {type(module).__name__}")
                bound = inspect.signature(self._forward).bind(module, *args, **kwargs)
                bound.apply_defaults()
                arguments = dict(bound.arguments)
                del arguments[next(iter(arguments))]
                trace = _trace_leniently(self, module, stand_ins(arguments, self._dynamic_dims))
                self._adopt(trace, module)
                compilation_counter.num_models_seen += 1
            assert self._run is not None
            return self._run

    def _adopt(self, trace: _Trace, module: torch.nn.Module) -> None:
        self._entry = next((entry for entry in cache_entries(trace.code)), None)
        if self._entry is None:
            raise RuntimeError(f"torch.compile produced no code for the forward of {type(module).__name__}")
        self._make_backend.inspect_code(self._entry.code, module)
        scope = {"L": {trace.self_name: module}, "G": self._forward.__globals__}
        self._baked = BakedValues(trace.guards, scope, trace.arguments)
        dims = {name: dims for name, dims in self._dynamic_dims.items() if trace.arguments.get(name) is not None}
        rules = SizeRules(trace.size_symbols(dims), trace.size_guards)
        self._signature = CallSignature(self._forward, trace.arguments, dims, rules)
        self._autocast = torch._C._is_any_autocast_enabled()
        self.codes = [self._entry.code]
        weakref.finalize(self, _release, self._forward.__globals__, self._entry.code.co_names).atexit = False
        self._run = function_with_code(self._forward, self._entry.code)
        trace.forget()

    def _check_guards(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        bound = inspect.signature(self._forward).bind(module, *args, **kwargs)
        bound.apply_defaults()
        cells = zip(self._forward.__code__.co_freevars, self._forward.__closure__ or (), strict=True)
        scope = {**bound.arguments, **{name: cell.cell_contents for name, cell in cells}}
        verdict = self._entry.guard_manager.check_verbose(scope)
        if not verdict.result:
            raise SignatureMismatch(
                f"a guard that was dropped fails: {'; '.join(map(str, verdict.verbose_code_parts))}"
            )


class _Trace:
    """One run of Dynamo over a private copy of a forward, on stand-ins, with all that it assumed."""

    def __init__(self, dispatch: GuardFreeDispatch, module: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        forward = dispatch._forward
        self.arguments = dict(arguments)
        self.self_name = forward.__code__.co_varnames[0]
        self.code = forward.__code__.replace(co_name=f"{forward.__code__.co_name}_{next(_numbers)}")
        self.guards: list[Any] = []
        self.size_guards: list[tuple[Any, str]] = []
        self._fakes: dict[int, Any] = {}
        self.failure: Exception | None = None
        self._tracing = True
        self._backend: Backend | None = dispatch._make_backend(module)
        self._run(function_with_code(forward, self.code), module)

    def _run(self, function: FunctionType, module: torch.nn.Module) -> None:
        compiled = torch.compile(function, fullgraph=True, backend=self._compile)
        positional, keyword = _as_call(function, self.arguments)
        try:
            compiled(module, *positional, **keyword)
        except _Traced:
            pass
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError):
            compilation_counter.graph_breaks += 1
            raise
        except torch._dynamo.exc.BackendCompilerFailed as wrapped:
            # Dynamo's wrapper buries the message under advice about Dynamo; the error is the backend's.
            raise (wrapped if self.failure is None else self.failure) from None
        finally:
            self._tracing = False

    def _compile(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        context = torch._guards.TracingContext.get()
        self.guards = list(context.guards_context.dynamo_guards)
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for node, value in zip(placeholders, example_inputs, strict=True):
            self._fakes[id(value)] = node.meta.get("example_value")
        assert self._backend is not None
        traced = size_guards()
        try:
            compiled = self._backend(graph, example_inputs)
        except Exception as error:
            self.failure = error
            raise
        self.size_guards = about_results(traced, graph) + by_compiler(traced)

        def run(*args: Any) -> Any:
            if self._tracing:
                raise _Traced
            return compiled(*args)

        return run

    def forget(self) -> None:
        """Drop all that refers to the instance: its module's globals keep the compiled code, and through it this
        object.
        """
        self.arguments, self.guards, self._fakes = {}, [], {}
        self._backend = None

    def size_symbols(self, dynamic_dims: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], Any]:
        """The symbol of every dynamic size that the graph reads."""
        symbols = {}
        for name, dims in dynamic_dims.items():
            tensor = self.arguments[name]
            fake = self._fakes.get(id(tensor))
            if isinstance(tensor, torch.Tensor) and fake is not None:
                for dim in dims:
                    size = fake.shape[dim % tensor.dim()]
                    symbols[name, dim % tensor.dim()] = size.node.expr if isinstance(size, torch.SymInt) else size
        return symbols


def _trace_leniently(dispatch: GuardFreeDispatch, module: torch.nn.Module, arguments: Mapping[str, Any]) -> _Trace:
    """Trace so that sizes 0 and 1 are not taken for constants; where Dynamo itself stumbles over that, trace as usual.

    A branch on `rows == 1` then leaves no guard to check, so the log says that it happened.
    """
    try:
        with _size_oblivious():
            return _Trace(dispatch, module, arguments)
    except (torch._dynamo.exc.InternalTorchDynamoError, torch._dynamo.exc.TorchRuntimeError) as error:
        logger.warning("%s cannot be traced for sizes 0 and 1 alike (%s)", type(module).__name__, error)
        return _Trace(dispatch, module, arguments)


def _size_oblivious() -> AbstractContextManager[Any]:
    """Symbols may be 0 or 1, so that a branch on `rows == 1` leaves a guard to check instead of vanishing."""
    if not hasattr(symbolic_config, "backed_size_oblivious"):
        return nullcontext()
    patched: AbstractContextManager[Any] = symbolic_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    return patched


def _release(scope: dict[str, Any], names: Sequence[str]) -> None:
    """Let go of the compiled graph that Dynamo keeps in the forward's module. The names are Dynamo's to delete."""
    for name in names:
        if name.startswith("__compiled_fn") and name in scope:
            scope[name] = None


def function_with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """A function that differs from `function` in its code alone."""
    made = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _as_call(function: FunctionType, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    positional, keyword = [], {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            keyword[name] = arguments[name]
        else:
            positional.append(arguments[name])
    return positional, keyword
