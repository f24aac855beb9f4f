"""Guards against a recording unit that another decorator of its class takes the recordings away from.

With `@support_torch_compile` above `@token_graph`, the compiled call replaced the unit's: every bucket was asked for,
none was recorded, and the model ran eagerly. Both orders, and a compiled subclass of a unit, have to behave alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from atom_impl.utils.compilation_counter import compilation_counter
from atom_impl.utils.decorators import support_torch_compile
from atom_impl.utils.forward_context import Context, forward_context
from atom_impl.utils.region_graph import token_graph, units_of
from suites.contract.toy_pieces import ToyBody, toy_batch, toy_config

pytestmark = pytest.mark.usefixtures("own_cache", "inference", "clean_pool")


def _fresh(name: str) -> type[ToyBody]:
    return type(name, (ToyBody,), {})


def _subclass_of_a_unit() -> type[ToyBody]:
    return support_torch_compile(type("Compiled", (token_graph(_fresh("Unit")),), {}))


ORDERS: dict[str, Callable[[], type[ToyBody]]] = {
    "token_graph outermost": lambda: token_graph(support_torch_compile(_fresh("GraphOutside"))),
    "support_torch_compile outermost": lambda: support_torch_compile(token_graph(_fresh("CompileOutside"))),
    "a compiled subclass of a unit": _subclass_of_a_unit,
    "each decorator twice": lambda: token_graph(
        support_torch_compile(token_graph(support_torch_compile(_fresh("Twice"))))
    ),
}


def call(model: Any, batch: tuple[torch.Tensor, torch.Tensor], action: Any) -> torch.Tensor:
    rows = batch[0].shape[0]
    context = Context(batch[1], is_prefill=False, batch_size=rows, running_bs=rows)
    with forward_context({"max_seqlen_q": 1}, toy_config(0), context, tr_graph=action):
        return model(*batch)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("level", [0, 2, 3])
def test_in_every_order_the_unit_records_its_compiled_call_and_replays_it(order: str, level: int) -> None:
    torch.manual_seed(11)
    model: Any = ORDERS[order]()(toy_config(level))
    assert units_of(model) == [model]
    ids, positions = toy_batch(4)
    plain = call(model, (ids, positions), None).clone()
    compiled = compilation_counter.num_graphs_seen
    call(model, (ids, positions), "record")
    assert model.token_graph.captured_sizes("decode") == [4]
    (recording,) = model.token_graph.recordings().values()
    assert torch.equal(call(model, (ids, positions), "replay"), plain)
    assert recording.replays == 1, "one replay for one call: the unit is not wrapped twice"
    ids.copy_(toy_batch(4, seed=5)[0])
    replayed = call(model, (ids, positions), "replay").clone()
    assert torch.equal(replayed, call(model, (ids, positions), None))
    assert compilation_counter.num_graphs_seen == compiled
    assert bool(level) == bool(model.__dict__.get("_dispatch") and model.compiled_codes)


@pytest.mark.parametrize("order", ORDERS)
def test_in_every_order_two_instances_keep_their_own_recordings(order: str) -> None:
    unit = ORDERS[order]()
    pair: list[Any] = [unit(toy_config(0)) for _ in range(2)]
    first, second = pair
    call(first, toy_batch(2), None)
    call(first, toy_batch(2), "record")
    assert first.token_graph.captured_sizes("decode") == [2]
    assert second.token_graph.captured_sizes("decode") == []
