"""Guards against a list of rules whose tests were renamed or dropped: it would go on saying that they hold.

`docs/graph_rules.md` names the tests of every rule of recordings. Each has to exist, and no row may be without one.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line
    for line in (ROOT / "docs" / "graph_rules.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| rule", "| ---"))
]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / "suites" / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_rule_has_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row)
    assert named, "a rule without a test"
    for path, test in named:
        assert test in names_in(path), f"{path} has no {test}"


def test_the_page_has_its_rules() -> None:
    assert len(ROWS) >= 35
