"""Commands that are killed: ``python killed.py WHAT FOLDER LINE [LINE …]``.

The command runs undisturbed, here. Then it is started elsewhere, killed when it prints a line (on its error stream),
or so many seconds after it (``LINE@0.1``), started again, killed at the next line, and so on, and at last runs to its
end. These runs are processes of their own, forked from this one, so that importing torch takes its seconds only once.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from cli.small import TUNED, experiment, own_project

from pamerge.cli import main


def command(what: str, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    if what == "run":
        return ["run", str(experiment(folder, TUNED)), "--out", str(folder), "--json"]
    if what == "run in processes":
        return ["run", str(experiment(folder)), "--out", str(folder), "--json", "--jobs", "2"]
    return ["merge", str(own_project(folder)), "--json"]


def start(arguments: list[str], output: Path) -> tuple[int, int]:
    """The process, and where its error stream can be read."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.dup2(write, 2)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    code = 1
    try:
        main(arguments)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run_until(line: str, arguments: list[str], output: Path) -> None:
    line, _, delay = line.partition("@")
    pid, stream = start(arguments, output)
    with os.fdopen(stream) as lines:
        seen = []
        for printed in lines:
            seen.append(printed)
            if line in printed:
                time.sleep(float(delay or 0))
                workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                os.kill(pid, signal.SIGKILL)
                break
        else:
            raise AssertionError(f"{line!r} was never printed, only:\n{''.join(seen)}")
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it was over before it was killed"
    give_up = time.monotonic() + 10
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < give_up, "a worker outlived the command"
        time.sleep(0.05)


def run_to_end(arguments: list[str], output: Path) -> None:
    pid, stream = start(arguments, output)
    with os.fdopen(stream) as lines:
        printed = lines.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, printed
    output.with_suffix(".err").write_text(printed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, folder = sys.argv[1], Path(sys.argv[2])
    with (
        open(folder / "whole.json", "w") as output,
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        main(command(what, folder / "whole"))
    arguments = command(what, folder / "killed")
    for line in sys.argv[3:]:
        run_until(line, arguments, folder / "killed.json")
    run_to_end(arguments, folder / "killed.json")
