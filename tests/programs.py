"""What a traced program consists of."""

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every equation of a program, inner ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(value, "eqns"):
                yield from equations(value)
