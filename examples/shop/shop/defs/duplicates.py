"""Photos that look alike: an asset of the shop's own, which searches the index with LanceDB."""

import dagster as dg

from spiral_assets.resources import LanceDBResource

NEAR = 0.002  # squared distance of embeddings


@dg.asset(
    key=["shop", "duplicates"],
    deps=[["indexes", "shop", "photos", "embedding"]],
    group_name="catalog",
    kinds={"lancedb"},
    owners=["team:shop"],
)
def duplicates(lancedb: LanceDBResource) -> dg.MaterializeResult:
    """Pairs of photos that look alike, to be removed by a person."""
    vectors = lancedb.vectors("shop.photos")
    pairs = set()
    for row in vectors.to_arrow().to_pylist():
        near = vectors.search(row["__vector__"], vector_column_name="__vector__").distance_type("l2").limit(2)
        pairs |= {
            tuple(sorted((row["id"], other["id"])))
            for other in near.to_list()
            if other["id"] != row["id"] and other["_distance"] < NEAR
        }
    rows = [dg.TableRecord({"photo": first, "like": second}) for first, second in sorted(pairs)]
    metadata = {"pairs": len(rows)}
    return dg.MaterializeResult(metadata={**metadata, **({"first": dg.MetadataValue.table(rows[:12])} if rows else {})})
