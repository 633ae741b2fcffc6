"""What verbs check at birth: each refusal names what was found and the way out."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import col
from spiral_stream.errors import PlanError
from spiral_stream.plan import checks, nodes
from spiral_stream.plan.combining import Join, Union
from spiral_stream.sampling.order import LARGEST
from spiral_stream.semantic import JPEG_REF, with_semantic

HAVE = with_semantic(
    pa.schema(
        [
            ("id", pa.int64()),
            ("lang", pa.dictionary(pa.int8(), pa.string())),
            ("score", pa.float32()),
            ("tokens", pa.list_(pa.int32())),
            ("image", pa.binary()),
            ("day", pa.date32()),
        ]
    ),
    {"image": JPEG_REF},
)
NAMES = st.lists(st.sampled_from([*HAVE.names, "scor", "zzz"]), max_size=5)


@given(NAMES)
def test_columns_pass_exactly_if_the_input_has_them(names: list[str]) -> None:
    unknown = [name for name in names if name not in HAVE.names]
    if not unknown:
        checks.need_columns("project", tuple(names), HAVE)
        return
    near = "did you mean 'score'? " if unknown[0] == "scor" else ""
    with pytest.raises(PlanError) as caught:
        checks.need_columns("project", tuple(names), HAVE)
    assert str(caught.value) == (
        f"project: {unknown[0]!r} is not a column of the input; {near}it has {', '.join(HAVE.names)}"
    )


@given(NAMES)
def test_names_pass_exactly_if_none_comes_twice(names: list[str]) -> None:
    if len(set(names)) == len(names):
        checks.need_new_names("project", names, "Name it once")
    else:
        with pytest.raises(PlanError, match=r"project: two columns would be called .*. Name it once"):
            checks.need_new_names("project", names, "Name it once")


@given(
    value=st.integers(-3, 9) | st.integers(2**63, 2**140) | st.sampled_from([True, 2.0, "2", None]),
    least=st.integers(-1, 2),
    most=st.sampled_from([4, 7, LARGEST]),
)
def test_integers_pass_exactly_if_they_lie_between_the_bounds(value: object, least: int, most: int) -> None:
    whole = type(value) is int
    if whole and least <= value <= most:
        checks.need_integer("limit", "count", value, least, most)
        return
    way_out = f"Give at most {most}" if whole and value > most else f"Give an integer of at least {least}"
    with pytest.raises(PlanError, match=f"limit: count.*\\. {way_out}$") as caught:
        checks.need_integer("limit", "count", value, least, most)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:1234"])
def test_a_device_is_named_as_torch_names_it(device: str) -> None:
    assert checks.device_name("to_torch: device", device) == device
    for wrong in (f"{device}:", device.upper(), f" {device}", 0):
        with pytest.raises(PlanError, match=r'to_torch: device=.*. Give "cpu", "cuda", a CUDA device by number'):
            checks.device_name("to_torch: device", wrong)


def test_columns_of_a_function_are_a_list_of_names() -> None:
    assert checks.column_list("map", ["a", "b"]) == checks.column_list("map", iter("ab")) == ("a", "b")
    with pytest.raises(PlanError, match=r"columns='text' is a text. Give a list of columns: columns=\['text'\]"):
        checks.column_list("map", "text")
    for wrong in (["a", 1], 7, None):
        with pytest.raises(PlanError, match=r"Give a list of the columns' names: columns=\[\"text\", ...\]"):
            checks.column_list("map", wrong)


@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        ((), "sort: no columns. Name at least one of id, lang"),
        (("id", "image"), "'image' is image/jpeg-ref, so comparing it would read all payload. Name other columns"),
        (("tokens",), "'tokens' is list.*, which has no order. Name columns of numbers, text or times"),
    ],
)
def test_columns_that_cannot_be_compared_are_refused(names: tuple[str, ...], way_out: str) -> None:
    checks.need_compared("sort", ("id", "lang", "score", "day"), HAVE)
    with pytest.raises(PlanError, match=way_out):
        checks.need_compared("sort", names, HAVE)


@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        ((), "no identity column. Name one or several of id, lang"),
        (("id", "id"), "two columns would be called 'id'. Name it once"),
        (("score",), "identity 'score' is float. Name a column of text, integers or bytes"),
        (("day",), "identity 'day' is date32.*. Name a column of text, integers or bytes"),
    ],
)
def test_columns_that_identify_nothing_are_refused(names: tuple[str, ...], way_out: str) -> None:
    for sound in (("id",), ("lang",), ("image",), ("day", "score")):
        checks.need_identity(sound, HAVE)
    with pytest.raises(PlanError, match=way_out):
        checks.need_identity(names, HAVE)


STEPS = {
    "sort": lambda at: nodes.Sort(at, ("id",)),
    "limit": lambda at: nodes.Limit(at, 3),
    "distinct": lambda at: nodes.Distinct(at, ("id",)),
    "filter": lambda at: nodes.Filter(at, col("id") > 1),
    "join": lambda at: Join(at, nodes.Sort(scan("right"), ("id",)), ("id",), ("id",)),
    "union": lambda at: Union((scan("other"), at)),
}


def scan(name: str = "r") -> nodes.Node:
    return nodes.Scan(name, pa.schema([("id", pa.int64())]), ("id",))


def chain(steps: Sequence[str]) -> nodes.Node:
    node = scan()
    for step in steps:
        node = STEPS[step](node)
    return node


@given(st.lists(st.sampled_from(list(STEPS)), max_size=5))
def test_a_sort_is_unheeded_exactly_if_no_limit_or_distinct_follows_it(steps: list[str]) -> None:
    decisive = [step for step in steps if step in ("sort", "limit", "distinct")]
    node = chain(steps)
    assert checks.unheeded_sort(node) == ("id" if decisive[-1:] == ["sort"] else None)


KINDS = [
    *(pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.large_string()),
    *(pa.date32(), pa.timestamp("us"), pa.bool_(), pa.list_(pa.int32())),
]


@given(left=st.sampled_from(KINDS), right=st.sampled_from(KINDS))
def test_keys_of_two_types_meet_where_the_way_out_is_taken(left: pa.DataType, right: pa.DataType) -> None:
    one, other = pa.field("a", left), pa.field("b", right)
    if left == right and not pa.types.is_list(left):
        checks.need_like_keys(one, other)
        return
    with pytest.raises(PlanError, match=f"join: 'a' is {re.escape(str(left))} on the left") as caught:
        checks.need_like_keys(one, other)
    way_out = re.search(
        r'Cast the (left|right) one first: \.with_columns\(([ab])=col\("\2"\)\.cast\("(.+)"\)\)', str(caught.value)
    )
    if way_out is None:
        assert str(caught.value).endswith(". Join on columns of one type: numbers, text or times")
        return
    side, name, kind = way_out.groups()
    given_schema = pa.schema([one, other])
    cast = one.with_type(checks.bound_type("with_columns", col(name).cast(kind), given_schema))
    assert name == ("a" if side == "left" else "b")
    checks.need_like_keys(*((cast, other) if side == "left" else (one, cast)))


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (len, r'a function, not an expression. Write one with col, for example col\("x"\) > 3'),
        (3, r'3 is .* not an expression. Write one with col, for example col\("x"\) > 3'),
        (col("scor") > 1, "filter: .*'scor'.*'score'"),
    ],
)
def test_what_is_no_expression_over_the_input_is_refused(value: object, way_out: str) -> None:
    assert checks.bound_type("filter", col("score") > 1, HAVE) == pa.bool_()
    with pytest.raises(PlanError, match=way_out):
        checks.bound_type("filter", value, HAVE)
