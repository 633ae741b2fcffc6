"""What the demo's summary says of checks that warn."""

import dagster as dg
import pytest

from spiral_assets.demo.job import warning


@pytest.mark.parametrize(
    ("description", "metadata", "told"),
    [
        ("loss is high", {"loss": 2.5}, "loss is high"),
        (None, {"loss": 2.3456789, "chance": 2.25}, "loss 2.346, chance 2.25"),
        (None, {}, "it gives no reason"),
    ],
)
def test_a_warning_says_why_also_without_a_description(
    description: str | None, metadata: dict[str, float], told: str
) -> None:
    check = dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey("models"),
        check_name="beats_chance",
        passed=False,
        metadata={name: dg.MetadataValue.float(value) for name, value in metadata.items()},
        description=description,
    )

    assert warning(check) == f"beats_chance warns: {told}"
