"""The runner: stages are done once, effort is kept, results have the agreed form."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pamerge import MultiLabel, PamergeError, PamergeWarning, evaluate, load
from pamerge.experiments import Choice, Config, Event, original_networks, run
from pamerge.experiments.config import First, Pretraining
from pamerge.experiments.registry import make_data

CONFIG = Config(
    name="tiny",
    data=Choice("digits", {"train": 400, "validation": 100, "test": 100}),
    network=Choice("lenet5"),
    schemes=(Choice("separate"), Choice("mtz", {"steps": 2, "samples": 50}), Choice("pam", {"alpha": 0.1})),
    pruners=(Choice("taylor", {"batches": 2}),),
    pretraining=Pretraining(epochs=1),
    max_drop=0.5,
    effort=200,
    finetune=5,
    prune={"steps": 2, "recovery": 2, "final": 5, "fraction": 0.2},
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As many as each of several processes has: sums, and with them small results, depend on the number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run(CONFIG, folder)


def test_results_have_the_agreed_form(finished) -> None:
    folder, (result,) = finished
    assert json.loads((folder / "results" / "tiny-taylor-seed0.json").read_text()) == result
    assert {"experiment", "network", "pruner", "seed", "tasks", "budget", "reference", "schemes"} <= set(result)
    assert set(result["schemes"]) == {"separate", "mtz", "pam"}
    for scheme in result["schemes"].values():
        assert set(scheme["flops"]) == {"A", "B", "A+B"}
        assert set(scheme["metric"]) == {"A", "B"}
    assert result["schemes"]["pam"]["alpha"] == 0.1


def test_every_scheme_keeps_to_the_same_effort(finished) -> None:
    _, (result,) = finished
    for name, scheme in result["schemes"].items():
        assert 100 < scheme["task_batches"] <= 200, name


def test_the_cheapest_try_within_the_budget_is_the_result(finished) -> None:
    folder, (before,) = finished
    pam = Choice("pam", {"tries": [{"alpha": 0.1}, {"alpha": 1.0}]})
    (result,) = run(replace(CONFIG, name="tried", schemes=(CONFIG.schemes[0], pam)), folder)
    separate, found = result["schemes"]["separate"], result["schemes"]["pam"]
    assert found["tries"]["pam (alpha 0.1)"]["flops"] == before["schemes"]["pam"]["flops"]  # and its stages were found
    assert found["tries"]["pam (alpha 1.0)"]["flops"] == separate["flops"]  # nothing is shared: the same network
    cheapest = min(found["tries"], key=lambda name: sum(found["tries"][name]["flops"].values()))
    assert found["chosen_try"] == cheapest
    assert found["flops"] == found["tries"][cheapest]["flops"]


def test_a_try_over_the_budget_is_not_chosen_for_its_cost(finished, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    (path,) = (folder / "stages").glob("reference-*.json")
    reference = dict.fromkeys(json.loads(path.read_text()), 1.0)  # which these small networks cannot keep to
    path.write_text(json.dumps(reference))
    pam = Choice("pam", {"tries": [{"alpha": 0.1}, {"alpha": 1.0}]})
    config = replace(CONFIG, name="over", schemes=(pam,), max_drop=0.02)
    with pytest.warns(PamergeWarning, match="did not come within its budget"):
        (result,) = run(config, folder)
    found = result["schemes"]["pam"]

    def excess(name: str) -> float:
        validation = found["tries"][name]["validation"]
        return max(0.0, *(reference[task] - value - config.max_drop for task, value in validation.items()))

    assert excess("pam (alpha 0.1)") != excess("pam (alpha 1.0)")  # or this test would show nothing
    assert excess(found["chosen_try"]) == min(map(excess, found["tries"]))


def test_a_finished_stage_is_not_done_again(finished) -> None:
    folder, before = finished
    times = {path: path.stat().st_mtime_ns for path in (folder / "stages").iterdir()}
    after = run(CONFIG, folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "stages").iterdir()} == times
    for result in (*before, *after):
        result.pop("environment")
    assert after == before


def test_a_scheme_under_another_label_is_not_done_again(finished) -> None:
    folder, (before,) = finished
    stages = set((folder / "stages").iterdir())
    renamed = Choice("pam", {"alpha": 0.1, "label": "mine"})
    (after,) = run(Config(**{**vars(CONFIG), "schemes": (renamed,)}), folder)
    assert set((folder / "stages").iterdir()) == stages
    assert after["schemes"]["mine"] == before["schemes"]["pam"]


def test_another_pruner_does_not_train_the_networks_again(finished) -> None:
    folder, _ = finished
    trained = set((folder / "stages").glob("pretrain-*"))
    other = Config(**{**vars(CONFIG), "pruners": (Choice("magnitude"),), "schemes": (Choice("separate"),)})
    run(other, folder)
    assert set((folder / "stages").glob("pretrain-*")) == trained


def test_a_larger_budget_goes_on_from_where_a_smaller_one_ended(finished) -> None:
    folder, (narrow,) = finished
    before = set((folder / "stages").glob("*"))
    first = First(max_drop=CONFIG.max_drop, effort=CONFIG.effort)
    schemes = (Choice("pam", {"alpha": 0.1}),)
    (wide,) = run(replace(CONFIG, name="wide", schemes=schemes, max_drop=0.6, effort=400, first=first), folder)
    added = {path.name.split("-")[0] for path in set((folder / "stages").glob("*")) - before}
    assert "pruned" in added
    assert not {"merged", "finetuned"} & added
    small, large = narrow["schemes"]["pam"], wide["schemes"]["pam"]
    assert large["path"][0]["flops"] == large["first"]["flops"] == small["flops"]
    assert large["first"]["task_batches"] == small["task_batches"]
    assert small["task_batches"] < large["task_batches"] <= 400
    assert large["seconds"] > small["seconds"]


def test_every_try_tells_what_merging_had_lost_before_pruning(finished) -> None:
    folder, (before,) = finished
    tries = Choice("pam", {"tries": [{"alpha": 0.1}, {"name": "separate"}]})
    (result,) = run(replace(CONFIG, schemes=(tries,)), folder)
    for label, name in (("pam (alpha 0.1)", "pam"), ("pam (separate)", "separate")):
        found, alone = result["schemes"]["pam"]["tries"][label], before["schemes"][name]
        assert found["entry"] == alone["path"][0]["metrics"]
        assert found["flops"] == alone["flops"]
    assert result["validation_reference"].keys() == found["entry"].keys()


def test_the_rate_of_fine_tuning_can_be_chosen(finished) -> None:
    folder, _ = finished
    before = {path: path.read_bytes() for path in (folder / "stages").glob("finetuned-*.pam")}
    run(replace(CONFIG, schemes=(Choice("separate"),), finetune_lr=0.01), folder)
    (added,) = set((folder / "stages").glob("finetuned-*.pam")) - set(before)
    assert added.read_bytes() not in before.values()


def test_original_networks_teach_if_they_are_asked_to(finished) -> None:
    folder, (alone,) = finished
    merged = set((folder / "stages").glob("merged-*"))
    (taught,) = run(Config(**{**vars(CONFIG), "distill": 1.0, "schemes": (Choice("separate"),)}), folder)
    assert set((folder / "stages").glob("merged-*")) == merged
    assert taught["schemes"]["separate"]["validation"] != alone["schemes"]["separate"]["validation"]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        (3, {"A": 4, "B": 3, "C": 3}),
        ([1, 9], {"A": 1, "B": 9}),
        ({"low": ["0", "1"], "even": ["0", "2"]}, {"low": 2, "even": 2}),
    ],
)
def test_labels_are_divided_among_tasks_as_the_configuration_says(tasks, expected) -> None:
    splits = make_data(Choice("digits", {"train": 20, "validation": 10, "test": 10, "tasks": tasks}), 0, None)
    assert {task: len(labels) for task, labels in splits.test.tasks.items()} == expected


@pytest.mark.parametrize("tasks", ["two", 0, 11, [5, 4], 2.5, {"A": "0"}, {"A": ["0"], "B": ["ten"]}, {"A": []}, {}])
def test_a_wrong_division_is_refused(tasks) -> None:
    with pytest.raises(PamergeError, match=r"data\.tasks"):
        make_data(Choice("digits", {"train": 20, "validation": 10, "test": 10, "tasks": tasks}), 0, None)


def test_a_common_training_serves_every_division_into_tasks(tmp_path: Path) -> None:
    trained: list[str] = []

    def watch(event: Event) -> None:
        if event.state == "started":
            trained.append(event.stage)

    for tasks in (2, {"low": ["0", "1"]}):
        options = {"train": 100, "validation": 10, "test": 10, "tasks": tasks}
        changed = {"data": Choice("digits", options), "pretraining": Pretraining(epochs=1, common_epochs=1)}
        original_networks(Config(**{**vars(CONFIG), **changed}), tmp_path, watch=watch)
    networks = [f"train the network of {task}" for task in ("A", "B", "low")]
    assert trained == ["train a common network", *networks]


def test_a_common_training_may_be_on_other_labels(tmp_path: Path) -> None:
    options = {"train": 100, "validation": 10, "test": 10, "tasks": {"low": ["0", "1"]}}
    pretraining = Pretraining(epochs=1, common_epochs=1, common_labels=("2", "3", "4"))
    config = Config(**{**vars(CONFIG), "data": Choice("digits", options), "pretraining": pretraining})
    original_networks(config, tmp_path)
    (common,) = (tmp_path / "stages").glob("common-*.safetensors")
    outputs = [len(bias) for name, bias in load_file(common).items() if name.endswith("bias")]
    assert outputs[-1] == 3
    unknown = replace(config, pretraining=replace(pretraining, common_labels=("12",)))
    with pytest.raises(PamergeError, match="'12'"):
        original_networks(unknown, tmp_path)


def test_the_common_training_may_have_a_rate_of_its_own(tmp_path: Path) -> None:
    data = Choice("digits", {"train": 100, "validation": 10, "test": 10})
    config = replace(CONFIG, data=data, pretraining=Pretraining(epochs=1, lr=1e-3, common_epochs=1))

    def trained(**options) -> dict[str, int]:
        original_networks(replace(config, pretraining=replace(config.pretraining, **options)), tmp_path)
        return {kind: len(list((tmp_path / "stages").glob(f"{kind}-*.safetensors"))) for kind in ("common", "pretrain")}

    assert trained() == {"common": 1, "pretrain": 2}
    assert trained(lr=1e-4, common_lr=1e-3) == {"common": 1, "pretrain": 4}  # the same common training
    assert trained(common_lr=1e-2) == {"common": 2, "pretrain": 6}


def test_mixed_precision_trains_and_validates_the_networks_and_tests_in_full(finished, tmp_path: Path) -> None:
    _, (full,) = finished
    (mixed,) = run(replace(CONFIG, precision="bf16-mixed", schemes=CONFIG.schemes[:1]), tmp_path)
    assert mixed["reference"] != full["reference"]
    (network,) = (tmp_path / "networks").glob("*.pam")
    test = make_data(CONFIG.data, 0, None).test.loader(500)
    objectives = {task: MultiLabel() for task in mixed["tasks"]}
    assert evaluate(load(network), test, objectives) == mixed["schemes"]["separate"]["metric"]


def test_a_mistake_in_a_scheme_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    wrong = Config(**{**vars(CONFIG), "schemes": (Choice("pam", {"alhpa": 1}),)})
    with pytest.raises(PamergeError, match="unknown key 'schemes\\.pam\\.alhpa'"):
        run(wrong, tmp_path)
    assert not (tmp_path / "stages").exists()


def test_several_processes_find_the_same(finished, tmp_path: Path) -> None:
    _, (alone,) = finished
    told: list[Event] = []
    (together,) = run(CONFIG, tmp_path, jobs=2, watch=told.append)
    assert _timeless(together) == _timeless(alone)
    done = [event.stage for event in told if event.state == "done"]
    assert sorted(done) == sorted(set(done))
    assert done.index("train the network of B") < done.index("separate: prune with taylor")
    assert "pam: evaluate on test data" in done


def test_no_two_processes_work_on_the_same_try(tmp_path: Path) -> None:
    """PAM's try without sharing is the scheme that separates."""
    tries = Choice("pam", {"tries": [{"alpha": 0.1}, {"name": "separate"}]})
    config = replace(CONFIG, schemes=(Choice("separate"), tries))
    told: list[Event] = []
    (found,) = run(config, tmp_path, jobs=2, watch=told.append)
    pruned = [event.stage for event in told if event.state == "started" and "prune with" in event.stage]
    assert sorted(pruned) == ["pam (alpha 0.1): prune with taylor", "separate: prune with taylor"]
    assert found["schemes"]["pam"]["tries"]["pam (separate)"]["flops"] == found["schemes"]["separate"]["flops"]


@pytest.mark.filterwarnings("ignore:Nothing could be removed")
def test_too_little_effort_for_all_parts_is_said(tmp_path: Path) -> None:
    config = replace(CONFIG, schemes=(Choice("separate"),), effort=12, finetune=5)
    with pytest.raises(PamergeError, match=r"effort = 12; separate used it all before B was pruned"):
        run(config, tmp_path)


def _timeless(result: dict) -> dict:
    schemes = {
        name: {key: value for key, value in scheme.items() if key not in ("seconds", "peak_gib")}
        for name, scheme in result["schemes"].items()
    }
    return {**result, "schemes": schemes, "environment": None}


def test_an_error_in_one_process_ends_the_run_with_it(tmp_path: Path) -> None:
    too_little = Config(**{**vars(CONFIG), "effort": 5})
    with pytest.raises(PamergeError, match=r"effort = 5; .* used .* task-batches before pruning"):
        run(too_little, tmp_path, jobs=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [0, -1])
def test_there_is_at_least_one_job(jobs: int, tmp_path: Path) -> None:
    with pytest.raises(PamergeError, match=f"jobs = {jobs}; give the number of processes, at least 1"):
        run(CONFIG, tmp_path, jobs=jobs)
