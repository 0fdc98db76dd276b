"""Tasks that ask whether far context is used.

To add one, write a file here with a subclass of `Task` and list it below.
"""

from rope_jax.tasks.base import Question, Request, Sample, Task, TokenizerView
from rope_jax.tasks.copying import Induction, Repeat
from rope_jax.tasks.draws import Draws
from rope_jax.tasks.original import PasskeyText, RulerNeedle
from rope_jax.tasks.passkey import Passkey

__all__ = ["TASKS", "Draws", "Question", "Request", "Sample", "Task", "TokenizerView"]

_ALL: tuple[type[Task], ...] = (Repeat, Induction, Passkey, PasskeyText, RulerNeedle)
TASKS = {task.model_fields["task"].default: task for task in _ALL}
