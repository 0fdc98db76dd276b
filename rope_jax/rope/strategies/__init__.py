"""The scaling strategies, by `type`. To add one: a file here, and its class in registry.py."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from rope_jax.rope.strategies.base import Scaling

# every class by its name as well: a new one is named in the registry alone
from rope_jax.rope.strategies.registry import *  # noqa: F403
from rope_jax.rope.strategies.registry import PLAIN
from rope_jax.rope.strategies.resonance import ResonanceScaling

_ALL: tuple[type[Scaling], ...] = (*PLAIN, ResonanceScaling)
STRATEGIES = {strategy.model_fields["type"].default: strategy for strategy in _ALL}

# One of the strategies, told apart by `type`: what a config field holds.
if TYPE_CHECKING:
    AnyScaling = Scaling
else:
    AnyScaling = Annotated[Union[*STRATEGIES.values()], Field(discriminator="type")]
_ADAPTER: TypeAdapter[Scaling] = TypeAdapter(AnyScaling)


def parse_scaling(settings: dict[str, Any]) -> Scaling:
    """A frozen strategy from its settings, e.g. {"type": "yarn", "factor": 8.0}.

    Bad settings: a ValueError of one line that names the field.
    """
    given = settings.get("type") if isinstance(settings, dict) else settings
    if not isinstance(settings, dict) or given not in list(STRATEGIES):
        raise ValueError(f"type: {given!r} is not a scaling; there are {', '.join(STRATEGIES)}")
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # a check of ours, which names the fields itself
            raise ValueError(first["msg"].removeprefix("Value error, ")) from None
        field = ".".join(str(part) for part in first["loc"][1:])
        fields = ", ".join(STRATEGIES[settings["type"]].model_fields)
        hint = f"; {settings['type']} has {fields}" if first["type"] == "extra_forbidden" else ""
        raise ValueError(f"{field}: {first['msg']} (got {first['input']!r}){hint}") from None
