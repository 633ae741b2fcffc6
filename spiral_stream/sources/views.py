"""Arrow's view types, which no kernel takes rows of: read as the plain types of the same values."""

import pyarrow as pa


def plain(schema: pa.Schema) -> pa.Schema:
    """The columns with ``string_view``, ``binary_view`` and list views as string, binary and lists; others as they are."""
    types = [_plain(field.type) for field in schema]
    changed = (
        field.with_type(kind) if kind != field.type else field for field, kind in zip(schema, types, strict=True)
    )
    return pa.schema(list(changed), schema.metadata)


def _plain(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_string_view(kind):
        return pa.string()
    if t.is_binary_view(kind):
        return pa.binary()
    if t.is_list(kind) or t.is_list_view(kind):
        inside = kind.value_field.with_type(_plain(kind.value_type))
        return kind if t.is_list(kind) and inside.type == kind.value_type else pa.list_(inside)
    if t.is_large_list(kind) or t.is_large_list_view(kind):
        inside = kind.value_field.with_type(_plain(kind.value_type))
        return kind if t.is_large_list(kind) and inside.type == kind.value_type else pa.large_list(inside)
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if any(_plain(field.type) != field.type for field in fields):
            return pa.struct([field.with_type(_plain(field.type)) for field in fields])
    return kind
