"""Your own images in the demo: definitions in YAML, written once to the folder of its data, and loaded from there.

``make demo IMAGES=<folder>`` writes them. They name the folder, so the UI, schedules and later runs all take it from there,
and the demo's drawn images keep a relation of their own.
"""

import os
from pathlib import Path
from typing import Final

import dagster as dg
import yaml

from spiral_assets.yaml_definitions import definitions_from

FILE: Final = "own_images.yaml"
DOMAIN: Final = "own_images"
RELATION: Final = "vision.own_images"
TRAIN: Final = "own-images-train"

_YAML: Final = """\
# Written by `make demo IMAGES=...`. In a code location of your own this is a file defs/<name>/defs.yaml.
type: spiral_assets.components.Relation
attributes:
  name: vision.own_images
  source: {{kind: image_folder, path: {folder}}}
  description: Your images, in one folder per class.
  domain: own_images
  semantic: {{image_ref: image/jpeg-ref}}
  labels: [label_id]
  limits: {{references: 64}}
---
type: spiral_assets.components.Relation
attributes:
  name: vision.own_labels
  source: {{function: "spiral_assets.plans.splits:labels", arguments: {{relation: vision.own_images}}}}
  description: Class names, one row per label.
  domain: own_images
  identity: label_id
  statistics: false
  deps: [catalog/vision/own_images]
---
type: spiral_assets.components.Relation
attributes:
  name: vision.own_splits
  source: {{function: "spiral_assets.plans.splits:by_hash", arguments: {{relation: vision.own_images}}}}
  description: Every tenth image, by hash, is held out for validation.
  domain: own_images
  statistics: false
  deps: [catalog/vision/own_images]
---
type: spiral_assets.components.PlanCache
attributes:
  name: own_images_decoded
  plan: {{function: "spiral_assets.plans.images:cache_plan", arguments: {{relation: vision.own_images}}}}
  description: Your images, decoded at a bounded size.
  domain: own_images
  deps: [catalog/vision/own_images, catalog/vision/own_labels, catalog/vision/own_splits]
---
type: spiral_assets.components.TrainingStream
attributes:
  name: own_images
  description: Streams of your images, saved by name.
  domain: own_images
  streams:
    - name: own-images-train
      plan:
        function: spiral_assets.plans.images:training
        arguments: {{relation: vision.own_images, splits: vision.own_splits}}
    - name: own-images-validation
      plan:
        function: spiral_assets.plans.images:validation
        arguments: {{relation: vision.own_images, splits: vision.own_splits}}
      prefetch: 2
  metadata: spiral_assets.plans.images:steps
  deps: [caches/own_images_decoded, stats/vision/own_images/shard_stats]
---
type: spiral_assets.components.TrainingJob
attributes:
  name: own_images_cnn
  description: A small network trained from the saved stream.
  domain: own_images
  command:
    - python
    - -m
    - spiral_assets.training
    - images
    - --stream=own-images-train
    - --validation=own-images-validation
    - --labels=vision.own_labels
  config: {{epochs: 8, save_every: 0}}
  checks:
    beats_chance: The network is more accurate than always naming the most frequent class, by three standard deviations.
  deps: [streams/own_images]
"""


def write_definitions(root: Path, folder: Path) -> Path:
    """Write the definitions of your images, and return their file.

    Args:
        root: folder of the demo's data.
        folder: of class folders.
    """
    path = root / FILE
    path.write_text(_YAML.format(folder=yaml.safe_dump(str(folder.resolve())).removesuffix("...\n").strip()))
    return path


def own_definitions() -> dg.Definitions:
    """Return what was written; no definitions where nothing was, or where the folder of the data is not known."""
    root = os.environ.get("SPIRAL_DATA_ROOT")
    path = Path(root or "") / FILE
    if not root or not path.is_file():
        return dg.Definitions()
    return definitions_from(path)
