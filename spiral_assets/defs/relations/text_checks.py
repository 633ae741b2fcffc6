"""What must hold of the text relations before anything is built on them."""

from spiral_assets.checks import identity_check, schema_check
from spiral_assets.defs.relations.text import code_documents, fineweb_documents, wikipedia_documents
from spiral_assets.plans import text as plans

fineweb_identity = identity_check(fineweb_documents, plans.RELATIONS["fineweb"])
wikipedia_identity = identity_check(wikipedia_documents, plans.RELATIONS["wikipedia"])
code_identity = identity_check(code_documents, plans.RELATIONS["code"])

fineweb_schema = schema_check(fineweb_documents, plans.RELATIONS["fineweb"], plans.DECLARED["fineweb"])
wikipedia_schema = schema_check(wikipedia_documents, plans.RELATIONS["wikipedia"], plans.DECLARED["wikipedia"])
code_schema = schema_check(code_documents, plans.RELATIONS["code"], plans.DECLARED["code"])
