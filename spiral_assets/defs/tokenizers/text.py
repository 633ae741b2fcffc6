"""The tokenizer of the text stream, trained on its relations and registered by name."""

import dagster as dg

from spiral_assets import reports
from spiral_assets.defs.relations.text import DOCUMENTS
from spiral_assets.plans import text as plans
from spiral_assets.resources import CatalogResource, TextsResource


@dg.asset(
    key=["tokenizers", "llama_tokenizer"],
    group_name="tokenizers",
    kinds={"huggingface"},
    owners=["team:data"],
    tags={"domain": "text"},
    deps=[*DOCUMENTS.values()],
)
def llama_tokenizer(catalog: CatalogResource, texts: TextsResource) -> dg.MaterializeResult[None]:
    """A byte-level BPE tokenizer, trained on the three relations. The same text gives the same data version."""
    from spiral_assets.corpora.tokenizer import BEGIN, END, train_tokenizer

    opened = catalog.open()
    columns = [opened.table(name).project(plans.COLUMN).to_arrow()[plans.COLUMN] for name in plans.RELATIONS.values()]
    entry = opened.register_tokenizer(plans.TOKENIZER, train_tokenizer(columns, texts.tokenizer), replace=True)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(entry.digest),
        metadata={
            "vocabulary": entry.vocab_size,
            "trained_on_documents": sum(map(len, columns)),
            "special_tokens": f"{BEGIN} {END}",
            "dagster/table_name": plans.TOKENIZER,
            "dagster/uri": str(entry.path),
            "digest": entry.digest,
            "open_it": reports.snippet(f'spiral_stream.connect().tokenizer("{plans.TOKENIZER}")'),
        },
    )
