"""Strategy files: a scaling and a position map together, as `rope-jax fit` writes them."""

import json
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import Field

from rope_jax.config.messages import validated
from rope_jax.config.types import Frozen
from rope_jax.positions.maps import AnyMap
from rope_jax.rope import AnyScaling

__all__ = ["Strategy", "read_strategy", "write_strategy"]


class Strategy(Frozen):
    """A scaling and a position map, and what they were fitted for."""

    scaling: AnyScaling
    map: AnyMap | None = None
    made_by: dict[str, Any] = Field({}, description="the fit that found the numbers; for readers")


def read_strategy(path: str) -> Strategy:
    """Return the strategy in a JSON file. ValueError, naming the file: it holds anything else."""
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):  # also bad UTF-8 and NUL characters
        raise ValueError(f"{path} is not JSON") from None
    return validated(Strategy, content, f"{path} is not a strategy written by rope-jax fit: ")


def write_strategy(strategy: Strategy, path: Path) -> None:
    settings = strategy.model_dump(mode="json", exclude_none=True)
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def is_strategy_file(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.endswith(".json")
