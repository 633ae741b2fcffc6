"""The seed's image program, explained."""

from pathlib import Path
from typing import Any

from spiral_stream import Catalog
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.measure import measure, save_statistics
from spiral_stream.results import Explanation
from tests.fixtures.programs import image_catalog, image_program

TRAIN = "vision.imagenet_train"


def make_catalog(folder: Path) -> Catalog:
    """The image relations, with statistics."""
    catalog = image_catalog(folder)
    entry = catalog.entry(TRAIN)
    with OpenRelation(entry) as relation:
        save_statistics(entry, measure(relation))
    return catalog


def explained(catalog: Catalog, **changes: Any) -> Explanation:
    with image_program(catalog, **{"batch_size": 8, **changes}).to_numpy(prefetch=4) as stream:
        return stream.explain()
