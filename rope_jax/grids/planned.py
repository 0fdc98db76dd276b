"""Validate settings that name runs and strategy files which the grid has yet to make."""

import copy
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from pydantic import BaseModel

from rope_jax.config.explain import validate
from rope_jax.config.inherit import Source, find_source, planned_source, training_config
from rope_jax.config.load import read_raw
from rope_jax.config.sections import InitFrom
from rope_jax.config.strategy import is_strategy_file
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config

Model = TypeVar("Model", bound=BaseModel)
# What decides a job's result, as it is recorded and compared; for JSON.
Settings = dict[str, Any]


class Planned:
    """What the jobs of a grid make, for the jobs after them, which may use it.

    runs: the config of each run, by its absolute path. strategies: paths of strategy files.
    """

    def __init__(self) -> None:
        self.runs: dict[Path, Config] = {}
        self.strategies: set[Path] = set()
        self._sweeps: dict[tuple[Path, tuple[str, ...]], Settings] = {}

    def validate(
        self, schema: type[Model], raw: Mapping[str, Any], origin: str
    ) -> tuple[Model, Settings]:
        """Return a fit or sweep, and its settings, which name the strategy files of the grid."""
        known, files = self._without_strategies(raw)
        config = validate(schema, known, origin)
        return config, _settings(config, files)

    def sweep(self, config: Path, overrides: tuple[str, ...]) -> Settings:
        """Return the settings of a sweep; those that most runs have are loaded once."""
        if (asked := (config, overrides)) not in self._sweeps:
            self._sweeps[asked] = self.validate(SweepConfig, *read_raw(config, overrides))[1]
        return self._sweeps[asked]

    def training(self, raw: Mapping[str, Any], origin: str) -> tuple[Config, Settings]:
        """Return a training config with the keys that it inherits, and its settings."""
        known, files = self._without_strategies(raw)
        config = training_config(known, origin, self._find_source)
        return config, _settings(config, files)

    def _find_source(self, start: InitFrom) -> Source:
        config = self.runs.get(absolute(start.run))
        return find_source(start) if config is None else planned_source(start, config)

    def _without_strategies(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return a raw config with stand-ins for the strategy files of the grid, and their paths.

        These pass every check: `trained` under the same name in a sweep, and no scaling and no map
        in training. A mistake beside a file stays.
        """
        known = copy.deepcopy(dict(raw))
        files: list[str] = []

        def entry(given: Any) -> Any:
            settings = given if isinstance(given, dict) else {"type": given}
            path = settings.get("type")
            if not self._is_planned(path) or set(settings) - {"type", "name"}:
                return given
            files.append(path)
            name = settings.get("name") or Path(path).absolute().parent.name
            return {"type": "trained", "name": name}

        for sweep in (known, known.get("sweep")):
            if isinstance(sweep, dict) and isinstance(sweep.get("scalings"), list):
                sweep["scalings"] = [entry(each) for each in sweep["scalings"]]
        if "start" in known:
            known["start"] = entry(known["start"])
        rope = known.get("rope")
        if (
            isinstance(rope, dict)
            and self._is_planned(rope.get("strategy"))
            and rope.get("scaling") is rope.get("map") is None
        ):
            files.append(rope.pop("strategy"))
            rope |= {"scaling": {"type": "none"}, "map": None}
        return known, files

    def _is_planned(self, path: Any) -> TypeGuard[str]:
        return is_strategy_file(path) and absolute(path) in self.strategies


def absolute(path: str | Path) -> Path:
    """Return an absolute path without "..", by which a file is known."""
    return Path(os.path.abspath(path))


def _settings(config: BaseModel, files: list[str]) -> Settings:
    return config.model_dump(mode="json") | ({"strategies": files} if files else {})
