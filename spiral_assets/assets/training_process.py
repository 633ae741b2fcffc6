"""Run a training process under Dagster Pipes, and end it with its run.

`dg.PipesSubprocessClient.run` leaves the process behind where a run is cancelled just as the process starts (the
cancellation is raised between the start and the client's `try`), and where the process takes longer to end than the
client's timeout. Here a thread starts it, in which no cancellation is raised, and it is killed if it does not end itself.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg


def run_training(
    pipes: dg.PipesSubprocessClient, context: dg.AssetExecutionContext, command: Sequence[str], env: Mapping[str, str]
) -> dg.PipesClientCompletedInvocation:
    """Run a command until it ends. If the run is cancelled meanwhile, the process ends first.

    Args:
        pipes: how the process hears of its run; its ``env``, ``cwd``, ``forward_stdio``, ``forward_termination`` and
            ``termination_timeout_seconds`` hold.
        context: of the asset.
        command: what is started.
        env: variables that the process gets beside its parent's and those of ``pipes``.

    Raises:
        Failure: the process did not end with exit code 0.
    """
    started: list[subprocess.Popen[Any]] = []
    output = None if pipes.forward_stdio else subprocess.DEVNULL

    def start(variables: Mapping[str, str]) -> None:
        process = subprocess.Popen(command, cwd=pipes.cwd, env=variables, stdout=output, stderr=output)  # noqa: S603  the asset names it
        started.append(process)

    with dg.open_pipes_session(context, pipes.context_injector, pipes.message_reader) as session:
        variables = {**os.environ, **pipes.env, **env, **session.get_bootstrap_env_vars()}
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="training-starts") as starter:  # waits, also if cancelled
                starter.submit(start, variables).result()
            code = started[0].wait()
        except BaseException:
            if pipes.forward_termination:
                for process in started:
                    _end(process, pipes.termination_timeout_seconds, context)
            raise
    if code:
        how = f"exit code {code}" if code > 0 else f"{signal.strsignal(-code)} (signal {-code})"
        msg = f"training: the process {' '.join(command[:4])} ... ended with {how}. The log of this step has its output"
        raise dg.Failure(msg)
    return dg.PipesClientCompletedInvocation(session)


def _end(process: subprocess.Popen[Any], within_s: float, context: dg.AssetExecutionContext) -> None:
    """Interrupt a process, so that it can save where it stands, and kill it if it does not end in time."""
    context.log.info("the run is cancelled: its training process %d is interrupted", process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        context.log.warning("training process %d did not end within %g s and is killed", process.pid, within_s)
    finally:  # also where the run is cancelled once more
        process.kill()
        process.wait()
