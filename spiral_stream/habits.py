"""Names that users bring from other libraries, and what to write here instead: words for errors at the door.

A name that Spiral does not have is an AttributeError, and an argument that a call does not take is a TypeError, as in
Python; these say the way out. ``docs/howto/names.md`` has the same words for people who search.
"""

import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, NoReturn

LIBRARY: Final = __name__.partition(".")[0]
_ROWS: Final = "Before sample: .filter(...), .with_columns(name=expression) or catalog.sql(...)"
TO_TORCH: Final = ".sample(order=...).collate(batch_size=..., fields={...}).to_torch()"
_LOOP: Final = f"Write {TO_TORCH}, and iterate that"
_SHUFFLE: Final = "Write .sample(order=spiral.GlobalShuffle(seed=17)): every epoch has an order of its own"
_MAP: Final = (
    "Write .map(fn, columns=[...], returns={...}, batched=False) after .sample(...), or an expression before it"
)
_IMAGES: Final = 'Give the field its steps: spiral.Stack("image", decode="jpeg", transforms=[...])'
_REGISTER: Final = (
    'Register data once, catalog.register("name", spiral.sources.HuggingFace(path)), and take catalog.table("name")'
)
_BOUND: Final = (
    "The ranks share the batches by themselves under torchrun; else stream.bind(data_parallel_rank=..., ...)"
)
_OUT: Final = "Take its rows in another form, .to_arrow(), .to_pandas() or .to_polars(), and write them"
_SIZES: Final = "Call .count() for the rows; .columns has the names"

_FILL: Final = 'Missing values are filled in SQL: catalog.sql("select *, coalesce(x, 0) as ... from ...")'
_NOT_NUMBERS: Final = 'NaN is replaced in SQL: catalog.sql("select *, if(isnan(x), 0, x) as ... from ...")'
_OF_ALL: Final = (
    "An expression sees one row. A figure of all rows: catalog.measure(...), then a number in the expression, "
    'or catalog.sql("select *, (x - avg(x) over ()) / stddev(x) over () as ... from ...")'
)
_LOGARITHM: Final = 'SQL has it: catalog.sql("select *, ln(x) as ... from ..."); there log is of base 10'

OF_ROWS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("shape", "num_rows", "size", "height", "nrows", "num_columns"), _SIZES),
    **dict.fromkeys(
        ("dtypes", "features", "info", "types", "column_names", "glimpse"), "Look at .schema, or .describe()"
    ),
    **dict.fromkeys(("tail", "iloc", "loc", "at"), "Take .head(5) or .sample_rows(5); a filter finds rows by value"),
    **dict.fromkeys(("sort_values", "order_by", "sort_by"), 'Write .sort("column", descending=False)'),
    **dict.fromkeys(("isna", "isnull", "dropna", "fillna", "notna"), 'Write .filter(~spiral.col("column").is_null())'),
    "merge": 'Write .join(other, on="column")',
    **dict.fromkeys(
        ("groupby", "value_counts", "nunique"), 'Write .group_by("column").aggregate(n=("column", "count"))'
    ),
    **dict.fromkeys(("query", "where_sql"), 'Write .filter("width >= 512"), a condition of SQL'),
    **dict.fromkeys(("assign", "with_column", "add_column"), 'Write .with_columns(half=spiral.col("width") / 2)'),
    **dict.fromkeys(("drop_duplicates", "unique", "dedup", "deduplicate"), 'Write .distinct("column")'),
    **dict.fromkeys(("to_csv", "to_json", "to_parquet", "to_dict", "to_list", "save_to_disk", "push_to_hub"), _OUT),
    **dict.fromkeys(("collect", "compute", "fetchall", "execute"), "Take .to_arrow(), .to_pandas() or .to_polars()"),
    **dict.fromkeys(("shuffle", "shuffled", "resampled", "permute"), _SHUFFLE),
    **dict.fromkeys(("train_test_split", "random_split"), 'Write .split(train=0.8, test=0.2)["train"]'),
    **dict.fromkeys(("remove_columns", "drop_columns"), 'Write .drop("column", ...)'),
    **dict.fromkeys(
        ("select_columns", "to_tuple", "pick"), 'Write .select("column", ...); a batch is a dict of fields'
    ),
    **dict.fromkeys(("rename_column", "rename_columns"), 'Write .rename({"old": "new"})'),
    **dict.fromkeys(("with_format", "set_format", "to_iterable_dataset", "batch", "batched", "dataloader"), _LOOP),
    **dict.fromkeys(
        ("map_batches", "apply", "random_map", "with_transform", "set_transform", "transform", "mapd"), _MAP
    ),
    **dict.fromkeys(("decode", "augment", "cast_column"), _IMAGES),
    **dict.fromkeys(("shard", "split_by_node", "split_by_worker"), _BOUND),
    **dict.fromkeys(
        ("measure", "statistics", "skew", "drift"),
        'Call catalog.measure("name") for a registered relation; .describe() shows any',
    ),
    **dict.fromkeys(("page", "report", "profile"), 'Call catalog.page("page.html", "name") for a registered relation'),
}
OF_STREAMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dataset", "sampler", "batch_sampler", "collate_fn"), "The plan fixes it: look at .explain()"),
    **dict.fromkeys(
        ("size", "num_samples", "shape"), "Take len(stream), the steps of an epoch, or .rows, the rows of the plan"
    ),
    **dict.fromkeys(
        ("with_epoch", "repeat", "with_length"), "Epochs follow each other: iterate again, or .limit(n) the plan"
    ),
    **dict.fromkeys(("shuffle", "map", "filter", "batched"), "Write it in the plan, before .to_torch()"),
    **dict.fromkeys(
        ("get_state", "save_state", "checkpoint"), "Call .state_dict() of the stream, and .load_state_dict(state)"
    ),
    **dict.fromkeys(("set_state", "load_state", "resume"), "Call .load_state_dict(state), or .seek(step=1_000)"),
    **dict.fromkeys(("to", "cuda"), 'Name the device in the plan: .to_torch(device="cuda")'),
    **dict.fromkeys(
        ("tokens", "num_tokens", "token_count"), "Call .materialize(), and .explain() counts the tokens of an epoch"
    ),
    **dict.fromkeys(
        ("set_weights", "set_proportions", "set_mixture", "update_weights", "reweight", "mix"),
        'Call .decide({"web": 0.7, "books": 0.3}): the shares from the next step on',
    ),
    **dict.fromkeys(
        ("log", "record"), 'Open a run before the loop: catalog.run("name", stream).log(batch=batch, loss=losses)'
    ),
    **dict.fromkeys(("next", "next_batch", "get_next"), "Iterate: for batch in stream; stream.take(1) looks ahead"),
}
OF_EXPRESSIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("isna", "isnull"), "Write .is_null(); NaN is a value: .is_nan()"),
    **dict.fromkeys(("notna", "notnull", "is_not_null"), "Write ~x.is_null(); NaN is a value: ~x.is_nan()"),
    "isnan": "Write .is_nan()",
    **dict.fromkeys(("fillna", "fill_null", "coalesce"), _FILL),
    **dict.fromkeys(("fill_nan", "nan_to_num"), _NOT_NUMBERS),
    **dict.fromkeys(("mean", "avg", "std", "var", "median", "min", "max", "sum", "count", "rank", "over"), _OF_ALL),
    **dict.fromkeys(("log", "ln", "log1p"), _LOGARITHM),
    "astype": 'Write .cast("float64")',
}
OF_CATALOG: Final[Mapping[str, str]] = {
    **dict.fromkeys(("list", "ls", "table_names", "list_tables", "names", "relations", "show"), "Call .tables()"),
    **dict.fromkeys(("get", "open_table", "load", "read", "relation", "dataset"), 'Take catalog.table("name")'),
    **dict.fromkeys(("create_table", "add", "put", "from_arrow", "insert", "load_dataset"), _REGISTER),
    **dict.fromkeys(("drop_table", "delete", "remove", "unregister"), 'Call .drop("name"): the source\'s files stay'),
    **dict.fromkeys(("save", "save_plan"), 'Call .save_stream("name", plan)'),
    **dict.fromkeys(("query", "execute"), 'Call .sql("select ... from name")'),
    **dict.fromkeys(("describe", "info", "statistics"), 'Take catalog.table("name").describe()'),
    **dict.fromkeys(
        ("record", "log", "track", "init", "new_run"),
        'Call .run("name", stream), and .log(batch=batch, loss=losses) on it',
    ),
    **dict.fromkeys(
        ("outliers", "spikes", "history", "attempts", "legs"), 'Open the run: catalog.run("name").outliers()'
    ),
}
OF_DOOR: Final[Mapping[str, str]] = {
    **dict.fromkeys(("load_dataset", "load_from_disk", "read_parquet", "read_csv", "from_pandas"), _REGISTER),
    **dict.fromkeys(
        ("concatenate_datasets", "ConcatDataset", "ChainDataset"), "Write a.union(b), or spiral.concat([...])"
    ),
    **dict.fromkeys(
        ("JsonLines", "JSONLines", "JSONL", "Json", "read_json", "from_json"), "Write spiral.sources.Jsonl(path)"
    ),
    **dict.fromkeys(("Pack", "Packing", "ConstantLengthDataset"), "Write spiral.batching.Packed(max_tokens=512)"),
    **dict.fromkeys(("AutoTokenizer", "Tokenizer"), 'Write catalog.register_tokenizer("name", tokenizer)'),
    **dict.fromkeys(
        ("interleave_datasets", "interleave", "RandomMix", "Mix", "Mixture"),
        'Write spiral.mix([spiral.Stream("a", a, proportion=0.7), ...])',
    ),
    **dict.fromkeys(("DataLoader", "StreamingDataLoader", "WebLoader", "StatefulDataLoader", "StreamLoader"), _LOOP),
    **dict.fromkeys(("Dataset", "IterableDataset", "StreamingDataset", "MapDataset", "LocalDataset"), _LOOP),
    **dict.fromkeys(("DistributedSampler", "split_dataset_by_node"), _BOUND),
    **dict.fromkeys(("RandomSampler", "SubsetRandomSampler", "Shuffle"), _SHUFFLE),
    "WeightedRandomSampler": 'Write .sample(order=spiral.orders.Weighted("weight", seed=17))',
    "SequentialSampler": "Write .sample(order=spiral.Sequential())",
    "BatchSampler": "Write .collate(batch_size=..., fields={...}, last=spiral.KeepPartial)",
    **dict.fromkeys(
        ("MDSWriter", "ShardWriter", "TarWriter", "ArrayRecordWriter"), "Write spiral.sources.Writer(uri, schema)"
    ),
    **dict.fromkeys(("Compose", "ToTensor"), _IMAGES),
}
OF_ARGUMENTS: Final[Mapping[str, str]] = {
    "num_workers": "Leave it out: threads read ahead; threads= says how many",
    **dict.fromkeys(
        ("prefetch_batches", "prefetch_factor", "predownload", "num_prefetch"),
        "Say prefetch=8: so many batches are built ahead",
    ),
    "pin_memory": 'Say device="cuda", which pins what it copies',
    **dict.fromkeys(("shuffle", "shuffle_seed", "buffer_size"), _SHUFFLE),
    "drop_last": "Say last=spiral.DropPartial (the default) or last=spiral.KeepPartial",
    "collate_fn": 'Say what a batch holds: fields={"x": spiral.Stack("x")}',
    "remove_columns": "Columns that no field names are not read",
    "batch_size": "Say it in collate(batch_size=...); a function gets samples as they are read",
    "columns": 'Name columns one after the other, without columns=: "a", "b"',
    "num_proc": "Say workers=4, which runs a function in processes",
    "with_indices": "Say with_index=True, which passes the place in the epoch's order",
    **dict.fromkeys(("max_length", "seq_len", "seq_length"), "Packed says max_tokens=512; Pad says length=512"),
    **dict.fromkeys(("weights", "probabilities"), 'Say it for each: spiral.Stream("a", plan, proportion=0.7)'),
    "axis": "Columns and rows have verbs of their own: .drop and .filter",
}
UNNAMED: Final[Mapping[str, str]] = {
    "sample": "Rows at random are .sample_rows(5); an order is order=spiral.GlobalShuffle(seed=17)",
    "with_columns": "Give each a name: .with_columns(half=expression)",
}


def door(
    where: str, rooms: Mapping[str, Collection[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a namespace; it imports a room when a name of it is first asked for.

    Args:
        where: the namespace.
        rooms: the names of each room, by the room's path in the library.
    """
    room_of = {name: f"{LIBRARY}.{room}" for room, names in rooms.items() for name in names}

    def found(name: str) -> Any:
        if name not in room_of:
            raise AttributeError(lacking(where, name, OF_DOOR, sorted(room_of)))
        value = getattr(import_module(room_of[name]), name)
        setattr(sys.modules[where], name, value)
        return value

    def known() -> list[str]:
        return sorted({*vars(sys.modules[where]), *room_of})

    return sorted(room_of), found, known


def not_iterable(kind: str, verb: str) -> str:
    """Return why a plan yields nothing itself, and what does.

    Args:
        kind: of the plan's last verb: ``Collate``, ``Relational`` or ``Sampled``.
        verb: the last verb.
    """
    if kind == "Collate":
        return (
            "iter: a plan is no stream. Iterate a stream of it: plan.to_torch(), or plan.to_numpy() without a framework"
        )
    if kind == "Relational":
        return (
            "iter: a relation yields no rows by itself. Iterate .batches(1_000), look at .head(), or take .to_arrow()"
        )
    return (
        f"iter: a plan after {verb} has samples and no batches. Add .collate(batch_size=..., fields=...), and "
        "iterate its .to_torch() or .to_numpy()"
    )


def uncounted(verb: str) -> str:
    """What a TypeError says of the length of rows that metadata does not count."""
    return (
        f"len: how many rows {verb} leaves is known when they are read, and len reads nothing. Call .count(), which reads the "
        f"columns that decide. In place of a DataLoader: {TO_TORCH}"
    )


def answer(owner: object, name: str, where: str, words: Mapping[str, str]) -> NoReturn:
    """Say what an object lacks, and where it is: the whole of a ``__getattr__``.

    Args:
        owner: the object.
        name: what was looked for. A private name, or a property that failed, has Python's own error.
        where: how the message begins.
        words: ways out by name.

    Raises:
        AttributeError: always, so that `hasattr` answers.
    """
    if name.startswith("_") or hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    raise AttributeError(lacking(where, name, words, dir(type(owner))))


def lacking(where: str, name: str, words: Mapping[str, str], names: Iterable[str]) -> str:
    """What an AttributeError says of a name that somebody looked for.

    Args:
        where: how the message begins.
        name: what was looked for.
        words: ways out by name.
        names: what there is.
    """
    if name in words:
        return f"{where}: there is no {name!r}. {words[name]}"
    near = difflib.get_close_matches(name, [each for each in names if not each.startswith("_")], n=3)
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "dir() lists what there is; docs/howto/names.md has other words"
    )
    return f"{where}: there is no {name!r}. {hint}"


def misfit(where: str, known: Mapping[str, bool], given: Collection[str], surplus: int, more: str = "") -> str:
    """What a TypeError says of a call that the signature does not take.

    Args:
        where: how the message begins.
        known: the arguments that have a name, and whether each has to be given.
        given: the names in the call.
        surplus: how many arguments without a name are too many.
        more: what else it takes.
    """
    takes = f"it takes {', '.join([*(f'{each}=' for each in known), *filter(None, [more])]) or 'no arguments'}"
    strange = [each for each in given if each not in known]
    if strange and not surplus:
        near = difflib.get_close_matches(strange[0], known, n=1)
        hint = OF_ARGUMENTS.get(strange[0]) or (f"Did you mean {near[0]}=?" if near else "Leave it out")
        return f"{where}: there is no {strange[0]}=; {takes}. {hint}"
    if surplus:
        many = "1 argument without a name is" if surplus == 1 else f"{surplus} arguments without a name are"
        return f"{where}: {many} too many; {takes}. {UNNAMED.get(where, 'Give them by name')}"
    needed = next((each for each, must in known.items() if must and each not in given), "")
    return f"{where}: {needed}= is missing; {takes}. Write {where}({needed}=...)"
