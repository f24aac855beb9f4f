"""`@support_torch_compile`: a model class whose instances compile their forward as the configuration says.

Upstream's decorator found no dynamic arguments in a module with `from __future__ import annotations`, ran level 2 as
level 3, and checked nothing once the code was compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast, overload

import torch
import torch.fx

from atom_impl.compilation.debug_dump import (
    dump_code,
    end_monitoring_torch_compile,
    start_monitoring_torch_compile,
)
from atom_impl.compilation.dynamic_dims import checked_dims, inferred_dims
from atom_impl.compilation.guard_free import Backend, GuardFreeDispatch, function_with_code
from atom_impl.compilation.state_writes import ADVICE, rebound_state, written_state
from atom_impl.compilation.traced_code import traced_files
from atom_impl.compilation.whole_graph_backend import InductorOnceBackend
from atom_impl.config import CompilationLevel, Config
from atom_impl.utils import backends
from atom_impl.utils.backends import VllmBackend
from atom_impl.utils.tracing import being_traced
from atom_impl.utils.unit_call import replace_call

__all__ = [
    "TorchCompileWrapperWithCustomDispatcher",
    "end_monitoring_torch_compile",
    "start_monitoring_torch_compile",
    "support_torch_compile",
]

ModelClass = TypeVar("ModelClass", bound=type[torch.nn.Module])
Dims = Mapping[str, int | Sequence[int]]

#: Set to 1, every call evaluates the guards that were dropped: slow, and it names the one that fails.
CHECK_GUARDS = "ATOM_CHECK_GUARDS"


class TorchCompileWrapperWithCustomDispatcher:
    """What the decorator adds to a model class: one instance's compiled forward and how it is reached."""

    use_custom_dispatcher: bool
    do_not_compile: bool

    def __init__(self, vllm_config: Config, compiled_callable: Any = None, compilation_level: int = 0) -> None:
        """`compiled_callable` replaces what the level would compile; None, as a rule."""
        self.compilation_level = compilation_level
        self.compiled_callable = compiled_callable
        self.use_custom_dispatcher = compilation_level >= CompilationLevel.DYNAMO_ONCE
        self._dispatch = GuardFreeDispatch(
            cast(FunctionType, type(self).forward),  # type: ignore[attr-defined]
            _MakeBackend(vllm_config, compilation_level),
            getattr(type(self), "_dynamic_arg_dims", {}),
            debug=os.environ.get(CHECK_GUARDS) == "1",
        )

    @property
    def compiled_codes(self) -> list[CodeType]:
        """The compiled code objects of this instance: none before the first call, one after it."""
        return self._dispatch.codes

    def dispatch_to_code(self, index: int) -> Callable[..., Any]:
        """Compiled code `index` as a callable that evaluates no guards. Raises RuntimeError before the first call."""
        if index >= len(self.compiled_codes):
            raise RuntimeError(
                f"code {index} of {type(self).__name__} does not exist at level {self.compilation_level}; "
                "levels 2 and 3 have code 0 once the model has run"
            )
        forward = cast(FunctionType, type(self).forward)  # type: ignore[attr-defined]
        run = function_with_code(forward, self.compiled_codes[index])
        return lambda *args, **kwargs: run(self, *args, **kwargs)


@overload
def support_torch_compile(cls: ModelClass) -> ModelClass: ...
@overload
def support_torch_compile(*, dynamic_arg_dims: Dims | None = None) -> Callable[[ModelClass], ModelClass]: ...
def support_torch_compile(
    cls: ModelClass | None = None, *, dynamic_arg_dims: Dims | None = None
) -> ModelClass | Callable[[ModelClass], ModelClass]:
    """Make instances of `cls`, built as `cls(atom_config, **kwargs)`, compile their forward at levels 2 and 3.

    `dynamic_arg_dims` names the arguments with dimensions that vary from call to call; left out, it is dimension 0 of
    every parameter annotated `torch.Tensor` or `Optional[torch.Tensor]`. TypeError without a forward; ValueError for
    an argument that forward does not have, or when none is dynamic. Decorating twice is harmless.
    """

    def decorate(model: ModelClass) -> ModelClass:
        if not callable(model.__dict__.get("forward", getattr(model, "forward", None))) or not _has_own_forward(model):
            raise TypeError("decorated class should have a forward method.")
        dims = inferred_dims(model) if dynamic_arg_dims is None else checked_dims(model, dynamic_arg_dims)
        model._dynamic_arg_dims = dims  # type: ignore[attr-defined]
        return model if issubclass(model, TorchCompileWrapperWithCustomDispatcher) else _augment(model)

    return decorate if cls is None else decorate(cls)


def _has_own_forward(model: type[torch.nn.Module]) -> bool:
    """`nn.Module` has a forward that only raises; that is not one."""
    return getattr(model, "forward", None) is not torch.nn.Module.forward


def _augment(cls: ModelClass) -> ModelClass:
    cls.__bases__ = (*cls.__bases__, TorchCompileWrapperWithCustomDispatcher)
    own_init = cls.__init__

    def __init__(self: Any, atom_config: Config, *args: Any, **kwargs: Any) -> None:
        own_init(self, atom_config, *args, **kwargs)
        level = atom_config.compilation_config.level
        self.do_not_compile = level in (CompilationLevel.NO_COMPILATION, CompilationLevel.DYNAMO_AS_IS)
        TorchCompileWrapperWithCustomDispatcher.__init__(self, atom_config, compilation_level=level)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.do_not_compile or being_traced():
            return self.forward(*args, **kwargs)
        return self._dispatch(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[method-assign]
    replace_call(cls, __call__)
    return cls


class _MakeBackend:
    """Builds the backend of one trace: the level's own, behind the checks that come before any compile."""

    def __init__(self, config: Config, level: int) -> None:
        self._config = config
        self._level = level

    def __call__(self, module: torch.nn.Module) -> Backend:
        compilation = self._config.compilation_config
        piecewise = self._level == CompilationLevel.PIECEWISE
        tag = backends.model_tag
        inner: Backend = VllmBackend(self._config, tag) if piecewise else InductorOnceBackend(self._config, tag)

        def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            compilation.traced_files.update(traced_files(graph, type(module).forward))
            if compilation.use_cudagraph:
                writes = written_state(graph, example_inputs, module)
                if writes:
                    raise RuntimeError(f"{ADVICE}. {'; '.join(writes)}")
            name = type(module).__name__
            started = start_monitoring_torch_compile(self._config, graph, name)
            compiled = inner(graph, example_inputs)
            end_monitoring_torch_compile(self._config, name, started)
            return compiled

        return backend

    def inspect_code(self, code: CodeType, module: torch.nn.Module) -> None:
        """Dump the compiled bytecode, and apply the guide's safety check to it."""
        dump_code(self._config, code, code.co_name)
        rebound = rebound_state(code, module)
        if self._config.compilation_config.use_cudagraph and rebound is not None:
            raise RuntimeError(f"{ADVICE}. {rebound}")
