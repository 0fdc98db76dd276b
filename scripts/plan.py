"""Show what a training run or a sweep would take, here or on a TPU or GPU, without starting it.

    python scripts/plan.py configs/demo.yaml                       # parameters, tokens, memory
    python scripts/plan.py configs/demo.yaml stages.0.seq_len=4096
    python scripts/plan.py configs/demo.yaml target=v5e:4x4       # devices that are not here
    python scripts/plan.py runs/demo --sweep configs/sweeps/demo.yaml lengths=[128,8192]

The stages are compiled, as for training, so the memory is what the compiler plans for. Targets and
what else is printed for them: docs/accelerators.md.
"""

from rope_jax import cli
from rope_jax.commands.plan import main

if __name__ == "__main__":
    cli.run(main)
