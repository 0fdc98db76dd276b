"""`python -m rope_jax NAME …`: the installed command, without its script."""

from rope_jax.commands.main import run

if __name__ == "__main__":
    run()
