"""A whole module that skipped itself was read as green: what is skipped must fail, or be declared with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.skip_rule import DECLARED, read_declared

CONFTEST = """
from suites.skip_rule import SkipRule

def pytest_configure(config):
    config.pluginmanager.register(SkipRule({declared!r}), "skip-rule")
"""

SKIPS = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no GPU here")
def test_marked():
    pass

def test_skips_itself():
    pytest.skip("no weights here")

@pytest.mark.xfail(reason="known to be wrong")
def test_expected_to_fail():
    assert False

class TestSetup:
    @pytest.fixture
    def gpu(self):
        pytest.skip("no GPU for the fixture")

    def test_fixture(self, gpu):
        pass
"""


def run(pytester: pytest.Pytester, source: str, declared: dict[str, str]) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.format(declared=declared))
    pytester.makepyfile(test_it=source)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider")


def test_every_way_of_skipping_fails_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, SKIPS, {})
    result.assert_outcomes(passed=1, failed=2, errors=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skipped: 0 declared, 4 undeclared and therefore failed*"])


def test_the_failure_names_the_test_its_reason_and_the_way_out(pytester: pytest.Pytester) -> None:
    result = run(pytester, SKIPS, {})
    text = result.stdout.str()
    assert "test_it.py::test_marked was skipped (no GPU here)" in text
    assert "test_it.py::test_expected_to_fail was skipped (expected to fail: known to be wrong)" in text
    assert f"declare it with a reason in suites/{DECLARED}" in text


def test_a_module_that_skips_itself_fails_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "import pytest\npytest.importorskip('no_such_package')\ndef test_a(): pass\n", {})
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_a_declared_skip_is_counted_and_does_not_fail(pytester: pytest.Pytester) -> None:
    declared = {"test_it.py::test_marked": "a reason", "test_it.py::*[Ff]ixture": "another", "*itself": "a third"}
    result = run(pytester, SKIPS, declared)
    result.assert_outcomes(passed=1, failed=1, skipped=3)
    result.stdout.fnmatch_lines(["*skipped: 3 declared, 1 undeclared and therefore failed*"])


def test_a_run_without_skips_says_so_and_passes(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_a(): pass\n", {})
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*skipped: 0 declared, 0 undeclared*"])


@pytest.mark.parametrize("entry", ['test = "a"', 'test = "a"\nreason = " "', 'test = "a"\nreason = "b"\nuntil = "c"'])
def test_a_declaration_without_a_test_and_a_reason_is_refused(tmp_path: Path, entry: str) -> None:
    file = tmp_path / DECLARED
    file.write_text(f"[[skip]]\n{entry}\n")
    with pytest.raises(pytest.UsageError, match=r"must have `test`.* and `reason`"):
        read_declared(file)


def test_the_suites_own_declarations_can_be_read() -> None:
    file = Path(__file__).parents[1] / DECLARED
    assert all(reason.strip() for reason in read_declared(file).values())
