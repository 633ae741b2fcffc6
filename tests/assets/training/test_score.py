import pytest
import torch

from spiral_assets.training.score import Score, score


def test_a_model_is_judged_on_every_sample_against_the_most_frequent_class() -> None:
    labels = torch.tensor([0, 1, 1, 2])
    values = torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 2]), 3).float()
    batches = [{"x": values[at : at + 3], "label": labels[at : at + 3]} for at in (0, 3)]

    found = score(torch.nn.Identity(), batches, "x")

    assert found == Score(right=3, samples=4, most_frequent=2)
    assert (found.accuracy, found.chance) == (0.75, 0.5)


@pytest.mark.parametrize(("right", "beats"), [(65, False), (66, True)])
def test_chance_is_beaten_by_more_than_three_standard_deviations(right: int, beats: bool) -> None:
    assert Score(right=right, samples=100, most_frequent=50).beats_chance == beats
