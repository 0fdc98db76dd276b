"""What `make tensorboard` prints."""

from rope_jax.runs.tensorboard import describe_tensorboard


def event_folders(folder, names):
    for name in names:
        place = folder / name
        place.mkdir(parents=True)
        (place / "events.out.tfevents.1").touch()


def test_it_says_what_to_open_and_how_to_show_one_run(tmp_path):
    event_folders(tmp_path / "new", ["evals/short"])
    assert describe_tensorboard(tmp_path) == [
        "Open http://localhost:6006/?smoothing=0",
        "All scalings on one chart: "
        "http://localhost:6006/?smoothing=0#custom_scalars&_smoothingWeight=0",
        f"Shown: all of {tmp_path}; for one run: make tensorboard RUNS={tmp_path}/NAME",
    ]
    (tmp_path / "new" / "config.yaml").touch()
    *_, shown = describe_tensorboard(tmp_path / "new")
    assert shown == f"Shown: the run {tmp_path}/new and its sweeps"
    *_, warning = describe_tensorboard(tmp_path / "absent")
    assert warning == f"{tmp_path}/absent holds nothing to show yet"


def test_more_than_40_runs_are_warned_of(tmp_path):
    event_folders(tmp_path / "many", [f"evals/{s}/{n}" for s in "ab" for n in range(21)])
    (tmp_path / "many/evals/a/0/events.out.tfevents.2").touch()  # of the same run
    *_, warning = describe_tensorboard(tmp_path)
    assert warning == (
        f"TensorBoard unticks all runs where there are more than 40, and {tmp_path} has 42: tick "
        "those to see, or give RUNS=, the folder of one run or one sweep"
    )
