"""`mutates_args` of an operator was corrected, and the next start loaded the code that had left its write out.

A cache that names an operator knows nothing of its schema, of the layout that its fake promises, or of a body that the
compiler inlines. Each of them, edited alone, must make another piece; an edit of what the compiler never looks into
must not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation
from torch.library import Library

from atom_impl.compilation.graph_identity import operators_digest, piece_fingerprint
from atom_impl.compilation.operator_identity import operator_facts
from atom_impl.compilation.torch_compat import own_cache_keys
from atom_impl.utils.custom_register import direct_register_custom_op

X = torch.zeros(3, 4)
Register = Callable[[Library], Any]


def body(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x + 1


def other_body(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x + 2


def same_layout(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def same_layout_in_other_words(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


def transposed(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[::-1]).t()


def promoted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float64)


def padded(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1] + 1)


def opaque(function: Any = body, mutates: tuple[str, ...] = (), fake: Any = same_layout, **more: Any) -> Register:
    return lambda library: direct_register_custom_op("op", function, mutates, fake, library, **more)


def with_another_overload(library: Library) -> None:
    opaque()(library)
    library.define("op.scaled(Tensor x, Tensor seen, float by) -> Tensor")


def with_own_autograd(library: Library) -> None:
    opaque()(library)
    library.impl("op", lambda x, seen: x + 1, "Autograd")


def fingerprint(register: Register) -> tuple[str, str]:
    """Of a graph that calls the operator, traced as Dynamo traces it; ours, and what Inductor's caches are told."""
    library = Library("contract_identity", "FRAGMENT")
    found: list[tuple[str, str]] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        found.append((piece_fingerprint(graph, example_inputs), operators_digest(graph)))
        return graph.forward

    try:
        register(library)
        with torch.no_grad():
            torch.compile(lambda x, seen: torch.ops.contract_identity.op(x * 2, seen), backend=backend)(X, X[0])
    finally:
        library._destroy()
        torch._dynamo.reset()
    return found[0]


OTHER: dict[str, Register] = {
    "as it was": opaque(),
    "an argument is written": opaque(mutates=("seen",)),
    "the fake's strides": opaque(fake=transposed),
    "the fake's dtype": opaque(fake=promoted),
    "the fake's width": opaque(fake=padded),
    "a tag that fixes strides": opaque(tags=(torch.Tag.needs_fixed_stride_order,)),
    "another overload": with_another_overload,
    "a body that is traced into": opaque(dispatch_key="CompositeImplicitAutograd", fake=None),
    "an autograd kernel that is traced into": with_own_autograd,
}
SAME: dict[str, Register] = {
    "the same again": opaque(),
    "another body, which is never looked into": opaque(other_body),
    "a fake that says the same in other words": opaque(fake=same_layout_in_other_words),
}


@pytest.fixture(scope="module")
def base() -> tuple[str, str]:
    return fingerprint(OTHER["as it was"])


@pytest.mark.parametrize("edit", [name for name in OTHER if name != "as it was"])
def test_each_edit_of_an_operator_that_changes_code_is_another_piece_to_both_caches(
    edit: str, base: tuple[str, str]
) -> None:
    ours, inductors = fingerprint(OTHER[edit])
    assert ours != base[0]
    assert inductors != base[1]


@pytest.mark.parametrize("edit", SAME)
def test_an_edit_that_the_compiler_never_sees_is_no_other_piece(edit: str, base: tuple[str, str]) -> None:
    assert fingerprint(SAME[edit]) == base


def in_a_file(path: Path, text: str) -> Any:
    """The function `f` of a source file made for the test."""
    path.write_text(text)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, str(path), "exec"), scope)
    return scope["f"]


COMPOSITE = "def f(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:\n    return x + {}\n"


def test_an_inlined_body_counts_by_its_source(tmp_path: Path) -> None:
    def inlined(number: int) -> Register:
        function = in_a_file(tmp_path / "body.py", COMPOSITE.format(number))
        return opaque(function, dispatch_key="CompositeImplicitAutograd", fake=None)

    first = fingerprint(inlined(1))
    assert fingerprint(inlined(2)) != first
    assert fingerprint(inlined(1)) == first


FACTS = """
import torch
from atom_impl.compilation.operator_identity import operator_facts
scope = {}
exec("def f(x):\\n    return x + 1\\n", scope)
print(operator_facts(scope["f"]))
"""


def test_a_body_that_cannot_be_read_is_known_to_its_own_process_alone() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n    return x + 1\n", scope)
    here = operator_facts(scope["f"])
    assert here == operator_facts(scope["f"])
    assert run_python(FACTS) != str(here)


def test_torchs_own_operators_need_no_more_than_their_names() -> None:
    for target in (torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.nn.functional.silu, torch.relu):
        assert operator_facts(target) == []
    assert operators_digest(torch.fx.symbolic_trace(torch.nn.ReLU())) == ""


class Kernel:
    """Looks like a Triton kernel to a graph: its source, and nothing that a CPU could run."""

    def __init__(self, src: str) -> None:
        self.src = src


class Tuned:
    def __init__(self, fn: Kernel, configs: list[str]) -> None:
        self.fn, self.configs = fn, configs


@pytest.fixture
def side_table() -> Iterator[None]:
    before = (kernel_side_table.id_to_kernel, kernel_side_table.kernel_to_id, kernel_side_table.constant_args)
    kernel_side_table.reset_table()
    yield
    kernel_side_table.id_to_kernel, kernel_side_table.kernel_to_id, kernel_side_table.constant_args = before


def launching(kernel: Any, constants: dict[str, Any]) -> tuple[str, str]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(
        triton_kernel_wrapper_mutation,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(kernel),
            "constant_args_idx": kernel_side_table.add_constant_args(constants),
            "grid": [(4, 1, 1)],
            "kwargs": {"x_ptr": x},
        },
    )
    graph.output((x,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return piece_fingerprint(module, [X]), operators_digest(module)


@pytest.mark.usefixtures("side_table")
def test_an_inlined_triton_kernel_counts_by_source_and_constants_and_not_by_its_place() -> None:
    base = launching(Kernel("x + 1"), {"BLOCK": 64})
    assert launching(Kernel("x + 1"), {"BLOCK": 64}) == base, "the second kernel and the second constants of the table"
    others = [
        launching(Kernel("x + 2"), {"BLOCK": 64}),
        launching(Kernel("x + 1"), {"BLOCK": 128}),
        launching(Tuned(Kernel("x + 1"), ["num_warps: 4"]), {"BLOCK": 64}),
        launching(Tuned(Kernel("x + 1"), ["num_warps: 8"]), {"BLOCK": 64}),
    ]
    for position in (0, 1):
        assert len({found[position] for found in [base, *others]}) == len(others) + 1


def test_inductors_key_carries_the_users_tag_and_the_operators_and_is_put_back() -> None:
    config = torch.compiler.config
    before = config.cache_key_tag  # type: ignore[attr-defined]
    with own_cache_keys("first"):
        first = config.cache_key_tag  # type: ignore[attr-defined]
    with own_cache_keys("second"):
        assert config.cache_key_tag != first  # type: ignore[attr-defined]
    assert first.startswith(before)
    assert config.cache_key_tag == before  # type: ignore[attr-defined]


CORRECTED = """
import json, os, sys, torch
from atom_impl.utils.compilation_counter import CompilationCounter, compilation_counter
from atom_impl.utils.custom_register import direct_register_custom_op
from atom_impl.utils.decorators import support_torch_compile
from suites.contract.toy_pieces import toy_config

writes, cache = json.loads(sys.argv[1]), sys.argv[2]

def counted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    if writes:
        seen.add_(1)
    return x + 1

direct_register_custom_op("counted", counted, writes, lambda x, seen: torch.empty_like(x))

@support_torch_compile
class Model(torch.nn.Module):
    def __init__(self, atom_config):
        super().__init__()

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return torch.ops.aiter.counted(x * 2, seen) * 3 + seen.sum()

def start(level, **settings):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/torch-{level}"
    before, hits = compilation_counter.as_dict(), torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
    model = Model(toy_config(level, cache_dir=f"{cache}/ours-{level}", use_inductor=True, **settings))
    x, seen, own = torch.arange(12.0).reshape(3, 4), torch.zeros(3), torch.zeros(3)
    with torch.inference_mode():
        right = model(x, seen).equal(model.forward(x, own)) and seen.equal(own)
    counts = {name: count - before.get(name, 0) for name, count in compilation_counter.as_dict().items()}
    hits = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] - hits
    return {**counts, "right": right, "torchs_hits": hits}

print(json.dumps([start(2), start(3, splitting_ops=[])]))
"""


def run_python(text: str, *arguments: str) -> str:
    env = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_second_process_with_corrected_mutates_args_compiles_again_and_is_right(tmp_path: Path) -> None:
    starts = [json.loads(run_python(CORRECTED, json.dumps(writes), str(tmp_path))) for writes in ([], ["seen"])]
    for levels in starts:
        for counts in levels:
            assert counts["right"]
            assert (counts["num_inductor_compiles"], counts["num_cache_hits"], counts["torchs_hits"]) == (1, 0, 0)
            misses = {
                name.removeprefix("cache_misses."): n
                for name, n in counts.items()
                if name.startswith("cache_misses.") and n
            }
            # torch 2.11 compiles the sum for sizes up to 4096 alone: such code is not kept, and that is counted
            assert misses in ({"absent": 1}, {"absent": 1, "specialised": 1})
