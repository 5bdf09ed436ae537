"""What commands print and write, and what they say about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli.small import EXPERIMENT, MERGE, TUNED, experiment, own_project
from safetensors.torch import save_file
from support.architectures import material

import pamerge
from pamerge import Separate
from pamerge.cli import main
from pamerge.experiments import read_config

Captured = pytest.CaptureFixture[str]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert run("run", experiment(folder, EXPERIMENT + "[problem1]\nlaps = 2\n"), "--out", folder, "--quiet") == 0
    return folder


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merge")
    assert run("merge", own_project(folder), "--quiet") == 0
    return folder


# -- run ---------------------------------------------------------------------------------------------------------------


def test_an_experiment_prints_its_stages_and_every_combination(finished: Path, capsys: Captured) -> None:
    assert run("run", finished / "tiny.toml", "--out", finished) == 0
    printed = capsys.readouterr()
    assert "stored            pam: prune with taylor" in printed.err
    assert "started" not in printed.err
    assert [line.split()[0] for line in printed.out.splitlines() if " % " in line][:3] == ["A", "B", "A+B"]
    assert "over separate" in printed.out
    assert "pam: only B is pruned" in printed.out


def test_the_demo_compares_and_writes_a_report(finished: Path, capsys: Captured, monkeypatch) -> None:
    small = read_config(finished / "tiny.toml")  # the demo itself takes minutes; its own file is read all the same
    monkeypatch.setattr("pamerge.cli.experiments.read_config", lambda path: small if read_config(path) else None)
    assert run("demo", "--out", finished) == 0
    printed = capsys.readouterr().out
    assert "over separate" in printed
    assert f"pamerge inspect {finished / 'networks' / 'tiny-pam-taylor-seed0.pam'}" in printed.replace("\n", "")
    assert "<html" in (finished / "report.html").read_text()


def test_json_is_all_that_is_printed(finished: Path, capsys: Captured) -> None:
    assert run("run", finished / "tiny.toml", "--out", finished, "--json", "--quiet") == 0
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)
    assert set(result["schemes"]) == {"separate", "pam"}
    assert printed.err == ""
    assert json.loads((finished / "results" / "tiny-taylor-seed0.json").read_text())["schemes"] == result["schemes"]


def test_the_pruned_networks_are_kept_under_readable_names(finished: Path) -> None:
    network = pamerge.load(finished / "networks" / "tiny-pam-taylor-seed0.pam")
    (result,) = (json.loads(path.read_text()) for path in (finished / "results").iterdir())
    assert network.flops() == result["schemes"]["pam"]["flops"]["A+B"]


def test_only_one_tasks_subgraph_is_pruned_for_problem_1(finished: Path) -> None:
    (result,) = (json.loads(path.read_text()) for path in (finished / "results").iterdir())
    series = result["schemes"]["separate"]["problem1"]["series"]
    assert len(series) == 3
    assert len({step["flops"]["A"] for step in series}) == 1
    assert len({step["metrics"]["A"] for step in series}) == 1
    costs = [step["flops"]["B"] for step in series]
    assert costs[0] > costs[1] > costs[2]


def test_another_pruner_does_not_merge_again(finished: Path, capsys: Captured) -> None:
    other = EXPERIMENT.replace('[{name = "taylor", batches = 1}]', '["magnitude"]')
    assert run("run", experiment(finished, other), "--out", finished) == 0
    lines = capsys.readouterr().err
    assert "stored            pam: fine-tune" in lines
    assert "started           pam: prune with magnitude" in lines


def test_tuning_is_a_stage_of_its_own(tmp_path: Path, capsys: Captured) -> None:
    config = experiment(tmp_path, TUNED)
    assert run("run", config, "--out", tmp_path, "--json", "--quiet") == 0
    (result,) = json.loads(capsys.readouterr().out)
    found = result["schemes"]["pam"]
    assert set(found["chosen"]) == {"alpha", "trunk", "exclusive", "overlap", "zip"}
    assert found["alpha"] == found["chosen"]["alpha"]
    assert {"separate", "all shared"} <= set(found["probes"])
    config.write_text(TUNED.replace("finetune = 4", "finetune = 3"))
    assert run("run", config, "--out", tmp_path) == 0
    lines = capsys.readouterr().err
    assert "stored            pam: tune α for taylor" in lines
    assert "stored            mtz: merge" in lines
    assert "started           mtz: fine-tune" in lines


def test_results_can_be_shown_as_a_page(finished: Path) -> None:
    assert run("report", finished / "results", "--out", finished / "report.html") == 0
    assert (finished / "report.html").read_text().startswith("<!")


# -- merge and inspect -------------------------------------------------------------------------------------------------


def test_own_networks_are_merged_pruned_and_saved(merged: Path, capsys: Captured) -> None:
    assert run("merge", merged / "small.toml", "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    network = pamerge.load(merged / "small.pam")
    assert network.tasks == ("kind", "size")
    assert found["flops"] == {
        "kind": network.flops("kind"),
        "size": network.flops("size"),
        "kind+size": network.flops(),
    }
    assert found["flops"]["kind+size"] < 2 * found["original_flops"]["kind+size"]
    assert found["metric"] == {"kind": "accuracy", "size": "mean absolute error"}
    assert set(found["validation"]) == set(found["original_validation"]) == {"kind", "size"}


def test_a_merge_prints_costs_and_metrics(merged: Path, capsys: Captured) -> None:
    assert run("merge", merged / "small.toml") == 0
    printed = capsys.readouterr()
    assert "stored            pam: prune with taylor" in printed.err
    assert "kind+size" in printed.out
    assert "mean absolute error" in printed.out
    assert "small.pam is written" in printed.out.replace("\n", "")


def test_weights_are_read_from_safetensors_and_from_state_dicts(tmp_path: Path) -> None:
    config = own_project(tmp_path)
    namespace: dict[str, object] = {}
    exec((tmp_path / "my_models.py").read_text(), namespace)
    save_file(namespace["network"]().state_dict(), tmp_path / "kind.safetensors")
    torch.save(namespace["network"](1, 4).state_dict(), tmp_path / "size.pt")
    text = MERGE.replace("[networks.kind]", '[networks.kind]\nweights = "kind.safetensors"')
    text = text.replace("[networks.size]", '[networks.size]\nweights = "size.pt"').replace("laps = 2", "laps = 1")
    config.write_text(text)
    assert run("merge", config, "--quiet", "--out", tmp_path / "other.pam") == 0
    assert (tmp_path / "other.pam").exists()


def test_a_saved_network_is_described(tmp_path: Path, capsys: Captured) -> None:
    pamerge.save(Separate().merge(material("lenet5", 2)), tmp_path / "network.pam")
    assert run("inspect", tmp_path / "network.pam", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    network = pamerge.load(tmp_path / "network.pam")
    assert found["tasks"] == ["A", "B"]
    assert found["subsets"]["A+B"] == {"flops": network.flops(), "parameters": network.parameter_count()}
    assert found["layers"]["conv1"]["groups"] == {"A": 6, "B": 6}
    assert run("inspect", tmp_path / "network.pam") == 0
    assert "for A" in capsys.readouterr().out


# -- data --------------------------------------------------------------------------------------------------------------


def test_data_sets_are_listed_with_what_is_missing(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "lfw" / "lfw-deepfunneled").mkdir(parents=True)
    assert run("data", "list", "--data", tmp_path) == 0
    printed = capsys.readouterr().out
    assert f"not in {tmp_path / 'lfw'}: lfw_attributes.txt" in printed
    assert "always there" in printed
    assert run("data", "list", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"digits", "fashion", "lfw", "celeba"}


def test_preparing_data_tells_how_much_there_is(capsys: Captured) -> None:
    assert run("data", "prepare", "digits", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == {"train": 4000, "validation": 1000, "test": 1000}
    assert run("data", "prepare", "digits") == 0
    assert "6000 of 6000 images loaded" in capsys.readouterr().out


# -- mistakes ----------------------------------------------------------------------------------------------------------


def wrong(old: str, new: str, text: str = MERGE) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wrong("max_drop", "maxdrop"), "small.toml: unknown key 'maxdrop'; expected some of: networks, data, out"),
        (wrong("finetune = 5", 'finetune = "5"'), "finetune = '5'; expected a whole number"),
        (wrong('out = "small.pam"', ""), "the key 'out' is missing"),
        (wrong('out = "small.pam"', 'out = "no/small.pam"'), "does not exist"),
        (
            wrong('objective = "classification"', 'objective = "classes"'),
            "networks.kind.objective = 'classes'; expected",
        ),
        (wrong('name = "pam"', 'name = "pan"'), "scheme = 'pan'; expected one of: separate, mtz, pam"),
        (wrong("alpha = 0.1", 'alpha = "some"'), "scheme.pam.alpha = 'some'; expected a number"),
        (wrong("laps = 2", "lap = 2"), "unknown key 'prune.lap'"),
        (wrong("laps = 2", "laps = 2.5"), "prune.laps = 2.5; expected a whole number"),
        (wrong("kind = 0.5", "kinds = 0.5"), "mix: mix names 'kinds'"),
        (wrong("my_models:network", "my_models"), "expected a module and a function, as 'models:age_network'"),
        (wrong("my_models:network", "no_models:network"), "there is no module 'no_models'"),
        (wrong("my_models:network", "my_models:no_such"), "my_models.py has no 'no_such'"),
        (wrong("my_models:network", "my_models:no_network"), "returned a int; expected an nn.Module"),
        (wrong("my_models:network", "my_models:broken"), "failed (ValueError: there is no such model; "),
        (wrong("my_models:network", "my_models:Attention"), "Task 'kind'"),
        (wrong("outputs = 1, ", "outputs = 1, depth = 3, "), "networks.size.factory = 'my_models:network': calling it"),
        (wrong("[networks.kind]", '[networks.kind]\nweights = "a.pt"'), "networks.kind.weights: there is no file"),
        (wrong("[networks.kind]", '[networks.kind]\nweights = "bad.pt"'), "bad.pt cannot be read"),
        (
            wrong("[networks.kind]", '[networks.kind]\nweights = "other.pt"'),
            "other.pt does not fit the network: it has",
        ),
        (wrong("[networks.kind]", '[networks.kind]\nweights = "small.toml"'), "expected a .safetensors, .pt or .pth"),
        (wrong("my_data:loaders", "my_data:one_part"), "gave no validation data"),
        (wrong("[data]", "[data]\nargs = {count = 0}"), "my_data:loaders"),
    ],
)
def test_a_mistake_in_a_merge_is_one_message(text: str, message: str, tmp_path: Path, capsys: Captured) -> None:
    config = own_project(tmp_path, text)
    (tmp_path / "bad.pt").write_bytes(b"no state dict")
    torch.save({"some": torch.zeros(1)}, tmp_path / "other.pt")
    before = set(tmp_path.iterdir())
    assert run("merge", config, "--quiet") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("pamerge: ")
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert {path for path in tmp_path.iterdir() if path.name != "__pycache__"} == before


def test_code_of_the_user_that_fails_later_is_named(tmp_path: Path, capsys: Captured) -> None:
    config = own_project(tmp_path, wrong("my_data:loaders", "my_data:fails_later"))
    assert run("merge", config, "--quiet") == 2
    assert "failed (KeyError: 'sample 17'; " in capsys.readouterr().err
    assert not (tmp_path / "small.pam").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wrong("max_drop", "maxdrop", EXPERIMENT), "unknown key 'maxdrop'"),
        (wrong('"lenet5"', '"lenet6"', EXPERIMENT), "network = 'lenet6'; expected one of: lenet5"),
        (wrong('name = "digits"', 'name = "figures"', EXPERIMENT), "data = 'figures'; expected one of: digits"),
        (wrong('name = "digits"', 'name = "lfw"', EXPERIMENT), "needs a folder with the downloaded files"),
        (wrong("train = 200", "trains = 200", EXPERIMENT), "unknown key 'data.trains'"),
        (wrong('"separate", ', '"pam", ', EXPERIMENT), "schemes has two called 'pam'"),
        (wrong("steps = 2", "step = 2", EXPERIMENT), "unknown key 'prune.step'"),
        (EXPERIMENT + "[tune]\nalpha = 1", "unknown key 'tune.alpha'"),
        (EXPERIMENT + '[problem1]\ntask = "C"', "problem1.task = 'C'; expected one of: A, B"),
        (EXPERIMENT + "[mix]\nC = 1", "mix names 'C'"),
    ],
)
def test_a_mistake_in_an_experiment_is_one_message(text: str, message: str, tmp_path: Path, capsys: Captured) -> None:
    config = experiment(tmp_path, text)
    assert run("run", config, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.toml"], "There is no file missing.toml"),
        (["merge", "missing.toml"], "There is no file missing.toml"),
        (["inspect", "missing.pam"], "There is no file missing.pam"),
        (["data", "prepare", "letters"], "data = 'letters'; expected one of: digits, fashion, lfw, celeba"),
        (["data", "prepare", "lfw"], "expected --data FOLDER"),
        (["data", "prepare", "lfw", "--data", "missing"], "There is no folder missing"),
    ],
)
def test_what_is_not_there_is_said(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
