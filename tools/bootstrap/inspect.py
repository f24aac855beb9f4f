"""Prints, as JSON, what another interpreter's bootstrap needs to know of this one."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from tools.bootstrap.requirements import installed_version
from tools.bootstrap.torch_build import built_together, find_torch


def facts(names: list[str]) -> dict[str, Any]:
    torch = find_torch()
    return {
        "python": list(sys.version_info[:3]),
        "torch": dataclasses.asdict(torch) if torch else None,
        "built_together": built_together(),
        "versions": {name: installed_version(name) for name in names},
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1:])))
