"""Tests of the process of SQL text start it as the library does."""

import subprocess

import pytest

from spiral_stream.relational import sql


@pytest.fixture(autouse=True)
def _cold_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "subprocess", subprocess)
