"""Attack training, sweeps and comparisons; nothing may be lost, hang, or be wrong without a word.

    python scripts/chaos.py                          # 1,000 cases, about an hour
    python scripts/chaos.py --cases 40 --seed 7
    python scripts/chaos.py --only kills signals

A tiny run is trained, swept and compared without any disturbance. Then, by category:

kills        SIGKILL at a random moment or in a save. The run or sweep that ends despite it is the
             same as the undisturbed one, bit by bit.
signals      Ctrl-C or SIGTERM at a random moment. The command ends within seconds, in one line.
damage       A file is cut, changed, zeroed, deleted or replaced by a folder. The command refuses it
             in one line, or gives the same figures.
full disk    No file can grow past a random size. One line; once there is space, the same figures.
permissions  A file or folder may not be read or written. One line; afterwards, the same figures.
fuzz         Configs, overrides, sizes and results that make no sense. One line within seconds.

Ends with status 1 if any case failed. The same seed gives the same attacks, at moments that depend
on the machine.
"""

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from attacks import damage, full_disk, fuzz, kills, permissions, signals
from attacks.bench import Bench

# category: (its attack, its share of the cases in percent)
CATEGORIES = {
    "kills": (kills.attack, 6),
    "signals": (signals.attack, 12),
    "damage": (damage.attack, 30),
    "full disk": (full_disk.attack, 6),
    "permissions": (permissions.attack, 6),
    "fuzz": (fuzz.attack, 40),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="number of cases (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attacks (default 0)")
    parser.add_argument(
        "--only", nargs="+", choices=CATEGORIES, default=list(CATEGORIES), help="categories"
    )
    arguments = parser.parse_args()
    # A shell has its background jobs ignore Ctrl-C, and the commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    total = sum(CATEGORIES[name][1] for name in arguments.only)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.seed)
        bench.prepare()
        for name in arguments.only:
            attack, share = CATEGORIES[name]
            count = max(1, round(arguments.cases * share / total))
            failed = 0
            chance = random.Random(f"{arguments.seed} {name}")
            for number, (what, problem) in enumerate(attack(bench, chance, count)):
                if problem is not None:
                    failed += 1
                    print(f"  {name} {number}: {what[:300]}: {problem}", flush=True)
            print(f"{name}: {count} tried, {failed} failed", flush=True)
            failures += failed
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
