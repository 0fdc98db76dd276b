"""The command line of lm-evaluation-harness, which finds no models of other packages by itself.

python -m rope_jax.harness --model rope_jax --model_args run=RUN --tasks TASK
"""

from lm_eval.__main__ import cli_evaluate

import rope_jax.harness  # noqa: F401  (registers the model)
from rope_jax import cli

cli.run(lambda _: cli_evaluate())
