"""Replay what a model saw: the samples of every batch, from the metadata of the model alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import spiral_stream as spiral


def samples_seen(
    catalog: spiral.Catalog, seen: Sequence[Mapping[str, Any]], *, trust: Sequence[str] = ()
) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield epoch, number and identities of every batch that a model was trained on, in order. Reads no payload.

    Args:
        catalog: that has the stream and its relations.
        seen: ``samples_seen`` of a model's metadata, or of ``result.json`` in its folder.
        trust: modules whose functions the saved plan may name.

    Raises:
        ResumeError: the saved stream has another plan by now, or its data is another.

    Examples:
        >>> import json
        >>> from spiral_assets.training.seen import samples_seen
        >>> train("seen")
        >>> seen = json.loads(Path("seen/result.json").read_text())["samples_seen"]
        >>> epoch, number, samples = list(samples_seen(catalog, seen))[0]
        >>> epoch, number, samples[:3]
        (0, 0, ['p00', 'p01', 'p02'])
    """
    for part in seen:
        with catalog.open_stream(part["stream"], trust=trust) as stream:
            _same(stream, part)
            world = {"world_size": part["world"], "run_seed": part["run_seed"]}
            (epoch, first), (last_epoch, end) = part["begin"], part["end"]
            stream.bind(rank=0, epoch=epoch, **world)
            while (epoch, first) < (last_epoch, end):
                until = end if epoch == last_epoch else _delivered(stream, epoch, world)
                for number in range(first, until):
                    yield epoch, number, stream.ledger(number, epoch)
                epoch, first = epoch + 1, 0


def _delivered(stream: spiral.PreparedStream, epoch: int, world: Mapping[str, int]) -> int:
    """Return how many batches of a whole epoch all ranks got together; their end of it may drop some."""
    ranks = range(world["world_size"])
    got = sum(len(stream.bind(rank=rank, epoch=epoch, **world)) for rank in ranks)
    return min(got, stream.count(epoch))


def _same(stream: spiral.PreparedStream, part: Mapping[str, Any]) -> None:
    """Check that a saved stream still is what the model was trained on."""
    name = part["stream"]
    if stream.fingerprint != part["fingerprint"]:
        msg = (
            f"samples seen: stream {name!r} has plan {stream.fingerprint[:8]}, the model was trained on plan "
            f"{part['fingerprint'][:8]}. Save the earlier plan under this name in a catalog of its own, and replay there"
        )
        raise spiral.errors.ResumeError(msg)
    now = stream.data_versions
    changed = sorted(each for each, version in part["data_versions"].items() if now.get(each) != version)
    if changed:
        msg = (
            f"samples seen: relation {changed[0]!r} has data version {str(now.get(changed[0]))[:8]}, the model was trained on "
            f"{part['data_versions'][changed[0]][:8]}. Register the earlier data in a catalog of its own, and replay there"
        )
        raise spiral.errors.ResumeError(msg)
