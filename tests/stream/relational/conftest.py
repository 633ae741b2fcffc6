import subprocess

import pytest

from spiral_stream.relational import sql


@pytest.fixture
def cold_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of SQL text starts as the library starts it: 0.2 CPU s, where a forked one takes 0.03."""
    monkeypatch.setattr(sql, "subprocess", subprocess)
