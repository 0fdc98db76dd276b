"""The files that the writers produce, read as a user's tools read them."""

import io
import json
import time

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rope_jax.runs.logs import JsonLinesWriter, TensorBoardWriter, last_step, logged_steps


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_json_lines(path, *steps, resume_step=0, note=""):
    writer = JsonLinesWriter(path, resume_step)
    for step in steps:
        writer.scalars(step, {"loss": step / 8, "note": note})


# JSON lines


def test_one_line_per_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.scalars(10, {"train/loss": 0.1 + 0.2, "tokens": 2**53 + 1})
    # Written during training, not only at its end.
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
    assert [(line["step"], line["note"]) for line in lines(path)[4:]] == [
        (4, "second"),
        (5, "second"),
        (6, "second"),
    ]


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3, "loss": 1.0}', "{", '{"step"'])
def test_resuming_drops_a_torn_last_line(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    write_json_lines(path, 1, 2)
    kept = path.read_text()
    path.write_text(kept + torn)
    JsonLinesWriter(path, resume_step=9)
    assert path.read_text() == kept


def test_starting_over_drops_everything(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_json_lines(path, 1, 2, note="first")
    write_json_lines(path, 1, note="second")
    assert [line["note"] for line in lines(path)] == ["second"]


def test_opening_creates_no_other_file(tmp_path):
    write_json_lines(tmp_path / "metrics.jsonl", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_loss_is_still_json(tmp_path, value):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    path = tmp_path / "metrics.jsonl"
    writer = JsonLinesWriter(path)
    writer.scalars(1, {"loss": value, "rate": 0.5})
    line = json.loads(path.read_text(), parse_constant=refuse)
    assert (line["step"], line["rate"]) == (1, 0.5)
    # The run can still be resumed.
    write_json_lines(path, 2, resume_step=1)
    assert [line["step"] for line in lines(path)] == [1, 2]


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


def scalars(directory):
    """Read the scalars of a directory: {name: [(step, value)]}."""
    accumulator = events(directory)
    return {
        name: [(event.step, event.value) for event in accumulator.Scalars(name)]
        for name in accumulator.Tags()["scalars"]
    }


def write_events(directory, steps, values, resume_step=None):
    writer = TensorBoardWriter(directory, resume_step)
    for step, value in zip(steps, values, strict=True):
        writer.scalars(step, {"train/loss": value, "half": value / 2})
    writer.close()


def test_scalars_are_read_back(tmp_path):
    steps, values = [1, 20, 2**40, 2**40 + 1], [0.1, -3e30, float("inf"), 5.0]
    write_events(tmp_path, steps, values)
    assert scalars(tmp_path) == {
        "train/loss": list(zip(steps, map(np.float32, values), strict=True)),
        "half": list(zip(steps, (np.float32(v / 2) for v in values), strict=True)),
    }


def test_resuming_hides_what_an_earlier_attempt_logged_later(tmp_path, clock):
    write_events(tmp_path, [1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    clock[0] += 1
    write_events(tmp_path, [4, 5, 6], [41, 51, 61], resume_step=3)
    assert scalars(tmp_path)["train/loss"] == [
        (1, 10),
        (2, 20),
        (3, 30),
        (4, 41),
        (5, 51),
        (6, 61),
    ]


def test_resuming_hides_later_steps_even_if_the_clock_is_behind(tmp_path, clock):
    write_events(tmp_path, [1, 2, 3, 4], [10, 20, 30, 40])
    clock[0] -= 3600
    write_events(tmp_path, [3, 4], [31, 41], resume_step=2)
    assert scalars(tmp_path)["train/loss"] == [(1, 10), (2, 20), (3, 31), (4, 41)]


def test_starting_over_hides_an_attempt_that_saved_nothing(tmp_path, clock):
    write_events(tmp_path, [1, 2], [10, 20], resume_step=0)
    clock[0] += 1
    write_events(tmp_path, [1], [11], resume_step=0)
    assert scalars(tmp_path)["train/loss"] == [(1, 11)]


def test_two_writers_in_one_second_have_separate_files(tmp_path, clock):
    write_events(tmp_path, [1], [10])
    write_events(tmp_path, [2], [20])
    files = [path.name for path in tmp_path.iterdir()]
    assert len(files) == 2
    assert all(".out.tfevents.2000000000." in name for name in files)
    assert sorted(scalars(tmp_path)["train/loss"]) == [(1, 10), (2, 20)]


def test_an_image_and_a_text_are_read_back(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)
    writer = TensorBoardWriter(tmp_path)
    writer.image(7, "curve", pixels)
    writer.text(0, "config", "```yaml\nname: a\n```")
    writer.close()
    accumulator = events(tmp_path)
    (image,) = accumulator.Images("curve")
    assert (image.step, image.height, image.width) == (7, 12, 17)
    with Image.open(io.BytesIO(image.encoded_image_string)) as shown:
        np.testing.assert_array_equal(np.asarray(shown), pixels)
    (text,) = accumulator.Tensors("config/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "```yaml\nname: a\n```"


@pytest.mark.parametrize(
    "step", ["Infinity", "-1e999", "1" + "0" * 400, "-3", "2.5", '"4"', "null"]
)
def test_a_step_that_is_no_step_is_dropped(tmp_path, step):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 2, "a": 1}}\n{{"step": {step}, "a": 1}}\n')
    assert last_step(path) == 2
    assert logged_steps(path, "a") == {2}
    JsonLinesWriter(path, resume_step=5)
    assert path.read_text() == '{"step": 2, "a": 1}\n'


def test_what_a_batch_holds_follows_the_loss_in_tensorboard(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    values = {"train/loss": 1.0, "distances/0-15": 0.5, "tokens_at/0-15": 0.25, "sweep/a/b_1": 2.0}
    writer.scalars(1, values)
    writer.histogram(1, "distances", [0, 1, 2], [3, 4])
    writer.close()
    tags = events(tmp_path).Tags()
    assert sorted(tags["scalars"]) == [
        "sweep/a/b_1", "train/loss", "train_distances/0-15", "train_tokens_at/0-15"
    ]  # fmt: skip
    assert tags["histograms"] == ["train_distances"]
