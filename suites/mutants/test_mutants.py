"""A dozen planted faults, each found by the gate that it names, each with a control that stays silent.

Cosine similarity, default tolerances and an end-to-end comparison all passed a stale row, zeroed logits and a slip of
one per cent. A gate that has never failed for the fault it is for is a line of text. `harness mutants` plants them all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.mutants.command import Choice, choose, ground_of
from harness.mutants.kinds import KINDS, NOT_YET
from harness.mutants.mutant import Mutant, find_mutants
from harness.mutants.runner import Outcome, State, run_mutant
from harness.mutants.siblings import SIBLINGS, Sibling

HERE = Path(__file__).resolve().parent
DOZEN = choose(HERE, Choice(quick=True))
#: A report shows the kept table. It judges nothing.
READERS = ("harness/report/planted.py",)
#: Besides the docstring, imports and blank lines.
LINES = 30
Running = dict[str, Future[Outcome]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The mutants of the selected tests, two children at a time; what is not waited for at the end is not started."""
    ground = ground_of(HERE, tmp_path_factory.mktemp("mutants"), str(request.config.getoption("--device")))
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    selected = {spec.params.get("name") for spec in specs if spec is not None}
    with ThreadPoolExecutor(max_workers=2) as executor:
        chosen = {path: mutant for path, mutant in DOZEN.items() if path.stem in selected}
        yield {path.stem: executor.submit(run_mutant, path, mutant, ground) for path, mutant in chosen.items()}
        executor.shutdown(cancel_futures=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [path.stem for path in DOZEN])
def test_a_planted_fault_is_found_and_its_control_is_silent(
    name: str, running: Running, record_property: Callable[[str, object], None]
) -> None:
    outcome = running[name].result()
    record_property("planted", outcome.seconds)
    said = outcome.finding.message if outcome.finding else "nothing"
    alarm = f"; the control: {outcome.alarm.name}: {outcome.alarm.message}" if outcome.alarm else ""
    assert outcome.state is State.CAUGHT, f"{outcome.mutant.name} {outcome.state.value}: {said}{alarm}"


def test_the_dozen_covers_a_dozen_faults_of_as_many_kinds_as_it_can() -> None:
    kinds = {mutant.kind for mutant in DOZEN.values()}
    assert 12 <= len(DOZEN) <= 16
    assert len(kinds) >= 11, sorted(set(KINDS) - kinds)


def test_every_kind_has_two_variants_or_a_reason_why_none_can_be_planted() -> None:
    found = [mutant.kind for mutant in find_mutants(HERE).values()]
    few = {kind for kind in KINDS if found.count(kind) < 2}
    assert few == {kind for kind in NOT_YET if kind in KINDS and kind not in found}


@pytest.mark.parametrize("kind", ["STALE", "LIFETIME", "PADDING", "LADDER"])
def test_the_kinds_that_users_meet_most_have_four_variants(kind: str) -> None:
    assert sum(mutant.kind == kind for mutant in find_mutants(HERE).values()) >= 4


@pytest.mark.parametrize("path", find_mutants(HERE), ids=lambda path: path.stem)
def test_a_mutant_fits_on_a_page(path: Path) -> None:
    after_docstring = path.read_text().split('"""', 2)[2].splitlines()
    assert sum(bool(line) and not line.startswith(("from ", "import ")) for line in after_docstring) <= LINES


def test_the_example_in_contributing_is_a_mutant_as_it_stands(tmp_path: Path) -> None:
    page = (HERE.parents[1] / "CONTRIBUTING.md").read_text()
    lines = page.split("## Add a mutant")[1].splitlines()
    first = lines.index(next(line for line in lines if line.startswith('    """')))
    last = lines.index("    )", first)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "my_mutant.py").write_text("\n".join(line[4:] for line in lines[first : last + 1]))
    assert [mutant.variant for mutant in find_mutants(tmp_path).values()] == ["my boolean indexing"]


def test_every_mutant_can_be_seen_on_a_gpu_or_says_why_not() -> None:
    """A third of them are run on real graphs, of the kinds that only there are what they are."""
    found = list(find_mutants(HERE).values())
    subset = [mutant for mutant in found if mutant.gpu]
    assert 3 * len(subset) >= len(found)
    assert {"LIFETIME", "MOVED", "STALE", "PADDING", "FROZEN", "REARM", "STEPCOST"} <= {m.kind for m in subset}


def test_no_check_knows_a_mutant() -> None:
    """Outside harness/mutants and the command line nothing names them, so nothing can look for them."""
    root = HERE.parents[1]
    named = [path.stem for path in find_mutants(HERE)]
    for path in [*(root / "harness").rglob("*.py"), *(root / "atom_impl").rglob("*.py")]:
        if path.parent.name == "mutants" or path.name == "trust.py":
            continue
        if path.relative_to(root).as_posix() in READERS:
            continue
        text = path.read_text()
        assert not any(word in text for word in ("harness.mutants", "HARNESS_MUTANT", *named)), path


EACH_IN_A_FORK = """
import os, sys, traceback
from pathlib import Path
from harness.mutants.mutant import find_mutants

for path, mutant in find_mutants(Path(sys.argv[1])).items():
    for side in ("plant", "control"):
        child = os.fork()
        if child == 0:
            try:
                getattr(mutant, side)()
            except BaseException as error:
                print(f"{path.stem}, {side}: {type(error).__name__}: {error}", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""


def test_every_mutant_finds_the_code_that_it_changes() -> None:
    """All but the dozen are run by hand alone: one followed a function that had moved, and nobody knew."""
    command = [sys.executable, "-c", EACH_IN_A_FORK, str(HERE)]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_every_mutant_has_a_name_of_its_own() -> None:
    mutants: list[Mutant] = list(find_mutants(HERE).values())
    assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_every_kind_names_its_siblings_and_every_mutant_is_one_of_them() -> None:
    assert list(dict.fromkeys(entry.kind for entry in SIBLINGS)) == list(KINDS)
    shown = {name for entry in SIBLINGS for name in entry.shown_by}
    assert sorted({path.stem for path in find_mutants(HERE)} - shown) == []


@pytest.mark.parametrize("entry", SIBLINGS, ids=lambda entry: f"{entry.kind} {entry.faults[:30]}")
def test_what_shows_a_sibling_exists_and_is_of_its_kind(entry: Sibling) -> None:
    kinds = {path.stem: mutant.kind for path, mutant in find_mutants(HERE).items()}
    assert entry.shown_by or entry.kind in NOT_YET
    for name in entry.shown_by:
        if "/" not in name:
            assert kinds[name] == entry.kind
            continue
        file, _, test = name.partition("::")
        text = (HERE.parent / file).read_text()
        assert f"def {test}(" in text if test else "def test_" in text
