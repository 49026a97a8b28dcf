"""Fixtures of every test."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout: protocol schemas and reference cases. It is no part of the project."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("reads ../shared, which is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def schema_folder(shared: Path) -> Path:
    """The protocol's JSON Schemas per revision, and its examples."""
    folder = shared / "schema"
    if not folder.is_dir():
        pytest.skip("reads ../shared/schema, which is not beside this checkout")
    return folder
