"""What the demo says of checks that warn, and of a job that failed: the reason, and not the steps that waited for it."""

import logging

import dagster as dg
import pytest

from spiral_assets.demo import job as demo_job
from spiral_assets.demo.job import failures, warning


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


def failing(*, by_check: bool) -> dg.Definitions:
    @dg.asset
    def first() -> int:
        try:
            return 1 if by_check else 1 // 0
        except ZeroDivisionError as error:
            msg = "wrapped"
            raise RuntimeError(msg) from error

    @dg.asset_check(asset=first, blocking=True)
    def resolves() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="1 of 60 references leads to no image: a.png is damaged")

    @dg.asset(deps=[first])
    def second() -> None: ...

    @dg.asset(deps=[second])
    def third() -> None: ...

    loggers = {"brief": dg.LoggerDefinition(demo_job.brief)}
    return dg.Definitions(
        [first, second, third], asset_checks=[resolves], jobs=[dg.define_asset_job("all")], loggers=loggers
    )


@pytest.mark.parametrize(
    ("by_check", "told"),
    [
        (True, ["first: check resolves failed: 1 of 60 references leads to no image: a.png is damaged"]),
        (False, ["first: ZeroDivisionError: integer division or modulo by zero"]),
    ],
)
def test_a_failed_job_says_why_and_not_what_did_not_run(
    told: list[str], capsys: pytest.CaptureFixture[str], instance: dg.DagsterInstance, *, by_check: bool
) -> None:
    job = failing(by_check=by_check).resolve_job_def("all")
    found = job.execute_in_process(instance=instance, run_config={"loggers": {"brief": {}}}, raise_on_error=False)
    logging.getLogger("spiral-demo").handlers = []

    assert failures(found) == told
    assert "second" not in capsys.readouterr().out
