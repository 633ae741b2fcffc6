"""The laws of sources, for tests of a source of your own; users find it in `spiral_stream.testing`."""

from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

from spiral_stream.catalog.registry import connect
from spiral_stream.catalog.relation.row_identity import RowIdentity
from spiral_stream.expr import Expr
from spiral_stream.sources.import_source import ImportedSource
from spiral_stream.sources.source import Source
from spiral_stream.testing.sources import check_change, check_imports, check_reader, check_saved


def check_source(
    source: Source, change: Callable[[], object] | None = None, *, predicates: Sequence[Expr] = (), seed: int = 0
) -> None:
    """*source*: check what is promised of a source over its rows as they are. Give it up to some hundred rows, with nulls.

    Units are the same whenever it is opened. Scans give what fetches give, for any columns, units, order and repeats, from
    several threads at the same time. The rows that pass a predicate are those of `spiral_stream.expr`. The source
    pickles, and is the same after it is saved. A content key stands for the same rows after a change. Of an `ImportedSource`
    also: its rows are a function of the unit, and the order in which folders are listed does not matter.

    Args:
        source: to test.
        change: changes some rows in the storage; it is called last.
        predicates: to test in addition to those that are drawn.
        seed: of the draws.

    Raises:
        AssertionError: a law is broken.

    Examples:
        >>> from spiral_stream.testing import check_source
        >>> check_source(spiral.Arrow(text_rows))
    """
    if isinstance(source, ImportedSource):
        check_imports(source)
    opened = check_saved(source)
    with TemporaryDirectory(prefix="spiral-") as folder:
        if isinstance(opened, ImportedSource):
            opened = connect(folder).register("checked", opened, identity=RowIdentity()).source
        check_reader(opened, predicates, seed)
    if change is not None:
        check_change(source, change)
