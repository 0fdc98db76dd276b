"""Strategy files: a scaling and a position map together, as `rope-jax fit` writes them."""

import json
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import Field

from rope_jax.config.messages import validated
from rope_jax.config.types import Frozen
from rope_jax.positions.maps import AnyMap
from rope_jax.rope import AnyScaling, RotaryGeometry
from rope_jax.rope.hf import to_hf
from rope_jax.sealed import read_limited

__all__ = ["Strategy", "read_strategy", "strategy_to_hf", "write_strategy"]

_MAX_BYTES = 2**24  # takes half a second to parse


class Strategy(Frozen):
    """A scaling and a position map, and what they were fitted for."""

    scaling: AnyScaling
    map: AnyMap | None = None
    made_by: dict[str, Any] = Field({}, description="the fit that found the numbers; for readers")


def read_strategy(path: str) -> Strategy:
    """Return the strategy in a JSON file. ValueError, naming the file: it holds anything else."""
    try:
        content = json.loads(read_limited(Path(path), _MAX_BYTES))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):  # also bad UTF-8 and NUL characters
        raise ValueError(f"{path} is not JSON") from None
    return validated(Strategy, content, f"{path} is not a strategy written by rope-jax fit: ")


def strategy_to_hf(
    geometry: RotaryGeometry, path: str, *, head_dim: int | None = None
) -> dict[str, Any]:
    """Return the config keys from which transformers computes what a strategy file says.

    These are LongRoPE's factors, used up to the longest length that was fitted. ValueError: the
    file has a map, which transformers has no form for, or cannot be read.
    """
    strategy = read_strategy(path)
    if strategy.map is not None:
        raise ValueError(
            f"{path} has a map of type {strategy.map.type}, for which transformers has no form; "
            "fit frequencies and attention_factor per model instead"
        )
    longest = max(strategy.made_by.get("length", [geometry.train_length]))
    return to_hf(geometry, strategy.scaling, head_dim=head_dim, max_position_embeddings=longest)


def write_strategy(strategy: Strategy, path: Path) -> None:
    """Write a strategy file."""
    settings = strategy.model_dump(mode="json", exclude_none=True)
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def is_strategy_file(text: Any) -> TypeGuard[str]:
    return isinstance(text, str) and text.endswith(".json")
