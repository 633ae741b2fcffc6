"""The acts of the demo: images, text and video, each from data to a trained model that was killed once."""

from collections.abc import Callable
from pathlib import Path

from spiral_assets.demo import own_images
from spiral_assets.demo.job import CONSOLE, Outcome, explain, run_job, summary
from spiral_assets.demo.proof import Proof
from spiral_assets.plans import images as image_plans
from spiral_assets.plans import text as text_plans
from spiral_assets.plans import video as video_plans


def write_data(root: Path, count: int, characters: int, videos: int) -> None:
    """Write images, text and video that the demo's assets read, each only if nothing of it is there.

    Args:
        root: folder of the demo's data.
        count: images to draw.
        characters: approximate characters per relation.
        videos: to draw.
    """
    from spiral_assets.corpora.images import write_image_relation
    from spiral_assets.corpora.texts import write_text_relations
    from spiral_assets.corpora.videos import write_video_relations

    writers: dict[str, Callable[[Path], object]] = {
        "images": lambda place: write_image_relation(place, count),
        "texts": lambda place: write_text_relations(place, characters),
        "videos": lambda place: write_video_relations(place, videos),
    }
    for name, write in writers.items():
        if not (root / name).exists():
            CONSOLE.print(f"The demo's {name} are written to {root / name}")
            write(root / name)


def images_act(root: Path, own_folder: Path | None, count: int, epochs: int) -> bool:
    """Draw images or take your own, and train a classifier. Return whether the run was exact and learned.

    Args:
        root: folder of the demo's data.
        own_folder: folder of your images, one subfolder per class; None draws images.
        count: images to draw.
        epochs: to train.
    """
    if own_folder is not None:
        written = own_images.write_definitions(root, own_folder)
        CONSOLE.rule("Your images")
        CONSOLE.print(f"{own_folder.resolve()} is defined in {written}; the UI and later runs take it from there")
        return _images(root, own_images.DOMAIN, own_images.TRAIN, epochs)
    from spiral_assets.corpora.images import write_image_relation

    CONSOLE.rule("Images")
    drawn = write_image_relation(root / "images", count)
    CONSOLE.print(f"{drawn.count:,} JPEGs in {drawn.shards} storage shards, {drawn.image_bytes / 1e6:,.0f} MB")
    return _images(root, "images", image_plans.TRAIN, epochs)


def _images(root: Path, job: str, stream: str, epochs: int) -> bool:
    """Run a job of images, and show what came of it."""
    CONSOLE.rule(f"Dagster job {job}: register, check, measure, build the cache, save the streams, train")
    outcome = run_job(job, root, {"ops": {f"models__{job}_cnn": {"config": {"epochs": epochs}}}})
    if outcome is None:
        return False
    explain(stream)
    CONSOLE.rule(f"Summary of {job}")
    cache = "caches__imagenet_decoded" if job == "images" else f"caches__{job}_decoded"
    result, built = outcome.result, outcome.metadata(cache)
    proof = outcome.prove(stream, epochs * result["steps_per_epoch"])
    table = summary(outcome, proof)
    table.add_row("cache", f"{built['dagster/row_count']:,} rows of decoded images, {built['rows_built']:,} built now")
    accuracy = f"{result['accuracy']:.1%} of {result['validated_on']:,} unseen images; chance {result['chance']:.1%}"
    table.add_row("accuracy", accuracy)
    table.add_row("training", f"{result['samples_per_s']:,.0f} images/s; bound by {result['bound_by']}")
    CONSOLE.print(table)
    return _shown(outcome, proof, learned=result["beats_chance"])


def text_act(root: Path, characters: int, steps: int) -> bool:
    """Collect this machine's text, train a tokenizer and a language model. Return whether it was exact and learned.

    Args:
        root: folder of the demo's data.
        characters: approximate characters per relation.
        steps: to train.
    """
    from spiral_assets.corpora.texts import write_text_relations

    CONSOLE.rule("Text")
    written = write_text_relations(root / "texts", characters)
    for name, relation in text_plans.RELATIONS.items():
        CONSOLE.print(f"{relation}: {written.documents[name]:,} documents, {written.text_bytes[name] / 1e6:.1f} MB")
    CONSOLE.rule(
        "Dagster job text: register, check, train a tokenizer, build the caches, measure, save the stream, train"
    )
    outcome = run_job("text", root, {"ops": {"models__text_lm": {"config": {"steps": steps}}}})
    if outcome is None:
        return False
    explain(text_plans.TRAIN)
    CONSOLE.rule("Summary of text")
    result = outcome.result
    proof = outcome.prove(text_plans.TRAIN, steps)
    table = summary(outcome, proof)
    built = [outcome.metadata(f"caches__{name}_tokens") for name in text_plans.RELATIONS]
    rows, new = (sum(each[key] for each in built) for key in ("dagster/row_count", "rows_built"))
    tokens = outcome.metadata("stats__text__token_lengths")["tokens"]
    table.add_row("caches", f"{tokens:,} tokens of {rows:,} documents, {new:,} of them built now")
    table.add_row("loss", f"{result['loss']:.2f} nats per token; by chance {result['chance']:.2f}")
    table.add_row("training", f"{result['tokens_per_s']:,.0f} tokens/s; bound by {result['bound_by']}")
    CONSOLE.print(table)
    return _shown(outcome, proof, learned=result["beats_chance"])


def video_act(root: Path, count: int, steps: int) -> bool:
    """Draw, encode and index videos, and train a classifier of movement. Return whether it was exact and learned.

    Args:
        root: folder of the demo's data.
        count: videos to draw.
        steps: to train.
    """
    from spiral_assets.corpora.videos import write_video_relations

    CONSOLE.rule("Video")
    drawn = write_video_relations(root / "videos", count)
    videos = f"{drawn.videos:,} H.264 videos in {drawn.shards} storage shards, {drawn.video_bytes / 1e6:,.0f} MB"
    CONSOLE.print(f"{videos}; {drawn.segments:,} segments with a label and a caption")
    CONSOLE.rule("Dagster job video: register, check, index, measure, build the cache, save the streams, train")
    outcome = run_job("video", root, {"ops": {"models__video_cnn": {"config": {"steps": steps}}}})
    if outcome is None:
        return False
    explain(video_plans.TRAIN)
    CONSOLE.rule("Summary of video")
    result, built = outcome.result, outcome.metadata("caches__video_clips")
    proof = outcome.prove(video_plans.TRAIN, steps)
    table = summary(outcome, proof)
    files = outcome.metadata("catalog__video__index")
    turned = outcome.metadata("stats__video__training_segments__clip_stats")["turned"]
    indexed = f"{files['dagster/row_count']:,} files, {turned} of them on their side, {files['refused']} refused"
    table.add_row("video index", indexed)
    table.add_row("cache", f"{built['dagster/row_count']:,} clips of decoded frames, {built['rows_built']:,} built now")
    accuracy = f"{result['accuracy']:.1%} of {result['validated_on']:,} clips of unseen videos"
    table.add_row("accuracy", f"{accuracy}; chance {result['chance']:.1%}")
    table.add_row("training", f"{result['clips_per_s']:,.0f} clips/s; bound by {result['bound_by']}")
    CONSOLE.print(table)
    return _shown(outcome, proof, learned=result["beats_chance"])


def _shown(outcome: Outcome, proof: Proof, *, learned: bool) -> bool:
    shown = outcome.killed is not None and proof.exact and learned
    if not shown:
        CONSOLE.print("[red]the demo did not show what it should[/red]")
    return shown
