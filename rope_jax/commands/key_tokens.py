"""Find the tokens of a split that a run, trained on long windows, knows only with far context.

Sweeps of other runs measure their perplexity: task longppl.
"""

from rope_jax import cli


def main(argv: list[str]) -> None:
    from rope_jax.config.key_tokens import KeyTokensConfig
    from rope_jax.config.load import flow_yaml

    parser = cli.parser("RUN short=512", __doc__, KeyTokensConfig)
    cli.add_run(parser)
    arguments, config = cli.read_config(parser, argv)
    run, training, console = cli.open_directory(arguments.run)
    from rope_jax.sweeps.key_tokens import find_key_tokens

    path = find_key_tokens(run, training, config, console)
    tasks = flow_yaml([{"task": "longppl", "mask": str(path)}])
    texts = [] if config.split == "test" else [f"split={config.split}"]
    if config.data is not None:
        texts.append(f"data={flow_yaml(config.data.model_dump(exclude_unset=True))}")
    cli.print_next(cli.command_line("sweep", "RUN", f"tasks={tasks}", *texts))
