"""Show what a training run or a sweep would take on this machine, without starting it.

    python scripts/plan.py configs/demo.yaml                       # parameters, tokens, memory
    python scripts/plan.py configs/demo.yaml stages.0.seq_len=4096
    python scripts/plan.py runs/demo --sweep configs/sweeps/demo.yaml lengths=[128,8192]

The stages are compiled, as for training, so the memory is what the compiler plans for.
"""

from rope_jax import cli
from rope_jax.commands.plan import main

if __name__ == "__main__":
    cli.run(main)
