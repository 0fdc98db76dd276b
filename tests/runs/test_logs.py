"""The files that the writers produce, read as a user's tools read them."""

import io
import json
import time

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import summary

from rope_jax.runs.logs import JsonLinesWriter, TensorBoardWriter


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_json_lines(path, *steps, resume_step=0, note=""):
    writer = JsonLinesWriter(path, resume_step)
    for step in steps:
        writer.scalars(step, {"loss": step / 8, "note": note})


# JSON lines


def test_one_line_per_step_written_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.scalars(10, {"train/loss": 0.1 + 0.2, "tokens": 2**53 + 1})
    expected = [{"step": 10, "train/loss": 0.30000000000000004, "tokens": 2**53 + 1}]
    assert lines(path) == expected
    writer.scalars(20, {})
    assert lines(path) == [*expected, {"step": 20}]


def test_resuming_drops_later_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_json_lines(path, 1, 2, 3, 3, 4, 5, note="first")
    before = path.read_text().splitlines()
    write_json_lines(path, 4, 5, 6, resume_step=3, note="second")
    # Kept lines are kept unchanged: step 3 has two, one of training and one of validation.
    assert path.read_text().splitlines()[:4] == before[:4]
    second = [(4, "second"), (5, "second"), (6, "second")]
    assert [(line["step"], line["note"]) for line in lines(path)[4:]] == second
    write_json_lines(path, 1, note="third")
    assert [line["note"] for line in lines(path)] == ["third"]


@pytest.mark.parametrize("line", ['{"step": 3, "lo', '{"step": 3, "a": 1.0}', "{\n", "[]\n"])
def test_a_line_that_is_torn_or_has_no_step_is_dropped(tmp_path, line):
    path, kept = tmp_path / "metrics.jsonl", '{"step": 2, "a": 1}\n'
    path.write_text(kept + line)
    JsonLinesWriter(path, resume_step=5)
    assert path.read_text() == kept


def test_a_diverged_loss_is_still_json(tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    for step, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        writer.scalars(step, {"loss": value, "rate": 0.5})
    for step, line in enumerate(path.read_text().splitlines()):
        found = json.loads(line, parse_constant=refuse)
        assert found == {"step": step, "loss": None, "rate": 0.5}


# TensorBoard


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the time, for the test to change; event files are named by the second."""
    now = [2_000_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def events(directory):
    """Read a directory as TensorBoard does."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(directory, name="train/loss"):
    return [(event.step, event.value) for event in events(directory).Scalars(name)]


def write_events(directory, steps, values, resume_step=None):
    writer = TensorBoardWriter(directory, resume_step)
    for step, value in zip(steps, values, strict=True):
        writer.scalars(step, {"train/loss": value, "half": value / 2})
    return writer


@pytest.mark.parametrize("later", [1, 0, -3600])  # the clock may be behind
@pytest.mark.parametrize("resume_step", [0, 3])
def test_resuming_hides_what_an_earlier_attempt_logged_later(tmp_path, clock, resume_step, later):
    write_events(tmp_path, [1, 2, 3, 4, 5], [10, 20, 30, 40, 50], 0).close()
    clock[0] += later
    again = range(resume_step + 1, 7)
    write_events(tmp_path, again, [10 * step + 1 for step in again], resume_step).close()
    kept = [(step, 10 * step) for step in range(1, resume_step + 1)]
    assert scalars(tmp_path) == kept + [(step, 10 * step + 1) for step in again]
    assert len(list(tmp_path.glob("*.out.tfevents.*"))) == 2


def test_scalars_an_image_and_a_text_are_read_back(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)
    steps, values = [1, 20, 2**40, 2**40 + 1], [0.1, -3e30, float("inf"), 5.0]
    writer = write_events(tmp_path, steps, values)
    writer.add(7, summary.image("curve", pixels, dataformats="HWC"))
    writer.add(0, summary.text("config", "```yaml\nname: a\n```"))
    writer.close()
    assert scalars(tmp_path) == list(zip(steps, map(np.float32, values), strict=True))
    assert scalars(tmp_path, "half")[0] == (1, np.float32(0.05))
    accumulator = events(tmp_path)
    (image,) = accumulator.Images("curve")
    assert (image.step, image.height, image.width) == (7, 12, 17)
    with Image.open(io.BytesIO(image.encoded_image_string)) as shown:
        np.testing.assert_array_equal(np.asarray(shown), pixels)
    (text,) = accumulator.Tensors("config/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "```yaml\nname: a\n```"


def test_what_a_batch_holds_follows_the_loss_in_tensorboard(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    values = {"train/loss": 1.0, "distances/0-15": 0.5, "tokens_at/0-15": 0.25, "sweep/a/b_1": 2.0}
    writer.scalars(1, values)
    writer.close()
    assert sorted(events(tmp_path).Tags()["scalars"]) == [
        "sweep/a/b_1", "train/loss", "train_distances/0-15", "train_tokens_at/0-15"
    ]  # fmt: skip
