"""The installed command: `rope-jax NAME …` calls the function of that name with the other words.

A command imports in its function, so that a signal during the imports is handled like any other.
The first line of its docstring is its line in `rope-jax --help`; all of it begins its own help.
"""

import difflib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rope_jax import __version__, cli, stopping
from rope_jax.errors import INSTALLED, UserError, file_errors, printable, shortage_as


def train(argv: list[str]) -> None:
    """Train a small language model from a config; also resumes."""
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import config_path, sweep_of
    from rope_jax.config.training import TrainingConfig
    from rope_jax.devices.malloc import keep_freed_memory
    from rope_jax.user_cache import keep_compiled_programs

    parser = cli.parser("CONFIG.yaml", train.__doc__, TrainingConfig, config="the run's config")
    arguments, config = cli.read_config(
        parser, argv, "config", read=lambda _, *given: load_training(*given)
    )
    keep_freed_memory()
    keep_compiled_programs()
    from rope_jax.console import plain_console
    from rope_jax.devices import processes
    from rope_jax.training.run import train as train_run

    stopping.check()
    run = train_run(config, plain_console())
    if processes.is_first():
        name = sweep_of(config_path(arguments.config))
        words = [] if name is None else ["--sweep", name]
        cli.print_next(cli.command_line("sweep", str(run.path), *words))


def sweep(argv: list[str]) -> None:
    """Measure a run's perplexity against length, by scaling.

    Results go to RUN/evals/<name>/.
    """
    from rope_jax.config.sweep import SweepConfig

    parser = cli.parser("RUN [--sweep SWEEP.yaml]", sweep.__doc__, SweepConfig, run=cli.RUN)
    about = "the sweep's config; default: every key's default"
    parser.add_argument("--sweep", metavar="SWEEP.yaml", help=about)
    about = "measure again what an earlier sweep has measured"
    parser.add_argument("--again", action="store_true", help=about)
    arguments, config = cli.read_config(parser, argv, "sweep", "sweeps")
    run, training, console = cli.open_directory(arguments.run, config.distributed)
    from rope_jax.devices import processes
    from rope_jax.extras import install_line, is_installed
    from rope_jax.sweeps.run import sweep_run

    config, tables = sweep_run(run, training, config, console, again=arguments.again)
    if processes.is_first():
        from rope_jax.runtimes.writing import write_sweep_settings

        if training.model.position.is_rotary:
            write_sweep_settings(run, training, config, tables, console)
        tensorboard = f"tensorboard --logdir {shlex.quote(str(run.path))}"
        if not is_installed("tensorboard"):
            tensorboard = f"{install_line('tensorboard')} && {tensorboard}"
        page = cli.command_line("compare", str(run.evals / config.name))
        cli.print_next(f"{page}  # an interactive page", tensorboard)


def compare(argv: list[str]) -> None:
    """Compare runs, seeds and sweeps: figure, tables and page."""
    from rope_jax.config.presentation import CompareConfig

    parser = cli.parser("RUN [RUN ...]", compare.__doc__, CompareConfig)
    about = "a run with sweeps, or the folder of one sweep"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=about)
    arguments, config = cli.read_config(parser, argv)
    from rope_jax.comparison.comparable import find_mismatches, refuse_mismatches
    from rope_jax.comparison.curves import compare as compare_sweeps
    from rope_jax.comparison.read import find_sweeps, read_sweep
    from rope_jax.console import plain_console
    from rope_jax.report.comparison import check_output, page_line, write_comparison
    from rope_jax.report.terminal import print_comparison

    stopping.check()
    folders = find_sweeps(list(map(Path, arguments.runs)), config.sweep)
    sweeps = [read_sweep(folder) for folder in folders]
    mismatches = find_mismatches(sweeps)
    if not config.force:
        refuse_mismatches(mismatches)
    output = Path(config.output)
    is_replaced = check_output(output, sweeps, replace=config.replace)
    console = plain_console()
    with (
        console.status("resampling documents"),
        shortage_as("RUN: there is not enough memory; end other programs, or compare fewer runs"),
    ):
        comparison = compare_sweeps(sweeps, mismatches, config)
    files = write_comparison(output, comparison)
    print_comparison(console, comparison)
    written = ", ".join(printable(str(output / name)) for name in files)
    console.print(f"replaced {written}" if is_replaced else written, soft_wrap=True)
    cli.print_next(page_line(output))


def key_tokens(argv: list[str]) -> None:
    """Find tokens that need far context (LongPPL).

    The evaluator, RUN, was trained on long windows. Sweeps of other runs measure the perplexity of
    these tokens: task longppl.
    """
    from rope_jax.config.load import flow_yaml
    from rope_jax.config.sweep import KeyTokensConfig

    parser = cli.parser("RUN short=512", key_tokens.__doc__, KeyTokensConfig, run=cli.RUN)
    arguments, config = cli.read_config(parser, argv)
    run, training, console = cli.open_directory(arguments.run)
    from rope_jax.sweeps.key_tokens import find_key_tokens

    path = find_key_tokens(run, training, config, console)
    tasks = flow_yaml([{"task": "longppl", "mask": str(path)}])
    texts = [] if config.split == "test" else [f"split={config.split}"]
    if config.data is not None:
        texts.append(f"data={flow_yaml(config.data.model_dump(exclude_unset=True))}")
    cli.print_next(cli.command_line("sweep", "RUN", f"tasks={tasks}", *texts))


def fit(argv: list[str]) -> None:
    """Fit a run's positions to longer texts, weights frozen.

    The result is the strategy file RUN/fits/<name>/strategy.json.
    """
    from rope_jax.config.fit import FitConfig
    from rope_jax.config.load import flow_yaml

    parser = cli.parser("RUN length=512 [--fit FIT.yaml]", fit.__doc__, FitConfig, run=cli.RUN)
    parser.add_argument("--fit", metavar="FIT.yaml", help="these keys")
    arguments, config = cli.read_config(parser, argv, "fit", "fits")
    run, training, console = cli.open_directory(arguments.run, texts_for=config)
    from rope_jax.fitting.run import STRATEGY, fit_run

    folder = fit_run(run, training, config, console)
    from rope_jax.runtimes.writing import write_fit_settings

    write_fit_settings(run, training, folder, console)
    entries = flow_yaml(["trained", str(folder / STRATEGY)])
    words = f"name=fit-{config.name}", f"scalings={entries}"
    cli.print_next(cli.command_line("sweep", str(run.path), *words))


def extend(argv: list[str]) -> None:
    """Extend a model: sweep, fit, judge and export, in given minutes.

    Measures ways to read LENGTH tokens against truncation to the model's window, says in three
    sentences whether one is better, and writes the model for a runtime if so. The same command
    continues, and repeats nothing.
    """
    from rope_jax.config.extend import ExtendConfig
    from rope_jax.config.load import load

    about = {"model": cli.RUN, "length": "tokens that it is to read, such as 32768"}
    parser = cli.parser("MODEL LENGTH", extend.__doc__, ExtendConfig, **about)

    def read(schema: Any, _: None, overrides: list[str]) -> ExtendConfig:
        return load(schema, None, [f"length={cli.parse(parser, argv).length}", *overrides])

    arguments, config = cli.read_config(parser, argv, read=read)
    run, training, console = cli.open_directory(arguments.model, texts_for=config)
    from rope_jax.extending.run import extend_run
    from rope_jax.report.comparison import page_line

    cli.print_next(page_line(extend_run(run, training, config, console)))


def generate(argv: list[str]) -> None:
    """Continue a text: prompt='…', a file, or standard input.

    The text appears as it is made. It is read as the beginning of a window of n tokens, as sweeps
    read it at that length: n is the trained window, unless prompt and continuation need more.
    """
    from rope_jax.config.generate import GenerateConfig
    from rope_jax.config.load import flow_yaml

    parser = cli.parser("RUN prompt='…'", generate.__doc__, GenerateConfig, run=cli.RUN)
    # as it stands: YAML would take ": " for a mapping
    words = [f"prompt={flow_yaml(x[7:])}" if x.startswith("prompt=") else x for x in argv]
    arguments, config = cli.read_config(parser, words)
    from rope_jax.generation.prompt import read_prompt

    prompt = read_prompt(config)
    run, training, console = cli.open_directory(arguments.run, stderr=True)
    from rope_jax.generation.run import continue_prompt

    continue_prompt(run, training, config, prompt, console)


def harness(argv: list[str]) -> None:
    """Run tasks of lm-evaluation-harness by scaling and length.

    Among them those of RULER and LongBench. Results go to RUN/harness/<name>/. The same command
    continues.
    """
    from rope_jax.config.harness import HarnessConfig
    from rope_jax.extras import needs_extra

    parser = cli.parser("RUN tasks=[ruler_vt]", harness.__doc__, HarnessConfig, run=cli.RUN)
    arguments, config = cli.read_config(parser, argv)
    # the bars of the harness's many parts; and its processes, which would be forks of this one
    os.environ |= {"TQDM_DISABLE": "1", "DISABLE_MULTIPROC": "1"}
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that there is no torch
    with needs_extra("lm-eval", "harness"):
        from rope_jax.harness.run import harness_run
    run, training, console = cli.open_directory(arguments.run)
    folder = harness_run(run, training, config, console)
    cli.print_next(f"tensorboard --logdir {shlex.quote(str(folder))}")


def plan(argv: list[str], devices: Sequence[Any] | None = None) -> None:
    """Show the cost of a run or a sweep without starting it.

    Parameters, tokens, FLOPs, and the memory that the compiler plans for. For the directory of a
    run, and with --sweep, the cost of a sweep. Keys are those of training with CONFIG, and those of
    the sweep with RUN.
    """
    # devices: of this machine, or others that only a compiler knows
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import config_path, load
    from rope_jax.config.sweep import SweepConfig

    usage = "CONFIG|RUN [--sweep SWEEP.yaml] [key=value ...]"
    about = "the config of a training run, or a run's directory"
    parser = cli.parser(usage, plan.__doc__, planned=about)
    parser.add_argument("--sweep", metavar="SWEEP.yaml", help="the sweep's config")
    arguments = cli.parse(parser, argv)
    overrides = arguments.overrides
    is_run = Path(arguments.planned, "config.yaml").is_file()
    sweep_file = None if arguments.sweep is None else config_path(arguments.sweep, "sweeps")
    config = None if is_run else load_training(config_path(arguments.planned), overrides)
    sweep_config = None
    if is_run or sweep_file is not None:
        sweep_config = load(SweepConfig, sweep_file, overrides if is_run else [])
    from rope_jax.console import plain_console
    from rope_jax.planning.plan import plan_sweep, plan_training, planned_vocabulary
    from rope_jax.runs.directory import RunDirectory

    stopping.check()
    console = plain_console()
    if config is None:
        config = RunDirectory(Path(arguments.planned)).load_config()
        vocab_size = planned_vocabulary(config, Path(arguments.planned))
    else:
        vocab_size = planned_vocabulary(config)
        plan_training(config, vocab_size, console, devices)
    if sweep_config is not None:
        plan_sweep(config, sweep_config, vocab_size, console, devices)
    words = () if arguments.sweep is None else ("--sweep", arguments.sweep)
    if is_run:
        cli.print_next(cli.command_line("sweep", arguments.planned, *words, *overrides))
    else:
        cli.print_next(cli.command_line("train", arguments.planned, *overrides))


def show(argv: list[str]) -> None:
    """Show scalings pair by pair, and unseen angles.

    For a geometry, or for the layers of a training config, which takes length, scalings and output
    besides its own keys.
    """
    from rope_jax.config.inspection import (
        ScalingConfig,
        check_writable,
        dump_inspection,
        load_inspection,
    )
    from rope_jax.inspection.curves import InspectedModel, make_curves

    about = "these keys, or a training config"
    parser = cli.parser("[CONFIG.yaml]", show.__doc__, ScalingConfig, config=about)
    _, (asked, training) = cli.read_config(
        parser, argv, "config", read=load_inspection, dump=lambda both: dump_inspection(*both)
    )
    model, output = InspectedModel.from_config(asked, training), Path(asked.output)
    length = asked.length or 4 * model.window
    curves = make_curves(model, asked, length)
    check_writable(output)
    from rope_jax.console import plain_console
    from rope_jax.inspection.scalings import print_scaling_tables, scaling_figure
    from rope_jax.plots.saving import save_figure
    from rope_jax.plots.style import figure_style

    stopping.check()
    console = plain_console()
    title = f"{model.title()}; a text of {length:,} tokens"
    console.print(title, style="bold")
    print_scaling_tables(console, curves)
    stopping.check()
    with figure_style():
        figure = scaling_figure(curves, window=model.window, length=length, title=title)
    with file_errors(output, "written"):
        save_figure(figure, output)
    console.print(printable(f"figure: {output}"))


def maps(argv: list[str]) -> None:
    """Show position maps as pictures.

    The relative position at which each query sees each key.
    """
    from rope_jax.config.inspection import MapsConfig, check_writable

    parser = cli.parser("[CONFIG.yaml]", maps.__doc__, MapsConfig, config="these keys")
    _, asked = cli.read_config(parser, argv, "config")
    output, length = Path(asked.output), asked.text_length
    table = output.with_suffix(".csv")
    check_writable(output, table)
    from rope_jax.console import plain_console
    from rope_jax.inspection.maps import maps_figure, print_maps, shown_maps, write_map_rows
    from rope_jax.plots.saving import save_figure
    from rope_jax.plots.style import figure_style

    stopping.check()
    shown = shown_maps(asked)
    console = plain_console()
    console.print(f"trained window L {asked.window:,}, a text of n {length:,} tokens", style="bold")
    print_maps(console, shown)
    stopping.check()
    with figure_style():
        figure = maps_figure(shown, length)
    with file_errors(output, "written"):
        save_figure(figure, output)
        write_map_rows(table, shown, length)
    console.print(printable(f"figure: {output}; last row of each map: {table}"))


def grid(argv: list[str]) -> None:
    """Run many experiments and compare them; also through Slurm.

    The same command continues.
    """
    from rope_jax.config.grid import GridConfig

    parser = cli.parser("[GRID.yaml]", grid.__doc__, GridConfig, config="these keys")
    _, config = cli.read_config(parser, argv, "config", "grids")
    from rope_jax.console import plain_console, print_message
    from rope_jax.grids.expand import expand
    from rope_jax.grids.run import done_jobs, run_jobs, shell_lines, submit
    from rope_jax.report.comparison import page_line

    stopping.check()
    jobs, logs = expand(config), Path(config.runs_dir) / "grids" / config.name
    done = done_jobs(jobs)
    console = plain_console()
    if config.dry_run:
        for job in jobs:
            print_message(console, f"{'done' if job.name in done else 'to do'}  {job.name}")
    elif config.launcher == "print":
        for line in shell_lines(jobs, done):
            print(line)
    elif config.launcher == "slurm":
        submit(jobs, done, config.slurm, logs, console)
    else:
        if run_jobs(jobs, logs, console):
            sys.exit(1)
        if config.compare is not None:
            cli.print_next(page_line(Path(config.compare.output)))


def import_(argv: list[str]) -> None:
    """Import a Hugging Face checkpoint as a run.

    Or a GGUF file. Neither needs torch.
    """
    from rope_jax.config.checkpoints import ImportConfig

    about = "a folder, an id (owner/name) on the hub, or a GGUF file"
    parser = cli.parser("MODEL", import_.__doc__, ImportConfig, model=about)
    arguments, config = cli.read_config(parser, argv)
    from rope_jax.checkpoints.importing import import_checkpoint
    from rope_jax.console import plain_console

    stopping.check()
    run = import_checkpoint(arguments.model, config, plain_console())
    cli.print_next(cli.command_line("sweep", str(run.path)))


def export(argv: list[str]) -> None:
    """Export a run as a folder for transformers, or as a GGUF file."""
    from rope_jax.config.checkpoints import ExportConfig

    about = {
        "run": "a run directory",
        "out": "a folder that does not exist yet, or a file named *.gguf",
    }
    parser = cli.parser("RUN OUT", export.__doc__, ExportConfig, **about)
    arguments, config = cli.read_config(parser, argv)
    from rope_jax.checkpoints.exporting import export_run
    from rope_jax.console import plain_console
    from rope_jax.runs.directory import RunDirectory

    stopping.check()
    export_run(RunDirectory(Path(arguments.run)), config, Path(arguments.out), plain_console())
    if not config.adapter:  # which is without the run's scaling
        cli.print_next(cli.command_line("sweep", arguments.out))


# In the order in which help lists them.
_ALL: tuple[Callable[[list[str]], None], ...] = (
    *(train, sweep, compare, key_tokens, fit, extend, generate),
    *(harness, plan, show, maps, grid, import_, export),
)
COMMANDS = {command.__name__.strip("_").replace("_", "-"): command for command in _ALL}


def run() -> None:
    cli.run(main)


def main(argv: list[str]) -> None:
    """Call the command that the first argument names with the others. UserError: there is none."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(f"usage: {INSTALLED} COMMAND …\n")
        print("How far past its training window can a model with rotary positions read?\n")
        for name, command in COMMANDS.items():
            print(f"  {name:11}{(command.__doc__ or '').splitlines()[0]}")
        print(f"\n{INSTALLED} COMMAND --help   its arguments and keys")
        print(f"{INSTALLED} --version        {__version__}\n\nTo begin: {INSTALLED} train demo")
        return
    name, *arguments = argv
    if name in ("-V", "--version"):
        print(f"{INSTALLED} {__version__}")
        return
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise UserError(f"unknown command; {advice}")
    COMMANDS[name](arguments)
