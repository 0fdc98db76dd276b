"""Schema of `init_from`: the run and checkpoint that a new run starts from."""

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from rope_jax.config.types import Frozen, NonNegativeInt, PathText

_WITH_STEP = re.compile(r"(.+)@([0-9]{1,10})")


class InitFrom(Frozen):
    """Another run's checkpoint, whose weights a run starts from."""

    run: PathText = Field(description="directory of the run to start from")
    step: NonNegativeInt | None = Field(
        None, description="training step of the checkpoint; 0: of an imported one; null: the newest"
    )
    optimizer: bool = Field(
        False,
        description="also take AdamW's moments; the schedule of the learning rate starts anew",
    )


def _from_text(value: Any) -> Any:
    """Return the mapping that the short form stands for: runs/demo, or runs/demo@1000."""
    if not isinstance(value, str):
        return value
    with_step = _WITH_STEP.fullmatch(value)
    if with_step is None:
        return {"run": value}
    return {"run": with_step[1], "step": int(with_step[2])}


if TYPE_CHECKING:
    AnyInitFrom = InitFrom
else:
    AnyInitFrom = Annotated[
        InitFrom, BeforeValidator(_from_text, json_schema_input_type=str | InitFrom)
    ]
