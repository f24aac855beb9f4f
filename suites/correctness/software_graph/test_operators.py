"""One operator at a time: capture, new inputs, replay, and the same bits as eager.

A recorder that is right for a decoder can be wrong for `index_put`, an out= that resizes, a conjugate view or an
in-place counter, and the model that uses one of them gets wrong tokens with every other test green.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from atom_impl.device.software import CaptureError, SoftwareGraph, register_body

Case = Callable[[SimpleNamespace], Any]

_ops = torch.library.Library("software_graph_test", "FRAGMENT")
_BODIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "mutate": (
        "(Tensor x, Tensor(a!) out, str label, int n) -> ()",
        lambda x, out, label, n: (out.copy_(x * n), None)[1],
    ),
    "pair": ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, (x * 2).t())),
    "listed": ("(Tensor[] xs) -> Tensor[]", lambda xs: [x + 1 for x in xs]),
    "optional": ("(Tensor x, Tensor? y) -> Tensor", lambda x, y: x + (0 if y is None else y)),
}
for _name, (_schema, _body) in _BODIES.items():
    _ops.define(_name + _schema)
    _ops.impl(_name, _body, "CPU")
    register_body(getattr(torch.ops.software_graph_test, _name).default, _body)
OPS = torch.ops.software_graph_test


def _resized(s: SimpleNamespace) -> torch.Tensor:
    grown = torch.empty(0)
    grown.resize_(4, 64)
    grown.copy_(s.x)
    return grown * 1


def _grown_with_contents(s: SimpleNamespace) -> torch.Tensor:
    grown = s.x[0] * 1
    grown.resize_(200)
    grown[64:] = 0
    return grown * 1


def _mutate(s: SimpleNamespace) -> torch.Tensor:
    out = torch.empty_like(s.x)
    OPS.mutate(s.x, out, "a", 3)
    return out


def _mutate_view(s: SimpleNamespace) -> torch.Tensor:
    out = torch.zeros_like(s.x)
    OPS.mutate(s.x[:2], out[1:3], "a", 3)
    return out


def _set_items(s: SimpleNamespace) -> torch.Tensor:
    t = s.x.clone()
    t[0] = 1.0
    t[1:3] += 5
    t[t.shape[0] - 1, :3] = s.x[0, :3]
    return t


def _view_outlives_its_base(s: SimpleNamespace) -> torch.Tensor:
    base = s.x + 1
    view = base[2:]
    del base
    return view + (s.x * 2)[2:]


def _kv_write(s: SimpleNamespace) -> torch.Tensor:
    s.kv.index_copy_(0, torch.arange(4) * 3, s.x)
    return s.kv[s.index] * 2


def _out_sized(s: SimpleNamespace) -> torch.Tensor:
    out = torch.empty(4, 64)
    torch.add(s.x, 1, out=out)
    torch.mm(s.x, s.weight, out=out)
    return out


def _out_unsized(s: SimpleNamespace) -> torch.Tensor:
    out = torch.empty(0)
    torch.add(s.x, 1, out=out)
    return out * 2


def _counter(s: SimpleNamespace) -> torch.Tensor:
    s.count.add_(1)
    return s.count * 1


def _staged_numpy(s: SimpleNamespace) -> torch.Tensor:
    s.out.copy_(s.staging, non_blocking=True)
    return s.out * 1


def _autocast(s: SimpleNamespace) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(s.x, s.weight).softmax(-1)


def _host_scalar(s: SimpleNamespace) -> torch.Tensor:
    scale = torch.tensor(0.0)
    scale += 3
    first = s.x * scale
    scale.fill_(5.0)  # host work, after the launch took its value
    return first + s.index[:, None] * torch.tensor(2.5, dtype=torch.float64)


def _attention(s: SimpleNamespace) -> torch.Tensor:
    heads = s.x.view(1, 4, 4, 16)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _foreach(s: SimpleNamespace) -> list[torch.Tensor]:
    copies = [s.x.clone(), s.x[0].clone()]
    torch._foreach_mul_(copies, 3.0)
    return copies


RECORDABLE: dict[str, Case] = {
    "linear": lambda s: F.linear(s.x, s.weight, s.bias),
    "reshape_that_copies": lambda s: s.x.t().reshape(-1),
    "reshape_that_views": lambda s: s.x.reshape(-1) + 0,
    "contiguous": lambda s: s.x.t().contiguous(),
    "to_same_dtype": lambda s: s.x.to(torch.float32) + 0,
    "to_bfloat16": lambda s: s.x.to(torch.bfloat16),
    "attention": _attention,
    "rms_norm": lambda s: F.rms_norm(s.x, (64,)),
    "group_norm": lambda s: F.group_norm(s.x.view(4, 64, 1), 4),
    "sort": lambda s: s.x.sort(-1),
    "topk": lambda s: s.x.topk(3),
    "cumsum": lambda s: s.x.cumsum(0),
    "index": lambda s: s.x[s.index],
    "where": lambda s: torch.where(s.x > 0, s.x, -s.x),
    "where_scalar": lambda s: torch.where(s.x > 0, s.x, 0.0),
    "masked_fill": lambda s: s.x.masked_fill(s.x > 0, 0.0),
    "masked_fill_host_value": lambda s: s.x.masked_fill(s.x > 0, torch.tensor(7.0)),
    "scatter_add": lambda s: torch.zeros(4, 64).scatter_add_(0, s.index[:, None].expand(4, 64), s.x),
    "einsum": lambda s: torch.einsum("ab,cb->ac", s.x, s.weight),
    "cat": lambda s: torch.cat([s.x, s.x]),
    "split": lambda s: [v * 2 for v in s.x.split([16, 48], -1)],
    "zeros": lambda s: torch.zeros(3) + s.x[0, :3],
    "full": lambda s: torch.full((4, 64), 2.0) * s.x,
    "arange": lambda s: torch.arange(4) * s.index,
    "expand": lambda s: s.bias.expand(4, 64) * s.x,
    "bmm": lambda s: torch.bmm(s.x.view(4, 4, 16), s.x.view(4, 4, 16).transpose(1, 2)),
    "conv2d": lambda s: F.conv2d(s.x.view(1, 1, 4, 64), s.weight[:3, :3].reshape(1, 1, 3, 3)),
    "quantise": lambda s: (s.x * 10).round().clamp(-127, 127).to(torch.int8),
    "float8": lambda s: s.x.to(torch.float8_e4m3fn).to(torch.float32),
    "multinomial": lambda s: torch.multinomial(s.x.softmax(-1), 2),
    "dropout": lambda s: F.dropout(s.x, 0.5, True),
    "rand": lambda s: s.x + torch.rand(4, 64),
    "quantile": lambda s: s.x.quantile(0.5),
    "normal": lambda s: torch.empty_like(s.x).normal_(),
    "std": lambda s: s.x.std(-1),
    "tril": lambda s: torch.tril(s.x),
    "gelu": lambda s: F.gelu(s.x),
    "one_hot_of_known_width": lambda s: F.one_hot(s.index, 4),
    "conjugate": lambda s: torch.view_as_complex(s.x.view(4, 32, 2)).conj() * 2,
    "set_from_storage": lambda s: torch.empty(0).set_(s.x.untyped_storage(), 0, (4, 64), (64, 1)) * 2,
    "data_ptr": lambda s: (s.x.data_ptr(), s.x + 1)[1],
    "checkpoint": lambda s: torch.utils.checkpoint.checkpoint(lambda v: v * 2, s.x, use_reentrant=False),
    "no_elements": lambda s: s.x[:0] + 1,
    "foreach": _foreach,
    "resize_of_nothing": _resized,
    "resize_with_contents": _grown_with_contents,
    "set_items": _set_items,
    "view_outlives_its_base": _view_outlives_its_base,
    "kv_write": _kv_write,
    "out_sized": _out_sized,
    "out_unsized": _out_unsized,
    "counter": _counter,
    "staged_numpy": _staged_numpy,
    "autocast": _autocast,
    "host_scalar": _host_scalar,
    "custom_mutating": _mutate,
    "custom_mutating_a_view": _mutate_view,
    "custom_pair": lambda s: OPS.pair(s.x),
    "custom_list": lambda s: OPS.listed([s.x, s.x]),
    "custom_optional": lambda s: OPS.optional(s.x, None),
}

REFUSED: dict[str, tuple[Case, str]] = {
    "item": (lambda s: s.x.sum().item(), "Tensor.item"),
    "tolist": (lambda s: s.index.tolist(), "Tensor.tolist"),
    "numpy": (lambda s: s.x.numpy(), "Tensor.numpy"),
    "cpu": (lambda s: s.x.cpu(), "Tensor.cpu"),
    "printing": (lambda s: str(s.x), "Tensor.__"),
    "branch": (lambda s: s.x if s.x.sum() > 0 else -s.x, "Tensor.__bool__"),
    "float": (lambda s: float(s.x[0, 0]), "Tensor.__float__"),
    "slice_by_tensor": (lambda s: s.x[: s.index[0]], "Tensor.__index__"),
    "membership": (lambda s: 3 in s.index, "Tensor.__contains__"),
    "nonzero": (lambda s: s.x.nonzero(), "aten::nonzero"),
    "boolean_index": (lambda s: s.x[s.x > 0], "aten::nonzero"),
    "masked_select": (lambda s: s.x.masked_select(s.x > 0), "aten::masked_select"),
    "unique": (lambda s: s.index.unique(), "aten::_unique2"),
    "equal": (lambda s: torch.equal(s.x, s.x), "aten::equal"),
    "allclose": (lambda s: torch.allclose(s.x, s.x), "reads device data"),
    "bincount": (lambda s: s.index.bincount(), "aten::bincount"),
    "one_hot_of_unknown_width": (lambda s: F.one_hot(s.index), "reads device data"),
    "repeat_interleave": (lambda s: s.x.repeat_interleave(s.index, 0), "repeat_interleave"),
    "to_sparse": (lambda s: s.x.to_sparse(), "reads device data"),
    "masked_fill_device_value": (lambda s: s.x.masked_fill(s.x > 0, s.count[0]), "reads device data"),
    "list_constant": (lambda s: s.x + torch.tensor([1.0] * 64), "made during the capture"),
    "list_index": (lambda s: s.x[torch.tensor([0, 1])], "made during the capture"),
    "generator": (lambda s: torch.rand(4, generator=torch.Generator()), "register_generator_state"),
}


@pytest.fixture
def tensors() -> SimpleNamespace:
    torch.manual_seed(0)
    buffer = np.zeros((4, 64), np.float32)
    return SimpleNamespace(
        x=torch.randn(4, 64),
        weight=torch.randn(64, 64),
        bias=torch.randn(64),
        index=torch.randint(0, 4, (4,)),
        out=torch.zeros(4, 64),
        kv=torch.zeros(16, 64),
        count=torch.zeros(3),
        buffer=buffer,
        staging=torch.from_numpy(buffer),
    )


@pytest.fixture(params=[torch.inference_mode, torch.no_grad], ids=["inference_mode", "no_grad"])
def grad_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    mode: AbstractContextManager[None] = request.param()
    with mode:
        yield


def _results(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _bits(tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    dense = [t.resolve_conj().resolve_neg().contiguous() for t in tensors]
    return [(t.dtype, tuple(t.shape), t.flatten().view(torch.uint8).numpy().tobytes()) for t in dense]


def _written(s: SimpleNamespace) -> list[torch.Tensor]:
    return [s.x, s.out, s.kv, s.count]


def _capture(case: Case, s: SimpleNamespace) -> tuple[SoftwareGraph, list[torch.Tensor]]:
    graph = SoftwareGraph()
    graph.capture_begin()
    try:
        results = _results(case(s))
    except BaseException:
        graph.abort()
        raise
    graph.capture_end()
    return graph, results


def _fresh_inputs(s: SimpleNamespace) -> None:
    s.x.normal_()
    s.index.random_(0, 4)
    s.buffer[:] = np.random.default_rng(0).standard_normal((4, 64))


@pytest.mark.parametrize("name", RECORDABLE)
def test_a_replay_gives_the_same_bits_as_eager(name: str, tensors: SimpleNamespace, grad_mode: None) -> None:
    case = RECORDABLE[name]
    case(tensors)  # the warm-up that a capture is entitled to
    before, generator = _bits(_written(tensors)), torch.get_rng_state()
    graph, recorded = _capture(case, tensors)
    assert _bits(_written(tensors)) == before
    assert torch.get_rng_state().equal(generator)
    for _ in range(3):
        _fresh_inputs(tensors)
        start, generator = [t.clone() for t in _written(tensors)], torch.get_rng_state()
        expected = _bits(_results(case(tensors))) + _bits(_written(tensors))
        for tensor, value in zip(_written(tensors), start, strict=True):
            tensor.copy_(value)
        torch.set_rng_state(generator)
        graph.replay()
        assert _bits(recorded) + _bits(_written(tensors)) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_gpu_cannot_record_is_refused_with_the_place(
    name: str, tensors: SimpleNamespace, grad_mode: None
) -> None:
    case, message = REFUSED[name]
    if name != "generator":
        case(tensors)  # legal outside a capture
    with pytest.raises(CaptureError, match=message) as caught:
        _capture(case, tensors)
    assert "test_operators.py:" in str(caught.value)
    if name != "generator":
        case(tensors)  # and legal again
