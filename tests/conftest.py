"""What all tests share: the data folder, the public examples, and deterministic Hypothesis runs."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Processes that tests start import the sources of this folder, as the tests do.
SOURCES = [str(ROOT / "src"), str(ROOT / "lab")]
os.environ["PYTHONPATH"] = os.pathsep.join([*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])

# Where the tests run in the background of a script, SIGINT is ignored, and so it would be in what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, parent=settings.get_profile("deterministic")
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))


QUICK_CASES = 2  # of each parametrised test in the quick tier


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help=f"leave out slow tests, and all but {QUICK_CASES} cases of each other"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the quick tier where it is asked for: the first cases of every test that is not marked slow."""
    if not config.getoption("--quick"):
        return
    seen: Counter[str] = Counter()
    kept, dropped = [], []
    for item in items:
        seen[item.nodeid.split("[")[0]] += 1
        is_quick = item.get_closest_marker("slow") is None and seen[item.nodeid.split("[")[0]] <= QUICK_CASES
        (kept if is_quick else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of the small models that come with the project."""
    return ROOT / "examples"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the public benchmark data; the test is skipped where it is absent."""
    folder = Path(os.environ.get("CERTIMAP_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no benchmark data at {folder}; CERTIMAP_TEST_DATA names another folder")
    return folder


@pytest.fixture(scope="session")
def shared_cases(shared_data: Path) -> Path:
    """The folder of small files of other programs; the test is skipped where it is absent."""
    folder = shared_data.parent / "cases" / "files"
    if not folder.is_dir():
        pytest.skip(f"no small files at {folder}")
    return folder
