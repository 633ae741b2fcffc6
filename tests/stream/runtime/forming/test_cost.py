import pytest

from spiral_stream.runtime.forming import cost as counting_cost
from spiral_stream.runtime.forming.cost import QUICK_S, CountingCost, behind_uncounted, not_counted


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "process_time") -> None:
        self.now = 0.0
        monkeypatch.setattr(counting_cost, name, lambda: self.now)

    def cost(self, seconds: list[float], samples: int = 100) -> CountingCost:
        cost = CountingCost()
        cost.begin()
        for each in seconds:
            self.now += each
            cost.window(samples)
        return cost


def test_the_first_window_counts_only_while_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    assert clock.cost([]).per_sample_s is None
    assert clock.cost([1.0]).per_sample_s == pytest.approx(0.01)
    assert clock.cost([1.0, 0.1, 0.3]).per_sample_s == pytest.approx(0.002)


def test_two_windows_measure_if_they_take_long_enough_and_one_if_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    assert not clock.cost([]).measured
    assert not clock.cost([1.0]).measured
    assert not clock.cost([1.0, 0.01]).measured
    assert clock.cost([1.0, 0.06, 0.06]).measured
    assert clock.cost([QUICK_S + 1]).measured


def test_time_that_passes_counts_where_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, "monotonic")
    monkeypatch.setattr(counting_cost, "process_time", lambda: 0.0)
    cost = clock.cost([1.0, 0.2])

    assert (cost.measured, cost.spent_s, cost.per_sample_s) == (False, 0.0, 0.0)
    cost.passed = True
    assert cost.measured
    assert cost.spent_s == pytest.approx(1.2)
    assert cost.per_sample_s == pytest.approx(0.002)
    assert "0.2 s per chapter as measured here" in str(not_counted("len", 3, 300, cost, ["x"], ["y"]))


def test_what_nobody_measured_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    said = str(not_counted("len", 3, 900, CountingCost(), ["len(tokens)"], ["stream.materialize()"]))

    assert "(len(tokens) is not known)" in said
    assert "about 3 chapters, about 900 samples; how long that takes is not measured yet" in said
    assert "Count them once: stream.materialize(); stream.materialize(lengths=True)" in said


def test_the_time_is_in_a_unit_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Clock(monkeypatch).cost([1.0, 0.36])

    assert "about 5 chapters, about 5,000,000 samples, 3.6e+03 CPU s per chapter as measured here: 5.0 h. " in str(
        behind_uncounted("ledger: batch 7 of epoch 0", 5, 5_000_000, cost, [], ["never said"])
    )
