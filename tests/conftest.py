"""What all tests share: the data folder, the public examples, and deterministic Hypothesis runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Processes that tests start import the sources of this folder, as the tests do.
SOURCES = [str(ROOT / "src"), str(ROOT / "lab")]
os.environ["PYTHONPATH"] = os.pathsep.join([*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])

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
