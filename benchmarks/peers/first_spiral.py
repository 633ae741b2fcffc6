"""Spiral: register the folder, plan, train."""

import sys

import spiral_stream as spiral

catalog = spiral.connect("catalog")
catalog.register("photos", spiral.ImageFolder(sys.argv[1]), identity="sample_id")
plan = (
    catalog.table("photos")
    .sample(order=spiral.GlobalShuffle(seed=17))
    .collate(
        batch_size=256,
        fields={"image": spiral.Stack("image_ref", decode="jpeg", dtype="float32"), "label": spiral.Stack("label_id")},
    )
)
for batch in plan.to_torch():
    print(batch["image"].shape, batch["image"].dtype, batch["label"].dtype, flush=True)
    break
