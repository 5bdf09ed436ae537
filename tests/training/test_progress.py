from __future__ import annotations

import io
import json

from rich.console import Console
from training.small import OBJECTIVES, batches, merged

from pamerge.training import finetune
from pamerge.training.progress import Display, Log


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100)


def test_without_a_terminal_there_is_a_line_for_new_metrics_only():
    out = console(terminal=False)
    with Display("fine-tuning", ["age"], total=10, metric_names={"age": "accuracy"}, console=out) as display:
        for step in range(1, 10):
            display.update(step, losses={"age": 0.5})
        display.update(10, metrics={"age": 0.925}, flops={"age": 2_500_000})
    (line,) = out.file.getvalue().splitlines()
    assert line == "fine-tuning step 10/10 | age: loss 0.5, accuracy 0.925, MFLOPs 2.5"


def test_in_a_terminal_there_is_a_table_of_tasks_with_the_time_left():
    out = console(terminal=True)
    with Display("pruning", ["age", "[sex]"], total=10, console=out) as display:
        display.update(1, losses={"age": 0.5})
        display.update(4, losses={"age": 0.4, "[sex]": 0.1}, metrics={"age": 0.8}, stage="recovering")
        with out.capture() as capture:
            out.print(display._table())
    shown = capture.get()
    assert "recovering step 4/10" in shown
    assert "left" in shown
    assert all(word in shown for word in ("task", "loss", "metric", "age", "[sex]", "0.8"))
    assert "recovering step 4/10" in out.file.getvalue()


def test_nothing_is_shown_when_it_is_turned_off(capsys):
    finetune(merged(), batches(1), OBJECTIVES, epochs=1, validation=batches(1), progress=False)
    assert capsys.readouterr() == ("", "")


def test_fine_tuning_shows_the_metric_of_every_task(capsys):
    finetune(merged(), batches(2), OBJECTIVES, epochs=1, validation=batches(1))
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("fine-tuning step 0/2 | shape: accuracy")
    assert "step 2/2" in last
    assert all(f"{task}: loss" in last for task in OBJECTIVES)
    assert "mean absolute error" in last


def test_a_log_is_cut_where_a_checkpoint_was_made(tmp_path):
    log = Log(tmp_path / "x.log.jsonl")
    log.write("step", step=1, losses={"é": 0.1})
    size = log.size()
    log.write("step", step=2)
    log.cut(size)
    log.write("end")
    lines = [json.loads(line) for line in (tmp_path / "x.log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == [{"event": "step", "step": 1, "losses": {"é": 0.1}}, {"event": "end"}]
    Log(None).write("nothing")
    assert Log(None).size() == 0
