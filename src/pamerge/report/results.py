"""Result files: reading them, and what must be in one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pamerge.errors import PamergeError

Result = Mapping[str, Any]
"""One experiment with one pruner and one seed, as the runner writes it."""

_NEEDED = ("experiment", "network", "pruner", "seed", "tasks", "schemes")


def read_results(paths: Iterable[Path]) -> list[Result]:
    """The results in some files; a folder stands for the result files in it, or in its ``results`` folder.

    Raises:
        PamergeError: a file is missing, or is not a result.
    """
    return [_read(file) for path in paths for file in _files(path)]


def check_result(result: Any, name: str) -> Result:
    """The result, or an error that says what it lacks.

    Args:
        result: what may be a result.
        name: what to call it in the error.
    """
    if not isinstance(result, Mapping):
        raise _no_result(name, f"it holds a {type(result).__name__}")
    missing = [key for key in _NEEDED if key not in result]
    if missing:
        raise _no_result(name, f"it lacks {', '.join(missing)}")
    tasks, schemes = result["tasks"], result["schemes"]
    if not isinstance(tasks, list) or not tasks or not isinstance(schemes, Mapping) or not schemes:
        raise _no_result(name, "it has no tasks or no schemes")
    for scheme, found in schemes.items():
        for key in ("flops", "metric"):
            if not isinstance(found, Mapping) or not isinstance(found.get(key), Mapping):
                raise _no_result(name, f"its scheme {scheme} lacks {key}")
            lacking = [task for task in tasks if task not in found[key]]
            if lacking:
                raise _no_result(name, f"the {key} of its scheme {scheme} has no value for {', '.join(lacking)}")
    return result


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PamergeError(f"{path} does not exist; expected a result file of an experiment, or a folder of them.")
    found = sorted(path.glob("*.json")) or sorted((path / "results").glob("*.json"))
    if not found:
        raise PamergeError(f"The folder {path} holds no result files; expected some *.json there or in its results/.")
    return found


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _no_result(str(path), f"it is not JSON ({error})") from error
    return check_result(content, str(path))


def _no_result(name: str, why: str) -> PamergeError:
    return PamergeError(
        f"{name} is not a result of an experiment: {why}. Expected a file that an experiment wrote into results/."
    )
