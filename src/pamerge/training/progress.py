"""What a long stage shows while it runs: a live table in a terminal, plain lines elsewhere; and a log for programs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0


class Display:
    """Shows how far a stage is, and the loss, metric and FLOPs of each task.

    Args:
        stage: What is being done, such as "fine-tuning".
        tasks: The tasks, in the order of the rows.
        total: The number of steps, if it is known.
        metric_names: What the metric of each task is called.
        enabled: Whether to show anything.
        console: Where to; by default the error stream.

    >>> with Display("fine-tuning", ["age"], total=3, enabled=False) as display:
    ...     display.update(1, losses={"age": 0.5})
    """

    def __init__(
        self,
        stage: str,
        tasks: Sequence[str],
        *,
        total: int | None = None,
        metric_names: Mapping[str, str] | None = None,
        enabled: bool = True,
        console: Console | None = None,
    ) -> None:
        self.stage = stage
        self.tasks = tuple(tasks)
        self.total = total
        self.metric_names = dict(metric_names or {})
        self.enabled = enabled
        self.console = console or Console(stderr=True)
        self.step = 0
        self._columns: dict[str, dict[str, float]] = {"loss": {}, "metric": {}, "MFLOPs": {}}
        self._live: Live | None = None
        self._started = self._shown = time.monotonic()
        self._first_step: int | None = None

    def __enter__(self) -> Self:
        self._started = self._shown = time.monotonic()
        if self.enabled and self.console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            if kind is None and self.step:
                self.console.print(self.line(), highlight=False)

    def update(
        self,
        step: int,
        *,
        losses: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        flops: Mapping[str, float] | None = None,
        stage: str | None = None,
    ) -> None:
        """Say what is new; the rest stays as it was. Where there is no terminal, new metrics make a line."""
        if not self.enabled:
            return
        self.step, self.stage = step, stage or self.stage
        if self._first_step is None:
            self._first_step = step
        self._columns["loss"].update(losses or {})
        self._columns["metric"].update(metrics or {})
        self._columns["MFLOPs"].update({task: value / 1e6 for task, value in (flops or {}).items()})
        now = time.monotonic()
        if self._live is None and (metrics or now - self._shown >= _SECONDS_BETWEEN_LINES):
            self._shown = now
            self.console.print(self.line(), highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.enabled:
            self.console.print(f"{self.stage}: {text}", highlight=False, soft_wrap=True, markup=False)

    def line(self) -> Text:
        """Everything in one line."""
        parts = [self._head()]
        for task in self.tasks:
            cells = []
            for column, values in self._columns.items():
                if task in values:
                    name = self.metric_names.get(task, column) if column == "metric" else column
                    cells.append(f"{name} {values[task]:.4g}")
            if cells:
                parts.append(f"{task}: {', '.join(cells)}")
        return Text(" | ".join(parts))

    def _head(self) -> str:
        of_total = f"/{self.total}" if self.total else ""
        left = self._seconds_left()
        return f"{self.stage} step {self.step}{of_total}" + (f", {_clock(left)} left" if left is not None else "")

    def _seconds_left(self) -> float | None:
        done = self.step - (self._first_step or 0)
        if not self.total or done <= 0 or self.step >= self.total:
            return None
        return (time.monotonic() - self._started) / done * (self.total - self.step)

    def _table(self) -> RenderableType:
        shown = {column: values for column, values in self._columns.items() if values}
        table = Table("task", box=None, pad_edge=False)
        for column in shown:
            table.add_column(column, justify="right")
        for task in self.tasks:
            cells = []
            for column, values in shown.items():
                name = f" {self.metric_names[task]}" if column == "metric" and task in self.metric_names else ""
                cells.append(f"{values[task]:.4g}{name}" if task in values else "")
            table.add_row(*map(Text, [task, *cells]))  # a task's name may look like markup
        head: list[RenderableType] = [Text(self._head(), style="bold")]
        if self.total:
            head.append(ProgressBar(total=self.total, completed=self.step, width=40))
        return Group(*head, table)


class Log:
    """JSON lines: one object for each event, appended at once, so that a killed run loses nothing.

    Args:
        path: The file; None for no log.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)

    def write(self, event: str, **fields: Any) -> None:
        """Append an event."""
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n")

    def size(self) -> int:
        """How long the log is, for a checkpoint."""
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Forget what came after a checkpoint: it will happen again."""
        if self.path is not None and self.size() > size:
            os.truncate(self.path, size)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
