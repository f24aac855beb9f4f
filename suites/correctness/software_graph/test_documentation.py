"""Guards against a page for strangers whose examples stopped working: nobody here would notice, and they all would.

Every block of `docs/software_graph.md`, and the example in the package's own docstring, is run as it stands.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import atom_impl.device.software as package

PAGE = Path(__file__).resolve().parents[3] / "docs" / "software_graph.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_of_the_page_runs_as_it_stands(number: int) -> None:
    exec(compile(BLOCKS[number], f"docs/software_graph.md, block {number + 1}", "exec"), {"__name__": "example"})


def test_the_page_has_its_examples() -> None:
    assert len(BLOCKS) >= 7


def test_the_example_in_the_packages_docstring_runs() -> None:
    text = package.__doc__ or ""
    (code,) = re.findall(r"((?:^    .*\n|^\n)+)", text.partition("compare with eager:\n")[2], re.MULTILINE)[:1]
    names: dict[str, Any] = {"torch": torch, "model": torch.nn.Linear(64, 64), "next_batch": torch.randn(8, 64)}
    with torch.inference_mode():
        exec(textwrap.dedent(code), names)
        assert torch.equal(names["out"], names["model"](names["x"]))


@pytest.mark.parametrize("name", re.findall(r"`(\w+)\(", PAGE.read_text(encoding="utf-8")))
def test_every_call_that_the_page_names_exists(name: str) -> None:
    owners = (package, package.SoftwareDevice, package.SoftwareGraph, torch, torch.Tensor)
    assert any(hasattr(owner, name) for owner in owners), name
