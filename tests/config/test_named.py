"""Configs of the package by their names."""

from pathlib import Path

import pytest

from rope_jax.config.load import config_folder, config_names, config_path, sweep_of

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_bare_name_is_a_config_of_the_package():
    assert config_path("demo") == CONFIGS / "demo.yaml"
    assert config_path("extend/yarn-4x") == CONFIGS / "extend/yarn-4x.yaml"
    assert config_path("demo", "sweeps") == CONFIGS / "sweeps/demo.yaml"


def test_a_path_of_the_documentation_is_found_elsewhere():
    assert config_path("configs/sweeps/demo.yaml", "sweeps") == CONFIGS / "sweeps/demo.yaml"
    assert config_path("configs/none.yaml") == Path("configs/none.yaml")
    Path("configs").mkdir()
    Path("configs/demo.yaml").write_text("seed: 1\n")
    assert config_path("configs/demo.yaml") == Path("configs/demo.yaml")


def test_a_file_comes_first_and_a_folder_does_not():
    Path("demo").write_text("seed: 1\n")
    assert config_path("demo") == Path("demo")
    Path("text").mkdir()
    assert config_path("text") == CONFIGS / "text.yaml"


def test_every_config_has_a_name():
    names = [*config_names(), *(f"{kind}/{n}" for kind in ("sweeps", "fits", "grids")
                                for n in config_names(kind))]  # fmt: skip
    assert {CONFIGS / f"{name}.yaml" for name in names} == set(CONFIGS.rglob("*.yaml"))
    assert config_folder() == CONFIGS


def test_the_sweep_that_goes_with_a_config_has_its_name():
    assert sweep_of(CONFIGS / "demo.yaml") == "demo"
    assert sweep_of(CONFIGS / "text.yaml") is None
    assert sweep_of(Path("demo.yaml")) is None
