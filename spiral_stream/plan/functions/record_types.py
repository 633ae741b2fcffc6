"""The columns that a function of record batches says it returns."""

from collections.abc import Mapping

import pyarrow as pa

from spiral_stream.errors import PlanError, shown


def struct_of(returns: Mapping[str, pa.DataType] | pa.Schema, name: str | None) -> pa.DataType:
    """The columns that a function of record batches gives.

    Raises:
        PlanError: ``name`` is given too, or a type is none.
    """
    if name is not None:
        msg = f"map: name={shown(name)}, and returns= names the columns. Give name= with one type, or returns= alone"
        raise PlanError(msg)
    for each, kind in {} if isinstance(returns, pa.Schema) else returns.items():
        if not isinstance(each, str) or not isinstance(kind, pa.DataType):
            msg = f'map: returns={{{shown(each)}: {shown(kind)}}}. Give names and Arrow types, such as {{"score": pa.float32()}}'
            raise PlanError(msg)
    fields = list(returns) if isinstance(returns, pa.Schema) else [pa.field(*each) for each in returns.items()]
    return pa.struct(fields)
