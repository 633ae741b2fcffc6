from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources import Tokens
from spiral_stream.sources.tokens import source as tokens
from tests.fixtures.imports import rows_of
from tests.stream.sources.tokens.test_layout import write_index

IDS = st.lists(st.integers(0, 5), max_size=60)


def spans(source: Tokens) -> list[tuple[int, int]]:
    table = rows_of(source)
    return list(zip(table["start"].to_pylist(), table["length"].to_pylist(), strict=True))


@given(ids=IDS, block=st.integers(1, 20))
def test_a_separator_ends_a_document_and_stays_in_it(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], block: int
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "a.bin"
    np.array(ids, np.uint16).tofile(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BATCH_IDS", block)
        documents = [ids[start : start + length] for start, length in spans(Tokens(path, separator=0))]

    assert [token for document in documents for token in document] == ids
    assert all(document and 0 not in document[:-1] for document in documents)
    assert all(document[-1] == 0 for document in documents[:-1])


@given(ids=IDS, length=st.integers(1, 9), rows=st.integers(1, 5))
def test_documents_of_one_length_are_cut_end_to_end(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], length: int, rows: int
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "a.npy"
    np.save(path, np.array(ids, np.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "BATCH_ROWS", rows)
        found = spans(Tokens(path, length=length))

    assert found == [(at, min(length, len(ids) - at)) for at in range(0, len(ids), length)]


def test_an_index_next_to_a_file_is_used_unless_something_else_is_said(tmp_path: Path) -> None:
    np.arange(8, dtype=np.int32).tofile(tmp_path / "a.bin")
    write_index(tmp_path / "a.idx", [2, 3, 3], [0, 1, 3], "int32")

    assert spans(Tokens(tmp_path)) == spans(Tokens(tmp_path, index=True)) == [(0, 2), (2, 6)]
    assert spans(Tokens(tmp_path, "int32", length=5)) == [(0, 5), (5, 3)]
    with pytest.raises(SourceError, match=r"a\.bin end\. Give separator=<id>, length=<ids>, or the index .*a\.idx"):
        spans(Tokens(tmp_path, "int32", index=False))
    with pytest.raises(SourceError, match=r"its index says int32, and dtype='uint16'\. Leave dtype out"):
        spans(Tokens(tmp_path, "uint16"))


def test_a_changed_index_changes_the_content_key(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "a.bin")
    write_index(tmp_path / "a.idx", [8], [0, 1])
    before = Tokens(tmp_path).import_units()[0].content_key
    write_index(tmp_path / "a.idx", [4, 4], [0, 1, 2])
    assert Tokens(tmp_path).import_units()[0].content_key != before


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(SourceError, match=r"a\.idx: No such file"):
        Tokens(tmp_path, index=True).import_units()


def test_rows_of_a_table_are_documents(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.uint32).reshape(3, 4))
    assert spans(Tokens(tmp_path)) == [(0, 4), (4, 4), (8, 4)]


def test_files_of_two_types_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.uint32))
    np.save(tmp_path / "b.npy", np.arange(4, dtype=np.int32))
    with pytest.raises(SourceError, match=r"b\.npy holds int32, and .*a\.npy uint32\. Register them separately"):
        spans(Tokens(tmp_path, length=2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float32"}, "dtype='float32'. Give one of uint8, "),
        ({"length": 0}, "length=0. Give an integer of at least 1"),
        ({"length": True}, "length=True"),
        ({"separator": "x"}, "separator='x'. Give an integer"),
        ({"separator": 1, "length": 2}, "Give one of them"),
        ({"index": "a.idx"}, "Give True, False or None"),
    ],
)
def test_a_wrong_option_is_refused_at_once(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=f"Tokens: .*{said}"):
        Tokens(tmp_path, **options)


def test_a_separator_that_the_ids_cannot_hold_is_refused(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(SourceError, match=r"separator=70000 is no uint16.*Give another id, or dtype="):
        spans(Tokens(tmp_path, separator=70000))


def test_an_empty_file_has_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    np.arange(3, dtype=np.uint16).tofile(tmp_path / "b.bin")
    assert spans(Tokens(tmp_path, separator=9)) == spans(Tokens(tmp_path, length=9)) == [(0, 3)]


def test_a_changed_file_of_ids_is_refused_until_it_is_refreshed(tmp_path: Path) -> None:
    ids = np.arange(1, 1001, dtype=np.uint16)
    ids.tofile(tmp_path / "a.bin")
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("ids", sp.sources.Tokens(tmp_path / "a.bin", length=10), identity=sp.RowIdentity())
    ids[:500].tofile(tmp_path / "a.bin")
    with pytest.raises(SourceError, match="refresh"):
        catalog.table("ids").to_arrow()
    catalog.refresh("ids")
    assert catalog.table("ids").to_arrow()["tokens"].to_pylist() == ids[:500].reshape(-1, 10).tolist()
