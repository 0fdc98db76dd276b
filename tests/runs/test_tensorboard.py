"""What `make tensorboard` prints."""

import os

from rope_jax.runs.tensorboard import count_event_folders, describe_tensorboard


def event_folders(folder, names, *, age=0):
    for name in names:
        place = folder / name
        place.mkdir(parents=True)
        (place / "events.out.tfevents.1").touch()
    os.utime(folder, (1e9 - age, 1e9 - age))


def test_every_folder_with_an_event_file_is_a_run_of_tensorboard(tmp_path):
    event_folders(tmp_path / "demo", [".", "evals/short", "evals/short/trained"][1:])
    (tmp_path / "demo" / "events.out.tfevents.0").touch()
    (tmp_path / "demo" / "checkpoints").mkdir()
    assert count_event_folders(tmp_path) == {
        tmp_path: 3,
        tmp_path / "demo": 3,
        tmp_path / "demo/evals": 2,
        tmp_path / "demo/evals/short": 2,
        tmp_path / "demo/evals/short/trained": 1,
    }
    assert count_event_folders(tmp_path / "absent") == {}


def test_it_says_what_to_open_and_how_to_show_one_run(tmp_path):
    event_folders(tmp_path / "old", ["evals/short"], age=60)
    event_folders(tmp_path / "new", ["evals/short"])
    assert describe_tensorboard(tmp_path) == [
        "Open http://localhost:6006/?smoothing=0",
        "All scalings on one chart: "
        "http://localhost:6006/?smoothing=0#custom_scalars&_smoothingWeight=0",
        f"Shown: all of {tmp_path}; for one run: make tensorboard RUNS={tmp_path}/new",
    ]
    (tmp_path / "new" / "config.yaml").touch()
    *_, shown = describe_tensorboard(tmp_path / "new")
    assert shown == f"Shown: the run {tmp_path}/new and its sweeps"
    *_, shown, warning = describe_tensorboard(tmp_path / "absent")
    assert shown.endswith(f"RUNS={tmp_path}/absent/demo")
    assert warning == f"{tmp_path}/absent holds nothing to show yet"


def test_with_more_than_40_runs_it_names_what_to_give_instead(tmp_path):
    event_folders(tmp_path / "many", [f"evals/{s}/{n}" for s in "ab" for n in range(21)])
    event_folders(tmp_path / "few", [f"evals/c/{n}" for n in range(5)], age=60)
    for age, name in enumerate("ba"):
        place = tmp_path / "many" / "evals" / name
        os.utime(place, (1e9 - 10 - age, 1e9 - 10 - age))
    *_, warning = describe_tensorboard(tmp_path)
    assert warning == (
        f"TensorBoard unticks all runs where there are more than 40, and {tmp_path} has 47: tick "
        f"those to see, or give RUNS={tmp_path}/many/evals/b (21) or RUNS={tmp_path}/many/evals/a "
        f"(21) or RUNS={tmp_path}/few (5)"
    )
    assert len(describe_tensorboard(tmp_path / "few")) == 3
