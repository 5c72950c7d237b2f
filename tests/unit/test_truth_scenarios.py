"""Every scenario of a network equals its truth, row by row: read in one process, and followed while its files grow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from tests.truth_scenarios import SCENARIOS, Scenario, assert_true, scenarios
from umstack.analysis.tables import Tables, tables_of
from umstack.capture import split
from umstack.facts.facts import Facts, facts_of

SEED = random.SystemRandom().randrange(2**32)
EVERY = [*enumerate(SCENARIOS)]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Scenario], list[Path], Path]:
    """All scenarios, their files and the folder of these."""
    folder = tmp_path_factory.mktemp("scenarios")
    made = scenarios()
    return made, [path for one in made for path in one.written(folder)], folder


@pytest.fixture(scope="module")
def whole(every: tuple[list[Scenario], list[Path], Path]) -> Tables:
    """The tables of all of them in one report."""
    return tables_of(facts_of([str(path) for path in every[1]]))


@pytest.fixture(scope="module")
def in_splits(every: tuple[list[Scenario], list[Path], Path]) -> Tables:
    """The same from splits of the files, merged in any order."""
    print("seed", SEED)
    chance = random.Random(SEED)
    parts = [part for path in every[1] for part in split(path, chance.randrange(3_000, 20_000))]
    chance.shuffle(parts)
    return tables_of(Facts.merged(facts_of([part]) for part in parts))


def test_there_are_31_scenarios() -> None:
    """None is lost when a list is edited."""
    assert len(SCENARIOS) >= 31


@pytest.mark.parametrize(("at", "name"), EVERY)
def test_alone(every: tuple[list[Scenario], list[Path], Path], whole: Tables, at: int, name: str) -> None:
    """One process reads all captures."""
    assert_true(every[0][at], whole)


@pytest.mark.parametrize(("at", "name"), EVERY)
def test_in_splits(
    every: tuple[list[Scenario], list[Path], Path], in_splits: Tables, at: int, name: str
) -> None:
    """Splits of files are read separately."""
    assert_true(every[0][at], in_splits)
