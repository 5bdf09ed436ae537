"""Configurations: what they accept and what they say when they do not."""

from __future__ import annotations

import pytest

from pamerge import PamergeError
from pamerge.experiments import Choice, read_config
from pamerge.experiments.registry import make_data, make_pruner, make_scheme

GOOD = """
name = "digits"
schemes = ["separate", {name = "pam", alpha = 0.1}]
pruners = [{name = "taylor", batches = 5}]
max_drop = 0.02
seeds = [0, 1]
[data]
name = "digits"
train = 500
[network]
name = "lenet5"
[pretraining]
epochs = 2
"""


def read(tmp_path, text: str):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return read_config(path)


def test_a_configuration_is_read_with_names_and_options(tmp_path) -> None:
    config = read(tmp_path, GOOD)
    assert config.schemes[1].options == {"alpha": 0.1}
    assert config.pretraining.epochs == 2
    assert config.seeds == (0, 1)
    assert make_scheme(config.schemes[1]).alpha == 0.1
    assert make_pruner(config.pruners[0]).batches == 5


def test_a_try_is_the_scheme_with_its_options(tmp_path) -> None:
    config = read(
        tmp_path,
        GOOD.replace(
            "alpha = 0.1", 'zip = 0.5, tries = [{alpha = 0.1}, {alpha = 1.0, levels = 1}, {name = "separate"}]'
        ),
    )
    first, second, third = config.schemes[1].tries()
    assert (make_scheme(first).alpha, make_scheme(first).zip) == (0.1, 0.5)
    assert (make_scheme(second).alpha, make_scheme(second).levels, make_scheme(second).zip) == (1.0, 1, 0.5)
    assert first.identity() == Choice("pam", {"alpha": 0.1, "zip": 0.5}).identity()
    assert third.identity() == Choice("separate").identity()
    assert config.schemes[0].tries() == (config.schemes[0],)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_drop", "maxdrop", "unknown key 'maxdrop'; expected some of: name, data"),
        ("epochs = 2", "epoch = 2", "unknown key 'pretraining.epoch'"),
        ("epochs = 2", 'epochs = "2"', "pretraining.epochs = '2'; expected a whole number"),
        ("epochs = 2", "epochs = 0", "pretraining.epochs = 0; expected a whole number from 1"),
        ("alpha = 0.1", 'label = "a/b"', "label of pam = 'a/b'; expected something that a file can be called"),
        ("max_drop = 0.02", "problem1 = {laps = 0}", "problem1.laps = 0; expected a whole number from 1"),
        ("max_drop = 0.02", "problem1 = {fraction = 1.5}", r"problem1.fraction = 1\.5; expected a share between"),
        ("max_drop = 0.02", "problem1 = {steps = -1}", "problem1.steps = -1; expected a whole number from 0"),
        ("max_drop = 0.02", "max_drop = -1", "max_drop = -1; expected a number above 0"),
        ("max_drop = 0.02", "finetune_lr = 0", "finetune_lr = 0; expected a number above 0"),
        ("epochs = 2", "common_lr = 0.0", r"pretraining\.common_lr = 0\.0; expected a number above 0"),
        ("max_drop = 0.02", 'precision = "bf16"', "precision = 'bf16'; expected one of: 32-true, bf16-mixed"),
        (
            "max_drop = 0.02",
            "first = {max_drop = 0.001}",
            r"first\.effort = 10000; expected a number above 0 and below",
        ),
        (
            "max_drop = 0.02",
            "first = {max_drop = 0.5, effort = 5}",
            r"first\.max_drop = 0\.5; expected .* at most max_drop",
        ),
        ("max_drop = 0.02", "distill = 1.5", r"distill = 1\.5; expected a number from 0 to 1"),
        ('name = "digits"\nschemes', "schemes", "the key 'name' is missing"),
        ('pruners = [{name = "taylor", batches = 5}]', "pruners = []", r"pruners = \[\]; expected a list"),
        ("seeds = [0, 1]", "seeds = []", r"seeds = \[\]; expected a list of different whole"),
        ("seeds = [0, 1]", "seeds = [0, 0]", r"seeds = \[0, 0\]; expected a list of different whole numbers"),
        ("name =", "name ==", "is not valid TOML"),
        ("alpha = 0.1", "tries = 3", r"schemes\.pam\.tries = 3; expected a list of tables"),
        ("alpha = 0.1", "tries = [{}]", r"schemes\.pam\.tries = \[\{\}\]; expected a list of tables"),
        ("alpha = 0.1", "tries = [{zip = 1.0}, {zip = 1.0}]", r"schemes\.pam\.tries has zip 1\.0 twice"),
        (
            "alpha = 0.1",
            "alpha = 0.1, tries = [{alpha = 1.0}]",
            "alpha = 1.0; expected an option that the scheme has not",
        ),
        ("alpha = 0.1", 'tries = [{label = "x"}]', "label = 'x'; expected an option that the scheme has not"),
    ],
)
def test_mistakes_are_named_by_their_key(tmp_path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(PamergeError, match=message):
        read(tmp_path, GOOD.replace(old, new, 1))


def test_unknown_names_and_options_are_listed(tmp_path) -> None:
    config = read(tmp_path, GOOD.replace('"separate"', '"sep"').replace("batches", "batchs"))
    with pytest.raises(PamergeError, match="schemes = 'sep'; expected one of: separate, mtz, pam"):
        make_scheme(config.schemes[0])
    with pytest.raises(PamergeError, match=r"unknown key 'pruners\.taylor\.batchs'; expected some of: batches"):
        make_pruner(config.pruners[0])


def test_only_alpha_can_be_tuned() -> None:
    assert make_scheme(Choice("pam", {"alpha": "tune", "zip": 0.5})).zip == 0.5
    with pytest.raises(PamergeError, match=r"schemes\.pam\.overlap = 'tune'"):
        make_scheme(Choice("pam", {"overlap": "tune"}))


def test_data_that_must_be_downloaded_asks_for_its_folder(tmp_path) -> None:
    config = read(tmp_path, GOOD.replace('[data]\nname = "digits"', '[data]\nname = "fashion"'))
    with pytest.raises(PamergeError, match="needs a folder with the downloaded files"):
        make_data(config.data, 0, None)


def test_a_missing_file_is_said(tmp_path) -> None:
    with pytest.raises(PamergeError, match="There is no file"):
        read_config(tmp_path / "nothing.toml")
