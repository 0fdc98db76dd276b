"""Training prints the newest figures, and names as they are."""

import io
import re

import pytest

from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.model.cost import flops_per_token
from rope_jax.training.run import flops_after
from rope_jax.training.terminal import TrainingProgress, announce, conclude

NAME = "a[red]x[/]:smile:"


def console(terminal=False, width=200):
    how = {"force_terminal": terminal, "no_color": True, "legacy_windows": False}
    return plain_console(file=io.StringIO(), width=width, **how)


def printed(console_):
    """Return the text on the terminal, without cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console_.file.getvalue())


def announced(done, width=200, then=(), more=None, **stage):
    out = console(width=width)
    stages = [{"steps": 5, "seq_len": 16, "batch_size": 4} | stage, *then]
    raw = {"name": "mine", "optim": {"warmup_steps": 1}, "stages": stages, "runs_dir": "[/]"}
    config = TrainingConfig.model_validate(raw | (more or {}))
    facts = {"tokenizer": "bytes, 257 tokens; document start: [/]", "corpus": ["train: [/] [bold]"]}
    announce(out, config, f"[/]/{NAME}", 1234, facts, done=done, seconds=7000.0)
    return printed(out)


def test_the_estimate_counts_the_steps_that_are_left():
    stages = [{"steps": 5, "seq_len": 16, "batch_size": 4}, {"steps": 3, "seq_len": 32}]
    stages[1]["batch_size"] = 2
    config = TrainingConfig.model_validate(
        {"name": "a", "optim": {"warmup_steps": 1}, "stages": stages}
    )
    first, second = (flops_per_token(config.model.spec(), 257, n) for n in (16, 32))
    assert flops_after(0, config, 257) == 5 * 64 * first + 3 * 64 * second
    assert flops_after(4, config, 257) == 64 * first + 3 * 64 * second
    assert flops_after(6, config, 257) == 2 * 64 * second
    assert flops_after(8, config, 257) == 0


def test_what_is_known_of_a_run_is_printed_as_it_is_and_fits_80_columns():
    mix = [{"task": "passkey", "share": 0.25}, {"task": "induction", "share": 0.125}]
    text = announced(0, width=80, more={"data": {"type": "stdlib", "mix": mix}})
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for line in (
        f"  run        [/]/{NAME}",
        "  positions  rope: 16 pairs, base 10,000, trained window L 16",
        "  tokenizer  bytes, 257 tokens; document start: [/]",
        "  corpus     train: [/] [bold]",
        "  mix        25% passkey, 12.5% induction",
        "  training   5 steps × 4 windows × 16 tokens = 320 tokens",
        "             none: slowest wavelength 35,330 tokens",
        "  time       about 2 hours, compiling and validation not counted",
    ):
        assert line in lines
    assert "resumes" not in text
    assert "documents" not in text
    assert "after step 3 of 5" in announced(3)


def test_windows_that_outgrow_l_without_scaling_are_warned_of():
    longer = {"steps": 5, "seq_len": 32, "batch_size": 2}
    warning = "rope.train_length: L is 16, the first stage's seq_len, and windows of 32 tokens"
    assert warning in announced(0, then=[longer])
    scaled = longer | {"scaling": {"type": "pi", "factor": 2.0}}
    for silent in (
        announced(0),
        announced(0, then=[scaled]),
        announced(0, then=[longer], more={"rope": {"train_length": 32}}),
        announced(0, then=[longer], more={"model": {"position": {"type": "alibi"}}}),
    ):
        assert "rope.train_length" not in silent


def test_windows_are_described_as_far_as_they_are_not_plain():
    text = announced(
        0,
        scaling={"type": "dynamic_pi"},
        positions={"type": "pose", "length": 64},
        mixed={"fraction": 0.25, "seq_len": 8},
        documents={"mask": "none"},
    )
    assert "dynamic_pi: slowest wavelength" in text
    assert "frequencies × 0.25" in text  # the scaling sees 64 tokens
    assert "pose positions below 64" in text
    assert "1 of 4 rows: windows of 8 tokens, none" in text
    assert "documents: mask none, positions reset" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_final_output_shows_the_last_validation(terminal):
    out = console(terminal)
    progress = TrainingProgress(out, total=4, done=0)
    with progress.bar:
        progress.trained(2, loss=2.0, tokens_per_second=None)
        progress.validated(2, loss=1.5)
        progress.trained(4, loss=1.75, tokens_per_second=14_321.0)
        progress.validated(4, loss=1.25)
    conclude(out, step=4, minutes=0.5, validation_loss=1.25)
    text = printed(out)
    *_, last, trained, validation = text.strip().splitlines()
    assert "validation 1.250" in last
    assert "1.500" not in last
    assert trained == "trained to step 4 in 0.5 minutes"
    assert validation == "validation loss 1.2500 nats per token, perplexity 3.490"
    if terminal:
        assert "loss 1.750, 14.3k tokens/s, validation 1.250" in last
    else:
        assert text.splitlines()[:4] == [
            "step 2/4  loss 2.000",
            "step 2/4  validation 1.500",
            "step 4/4  loss 1.750, 14.3k tokens/s",
            "step 4/4  validation 1.250",
        ]
