# ruff: noqa: E402
"""Components: relations, tokenizers, caches, streams and training runs in YAML. ``dg list components`` shows them.

Each is a thin face of a factory of `spiral_assets.assets`: its fields are the factory's arguments.
"""

from spiral_assets import need_dagster

need_dagster()  # the rooms below would say it worse

from spiral_assets.components.catalog import Catalog
from spiral_assets.components.embedding_index import EmbeddingIndex
from spiral_assets.components.measure import Measure
from spiral_assets.components.plan_cache import PlanCache
from spiral_assets.components.relation import Relation
from spiral_assets.components.relation_catalog import RelationCatalog
from spiral_assets.components.tokenizer import Tokenizer
from spiral_assets.components.training_job import TrainingJob
from spiral_assets.components.training_stream import TrainingStream
from spiral_assets.components.upkeep import Upkeep
from spiral_assets.components.video_index import VideoIndex

__all__ = [
    "Catalog",
    "EmbeddingIndex",
    "Measure",
    "PlanCache",
    "Relation",
    "RelationCatalog",
    "Tokenizer",
    "TrainingJob",
    "TrainingStream",
    "Upkeep",
    "VideoIndex",
]
