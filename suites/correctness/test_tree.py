"""Guards against a walk that misses a leaf: a stale address in it would be checked by nobody.

The walks without paths are for every step, the one with paths is for messages; they have to see the same leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from atom_impl.utils import tree


@dataclass
class Meta:
    lens: torch.Tensor
    inner: Any
    count: int = 3


def nested() -> Meta:
    return Meta(torch.zeros(1), {"a": [torch.ones(2), None], "b": (torch.full((3,), 2.0), Meta(torch.ones(4), ()))})


def test_every_walk_sees_the_same_leaves_in_the_same_order() -> None:
    value = nested()
    with_paths = [leaf for _, leaf in tree.leaves(value)]
    assert all(one is other for one, other in zip(tree.values(value), with_paths, strict=True))
    named = [(path, tensor) for path, _, tensor in tree.places(value)]
    assert [path for path, _ in named] == [path for path, _ in tree.tensors(value)]
    assert all(one is other for (_, one), (_, other) in zip(named, tree.tensors(value), strict=True))


def test_a_place_finds_its_leaf_in_another_value_of_the_same_form() -> None:
    value, other = nested(), nested()
    wanted = dict(tree.tensors(other))
    assert len(wanted) == 4
    for path, find, _ in tree.places(value):
        assert find(other) is wanted[path], path


def test_a_tensor_alone_is_its_own_place() -> None:
    tensor = torch.zeros(1)
    ((path, find, found),) = tree.places(tensor)
    assert (path, found) == ("", tensor)
    assert find(tensor) is tensor
