"""The scaling strategies, by `type`. To add one, write a file here and list it in registry.py."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from rope_jax.rope.settings import validated
from rope_jax.rope.strategies.base import Scaling
from rope_jax.rope.strategies.inner import BucketedScaling, ResonanceScaling
from rope_jax.rope.strategies.over import OverScaling

# Export every class, so that a new one needs to be named only in the registry.
from rope_jax.rope.strategies.registry import *  # noqa: F403
from rope_jax.rope.strategies.registry import PLAIN

_ALL: tuple[type[Scaling], ...] = (*PLAIN, ResonanceScaling, BucketedScaling, OverScaling)
STRATEGIES = {strategy.model_fields["type"].default: strategy for strategy in _ALL}
"""The class of each strategy, by its `type`."""
__all__ = [strategy.__name__ for strategy in _ALL]

if TYPE_CHECKING:
    AnyScaling = Scaling
    """The type of a config field that holds a strategy: the union of all, by `type`."""
else:
    AnyScaling = Annotated[Union[*STRATEGIES.values()], Field(discriminator="type")]


def parse_scaling(settings: Mapping[str, Any] | str) -> Scaling:
    """Return a frozen strategy from its settings, such as {"type": "yarn", "factor": 8.0}.

    A bare name such as "dynamic_ntk" stands for {"type": "dynamic_ntk"}.

    ValueError: a setting is unknown, missing or out of range. The message is one line that names
    the setting and says what would be right.
    """
    if isinstance(settings, str):
        settings = {"type": settings}
    elif not isinstance(settings, Mapping):
        raise ValueError(
            "scaling: should be the name of a scaling or a mapping with its settings, "
            f"not {settings!r}"
        )
    name = settings.get("type")
    strategy = STRATEGIES.get(name) if isinstance(name, str) else None
    if strategy is None:
        raise ValueError(f"type: {name!r} is not one of {', '.join(STRATEGIES)}")
    return validated(strategy, settings)
