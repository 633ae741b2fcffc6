"""Copy nested fixed-size lists that begin at an offset: pyarrow 26 cannot choose rows of them.

``take`` and ``filter`` return wrong items of an array of fixed-size lists of fixed-size lists that is a slice. What a
user hands over may be one; Lance and Parquet return arrays of their own, and `sp.Arrow` tables are written to Lance.
"""

import pyarrow as pa


def unsliced(column: pa.Array) -> pa.Array:
    """Return equal values that rows can be chosen of: a copy where fixed-size lists nest, else the array itself."""
    return pa.concat_arrays([column]) if _nests(column.type, inside=False) else column


def unsliced_table(table: pa.Table) -> pa.Table:
    """Return `unsliced` of every column, each in one chunk where fixed-size lists nest."""
    for at, name in enumerate(table.column_names):
        if _nests(table.schema.field(at).type, inside=False):
            table = table.set_column(at, table.schema.field(at), unsliced(_one_array(table.column(name))))
    return table


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else found.chunk(0)


def _nests(kind: pa.DataType, *, inside: bool) -> bool:
    """Whether a type has fixed-size lists in fixed-size lists, which may be fields of structs."""
    if isinstance(kind, pa.BaseExtensionType):
        return _nests(kind.storage_type, inside=inside)
    if pa.types.is_fixed_size_list(kind):
        return inside or _nests(kind.value_type, inside=True)
    if pa.types.is_struct(kind):
        return any(_nests(kind.field(at).type, inside=inside) for at in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _nests(kind.value_type, inside=False)
    return False
